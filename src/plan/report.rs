//! A layout as text: a report for people and scripts, and CSV.
//!
//! Both are the same for the same problem and layout: they hold no times and no paths.

use super::covered::covered;
use super::layout::{Layout, LayoutStatus};
use super::problem::{Buffer, BufferId, Interval, Place, Problem, Reserved, Step};
use std::collections::HashSet;
use std::fmt::Write;

/// Returns the first step at which most bytes are live, and the buffers live there, in order of
/// adding.
///
/// Guards count, and the bytes that reserved ranges cover; kinds left out and steps in gaps do not.
/// Without reuse every buffer keeps its bytes from the first step of any buffer to the last. `(0,
/// [])` when nothing occupies any bytes.
pub fn critical(problem: &Problem) -> (Step, Vec<BufferId>) {
    let (step, bytes) = peak(problem);
    if bytes == 0 {
        return (0, Vec::new());
    }
    let kept = kept_without_reuse(problem);
    let inside = |i: Interval| i.lower <= step && step < i.upper;
    let live = |b: &Buffer| kept.map_or_else(|| b.live().any(inside), inside);
    (step, placed(problem).filter(|(_, b)| live(b)).map(|(id, _)| id).collect())
}

/// The bytes live at [`critical`]'s step, those that reserved ranges cover included. All arenas
/// together need at least this much. Saturates at `u64::MAX`.
pub fn peak_bytes(problem: &Problem) -> u64 {
    u64::try_from(peak(problem).1).unwrap_or(u64::MAX)
}

/// The first step at which most bytes are live, and how many; `(0, 0)` when nothing ever is live.
fn peak(problem: &Problem) -> (Step, u128) {
    let mut peak = (0, 0);
    for (step, bytes) in live_curve(problem) {
        if bytes > peak.1 {
            peak = (step, bytes);
        }
    }
    peak
}

/// Buffers that occupy bytes of an arena.
fn placed(problem: &Problem) -> impl Iterator<Item = (BufferId, &Buffer)> {
    let ids = (0u32..).map(BufferId);
    ids.zip(problem.buffers()).filter(|(_, b)| b.occupies() && !problem.left_out().contains(b.kind))
}

/// Without reuse, the steps at which every buffer keeps its bytes; nothing with it.
fn kept_without_reuse(problem: &Problem) -> Option<Interval> {
    let lives = placed(problem).map(|(_, b)| Interval::new(b.lower, b.upper)).filter(|_| !problem.reuse());
    lives.reduce(|a, b| Interval::new(a.lower.min(b.lower), a.upper.max(b.upper)))
}

/// Bytes live, as `(from this step on, bytes)` in order of steps; ends with 0 bytes unless it is
/// empty.
pub(super) fn live_curve(problem: &Problem) -> Vec<(Step, u128)> {
    // One list of both ends: bytes that come, as they are, and bytes that go, negative.
    let mut changes: Vec<(Step, i64)> = Vec::new();
    // At most 2^62 by the checks of `Problem::add` and `Problem::reserve`.
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let kept = kept_without_reuse(problem);
    for (_, b) in placed(problem) {
        let bytes = signed(b.extent());
        match kept {
            Some(i) => changes.extend([(i.lower, bytes), (i.upper, -bytes)]),
            None => changes.extend(b.live().flat_map(|i| [(i.lower, bytes), (i.upper, -bytes)])),
        }
    }
    let mut reserved: Vec<&Reserved> = problem.reserved().iter().filter(|r| r.blocks()).collect();
    reserved.sort_by_key(|r| r.arena);
    for arena in reserved.chunk_by(|a, b| a.arena == b.arena) {
        let bytes = |(step, comes, bytes)| (step, if comes { signed(bytes) } else { -signed(bytes) });
        changes.extend(covered(arena).into_iter().map(bytes));
    }
    changes.sort_unstable_by_key(|&(step, _)| step);
    let mut curve: Vec<(Step, u128)> = Vec::new();
    let mut live = 0u128;
    for run in changes.chunk_by(|a, b| a.0 == b.0) {
        let change: i128 = run.iter().map(|&(_, bytes)| i128::from(bytes)).sum();
        // What goes has come before: the sum is never negative.
        live = live.saturating_add_signed(change);
        if change != 0 {
            curve.extend(run.first().map(|&(step, _)| (step, live)));
        }
    }
    curve
}

/// The layout as text, one line per buffer.
///
/// Lines that begin with `#` are about the whole: the first has `key=value` pairs, bytes but for
/// `status` and `gap` (above the lower bound, as a share of it). The others have columns separated
/// by tabs, named by the last `#` line before them: offset, size, id (the position in the problem),
/// name (`-` without one; backslashes and control characters escaped) and the half-open ranges of
/// steps at which it is live, `lower-upper`, separated by blanks; with several arenas also the
/// arena. Sorted by arena, offset, id. Buffers without a slot are counted and not listed.
pub fn report(problem: &Problem, layout: &Layout) -> String {
    let several = problem.arenas().len() > 1;
    let mut text = String::new();
    let out = &mut text;
    line(
        out,
        format_args!(
            "# arena_size={} lower_bound={} total_unshared={} saved={} status={} gap={:.6}",
            layout.size,
            layout.lower_bound,
            layout.total_unshared,
            layout.saved(),
            layout.status.name(),
            layout.gap()
        ),
    );
    let mut rows: Vec<_> = (0u32..)
        .map(BufferId)
        .zip(problem.buffers())
        .filter_map(|(id, b)| layout.slot(id).map(|slot| (slot.arena, slot.offset, id, b)))
        .collect();
    rows.sort_unstable_by_key(|&(arena, offset, id, _)| (arena, offset, id));
    let (step, live) = critical(problem);
    line(
        out,
        format_args!(
            "# buffers={} placed={} critical_step={step} critical_buffers={} critical_bytes={}",
            problem.buffers().len(),
            rows.len(),
            live.len(),
            peak_bytes(problem)
        ),
    );
    for (i, arena) in problem.arenas().iter().enumerate() {
        let used = layout.arenas.get(i).copied().unwrap_or_default();
        if several || arena.capacity.is_some() {
            let capacity = arena.capacity.map_or("none".to_string(), |c| c.to_string());
            let _ = write!(out, "# arena={i} size={} lower_bound={} capacity={capacity}", used.size, used.lower_bound);
            line(out, format_args!(" name={}", name_field(arena.name.as_deref())));
        }
    }
    if matches!(layout.status, LayoutStatus::Infeasible | LayoutStatus::OutOfTime) {
        line(out, format_args!("# no layout; arena_size is that of the smallest found without a capacity, if any"));
    }
    line(out, format_args!("# offset\tsize\tid\tname\tlive{}", if several { "\tarena" } else { "" }));
    for (arena, offset, id, b) in rows {
        let _ = write!(out, "{offset}\t{}\t{id}\t{}\t", b.size, name_field(b.name.as_deref()));
        ranges(out, b);
        if several {
            let _ = write!(out, "\t{arena}");
        }
        out.push('\n');
    }
    text
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // A String takes whatever it is given.
    let _ = out.write_fmt(text);
    out.push('\n');
}

/// `lower-upper` of each live range; of the whole when it is live at no step.
fn ranges(out: &mut String, b: &Buffer) {
    let mut between = "";
    for i in b.live() {
        let _ = write!(out, "{between}{}-{}", i.lower, i.upper);
        between = " ";
    }
    if between.is_empty() {
        let _ = write!(out, "{}-{}", b.lower, b.upper);
    }
}

/// A name in one column of one line: `-` stands for none.
fn name_field(name: Option<&str>) -> String {
    let mut field = String::new();
    match name {
        None => field.push('-'),
        Some("-") => field.push_str("\\-"),
        Some(name) => {
            for c in name.chars() {
                if c == '\\' || c.is_control() {
                    field.extend(c.escape_default());
                } else {
                    field.push(c);
                }
            }
        }
    }
    field
}

/// The problem and its layout as CSV with a header, one record per buffer in order of adding.
///
/// Columns `id,lower,upper,size`, then `alignment`, `guard`, `hint` (the preferred offset) and
/// `gaps` where some buffer has one, then `offset`, and `arena` when there are several or a buffer
/// is left out. `id` is the name when every buffer has one of its own; else the position, and names
/// are in a column `name`. `gaps` are half-open, `lower-upper`, separated by blanks. A buffer
/// without a slot has an empty offset; one of a kind left out has `-` for its arena.
///
/// `gpumem plan` reads it. With a layout it reads the same layout, because it takes offsets as
/// fixed; without one, the same buffers to lay out. Capacities, reserved ranges, the unit and kinds
/// are not in it.
pub fn csv(problem: &Problem, layout: &Layout) -> String {
    let buffers = problem.buffers();
    let mut names = HashSet::new();
    let names_are_ids =
        buffers.iter().all(|b| b.name.as_deref().is_some_and(|n| !n.trim().is_empty() && names.insert(n)));
    let any = |has: fn(&Buffer) -> bool| buffers.iter().any(has);
    let named = !names_are_ids && any(|b| b.name.is_some());
    let alignment = any(|b| b.alignment != 1);
    let guard = any(|b| b.guard != 0);
    let hint = any(|b| matches!(b.place, Place::Preferred(_)));
    let gaps = any(|b| !b.gaps.is_empty());
    let left_out = |b: &Buffer| problem.left_out().contains(b.kind);
    let arenas = problem.arenas().len() > 1 || buffers.iter().any(left_out);

    let mut text = "id,lower,upper,size".to_string();
    let optional = [(named, ",name"), (alignment, ",alignment"), (guard, ",guard"), (hint, ",hint"), (gaps, ",gaps")];
    text.extend(optional.iter().filter(|(present, _)| *present).map(|&(_, column)| column));
    text.push_str(if arenas { ",offset,arena\n" } else { ",offset\n" });
    let out = &mut text;
    for (id, b) in (0u32..).map(BufferId).zip(buffers) {
        match &b.name {
            Some(name) if names_are_ids => csv_field(out, name),
            _ => out.push_str(&id.to_string()),
        }
        let _ = write!(out, ",{},{},{}", b.lower, b.upper, b.size);
        if named {
            out.push(',');
            csv_field(out, b.name.as_deref().unwrap_or_default());
        }
        if alignment {
            let _ = write!(out, ",{}", b.alignment);
        }
        if guard {
            let _ = write!(out, ",{}", b.guard);
        }
        if hint {
            out.push(',');
            if let Place::Preferred(at) = b.place {
                let _ = write!(out, "{at}");
            }
        }
        if gaps {
            for (i, gap) in b.gaps.iter().enumerate() {
                let _ = write!(out, "{}{}-{}", if i == 0 { "," } else { " " }, gap.lower, gap.upper);
            }
            if b.gaps.is_empty() {
                out.push(',');
            }
        }
        let _ = match (layout.slot(id), b.arena) {
            (Some(slot), _) if arenas => write!(out, ",{},{}", slot.offset, slot.arena),
            (Some(slot), _) => write!(out, ",{}", slot.offset),
            (None, _) if left_out(b) => write!(out, ",,-"),
            (None, arena) => {
                // A fixed buffer is fixed without a layout, too.
                let at = if let Place::Fixed(at) = b.place { at.to_string() } else { String::new() };
                let arena =
                    if arenas { format!(",{}", arena.map_or(String::new(), |a| a.to_string())) } else { String::new() };
                write!(out, ",{at}{arena}")
            }
        };
        out.push('\n');
    }
    text
}

/// A field of CSV, quoted where it must be. Blanks at an end are quoted too: many readers would
/// trim them.
fn csv_field(out: &mut String, text: &str) {
    if text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        out.push('"');
        out.push_str(&text.replace('"', "\"\""));
        out.push('"');
    } else {
        out.push_str(text);
    }
}
