//! Byte ranges of arenas that are taken for a while, and collisions with them, in O(log n) each.

/// A range of bytes: (arena, first byte, end).
pub(super) type Bytes = (u32, u64, u64);

/// Ranges of bytes that come and go and may overlap.
pub(super) struct Taken {
    /// All ranges that will ever be there, in order.
    all: Vec<Bytes>,
    /// A tree over `all`. Each node has the highest end of the ranges below that are there now, or
    /// 0.
    ends: Vec<u64>,
}

impl Taken {
    /// Takes all ranges, in order; none is there yet.
    pub(super) fn new(all: Vec<Bytes>) -> Taken {
        let ends = vec![0; 2 * all.len()];
        Taken { all, ends }
    }

    /// Adds or removes the range at this place.
    pub(super) fn set(&mut self, place: usize, comes: bool) {
        let mut node = place + self.all.len();
        self.ends[node] = if comes { self.all[place].2 } else { 0 };
        while node > 1 {
            node /= 2;
            self.ends[node] = self.ends[2 * node].max(self.ends[2 * node + 1]);
        }
    }

    /// The place of a range that is there and shares a byte with this one.
    pub(super) fn meeting(&self, (arena, at, end): Bytes) -> Option<usize> {
        // Among ranges that begin below the end, look for one that ends above the first byte.
        let first = self.all.partition_point(|other| other.0 < arena);
        let last = self.all.partition_point(|other| (other.0, other.1) < (arena, end));
        let (mut from, mut to) = (first + self.all.len(), last + self.all.len());
        let mut highest = 0;
        while from < to {
            if from % 2 == 1 {
                highest = highest.max(self.ends[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                highest = highest.max(self.ends[to]);
            }
            from /= 2;
            to /= 2;
        }
        if highest <= at {
            return None;
        }
        // Finding which one takes longer, but happens only once.
        (first..last).find(|place| self.ends[place + self.all.len()] > at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn what_is_in_the_way_is_found() {
        for seed in 0..200 {
            let rng = &mut Rng::with_seed(seed);
            let bytes = |rng: &mut Rng| {
                let at = rng.u64(..30);
                (rng.u32(..3), at, at + rng.u64(1..9))
            };
            let mut all: Vec<Bytes> = (0..rng.usize(..20)).map(|_| bytes(rng)).collect();
            all.sort_unstable();
            let mut taken = Taken::new(all.clone());
            let mut there = vec![false; all.len()];
            for _ in 0..60 {
                if !all.is_empty() {
                    let place = rng.usize(..all.len());
                    there[place] = !there[place];
                    taken.set(place, there[place]);
                }
                let asked = bytes(rng);
                let meets = |k: &usize| {
                    let other = all[*k];
                    there[*k] && other.0 == asked.0 && other.1 < asked.2 && asked.1 < other.2
                };
                assert_eq!(taken.meeting(asked), (0..all.len()).find(meets), "seed {seed}");
            }
        }
    }
}
