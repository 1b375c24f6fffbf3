//! How much more memory a heap remaps than is bearable: what it costs a program that is never done
//! with it (`remap/economy.rs`).

/// To remap one extent for every so many requests is bearable: 2 to 4 µs a request on a GPU.
const BEARABLE: u64 = 8;

/// So many extents are borne at once, where there was nothing to bear for long.
const MOST_BORNE: u64 = 64;

/// Bytes remapped beyond what is bearable, since the heap last started afresh or memory was given
/// back on demand.
///
/// Invariant: `spared <= BEARABLE * MOST_BORNE`.
#[derive(Default)]
pub(crate) struct Burden {
    pub(crate) bytes: u64,
    /// Requests that have not borne anything yet.
    spared: u64,
    /// The heap's requests when it last remapped anything.
    requests: u64,
}

impl Burden {
    /// So many bytes in so many extents were remapped, the heap having had `requests` in all.
    pub(crate) fn note(&mut self, bytes: u64, extents: u64, requests: u64) {
        let since = requests.wrapping_sub(std::mem::replace(&mut self.requests, requests));
        self.spared = self.spared.saturating_add(since).min(BEARABLE * MOST_BORNE);
        let borne = extents.min(self.spared / BEARABLE);
        self.spared -= borne * BEARABLE;
        self.bytes += bytes.checked_div(extents).map_or(0, |each| each * (extents - borne));
    }

    /// It is forgotten.
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

    /// The burden of 1,000 times so many extents of 10 bytes, each time after so many requests.
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
