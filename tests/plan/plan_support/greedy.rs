//! Greedy planners of others, written from their descriptions. What they do not know of is added in
//! the simplest way: fixed buffers are placed first, reserved ranges are obstacles, guards belong
//! to the size.

use super::generate::Rng;
use super::{has_obstacles, live_at, lives, occupied, stride, together};
use gpumem::plan::{Buffer, Place, Problem, Slot, Step};
use std::cmp::Reverse;

/// Which of the gaps in which a buffer fits it takes.
#[derive(Clone, Copy)]
pub enum Fit {
    /// The lowest.
    First,
    /// The smallest; the end only if no gap is large enough.
    Best,
}

/// Slots, by buffer.
pub type Slots = Vec<Option<Slot>>;

/// A planner by name, and what it made of a problem of one arena.
pub struct Result {
    pub name: &'static str,
    pub slots: Slots,
    pub size: u64,
}

/// All planners that can place `problem`. Capacities are ignored.
pub fn all(problem: &Problem) -> Vec<Result> {
    let buffers = problem.buffers();
    let size = |i: &usize| buffers[*i].size + buffers[*i].guard;
    let life = |i: &usize| buffers[*i].upper - buffers[*i].lower;
    let order = |key: &dyn Fn(&usize) -> (u128, u64, u64)| {
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by_key(|i| Reverse(key(i)));
        order
    };
    // Stable sorts: what ties stays in the order of adding.
    let by_size = order(&|i| (size(i).into(), 0, 0));
    let by_size_and_life = order(&|i| (size(i).into(), life(i), u64::MAX - buffers[*i].lower));
    let by_life = order(&|i| (life(i).into(), size(i), 0));
    let by_area = order(&|i| (u128::from(size(i)) * u128::from(life(i)), size(i), 0));
    let breadth = by_breadth(problem);
    let mut results = vec![
        // The planner this one began as: "size decreasing, lowest offset among what overlaps".
        ("by size, first fit", place(problem, &by_size, Fit::First, |_| 0)),
        // XLA's heap simulator: the better of two orders, each with the smallest chunk that is free
        // throughout.
        ("XLA spatial", place(problem, &by_size_and_life, Fit::Best, |_| 0)),
        ("XLA temporal", place(problem, &by_life, Fit::Best, |_| 0)),
        ("by size x life", place(problem, &by_area, Fit::First, |_| 0)),
        // TFLite's GPU delegate, and Pisarchyk and Lee, 2020.
        ("TFLite by size", place(problem, &by_size, Fit::Best, |_| 0)),
        ("by breadth, best fit", place(problem, &breadth, Fit::Best, |_| 0)),
    ];
    if !has_obstacles(problem) && problem.reuse() {
        results.push(("TFLite by breadth, shared objects", shared_objects(problem, &breadth)));
    }
    let sized = |(name, slots): (&'static str, Slots)| Result { name, size: size_of(problem, &slots), slots };
    results.into_iter().map(sized).collect()
}

/// The end of what is highest in a problem of one arena.
pub fn size_of(problem: &Problem, slots: &Slots) -> u64 {
    super::accounted(problem, slots.clone()).size
}

/// Operations by the sum of what is live at them, largest first, and of each its buffers by size.
fn by_breadth(problem: &Problem) -> Vec<usize> {
    let buffers = problem.buffers();
    let mut steps: Vec<Step> = buffers.iter().flat_map(lives).map(|(lower, _)| lower).collect();
    steps.sort_unstable();
    steps.dedup();
    let breadth = |step: &Step| -> u64 { buffers.iter().filter(|b| live_at(b, *step)).map(occupied).sum() };
    steps.sort_by_cached_key(|step| Reverse(breadth(step)));
    let mut seen = vec![false; buffers.len()];
    let mut order = Vec::new();
    for step in steps {
        let mut here: Vec<usize> = (0..buffers.len()).filter(|i| live_at(&buffers[*i], step)).collect();
        here.sort_by_key(|i| Reverse(buffers[*i].size));
        order.extend(here.into_iter().filter(|i| !std::mem::replace(&mut seen[*i], true)));
    }
    order.extend((0..buffers.len()).filter(|i| !seen[*i]));
    order
}

/// Places buffers in this order, each by `fit` among what is placed already and needs other bytes;
/// fixed ones first. `arena` is asked for buffers that are bound to none. Capacities are ignored.
pub fn place(problem: &Problem, order: &[usize], fit: Fit, mut arena: impl FnMut(usize) -> u32) -> Slots {
    let buffers = problem.buffers();
    let mut slots: Slots = vec![None; buffers.len()];
    let is_fixed = |i: &usize| matches!(buffers[*i].place, Place::Fixed(_));
    let fixed_first = order.iter().filter(|i| is_fixed(i)).chain(order.iter().filter(|i| !is_fixed(i)));
    for &i in fixed_first.filter(|i| !problem.left_out().contains(buffers[**i].kind)) {
        let arena = buffers[i].arena.unwrap_or_else(|| arena(i));
        let offset = match buffers[i].place {
            Place::Fixed(at) => at,
            _ => find(problem, &obstacles(problem, &slots, &buffers[i], arena), &buffers[i], fit),
        };
        slots[i] = Some(Slot { arena, offset });
    }
    slots
}

/// Bytes that a buffer must keep off in an arena, by start.
pub fn obstacles(problem: &Problem, slots: &Slots, buffer: &Buffer, arena: u32) -> Vec<(u64, u64)> {
    let placed = problem.buffers().iter().zip(slots).filter_map(|(b, s)| Some((b, (*s)?)));
    let others = placed.filter(|(other, slot)| slot.arena == arena && together(problem, buffer, other));
    let reserved = problem.reserved().iter().filter(|r| {
        r.arena == arena
            && r.size > 0
            && lives(buffer).iter().any(|l| l.0.max(r.during.lower) < l.1.min(r.during.upper))
    });
    let mut obstacles: Vec<(u64, u64)> = others.map(|(b, s)| (s.offset, s.offset + occupied(b))).collect();
    obstacles.extend(reserved.map(|r| (r.offset, r.offset + r.size)));
    obstacles.sort_unstable();
    obstacles
}

/// The offset between the obstacles that `fit` takes.
pub fn find(problem: &Problem, obstacles: &[(u64, u64)], buffer: &Buffer, fit: Fit) -> u64 {
    let (bytes, stride) = (occupied(buffer), stride(problem, buffer));
    if bytes == 0 {
        return 0;
    }
    let mut best: Option<(u64, u64)> = None;
    let mut free_from = 0u64;
    for &(start, end) in obstacles {
        let at = free_from.next_multiple_of(stride);
        if at + bytes <= start {
            let gap = start - free_from;
            match fit {
                Fit::First => return at,
                Fit::Best if best.is_none_or(|(smallest, _)| gap < smallest) => best = Some((gap, at)),
                Fit::Best => {}
            }
        }
        free_from = free_from.max(end);
    }
    best.map_or(free_from.next_multiple_of(stride), |(_, at)| at)
}

/// Buffers share whole objects: the smallest free one that is large enough, else the largest free
/// one, which grows. Objects lie side by side.
fn shared_objects(problem: &Problem, order: &[usize]) -> Slots {
    struct Object {
        size: u64,
        stride: u64,
        users: Vec<usize>,
    }
    let buffers = problem.buffers();
    let mut objects: Vec<Object> = Vec::new();
    for &i in order.iter().filter(|i| !problem.left_out().contains(buffers[**i].kind)) {
        let (bytes, stride) = (occupied(&buffers[i]), stride(problem, &buffers[i]));
        let free = |o: &&mut Object| !o.users.iter().any(|j| together(problem, &buffers[i], &buffers[*j]));
        // Large enough sorts before too small; of the first the smallest, of the second the
        // largest.
        let wanted = |o: &&mut Object| if o.size >= bytes { (0, o.size) } else { (1, u64::MAX - o.size) };
        match objects.iter_mut().filter(free).min_by_key(wanted) {
            Some(object) => {
                object.size = object.size.max(bytes);
                object.stride = lcm(object.stride, stride);
                object.users.push(i);
            }
            None => objects.push(Object { size: bytes, stride, users: vec![i] }),
        }
    }
    let mut slots: Slots = vec![None; buffers.len()];
    let mut end = 0u64;
    for object in objects {
        let offset = end.next_multiple_of(object.stride);
        end = offset + object.size;
        for i in object.users {
            slots[i] = Some(Slot { arena: 0, offset });
        }
    }
    slots
}

/// First fit in random order, in a random arena where the problem leaves the choice.
pub fn at_random(problem: &Problem, rng: &mut Rng) -> Slots {
    let mut order: Vec<usize> = (0..problem.buffers().len()).collect();
    rng.shuffle(&mut order);
    let fit = if rng.one_in(2) { Fit::First } else { Fit::Best };
    place(problem, &order, fit, |_| rng.below(problem.arenas().len() as u64) as u32)
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
