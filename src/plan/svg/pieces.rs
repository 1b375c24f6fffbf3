//! The rectangles of a picture, each drawn alone, with others of its colour, or as part of a
//! density.
//!
//! The size of a picture is bounded: it has at most [`ALONE`] rectangles with a tooltip,
//! [`TOGETHER`] without, and a grid of [`CELLS`] cells for the rest.

use super::text::px;
use crate::plan::problem::{BufferId, Interval};
use std::fmt::Write;

/// Most rectangles drawn as separate elements.
pub const ALONE: usize = 3_000;
/// Most rectangles drawn as parts of one path per colour.
pub const TOGETHER: usize = 30_000;
/// Most cells of the density grid.
const CELLS: f64 = 130_000.0;
/// Smallest side of a cell, pixels.
const CELL: f64 = 2.0;
/// A side shorter than this cannot be seen, pixels.
const VISIBLE: f64 = 0.5;
/// Number of colours.
const CLASSES: usize = super::colour::CLASSES;
/// Number of shades of each colour in a density.
const SHADES: usize = 5;

/// One live range of one buffer, in pixels.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The buffer.
    pub id: BufferId,
    /// The steps of the live range.
    pub during: Interval,
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height of the buffer.
    pub h: f64,
    /// Height of its guard, which is above the buffer.
    pub guard: f64,
    /// Index of its colour.
    pub class: usize,
}

/// The pieces by how they are drawn.
#[derive(Debug, Default)]
pub struct Sorted {
    /// Drawn as separate elements, largest first.
    pub alone: Vec<Piece>,
    /// Drawn as parts of paths.
    pub together: Vec<Piece>,
    /// Merged into the density.
    pub dense: Vec<Piece>,
}

impl Sorted {
    /// All pieces.
    pub fn all(&self) -> impl Iterator<Item = &Piece> {
        self.alone.iter().chain(&self.together).chain(&self.dense)
    }
}

/// Sorts pieces by how they are drawn.
pub fn sort(pieces: Vec<Piece>) -> Sorted {
    let (mut seen, mut dense): (Vec<Piece>, Vec<Piece>) =
        pieces.into_iter().partition(|p| p.w >= VISIBLE && p.h + p.guard >= VISIBLE);
    seen.sort_unstable_by(|a, b| {
        let area = |p: &Piece| p.w * (p.h + p.guard);
        area(b).total_cmp(&area(a)).then((a.id, a.during).cmp(&(b.id, b.during)))
    });
    dense.extend(seen.split_off(seen.len().min(ALONE + TOGETHER)));
    let together = seen.split_off(seen.len().min(ALONE));
    Sorted { alone: seen, together, dense }
}

/// One path per colour: `(class, path data)`, in order of colours.
pub fn paths(pieces: &[Piece]) -> Vec<(usize, String)> {
    let mut paths: Vec<(usize, String)> = Vec::new();
    for p in pieces {
        let path = match paths.iter_mut().find(|(class, _)| *class == p.class) {
            Some((_, path)) => path,
            None => {
                paths.push((p.class, String::new()));
                match paths.last_mut() {
                    Some((_, path)) => path,
                    None => continue,
                }
            }
        };
        rectangle(path, p.x, p.y, p.w, p.h);
    }
    paths.sort_unstable_by_key(|&(class, _)| class);
    paths
}

fn rectangle(path: &mut String, x: f64, y: f64, w: f64, h: f64) {
    let _ = write!(path, "M{} {}h{}v{}h-{}z", px(x), px(y), px(w), px(h), px(w));
}

/// The covered share of each cell, by colour.
pub struct Density {
    x: f64,
    y: f64,
    cell: f64,
    columns: usize,
    rows: usize,
    /// The change of coverage from the cell before, so that a wide piece costs as little as a
    /// narrow one. Each row has one more entry than columns.
    change: Vec<[f32; CLASSES]>,
}

impl Density {
    /// An empty grid over a rectangle.
    pub fn new(x: f64, y: f64, w: f64, h: f64) -> Density {
        let cell = CELL.max((w * h / CELLS).sqrt());
        let columns = (w / cell).ceil() as usize;
        let rows = (h / cell).ceil() as usize;
        Density { x, y, cell, columns, rows, change: vec![[0.0; CLASSES]; (columns + 1) * rows] }
    }

    /// Adds the coverage of a piece.
    pub fn add(&mut self, p: &Piece) {
        let (top, bottom) = ((p.y - self.y) / self.cell, (p.y + p.h - self.y) / self.cell);
        let (left, right) = ((p.x - self.x) / self.cell, (p.x + p.w - self.x) / self.cell);
        let first = top.max(0.0) as usize;
        for row in first..self.rows.min(bottom.max(0.0).ceil() as usize) {
            let share = bottom.min((row + 1) as f64) - top.max(row as f64);
            self.edge(row, left, p.class, share);
            self.edge(row, right, p.class, -share);
        }
    }

    /// Adds coverage by `share` from `at` (in cells) to the end of the row.
    fn edge(&mut self, row: usize, at: f64, class: usize, share: f64) {
        let column = (at.max(0.0) as usize).min(self.columns);
        let inside = (at - column as f64).clamp(0.0, 1.0);
        let start = row * (self.columns + 1) + column;
        if let Some(here) = self.change.get_mut(start).and_then(|c| c.get_mut(class)) {
            *here += (share * (1.0 - inside)) as f32;
        }
        if column < self.columns {
            if let Some(next) = self.change.get_mut(start + 1).and_then(|c| c.get_mut(class)) {
                *next += (share * inside) as f32;
            }
        }
    }

    /// One path per colour and shade: `(class, opacity, path data)`. A cell takes the colour that
    /// covers most of it.
    pub fn paths(&self) -> Vec<(usize, f64, String)> {
        let mut paths = vec![String::new(); CLASSES * SHADES];
        for (row, changes) in self.change.chunks_exact(self.columns + 1).enumerate() {
            let mut covered = [0.0f32; CLASSES];
            let (mut from, mut look) = (0, None);
            for (column, change) in changes.iter().enumerate() {
                covered.iter_mut().zip(change).for_each(|(c, change)| *c += change);
                // The last entry is beyond the row, and ends its run.
                let now = if column < self.columns { Self::look(&covered) } else { None };
                if now != look {
                    if let Some(path) = look.and_then(|l: usize| paths.get_mut(l)) {
                        let (x, y) = (self.x + from as f64 * self.cell, self.y + row as f64 * self.cell);
                        rectangle(path, x, y, (column - from) as f64 * self.cell, self.cell);
                    }
                    (from, look) = (column, now);
                }
            }
        }
        let opacity = |shade: usize| (shade + 1) as f64 / SHADES as f64;
        let named = paths.into_iter().enumerate().map(|(l, path)| (l / SHADES, opacity(l % SHADES), path));
        named.filter(|(.., path)| !path.is_empty()).collect()
    }

    /// The index of a cell's path. Any coverage above `LEAST` is visible; the darkest shade means
    /// full.
    fn look(covered: &[f32; CLASSES]) -> Option<usize> {
        const LEAST: f32 = 0.01;
        let sum: f32 = covered.iter().sum();
        let (class, _) = covered.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        (sum > LEAST).then(|| class * SHADES + ((sum * SHADES as f32) as usize).min(SHADES - 1))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn piece(x: f64, y: f64, w: f64, h: f64) -> Piece {
        Piece { id: BufferId(0), during: Interval::new(0, 1), x, y, w, h, guard: 0.0, class: 0 }
    }

    #[test]
    fn a_density_covers_what_its_pieces_cover() {
        let mut d = Density::new(10.0, 20.0, 10.0, 4.0);
        assert_eq!((d.cell, d.columns, d.rows), (2.0, 5, 2));
        // Half of the second cell, all of the third, a quarter of the fourth; three quarters of the
        // height of row 0.
        d.add(&piece(13.0, 20.0, 3.5, 1.5));
        let mut sum = 0.0;
        let mut running = |c: &[f32; CLASSES]| {
            sum += c[0];
            sum
        };
        let row: Vec<f32> = d.change[..5].iter().map(&mut running).collect();
        assert_eq!(row, [0.0, 0.375, 0.75, 0.1875, 0.0]);
        assert!(d.change[6..].iter().flatten().all(|&c| c == 0.0), "row 1 is empty");
        // At the very end of the grid, a little of one colour and more of another.
        d.add(&piece(18.0, 22.0, 2.0, 0.5));
        d.add(&Piece { class: 2, ..piece(18.0, 22.5, 2.0, 1.5) });
        let paths = d.paths();
        let paths: Vec<_> = paths.iter().map(|(class, opacity, path)| (*class, *opacity, path.as_str())).collect();
        let row = [(0, 0.2, "M16 20h2v2h-2z"), (0, 0.4, "M12 20h2v2h-2z"), (0, 0.8, "M14 20h2v2h-2z")];
        assert_eq!((&paths[..3], &paths[3..]), (&row[..], &[(2, 1.0, "M18 22h2v2h-2z")][..]));
    }

    #[test]
    fn the_largest_are_drawn_alone_and_nothing_is_lost() {
        let count = ALONE + TOGETHER + 10;
        let pieces = (0..count).map(|i| piece(0.0, 0.0, 1.0 + i as f64, 1.0)).chain([piece(0.0, 0.0, 900.0, 0.1)]);
        let sorted = sort(pieces.collect());
        assert_eq!([sorted.alone.len(), sorted.together.len(), sorted.dense.len()], [ALONE, TOGETHER, 11]);
        let least = sorted.alone.iter().map(|p| p.w).fold(f64::MAX, f64::min);
        assert!(sorted.together.iter().all(|p| p.w <= least));
    }
}
