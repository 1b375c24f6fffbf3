//! Makes a layout for the next run from a record of the last one like it.

use crate::base::{Error, Result};
use crate::plan::{solve, Buffer, Effort, Problem, SolveOptions};
use crate::pool::{Life, Placed, Span};

/// Offsets are multiples of these bytes, the pool's unit for large blocks.
const UNIT: u64 = 512;

/// Lays out one stream's allocations. Those never freed live to the end.
pub fn lay_out(lives: &[Life]) -> Result<Span> {
    let end = lives.iter().map(|l| l.death.unwrap_or(l.birth).saturating_add(1)).max().unwrap_or(0);
    let mut problem = Problem::new();
    for life in lives {
        let mut buffer = Buffer::new(life.size, life.birth, life.death.unwrap_or(end));
        buffer.alignment = life.align.max(UNIT);
        problem.add(buffer)?;
    }
    let layout = solve(&problem, &SolveOptions { effort: Effort::Normal, ..SolveOptions::default() })?;
    let place = |(life, slot): (&Life, &Option<crate::plan::Slot>)| match slot {
        Some(slot) => Ok(Placed { size: life.size, offset: slot.offset }),
        None => Err(Error::internal("a layout without limits has no place for a buffer")),
    };
    let placed = lives.iter().zip(&layout.slots).map(place).collect::<Result<Vec<Placed>>>()?;
    let bytes = placed.iter().map(|p| p.offset.saturating_add(p.size)).max().unwrap_or(0);
    let align = lives.iter().map(|l| l.align).max().unwrap_or(UNIT).max(UNIT);
    Ok(Span { bytes, align, placed })
}

/// The most bytes that were live at one time: no layout is smaller.
pub fn peak(lives: &[Life]) -> u64 {
    let births = lives.iter().map(|l| (l.birth, true, l.size));
    let deaths = lives.iter().filter_map(|l| l.death.map(|d| (d, false, l.size)));
    let mut events: Vec<(u64, bool, u64)> = births.chain(deaths).collect();
    events.sort_unstable();
    let (mut now, mut most) = (0u64, 0);
    for (_, born, size) in events {
        now = if born { now.saturating_add(size) } else { now.saturating_sub(size) };
        most = now.max(most);
    }
    most
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::size::MIB;

    fn life(mib: u64, birth: u64, death: Option<u64>) -> Life {
        Life { size: mib * MIB, align: 512, birth, death }
    }

    #[test]
    fn blocks_that_never_meet_share_bytes() {
        let lives = [life(8, 0, Some(2)), life(4, 1, None), life(8, 3, Some(4)), life(2, 5, None)];
        let span = lay_out(&lives).unwrap();
        assert_eq!((span.bytes, peak(&lives)), (12 * MIB, 12 * MIB));
        for (i, (a, x)) in lives.iter().zip(&span.placed).enumerate() {
            for (b, y) in lives.iter().zip(&span.placed).skip(i + 1) {
                let meet = a.birth.max(b.birth) < a.death.unwrap_or(9).min(b.death.unwrap_or(9));
                let overlap = x.offset.max(y.offset) < (x.offset + x.size).min(y.offset + y.size);
                assert!(!(meet && overlap), "{a:?} at {x:?}, {b:?} at {y:?}");
            }
        }
    }

    #[test]
    fn nothing_recorded_is_a_layout_of_nothing() {
        assert_eq!(lay_out(&[]).unwrap(), Span { bytes: 0, align: 512, placed: vec![] });
        assert_eq!(peak(&[]), 0);
    }

    #[test]
    fn alignments_are_kept() {
        let lives = [life(1, 0, None), Life { align: 4 * MIB, ..life(3, 1, None) }];
        let span = lay_out(&lives).unwrap();
        assert_eq!(span.align, 4 * MIB);
        assert!(span.placed[1].offset.is_multiple_of(4 * MIB));
    }
}
