//! One arena of the picture, and the text in its rectangles.

use super::axis::{byte_ticks, Scale, LEFT, RIGHT};
use super::colour::{self, Palette};
use super::pieces::Piece;
use super::text::{self, label, px, SMALL, TINY};
use crate::plan::layout::{Layout, LayoutStatus};
use crate::plan::problem::{Buffer, Place, Problem};
use std::fmt::Write;

/// A capacity above this many times the arena's size is written, not drawn.
const CAPACITY_SHOWN: u64 = 2;
/// Shortest side of a rectangle that gets an outline, pixels.
const OUTLINED: f64 = 4.0;
/// Height of a line of text, pixels.
const LINE: f64 = 14.0;
/// Height of a rectangle that holds a line of the smallest text, pixels.
const LOWEST: f64 = 11.0;
/// Most reserved ranges that are drawn.
const MOST_RESERVED: usize = 2_000;

/// One arena of the picture.
pub struct Panel {
    /// Index of the arena.
    pub arena: u32,
    /// Scale of bytes; 0 is at the bottom.
    pub y: Scale,
    /// Name beside the axis, if there are several arenas.
    name: Option<String>,
    size: u64,
    lower_bound: u64,
    capacity: Option<u64>,
}

impl Panel {
    /// The panel of arena `arena`, `height` pixels high, below `top`.
    pub fn new(problem: &Problem, layout: &Layout, arena: u32, top: f64, height: f64) -> Panel {
        let given = problem.arenas().get(arena as usize);
        let several = problem.arenas().len() > 1;
        let used = layout.arenas.get(arena as usize).copied().unwrap_or_default();
        // Without slots only the total is known; with one arena, it is that arena's size.
        let size = if several { used.size } else { layout.size };
        let lower_bound = if several { used.lower_bound } else { layout.lower_bound };
        let least = size.max(lower_bound).max(1);
        let capacity = given.and_then(|a| a.capacity);
        let shown = capacity.filter(|&c| c / CAPACITY_SHOWN <= least).unwrap_or(0).max(least);
        let name = several.then(|| match given.and_then(|a| a.name.as_deref()) {
            Some(name) => {
                let both = format!("arena {arena}, {}", text::one_line(name));
                text::fit(&both, height, SMALL).unwrap_or_default()
            }
            None => format!("arena {arena}"),
        });
        // Leave space above, so that the highest line is not on the frame.
        let y = Scale { lo: 0, hi: shown.saturating_add((shown / 25).max(1)), from: top + height, to: top };
        Panel { arena, y, name, size, lower_bound, capacity }
    }

    /// Draws the empty plot: unused bytes, and the axis.
    pub fn background(&self, out: &mut String, x: Scale) {
        let (top, bottom) = (self.y.to, self.y.from);
        let _ = writeln!(
            out,
            "<rect class=\"arena\" data-arena=\"{}\" data-bytes=\"{}\" data-lower=\"{}\" data-upper=\"{}\" \
             x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{}\"/>",
            self.arena,
            self.y.hi,
            x.lo,
            x.hi,
            px(LEFT),
            px(top),
            px(RIGHT - LEFT),
            px(bottom - top),
            colour::GRID
        );
        let used = self.y.at(self.size);
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
            px(LEFT),
            px(used),
            px(RIGHT - LEFT),
            px(bottom - used),
            colour::EMPTY
        );
        let mut ticks = String::new();
        let most = ((bottom - top) / 50.0).max(2.0) as u64;
        for bytes in byte_ticks(self.y.hi, most) {
            let y = self.y.at(bytes);
            let _ = write!(ticks, "M{} {}h-5", px(LEFT), px(y));
            label(out, LEFT - 8.0, y + 4.0, "end", "", &text::bytes(bytes));
        }
        let _ = writeln!(
            out,
            "<path d=\"M{} {}V{}H{}{ticks}\" stroke=\"{}\" fill=\"none\"/>",
            px(LEFT),
            px(top),
            px(bottom),
            px(RIGHT),
            colour::FAINT
        );
        if let Some(name) = &self.name {
            let y = (top + bottom) / 2.0;
            let attributes = format!("fill=\"{}\" transform=\"rotate(-90 14 {})\"", colour::FAINT, px(y));
            label(out, 14.0, y, "middle", &attributes, name);
        }
    }

    /// Draws reserved ranges, hatched.
    pub fn reserved(&self, out: &mut String, x: Scale, problem: &Problem) {
        let mine = problem.reserved().iter().filter(|r| r.arena == self.arena && r.size > 0 && !r.during.is_empty());
        for r in mine.take(MOST_RESERVED) {
            let end = r.offset.saturating_add(r.size);
            let (left, top) = (x.at(r.during.lower), self.y.at(end));
            let (w, h) = (x.at(r.during.upper) - left, self.y.at(r.offset) - top);
            let _ = writeln!(
                out,
                "<rect class=\"reserved\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"url(#gpumem-hatch)\" \
                 fill-opacity=\"0.6\" stroke=\"{}\"><title>reserved\n{}\nsteps {}\noffset {}</title></rect>",
                px(left),
                px(top),
                px(w),
                px(h),
                colour::FAINT,
                exact(r.size),
                r.during,
                text::grouped(r.offset)
            );
        }
    }

    /// Draws lines of sizes, with labels beside the plot that do not overlap.
    pub fn lines(&self, out: &mut String, layout: &Layout) {
        let no_layout = matches!(layout.status, LayoutStatus::Infeasible | LayoutStatus::OutOfTime);
        let size = if no_layout { "smallest found" } else { "arena size" };
        let mut lines = vec![(self.lower_bound, "lower bound", colour::FAINT, "1.5", "2 3", "lower-bound")];
        if self.size > 0 || !no_layout {
            lines.insert(0, (self.size, size, colour::INK, "1.5", "none", "size"));
        }
        let mut beyond = None;
        match self.capacity {
            Some(c) if c <= self.y.hi => lines.push((c, "capacity", colour::CAPACITY, "1.5", "9 3", "capacity")),
            c => beyond = c,
        }
        lines.sort_by_key(|&(bytes, ..)| std::cmp::Reverse(bytes));
        let mut free = self.y.to + 4.0;
        if let Some(capacity) = beyond {
            let says = format!("↑ capacity {}", text::bytes(capacity));
            label(out, RIGHT + 12.0, free, "start", &format!("fill=\"{}\"", colour::CAPACITY), &says);
            free += LINE;
        }
        for (bytes, what, ink, wide, dashes, class) in lines {
            let y = self.y.at(bytes);
            let at = (y + 4.0).max(free);
            free = at + LINE;
            let _ = writeln!(
                out,
                "<path class=\"{class}\" data-bytes=\"{bytes}\" d=\"M{} {}H{}l7 {}\" stroke=\"{ink}\" fill=\"none\" \
                 stroke-width=\"{wide}\" stroke-dasharray=\"{dashes}\"/>",
                px(LEFT),
                px(y),
                px(RIGHT),
                px(at - 4.0 - y)
            );
            let says = format!("{what} {}", text::bytes(bytes));
            label(out, RIGHT + 12.0, at, "start", &format!("fill=\"{ink}\""), &says);
        }
    }
}

/// A byte count in rounded and exact form.
fn exact(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    format!("{} ({} bytes)", text::bytes(bytes), text::grouped(bytes))
}

/// Draws rectangles as separate elements with tooltips; a light outline separates the larger ones.
pub fn alone(out: &mut String, pieces: &[Piece], problem: &Problem, layout: &Layout, palette: &Palette) {
    let outlined = |p: &Piece| p.w >= OUTLINED && p.h >= OUTLINED;
    let mut groups: Vec<&Piece> = pieces.iter().collect();
    groups.sort_by_key(|p| (outlined(p), p.class));
    for group in groups.chunk_by(|a, b| (outlined(a), a.class) == (outlined(b), b.class)) {
        let Some(first) = group.first() else { continue };
        let stroke = if outlined(first) { " stroke=\"#ffffff\" stroke-width=\"0.75\"" } else { "" };
        let _ = writeln!(out, "<g class=\"buffers\" fill=\"{}\"{stroke}>", palette.fill(first.class));
        for p in group {
            let Some(b) = problem.buffers().get(p.id.index()) else { continue };
            rectangle(out, p, b, layout);
        }
        out.push_str("</g>\n");
    }
}

/// Draws names inside rectangles that have room, outlined in the rectangle's colour to hide lines
/// below.
pub fn labels(out: &mut String, pieces: &[Piece], problem: &Problem, palette: &Palette) {
    let mut groups: Vec<&Piece> = pieces.iter().filter(|p| p.w.min(p.h) >= LOWEST).collect();
    groups.sort_by_key(|p| p.class);
    for group in groups.chunk_by(|a, b| a.class == b.class) {
        let Some(class) = group.first().map(|p| p.class) else { continue };
        let _ = writeln!(
            out,
            "<g class=\"labels\" fill=\"{}\" stroke=\"{}\" stroke-width=\"4\" stroke-linejoin=\"round\" \
             paint-order=\"stroke\" pointer-events=\"none\">",
            palette.ink(class),
            palette.fill(class)
        );
        for p in group {
            let Some(b) = problem.buffers().get(p.id.index()) else { continue };
            inscribe(out, p, b);
        }
        out.push_str("</g>\n");
    }
}

fn rectangle(out: &mut String, p: &Piece, b: &Buffer, layout: &Layout) {
    let _ = write!(
        out,
        "<rect data-id=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>",
        p.id,
        px(p.x),
        px(p.y),
        px(p.w),
        px(p.h)
    );
    let slot = layout.slot(p.id).unwrap_or(crate::plan::layout::Slot { arena: 0, offset: 0 });
    if let Some(name) = &b.name {
        text::escape(out, &text::tooltip_name(name));
        out.push('\n');
    }
    let _ = write!(out, "buffer {}, {}\nsteps {}", p.id, exact(b.size), p.during);
    if !b.gaps.is_empty() {
        let _ = write!(out, " of [{}, {})", b.lower, b.upper);
    }
    let _ = write!(out, "\noffset {}", text::grouped(slot.offset));
    if matches!(b.place, Place::Fixed(_)) {
        out.push_str(" (fixed)");
    }
    if layout.arenas.len() > 1 {
        let _ = write!(out, " of arena {}", slot.arena);
    }
    if b.guard > 0 {
        let _ = write!(out, "\nguard {}", exact(b.guard));
    }
    out.push_str("</title></rect>\n");
    if p.guard >= 0.5 {
        let _ = writeln!(
            out,
            "<rect class=\"guard\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\"0.35\"/>",
            px(p.x),
            px(p.y - p.guard),
            px(p.w),
            px(p.guard)
        );
    }
}

/// Writes a name, and the size if there is room, in one line or two; upwards in a narrow rectangle.
fn inscribe(out: &mut String, p: &Piece, b: &Buffer) {
    let name = match &b.name {
        Some(name) => text::one_line(name),
        None => p.id.to_string(),
    };
    let size = text::bytes(b.size);
    let (x, y) = (p.x + p.w / 2.0, p.y + p.h / 2.0);
    let level = Lines::new(&name, &size, p.w, p.h);
    // Write upwards only if nothing fits level.
    let upright = if level.is_none() && p.h > p.w { Lines::new(&name, &size, p.h, p.w) } else { None };
    let turn = if upright.is_some() { format!("transform=\"rotate(-90 {} {})\"", px(x), px(y)) } else { String::new() };
    let Some(lines) = level.or(upright) else { return };
    let font = if lines.font == SMALL { turn } else { format!("font-size=\"{}\" {turn}", lines.font) };
    match lines.second {
        None => label(out, x, y + 0.36 * lines.font, "middle", &font, &lines.first),
        Some(second) => {
            label(out, x, y - 3.0, "middle", &font, &lines.first);
            label(out, x, y + 11.0, "middle", &font, &second);
        }
    }
}

/// The text in a rectangle.
struct Lines {
    font: f64,
    first: String,
    second: Option<String>,
}

impl Lines {
    /// The text that fits into `along` pixels of width and `across` pixels of height, if any.
    fn new(name: &str, size: &str, along: f64, across: f64) -> Option<Lines> {
        const AIR: f64 = 8.0;
        let font = if across >= LINE { SMALL } else { TINY };
        let room = along - AIR;
        let first = text::fit(name, room, font).filter(|_| across >= LOWEST)?;
        let two = across >= 2.5 * LINE;
        let both = format!("{name} · {size}");
        if !two && text::width(&both, font) <= room {
            return Some(Lines { font, first: both, second: None });
        }
        let second = (two && text::width(size, font) <= room).then(|| size.to_string());
        Some(Lines { font, first, second })
    }
}
