//! The meaning of colours: a buffer's kind if there are several kinds, otherwise its size class.
//!
//! Fills are light enough for dark text and differ in lightness, not in hue alone.

use super::text;
use crate::plan::problem::{Buffer, Kind, Problem};

/// Text, axes and the arena's line.
pub const INK: &str = "#1d2733";
/// Secondary text.
pub const FAINT: &str = "#5a6672";
/// The critical step.
pub const CRITICAL: &str = "#c1440e";
/// The capacity's line.
pub const CAPACITY: &str = "#7a2f6f";
/// Unused bytes of an arena.
pub const EMPTY: &str = "#f7f5f0";
/// Grid and frame.
pub const GRID: &str = "#dcdad4";
/// Live bytes over time.
pub const LIVE: &str = "#9fb4c4";

/// Number of classes in a picture.
pub const CLASSES: usize = 5;

/// Colours of sizes, from the smallest class to the largest: strong for small, calm for large.
const SIZES: [&str; CLASSES] = ["#2c5f86", "#447aa3", "#7fadcb", "#a5c7db", "#c6dce8"];
/// Colours of kinds, in the order of [`Kind::ALL`].
const KINDS: [&str; CLASSES] = ["#a9c7db", "#f2e2a0", "#e8a87c", "#8cc5b0", "#d3cfd8"];
/// Fills dark enough for white text.
const DARK: [&str; 2] = ["#2c5f86", "#447aa3"];

/// The meaning of the colours in one picture.
pub enum Palette {
    /// Several kinds: whether each is present.
    Kinds([bool; CLASSES]),
    /// One kind: the class of each size by `ilog2`, if any buffer has such a size.
    Sizes([Option<u8>; 64]),
}

impl Palette {
    /// The palette for the buffers that are drawn.
    pub fn of(problem: &Problem) -> Palette {
        let drawn = || problem.buffers().iter().filter(|b| b.occupies() && !problem.left_out().contains(b.kind));
        let kinds = Kind::ALL.map(|kind| drawn().any(|b| b.kind == kind));
        if kinds.iter().filter(|&&k| k).count() > 1 {
            return Palette::Kinds(kinds);
        }
        // Each class covers about the same area of the picture, so that neighbours of similar size
        // can still differ in colour.
        let mut area = [0.0f64; 64];
        for b in drawn() {
            let steps: u64 = b.live().map(|i| i.upper - i.lower).sum();
            if let Some(of_log) = b.size.checked_ilog2().and_then(|log| area.get_mut(log as usize)) {
                *of_log += b.size as f64 * steps as f64;
            }
        }
        let all: f64 = area.iter().sum();
        let mut below = 0.0;
        Palette::Sizes(area.map(|here| {
            let middle = (below + here / 2.0) / all;
            below += here;
            (here > 0.0).then(|| ((middle * CLASSES as f64) as u8).min(CLASSES as u8 - 1))
        }))
    }

    /// The class of a buffer.
    pub fn class(&self, b: &Buffer) -> usize {
        match self {
            Palette::Kinds(_) => b.kind as usize,
            Palette::Sizes(classes) => {
                let class = b.size.checked_ilog2().and_then(|log| classes.get(log as usize).copied().flatten());
                usize::from(class.unwrap_or(0))
            }
        }
    }

    /// The colour of a class.
    pub fn fill(&self, class: usize) -> &'static str {
        let colours = match self {
            Palette::Kinds(_) => &KINDS,
            Palette::Sizes(_) => &SIZES,
        };
        colours.get(class).copied().unwrap_or(FAINT)
    }

    /// The colour of text on a class.
    pub fn ink(&self, class: usize) -> &'static str {
        if DARK.contains(&self.fill(class)) {
            "#ffffff"
        } else {
            INK
        }
    }

    /// Each class, and its meaning.
    pub fn legend(&self) -> Vec<(usize, String)> {
        match self {
            Palette::Kinds(present) => {
                let names = ["temporary", "input", "output", "parameter", "constant"];
                let all = names.into_iter().enumerate().zip(present);
                all.filter(|(_, &present)| present).map(|((class, name), _)| (class, name.to_string())).collect()
            }
            Palette::Sizes(classes) => {
                let mut rows: Vec<(usize, String)> = Vec::new();
                for (log, class) in classes.iter().enumerate() {
                    let Some(class) = class.map(usize::from) else { continue };
                    if rows.last().is_none_or(|&(last, _)| last != class) {
                        rows.push((class, format!("≥ {}", text::bytes(1 << log))));
                    }
                }
                rows
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_grow_with_the_size_and_share_the_picture() {
        let mut problem = Problem::new();
        for (size, steps) in [(1, 1), (1 << 10, 1000), (3 << 20, 1), (1 << 20, 2), (1 << 62, 0)] {
            assert!(problem.add(Buffer::new(size, 0, steps)).is_ok());
        }
        let palette = Palette::of(&problem);
        let classes: Vec<usize> = problem.buffers().iter().map(|b| palette.class(b)).collect();
        assert_eq!(classes, [0, 0, 3, 1, 0]);
        assert_eq!(
            palette.legend(),
            [(0, "≥ 1 B".to_string()), (1, "≥ 1 MiB".to_string()), (3, "≥ 2 MiB".to_string())]
        );
    }

    #[test]
    fn several_kinds_have_a_colour_each() {
        let mut problem = Problem::new();
        for kind in [Kind::Temporary, Kind::Parameter] {
            assert!(problem.add(Buffer { kind, ..Buffer::new(1, 0, 1) }).is_ok());
        }
        let palette = Palette::of(&problem);
        assert_eq!(palette.legend(), [(0, "temporary".to_string()), (3, "parameter".to_string())]);
        assert_ne!(palette.fill(0), palette.fill(3));
    }
}
