//! Whether to try again what failed the last times.

/// Failures in a row that are forgiven before a try is left out.
const FORGIVEN: u32 = 2;

/// After this many failures in a row, 2^4 of every 2^4 + 1 tries are left out.
const MOST: u32 = FORGIVEN + 4;

/// For something that costs time and helps only now and then: each further failure in a row doubles
/// the number of tries left out. It counts tries, not time, so the same calls do the same thing.
#[derive(Default)]
pub(crate) struct Backoff {
    /// Failures since the last success.
    vain: u32,
    /// How many more tries to leave out.
    skip: u32,
}

impl Backoff {
    /// Whether to try now. If so, a call of [`Self::ended`] must follow.
    pub(crate) fn try_now(&mut self) -> bool {
        let now = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        now
    }

    /// Notes whether the try has helped.
    pub(crate) fn ended(&mut self, well: bool) {
        self.vain = if well { 0 } else { (self.vain + 1).min(MOST) };
        self.skip = if self.vain > FORGIVEN { 1 << (self.vain - FORGIVEN) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_less_and_less_often_until_it_helps() {
        let mut t = Backoff::default();
        let tried: Vec<u32> = (0..64).filter(|_| t.try_now().then(|| t.ended(false)).is_some()).collect();
        assert_eq!(tried, [0, 1, 2, 5, 10, 19, 36, 53], "gaps of 0, 0, 2, 4, 8, 16, 16");
        while !t.try_now() {}
        t.ended(true);
        assert!(t.try_now());
    }
}
