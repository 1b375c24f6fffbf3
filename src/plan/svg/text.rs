//! Text in a picture: XML escapes, widths, and readable numbers.

use crate::base::size;
use std::fmt::Write;

/// Font size of labels inside rectangles and of axes, pixels.
pub const SMALL: f64 = 11.0;
/// Font size of labels in low rectangles, pixels.
pub const TINY: f64 = 9.0;
/// Font size of the heading, pixels.
pub const LARGE: f64 = 16.0;

/// Average character width of DejaVu Sans, the widest of the usual sans-serif fonts, as a share of
/// the font size. Names and numbers are mostly lower-case letters, digits and underscores.
const ADVANCE: f64 = 0.64;
/// Width of a character that fills a square, such as Chinese and most symbols, as a share of the
/// font size.
const WIDE: f64 = 1.05;

/// Most characters of a name in a tooltip.
const TOOLTIP_LIMIT: usize = 120;

/// Appends `text` as character data or an attribute value. It escapes markup, and drops characters
/// that XML does not allow, that are invisible, or that change the direction of text.
pub fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            c if hidden(c) => {}
            c => out.push(c),
        }
    }
}

fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

/// A name as one line of text.
pub fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect()
}

/// A name for a tooltip: one line, cut to [`TOOLTIP_LIMIT`] characters.
pub fn tooltip_name(name: &str) -> String {
    let name = one_line(name);
    match name.char_indices().nth(TOOLTIP_LIMIT) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name,
    }
}

/// An upper estimate of the width of `text`, pixels.
pub fn width(text: &str, font_size: f64) -> f64 {
    text.chars().map(|c| if c < '\u{1100}' { ADVANCE } else { WIDE }).sum::<f64>() * font_size
}

/// `name`, or its two ends with an ellipsis between, in at most `room` pixels; `None` if fewer than
/// five characters would be left. Names in a model differ at either end.
pub fn fit(name: &str, room: f64, font_size: f64) -> Option<String> {
    const FEWEST: usize = 5;
    if width(name, font_size) <= room {
        return Some(name.to_string()).filter(|n| !n.is_empty());
    }
    let mut room = room - width("…", font_size);
    let (mut head, mut tail) = (String::new(), Vec::new());
    let mut rest = name.chars();
    // Take characters from both ends in turn.
    for at_end in [false, true].into_iter().cycle() {
        let Some(c) = (if at_end { rest.next_back() } else { rest.next() }) else { break };
        room -= width(c.encode_utf8(&mut [0; 4]), font_size);
        if room < 0.0 {
            break;
        }
        if at_end {
            tail.push(c);
        } else {
            head.push(c);
        }
    }
    let kept = head.chars().count() + tail.len();
    let tail: String = tail.into_iter().rev().collect();
    (kept >= FEWEST).then(|| format!("{}…{}", head.trim_end(), tail.trim_start()))
}

/// A byte count without trailing zeros: `256 KiB`, `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    let text = size::human(n);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Digits in groups of three: `1,048,576`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A coordinate to a hundredth of a pixel, without trailing zeros.
pub fn px(v: f64) -> String {
    let text = format!("{v:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" || text.is_empty() { "0" } else { text }.to_string()
}

/// Writes text. `anchor` is SVG's `text-anchor`.
pub fn label(out: &mut String, x: f64, y: f64, anchor: &str, attributes: &str, text: &str) {
    let _ = write!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" {attributes}>", px(x), px(y));
    escape(out, text);
    out.push_str("</text>\n");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([px(0.0), px(-0.001), px(100.0), px(1.5), px(0.126)], ["0", "0", "100", "1.5", "0.13"]);
        assert_eq!([bytes(100), bytes(1 << 20), bytes(1536), bytes(10 << 40)], ["100 B", "1 MiB", "1.5 KiB", "10 TiB"]);
        assert_eq!([grouped(0), grouped(999), grouped(1000), grouped(1_048_576)], ["0", "999", "1,000", "1,048,576"]);
    }

    #[test]
    fn a_name_is_cut_to_its_room_or_left_out() {
        assert_eq!(fit("abc", 100.0, SMALL).unwrap(), "abc");
        assert_eq!(fit("", 100.0, SMALL), None);
        let cut = fit("model/layer/weights", 80.0, SMALL).unwrap();
        assert!(cut.starts_with("mode") && cut.contains('…') && cut.ends_with("hts"), "{cut}");
        assert!(width(&cut, SMALL) <= 80.0 && cut.chars().count() < "model/layer/weights".len(), "{cut}");
        assert_eq!(fit("model/layer/weights", 30.0, SMALL), None);
    }
}
