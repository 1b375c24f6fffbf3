//! How much more memory a heap remaps than is bearable: the cost for a program that goes on
//! remapping for ever (`remap/economy.rs`).

/// Remapping one extent for every this many requests is bearable: 2 to 4 µs a request on a GPU.
const BEARABLE: u64 = 8;

/// The most extents borne at once, after a long time with nothing to bear.
const MOST_BORNE: u64 = 64;

/// Bytes remapped beyond what is bearable, since the heap last started afresh or memory was given
/// back on demand.
///
/// Invariant: `spared <= BEARABLE * MOST_BORNE`.
#[derive(Default)]
pub(crate) struct Burden {
    pub(crate) bytes: u64,
    /// Requests that no extent has been charged to yet.
    spared: u64,
    /// The heap's number of requests when it last remapped anything.
    requests: u64,
}

impl Burden {
    /// Notes that `bytes` in `extents` extents were remapped. The heap has had `requests` requests
    /// in all.
    pub(crate) fn note(&mut self, bytes: u64, extents: u64, requests: u64) {
        let since = requests.wrapping_sub(std::mem::replace(&mut self.requests, requests));
        self.spared = self.spared.saturating_add(since).min(BEARABLE * MOST_BORNE);
        let borne = extents.min(self.spared / BEARABLE);
        self.spared -= borne * BEARABLE;
        self.bytes += bytes.checked_div(extents).map_or(0, |each| each * (extents - borne));
    }

    /// Forgets the burden.
    pub(crate) fn lift(&mut self) {
        self.bytes = 0;
    }

    /// Checks the invariant written above.
    pub(crate) fn validate(&self) -> Result<(), String> {
        ensure!(self.spared <= BEARABLE * MOST_BORNE, "{} requests are spared", self.spared);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The burden of remapping extents of 10 bytes 1,000 times, `extents` at a time, each time
    /// `after` more requests.
    fn burden(extents: u64, after: u64) -> u64 {
        let mut burden = Burden::default();
        for time in 1..=1000 {
            burden.note(10 * extents, extents, time * after);
            assert_eq!(burden.validate(), Ok(()));
        }
        burden.bytes
    }

    #[test]
    fn one_extent_for_eight_requests_is_borne() {
        assert_eq!((burden(1, 8), burden(10, 80), burden(64, 512)), (0, 0, 0));
    }

    #[test]
    fn what_is_more_is_a_burden() {
        assert_eq!(burden(1, 4), 5_000);
        assert_eq!(burden(2, 8), 10_000);
        assert_eq!(burden(3, 0), 30_000);
    }

    #[test]
    fn no_more_than_so_much_is_borne_at_once() {
        let mut burden = Burden::default();
        burden.note(1_000, 100, 1 << 40);
        assert_eq!(burden.bytes, 10 * (100 - MOST_BORNE));
    }
}
