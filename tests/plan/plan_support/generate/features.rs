//! Random problems with everything that a problem can ask for.

use super::rng::Rng;
use gpumem::base::Result;
use gpumem::plan::problem::{Arena, Buffer, Interval, Kind, Kinds, Place, Problem, Reserved, Step, MAX_BYTES};

/// Most fixed buffers: each is compared with all others.
const MOST_FIXED: usize = 64;

/// Largest size: a few times it, as an offset, still adds up.
const MOST_BYTES: u64 = MAX_BYTES / 16;

/// What [`with_features`] may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Powers of two up to 64 bytes as alignment.
    pub alignments: bool,
    /// Guards behind some buffers.
    pub guards: bool,
    /// Fixed offsets, none of which contradicts another or a reserved range.
    pub fixed: bool,
    /// Preferred offsets, which may contradict anything.
    pub preferred: bool,
    /// Steps in between at which a buffer holds nothing.
    pub gaps: bool,
    /// Ranges that nothing may use for a while; they may overlap each other.
    pub reserved: bool,
    /// Two or three arenas and buffers bound to them. All but the last have capacities that hold
    /// what is bound to them.
    pub arenas: bool,
    /// Buffers of no bytes, or live at no step.
    pub empty: bool,
    /// Every offset a multiple of a few bytes, perhaps not a power of two.
    pub unit: bool,
    /// No bytes are used twice.
    pub no_reuse: bool,
    /// Buffers of all kinds, and some kinds left out.
    pub left_out: bool,
}

impl Features {
    /// Everything but doing without reuse.
    pub const ALL: Features = Features {
        alignments: true,
        guards: true,
        fixed: true,
        preferred: true,
        gaps: true,
        reserved: true,
        arenas: true,
        empty: true,
        unit: true,
        no_reuse: false,
        left_out: true,
    };

    /// A random half of [`Features::ALL`], and no reuse once in sixteen times.
    pub fn some(rng: &mut Rng) -> Features {
        let mut half = || rng.one_in(2);
        Features {
            alignments: half(),
            guards: half(),
            fixed: half(),
            preferred: half(),
            gaps: half(),
            reserved: half(),
            arenas: half(),
            empty: half(),
            unit: half(),
            left_out: half(),
            no_reuse: rng.one_in(16),
        }
    }
}

/// `count` buffers as [`random`](super::random) makes them, of 1 to `most_bytes` (at most 2^58)
/// bytes in `[0, steps)`, with `features`.
///
/// There is a layout: capacities are only those of [`Features::arenas`].
pub fn with_features(seed: u64, count: usize, steps: Step, most_bytes: u64, features: Features) -> Result<Problem> {
    let mut maker = Maker { rng: Rng::new(seed), steps, most: most_bytes.min(MOST_BYTES), features };
    let mut problem = Problem::new();
    let unit = if features.unit { [1, 3, 4, 12, 16][maker.rng.below(5) as usize] } else { 1 };
    problem.set_unit(unit)?;
    problem.set_reuse(!features.no_reuse);
    let arenas = if features.arenas { 2 + maker.rng.below(2) as u32 } else { 1 };
    let reserved = maker.reserved(arenas);
    let mut buffers: Vec<Buffer> = Vec::with_capacity(count);
    let mut fixed: Vec<usize> = Vec::new();
    for i in 0..count {
        let mut buffer = maker.buffer(arenas);
        if features.fixed && fixed.len() < MOST_FIXED && maker.rng.one_in(8) {
            let others = fixed.iter().filter_map(|&i| buffers.get(i));
            maker.fix(&mut buffer, others, &reserved, unit);
            fixed.push(i);
        }
        buffers.push(buffer);
    }
    let capacity = |arena: u32| {
        let bound = buffers.iter().filter(|b| b.arena == Some(arena));
        let ends = reserved.iter().filter(|r| r.arena == arena).map(|r| r.offset.saturating_add(r.size));
        let ends = ends.chain(bound.clone().map(|b| match b.place {
            Place::Fixed(at) => at.saturating_add(b.size).saturating_add(b.guard),
            _ => 0,
        }));
        // Above everything that cannot move there is room for all others, each on a multiple of
        // what it must be.
        let room = |b: &Buffer| b.size.saturating_add(b.guard).saturating_add(stride(b.alignment, unit));
        ends.max().unwrap_or(0).saturating_add(bound.map(room).fold(0, u64::saturating_add))
    };
    problem.set_capacity((arenas > 1).then(|| capacity(0)));
    for arena in 1..arenas {
        problem.add_arena(Arena { name: None, capacity: (arena + 1 < arenas).then(|| capacity(arena)) });
    }
    if features.left_out {
        problem.set_left_out(Kinds::NONE.with(Kind::Parameter).with(Kind::Constant));
    }
    for range in reserved {
        problem.reserve(range)?;
    }
    for buffer in buffers {
        problem.add(buffer)?;
    }
    Ok(problem)
}

struct Maker {
    rng: Rng,
    steps: Step,
    most: u64,
    features: Features,
}

impl Maker {
    fn reserved(&mut self, arenas: u32) -> Vec<Reserved> {
        let count = if self.features.reserved { 1 + self.rng.below(4) } else { 0 };
        let mut range = || {
            let (lower, upper) = self.rng.steps(self.steps);
            Reserved {
                arena: self.rng.below(u64::from(arenas)) as u32,
                offset: self.rng.below(self.most.saturating_mul(2)),
                size: self.rng.magnitude(self.most),
                during: Interval::new(lower, upper),
            }
        };
        (0..count).map(|_| range()).collect()
    }

    fn buffer(&mut self, arenas: u32) -> Buffer {
        let rng = &mut self.rng;
        let (lower, upper) = rng.steps(self.steps);
        let mut buffer = Buffer::new(rng.magnitude(self.most), lower, upper);
        if self.features.alignments {
            buffer.alignment = 1 << rng.below(7);
        }
        if self.features.guards && rng.one_in(4) {
            buffer.guard = rng.magnitude(self.most / 4);
        }
        if self.features.left_out {
            buffer.kind = Kind::ALL[rng.below(Kind::ALL.len() as u64) as usize];
        }
        if self.features.arenas && rng.one_in(2) {
            buffer.arena = Some(rng.below(u64::from(arenas)) as u32);
        }
        if self.features.gaps && rng.one_in(3) {
            buffer.gaps = gaps(rng, lower, upper);
        }
        if self.features.preferred && rng.one_in(8) {
            buffer.place = Place::Preferred(rng.below(self.most / buffer.alignment * 4 + 1) * buffer.alignment);
        }
        if self.features.empty && rng.one_in(8) {
            match rng.below(3) {
                0 => buffer.size = 0,
                1 => (buffer.upper, buffer.gaps) = (buffer.lower, Vec::new()),
                _ => buffer.gaps = vec![Interval::new(lower, upper)],
            }
        }
        buffer
    }

    /// Fixes it somewhere free, if a few tries find such a place; in the first arena, if it was
    /// bound to none.
    fn fix<'a>(
        &mut self,
        buffer: &mut Buffer,
        others: impl Iterator<Item = &'a Buffer> + Clone,
        reserved: &[Reserved],
        unit: u64,
    ) {
        let stride = stride(buffer.alignment, unit);
        let arena = *buffer.arena.get_or_insert(0);
        for _ in 0..8 {
            let at = self.rng.below(self.most.saturating_mul(4) / stride + 1) * stride;
            let end = at.saturating_add(buffer.size).saturating_add(buffer.guard);
            let steps = Interval::new(buffer.lower, buffer.upper);
            let in_reserved = reserved.iter().any(|r| {
                r.arena == arena && r.offset < end && at < r.offset.saturating_add(r.size) && r.during.overlaps(steps)
            });
            let on_another = others.clone().any(|other| match other.place {
                Place::Fixed(start) => {
                    // Gaps do not help: there are places enough.
                    let together = Interval::new(other.lower, other.upper).overlaps(steps) || self.features.no_reuse;
                    let until = start.saturating_add(other.size).saturating_add(other.guard);
                    together && other.arena == Some(arena) && start < end && at < until
                }
                _ => false,
            });
            if !in_reserved && !on_another {
                buffer.place = Place::Fixed(at);
                return;
            }
        }
    }
}

/// One or two gaps inside `[lower, upper)`, or none if it is too short; they may touch its ends and
/// each other.
fn gaps(rng: &mut Rng, lower: Step, upper: Step) -> Vec<Interval> {
    let mut gaps = Vec::new();
    let mut from = lower;
    for _ in 0..=rng.below(2) {
        if upper - from < 2 {
            break;
        }
        let start = rng.between(from, upper - 1);
        let end = rng.between(start + 1, upper);
        gaps.push(Interval::new(start, end));
        from = end;
    }
    gaps
}

/// The least common multiple of a power of two and the unit.
fn stride(alignment: u64, unit: u64) -> u64 {
    let shared = 1u64 << unit.trailing_zeros().min(alignment.trailing_zeros());
    (alignment / shared).saturating_mul(unit)
}
