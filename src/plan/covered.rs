//! How many bytes reserved ranges cover; they may overlap. The verifier has its own code for this.

use super::problem::{Reserved, Step};

/// How many bytes the union of ranges of one arena covers, as changes (step, whether they come,
/// bytes), in order of steps. Each range has bytes and steps.
pub(super) fn covered(ranges: &[&Reserved]) -> Vec<(Step, bool, u64)> {
    let mut ends: Vec<u64> = ranges.iter().flat_map(|r| [r.offset, r.offset + r.size]).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut changes: Vec<(u64, bool, usize)> = Vec::new();
    for (i, range) in ranges.iter().enumerate() {
        changes.push((range.during.lower, true, i));
        changes.push((range.during.upper, false, i));
    }
    changes.sort_unstable();
    // How many ranges cover each stretch between two ends: few ranges are reserved, so that walking
    // along is cheap.
    let mut over = vec![0u32; ends.len()];
    let mut events = Vec::new();
    for (step, begins, i) in changes {
        let from = ends.partition_point(|&e| e < ranges[i].offset);
        let to = ends.partition_point(|&e| e < ranges[i].offset + ranges[i].size);
        let mut bytes = 0;
        for k in from..to {
            let was = over[k];
            over[k] = if begins { was + 1 } else { was - 1 };
            if was == 0 || over[k] == 0 {
                bytes += ends[k + 1] - ends[k];
            }
        }
        if bytes > 0 {
            events.push((step, begins, bytes));
        }
    }
    events
}
