//! A layout as a picture: steps to the right, bytes up, a rectangle for each live range of each
//! buffer, and below it the live bytes over time.
//!
//! The picture is the same for the same problem and layout, and needs no script or special font.
//! Its size is bounded for any number of buffers: the largest are elements with a tooltip, smaller
//! ones share a path per colour, and the rest, like those thinner than half a pixel, form a
//! density.

mod axis;
mod colour;
mod panel;
mod pieces;
mod text;

use super::layout::{Layout, LayoutStatus};
use super::problem::{Interval, Problem, Step};
use super::report::{critical, live_curve};
use axis::{Scale, LEFT, RIGHT, WIDTH};
use colour::Palette;
use panel::Panel;
use pieces::{Piece, Sorted};
use std::collections::HashSet;
use std::fmt::Write;
use text::{label, px, LARGE, SMALL};

/// Top of the first arena; the heading and the label of the critical step are above it.
const TOP: f64 = 92.0;
/// Height of a single arena.
const ARENA: f64 = 540.0;
/// Least height of one of several arenas.
const LEAST_ARENA: f64 = 140.0;
/// Most arenas that are drawn.
const MOST_ARENAS: usize = 16;
/// Space between arenas, and above the live bytes.
const BETWEEN: f64 = 24.0;
/// Height of the plot of live bytes.
const LIVE: f64 = 90.0;
/// Height of the labels of steps and of the legend.
const BELOW: f64 = 86.0;

/// Attributes of text drawn over lines.
const HALO: &str = "stroke=\"#ffffff\" stroke-width=\"4\" stroke-linejoin=\"round\" paint-order=\"stroke\"";

/// The layout as SVG.
pub fn svg(problem: &Problem, layout: &Layout) -> String {
    Picture::new(problem, layout).draw()
}

/// Everything that is drawn, in pixels.
struct Picture<'a> {
    problem: &'a Problem,
    layout: &'a Layout,
    palette: Palette,
    /// Scale of steps.
    x: Scale,
    panels: Vec<Panel>,
    /// Scale of live bytes.
    live: Scale,
    /// Live bytes over time; `peak` is their maximum.
    curve: Vec<(Step, u128)>,
    peak: u64,
    height: f64,
    out: String,
}

impl<'a> Picture<'a> {
    fn new(problem: &'a Problem, layout: &'a Layout) -> Picture<'a> {
        let count = problem.arenas().len().min(MOST_ARENAS);
        let room = ARENA - BETWEEN * (count.saturating_sub(1)) as f64;
        let each = (room / count.max(1) as f64).max(LEAST_ARENA);
        let panels: Vec<Panel> = (0..count as u32)
            .map(|arena| Panel::new(problem, layout, arena, TOP + f64::from(arena) * (each + BETWEEN), each))
            .collect();
        let top = TOP + count as f64 * (each + BETWEEN);
        let curve = live_curve(problem);
        let peak = curve.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
        let peak = u64::try_from(peak).unwrap_or(u64::MAX);
        let live = Scale { lo: 0, hi: peak.saturating_add(peak / 12).max(1), from: top + LIVE, to: top };
        let steps = steps(problem);
        let x = Scale { lo: steps.lower, hi: steps.upper, from: LEFT, to: RIGHT };
        let height = top + LIVE + BELOW;
        Picture {
            problem,
            layout,
            palette: Palette::of(problem),
            x,
            panels,
            live,
            curve,
            peak,
            height,
            out: String::new(),
        }
    }

    fn draw(mut self) -> String {
        let (w, h) = (px(WIDTH), px(self.height));
        self.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
             font-family=\"'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\" font-size=\"{SMALL}\" fill=\"{}\">\n\
             <defs><pattern id=\"gpumem-hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><path d=\"M0 0V6\" stroke=\"{}\" stroke-width=\"2\"/></pattern></defs>\n\
             <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n",
            colour::INK,
            colour::FAINT,
        ));
        self.heading();
        let panels = std::mem::take(&mut self.panels);
        for panel in &panels {
            panel.background(&mut self.out, self.x);
        }
        let drawn = pieces::sort(self.pieces(&panels));
        self.buffers(&panels, &drawn);
        for panel in &panels {
            panel.reserved(&mut self.out, self.x, self.problem);
            panel.lines(&mut self.out, self.layout);
        }
        self.live_bytes();
        self.step_axis();
        self.critical_step();
        // Above every line, so that none crosses a name.
        panel::labels(&mut self.out, &drawn.alone, self.problem, &self.palette);
        if self.layout.slots.iter().all(Option::is_none) {
            self.nothing(&panels);
        }
        self.legend(&drawn);
        self.out.push_str("</svg>\n");
        self.out
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // A String takes whatever it is given.
        let _ = self.out.write_fmt(text);
    }

    /// Draws text. `anchor` is SVG's `text-anchor`.
    fn text(&mut self, x: f64, y: f64, anchor: &str, attributes: &str, text: &str) {
        label(&mut self.out, x, y, anchor, attributes, text);
    }

    fn heading(&mut self) {
        let layout = self.layout;
        let slots = layout.slots.iter().flatten().count();
        let (head, detail) = if matches!(layout.status, LayoutStatus::Infeasible | LayoutStatus::OutOfTime) {
            let found = match layout.size {
                0 => format!("{}: the lower bound is {}", layout.status.name(), text::bytes(layout.lower_bound)),
                size => format!("{}: the smallest found takes {}", layout.status.name(), text::bytes(size)),
            };
            (format!("Memory plan: no layout of {}", buffers(layout.slots.len())), found)
        } else {
            let above = if layout.size > layout.lower_bound {
                match 100.0 * layout.gap() {
                    gap if gap < 0.01 => "less than 0.01 % above the lower bound".to_string(),
                    gap => format!("{gap:.2} % above the lower bound"),
                }
            } else {
                "at the lower bound".to_string()
            };
            (
                format!("Memory plan: {} in {}", buffers(slots), text::bytes(layout.size)),
                format!(
                    "{}, {above}; {} without sharing, {} saved",
                    layout.status.name(),
                    text::bytes(layout.total_unshared),
                    text::bytes(layout.saved())
                ),
            )
        };
        self.text(LEFT, 32.0, "start", &format!("font-size=\"{LARGE}\" font-weight=\"bold\""), &head);
        self.text(LEFT, 52.0, "start", &format!("fill=\"{}\"", colour::FAINT), &detail);
        let hidden = self.problem.arenas().len().saturating_sub(self.panels.len());
        if hidden > 0 {
            let more = format!("{hidden} more arenas are not drawn");
            self.text(RIGHT, 52.0, "end", &format!("fill=\"{}\"", colour::FAINT), &more);
        }
    }

    /// Says why the picture has no buffers.
    fn nothing(&mut self, panels: &[Panel]) {
        let Some(panel) = panels.first() else { return };
        let why = match self.layout.status {
            LayoutStatus::Infeasible => "no layout fits the capacity",
            LayoutStatus::OutOfTime => "no layout was found",
            LayoutStatus::Optimal | LayoutStatus::Feasible => "nothing to lay out",
        };
        let y = (panel.y.from + panel.y.to) / 2.0;
        self.text((LEFT + RIGHT) / 2.0, y, "middle", &format!("font-size=\"{LARGE}\" {HALO}"), why);
    }

    /// Draws all rectangles of buffers.
    fn buffers(&mut self, panels: &[Panel], drawn: &Sorted) {
        let (Some(first), Some(last)) = (panels.first(), panels.last()) else { return };
        if !drawn.dense.is_empty() {
            let mut density = pieces::Density::new(LEFT, first.y.to, RIGHT - LEFT, last.y.from - first.y.to);
            for piece in &drawn.dense {
                density.add(piece);
            }
            self.out.push_str("<g class=\"density\">\n");
            for (class, opacity, path) in density.paths() {
                let (fill, opacity) = (self.palette.fill(class), px(opacity));
                self.put(format_args!("<path fill=\"{fill}\" fill-opacity=\"{opacity}\" d=\"{path}\"/>\n"));
            }
            self.out.push_str("</g>\n");
        }
        for (class, path) in pieces::paths(&drawn.together) {
            let fill = self.palette.fill(class);
            self.put(format_args!("<path class=\"buffers\" fill=\"{fill}\" d=\"{path}\"/>\n"));
        }
        panel::alone(&mut self.out, &drawn.alone, self.problem, self.layout, &self.palette);
    }

    fn pieces(&self, panels: &[Panel]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for ((id, b), slot) in (0u32..).zip(self.problem.buffers()).zip(&self.layout.slots) {
            let Some((slot, panel)) = slot.and_then(|s| Some((s, panels.get(s.arena as usize)?))) else { continue };
            if !b.occupies() {
                continue;
            }
            let end = slot.offset.saturating_add(b.size);
            let (y, bottom) = (panel.y.at(end), panel.y.at(slot.offset));
            let guard = y - panel.y.at(end.saturating_add(b.guard));
            let class = self.palette.class(b);
            for during in b.live() {
                let (x, right) = (self.x.at(during.lower), self.x.at(during.upper));
                let id = super::problem::BufferId(id);
                pieces.push(Piece { id, during, x, y, w: right - x, h: bottom - y, guard, class });
            }
        }
        pieces
    }

    fn live_bytes(&mut self) {
        let (base, top) = (self.live.from, self.live.to);
        self.put(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
            px(LEFT),
            px(top),
            px(RIGHT - LEFT),
            px(base - top),
            colour::EMPTY
        ));
        let curve = std::mem::take(&mut self.curve);
        // A short curve is drawn exactly. In a long one, each half pixel shows only its highest
        // value.
        let mut path = format!("M{} {}", px(self.x.at(curve.first().map_or(0, |c| c.0))), px(base));
        let thin = curve.len() as f64 > 4.0 * (RIGHT - LEFT);
        let mut column: Option<(f64, u64)> = None;
        for (step, bytes) in curve {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            let x = self.x.at(step);
            let at = if thin { (x * 2.0).floor() / 2.0 } else { x };
            match &mut column {
                Some((was, most)) if thin && *was == at => *most = bytes.max(*most),
                _ => {
                    if let Some((x, bytes)) = column {
                        let _ = write!(path, "H{}V{}", px(x), px(self.live.at(bytes)));
                    }
                    column = Some((at, bytes));
                }
            }
        }
        if let Some((x, _)) = column {
            let _ = write!(path, "H{}V{}z", px(x), px(base));
            self.put(format_args!("<path class=\"live\" fill=\"{}\" d=\"{path}\"/>\n", colour::LIVE));
        }
        let peak = self.peak;
        let y = self.live.at(peak);
        self.text(RIGHT + 12.0, y + 4.0, "start", "", &format!("peak {}", text::bytes(peak)));
        self.text(RIGHT + 12.0, y + 18.0, "start", &format!("fill=\"{}\"", colour::FAINT), "live at once");
        self.text(LEFT - 8.0, base + 4.0, "end", "", "0");
        if peak > 0 {
            self.text(LEFT - 8.0, y + 4.0, "end", "", &text::bytes(peak));
        }
    }

    fn step_axis(&mut self) {
        let y = self.live.from;
        // Labels are at most as wide as the last one, and stay apart.
        let wide = text::width(&text::grouped(self.x.hi), SMALL) + 36.0;
        let most = ((RIGHT - LEFT) / wide).max(2.0) as u64;
        let mut ticks = String::new();
        for step in axis::step_ticks(self.x.lo, self.x.hi, most) {
            let x = self.x.at(step);
            let _ = write!(ticks, "M{} {}v5", px(x), px(y));
            self.text(x, y + 18.0, "middle", "", &text::grouped(step));
        }
        let line = format!("M{} {}H{}{ticks}", px(LEFT), px(y), px(RIGHT));
        self.put(format_args!("<path d=\"{line}\" stroke=\"{}\" fill=\"none\"/>\n", colour::FAINT));
        self.text((LEFT + RIGHT) / 2.0, y + 36.0, "middle", &format!("fill=\"{}\"", colour::FAINT), "step");
    }

    fn critical_step(&mut self) {
        let (step, live) = critical(self.problem);
        if live.is_empty() {
            return;
        }
        let (left, right) = (self.x.at(step), self.x.at(step.saturating_add(1)));
        let x = (left + right) / 2.0;
        let (y, h) = (TOP - 8.0, self.live.from - TOP + 8.0);
        let accent = colour::CRITICAL;
        self.put(format_args!("<g id=\"gpumem-critical\" data-step=\"{step}\" data-buffers=\"{}\">\n", live.len()));
        let wide = right - left > 3.0;
        if wide {
            self.put(format_args!(
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{accent}\" fill-opacity=\"0.12\"/>\n",
                px(left),
                px(y + 8.0),
                px(right - left),
                px(h - 8.0)
            ));
        }
        let d = format!("M{} {}v{}", px(x), px(y), px(h));
        if !wide {
            // The line alone would be lost among thin rectangles.
            let halo = "stroke=\"#ffffff\" stroke-opacity=\"0.6\" stroke-width=\"3.5\"";
            self.put(format_args!("<path d=\"{d}\" {halo}/>\n"));
        }
        self.put(format_args!("<path d=\"{d}\" stroke=\"{accent}\" stroke-width=\"1.5\" stroke-dasharray=\"5 3\"/>\n"));
        let peak = self.peak;
        let says =
            format!("critical step {}: {} live in {}", text::grouped(step), text::bytes(peak), buffers(live.len()));
        let _ = writeln!(
            self.out,
            "<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{accent}\"/>",
            px(x),
            px(self.live.at(peak))
        );
        // Put the label on the side with more room.
        let (at, anchor) = if x < (LEFT + RIGHT) / 2.0 { (x - 4.0, "start") } else { (x + 4.0, "end") };
        self.text(at, y - 5.0, anchor, &format!("fill=\"{accent}\" font-weight=\"bold\""), &says);
        self.out.push_str("</g>\n");
    }

    fn legend(&mut self, drawn: &Sorted) {
        let used: HashSet<usize> = drawn.all().map(|p| p.class).collect();
        if used.is_empty() {
            return;
        }
        let y = self.height - 18.0;
        let mut x = LEFT;
        let by = match self.palette {
            Palette::Kinds(_) => "kind:",
            Palette::Sizes(_) => "buffer size:",
        };
        self.text(x, y, "start", &format!("fill=\"{}\"", colour::FAINT), by);
        x += text::width(by, SMALL) + 12.0;
        let mut entries: Vec<(String, String)> = self
            .palette
            .legend()
            .into_iter()
            .filter(|&(class, _)| used.contains(&class))
            .map(|(class, what)| (self.palette.fill(class).to_string(), what))
            .collect();
        if !self.problem.reserved().is_empty() {
            entries.push(("url(#gpumem-hatch)".to_string(), "reserved".to_string()));
        }
        entries.push((colour::EMPTY.to_string(), "unused".to_string()));
        for (fill, what) in entries {
            self.put(format_args!(
                "<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"11\" fill=\"{fill}\" stroke=\"{}\"/>\n",
                px(x),
                px(y - 9.5),
                colour::GRID
            ));
            self.text(x + 20.0, y, "start", "", &what);
            x += 20.0 + text::width(&what, SMALL) + 18.0;
        }
        if !drawn.dense.is_empty() {
            let merged = text::grouped(drawn.dense.len() as u64);
            let says = format!("{merged} too thin to draw alone: merged, paler where they cover less");
            self.text(RIGHT, self.live.from + 36.0, "end", &format!("fill=\"{}\"", colour::FAINT), &says);
        }
    }
}

/// A count with its noun: "2 buffers".
fn buffers(count: usize) -> String {
    format!("{} buffer{}", text::grouped(count as u64), if count == 1 { "" } else { "s" })
}

/// The steps from the first live one to the last; never empty. Reserved ranges may last for ever,
/// so they count only without buffers.
fn steps(problem: &Problem) -> Interval {
    let of_buffers = problem.buffers().iter().filter(|b| b.occupies()).map(|b| Interval::new(b.lower, b.upper));
    let hull = |a: Interval, b: Interval| Interval::new(a.lower.min(b.lower), a.upper.max(b.upper));
    let all = of_buffers.reduce(hull).or_else(|| problem.reserved().iter().map(|r| r.during).reduce(hull));
    let all = all.unwrap_or(Interval::new(0, 1));
    let lower = all.lower.min(u64::MAX - 1);
    Interval::new(lower, all.upper.max(lower + 1))
}
