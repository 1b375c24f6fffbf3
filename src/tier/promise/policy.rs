//! What happens when an allocation does not fit its reservation, and when memory has run out.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::space::SpaceId;
use crate::base::{Error, Result, Status};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// How many parts one has in a [`Factor`].
const UNIT: u32 = 1_000_000;

/// How much larger a reservation gets, from 1 to 1000 times, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(u32);

impl Default for Factor {
    /// 1.25.
    fn default() -> Factor {
        Factor(UNIT + UNIT / 4)
    }
}

impl Factor {
    /// The nearest factor to a number from 1 to 1000.
    pub fn new(times: f64) -> Result<Factor> {
        if (1.0..=1000.0).contains(&times) {
            return Ok(Factor((times * f64::from(UNIT)).round() as u32));
        }
        Err(Error::invalid(format!("a reservation cannot grow {times} times; give a factor from 1 to 1000")))
    }

    /// `bytes` times the factor, rounded up.
    pub(super) fn of(self, bytes: u64) -> u64 {
        let times = (u128::from(bytes) * u128::from(self.0)).div_ceil(u128::from(UNIT));
        u64::try_from(times).unwrap_or(u64::MAX)
    }
}

/// What a callback is told of an allocation that does not fit its reservation, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdraw {
    /// The reservation's space.
    pub space: SpaceId,
    /// The reservation's number.
    pub reservation: u64,
    /// Its size.
    pub size: u64,
    /// How much of it is drawn.
    pub drawn: u64,
    /// What the allocation needs.
    pub bytes: u64,
    /// The stream it is on.
    pub stream: u64,
    /// How often this callback has been called for this try of the allocation, from 1.
    pub attempt: u32,
}

/// What a callback decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The allocation fails.
    Fail,
    /// Like [`LimitPolicy::Ignore`].
    Ignore,
    /// The reservation grows by this many bytes at once, or the allocation fails. It stays grown,
    /// whatever becomes of the allocation.
    Grow(u64),
    /// Look again: something was freed meanwhile.
    Retry,
}

/// Decides what to do about an allocation that does not fit its reservation. Called with no lock
/// held.
pub type LimitCallback = Arc<dyn Fn(&Overdraw) -> Decision + Send + Sync>;

/// What happens when an allocation does not fit its reservation. No policy waits.
#[derive(Clone, Default)]
pub enum LimitPolicy {
    /// It fails.
    #[default]
    Fail,
    /// The allocation takes what is missing from outside the reservation, if the space's limit
    /// allows.
    Ignore,
    /// The reservation grows to `factor` times its size, or to what the allocation needs if that is
    /// more. If the space has less, it grows by what there is.
    Increase {
        /// How much larger it gets.
        factor: Factor,
        /// The most the reservation may grow to, bytes.
        cap: Option<u64>,
        /// Whether it may grow above the space's limit by what the allocation needs, up to the
        /// capacity.
        beyond_limit: bool,
    },
    /// The callback decides.
    Callback(LimitCallback),
}

impl fmt::Debug for LimitPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitPolicy::Fail => f.write_str("Fail"),
            LimitPolicy::Ignore => f.write_str("Ignore"),
            LimitPolicy::Increase { factor, cap, beyond_limit } => f
                .debug_struct("Increase")
                .field("factor", factor)
                .field("cap", cap)
                .field("beyond_limit", beyond_limit)
                .finish(),
            LimitPolicy::Callback(_) => f.write_str("Callback"),
        }
    }
}

/// What an out-of-memory callback is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The space.
    pub space: SpaceId,
    /// What the allocation needs, in bytes.
    pub bytes: u64,
    /// The stream it is on.
    pub stream: u64,
    /// How often it has failed, from 1.
    pub attempt: u32,
}

/// Frees, evicts or releases something. Returns whether the allocation should be tried again.
/// Called with no lock held. Allocations it makes itself do not call it again.
pub type OutOfMemoryCallback = Arc<dyn Fn(&Shortage) -> bool + Send + Sync>;

/// What happens when there is no memory for an allocation, whatever was promised.
#[derive(Clone, Default)]
pub enum OutOfMemoryPolicy {
    /// It fails.
    #[default]
    Fail,
    /// The callback may make room and ask for another try, as often as it likes.
    Callback(OutOfMemoryCallback),
}

impl fmt::Debug for OutOfMemoryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OutOfMemoryPolicy::Fail => "Fail",
            OutOfMemoryPolicy::Callback(_) => "Callback",
        })
    }
}

thread_local! {
    /// How many callbacks this thread is in: of policies, and about the progress of moves.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
    /// Whether one of them is of [`OutOfMemoryPolicy`].
    static IN_OUT_OF_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a callback of a policy, or about the progress of a move.
pub fn in_a_callback() -> bool {
    CALLBACKS.try_with(|n| n.get() > 0).unwrap_or(false)
}

/// Counts a callback of this thread until it is dropped, also by a panic.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = CALLBACKS.try_with(|n| n.set(n.get().saturating_sub(1)));
    }
}

/// Calls a callback, which [`in_a_callback`] then says.
pub fn call_back<T>(callback: impl FnOnce() -> T) -> T {
    let _ = CALLBACKS.try_with(|n| n.set(n.get().saturating_add(1)));
    let _inside = Inside;
    callback()
}

/// Marks the thread while a callback of [`OutOfMemoryPolicy`] runs, even if that panics.
struct InOutOfMemory;

impl InOutOfMemory {
    /// `None` in such a callback, or while the thread is ending.
    fn enter() -> Option<InOutOfMemory> {
        let entered = IN_OUT_OF_MEMORY.try_with(|i| !i.replace(true));
        entered.is_ok_and(|e| e).then_some(InOutOfMemory)
    }
}

impl Drop for InOutOfMemory {
    fn drop(&mut self) {
        let _ = IN_OUT_OF_MEMORY.try_with(|i| i.set(false));
    }
}

impl OutOfMemoryPolicy {
    /// Tries an allocation. If there is no memory, and the policy says so, tries again. Other
    /// errors are returned at once. Call it with no lock held.
    pub fn allocate<T>(
        &self,
        space: SpaceId,
        bytes: u64,
        stream: u64,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let first = attempt();
        self.go_on(first, space, bytes, stream, attempt)
    }

    /// Like [`Self::allocate`], after a first try that was made without looking at the policy.
    pub(super) fn go_on<T>(
        &self,
        first: Result<T>,
        space: SpaceId,
        bytes: u64,
        stream: u64,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let (mut failed, mut last) = (0u32, first);
        loop {
            let error = match last {
                Err(e) if e.status == Status::OutOfMemory => e,
                other => return other,
            };
            let OutOfMemoryPolicy::Callback(callback) = self else { return Err(error) };
            failed = failed.saturating_add(1);
            let again = {
                // Dropped before the next try, which is no part of the callback.
                let Some(_inside) = InOutOfMemory::enter() else { return Err(error) };
                call_back(|| callback(&Shortage { space, bytes, stream, attempt: failed }))
            };
            if !again {
                return Err(error);
            }
            last = attempt();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tier::Tier;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const SPACE: SpaceId = SpaceId::new(Tier::Gpu, 0);

    fn oom<T>() -> Result<T> {
        Err(Error::new(Status::OutOfMemory, "none"))
    }

    #[test]
    fn factors_round_up_and_are_checked() {
        assert_eq!(Factor::default().of(100), 125);
        assert_eq!(Factor::default().of(1), 2);
        assert_eq!(Factor::new(1000.0).map(|f| f.of(u64::MAX)), Ok(u64::MAX));
        for bad in [0.99, 1000.1, f64::NAN] {
            assert!(Factor::new(bad).is_err(), "{bad}");
        }
    }

    /// The callback is told bytes, stream and attempt, and asks for two more tries; the third
    /// succeeds.
    #[test]
    fn an_out_of_memory_callback_retries_until_it_fits() {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let policy = OutOfMemoryPolicy::Callback({
            let told = told.clone();
            Arc::new(move |s: &Shortage| {
                told.lock().is_ok_and(|mut t| {
                    t.push(*s);
                    true
                })
            })
        });
        let mut left = 2;
        let got = policy.allocate(SPACE, 40, 7, || match left {
            0 => Ok("memory"),
            _ => {
                left -= 1;
                oom()
            }
        });
        assert_eq!(got, Ok("memory"));
        let shortage = |attempt| Shortage { space: SPACE, bytes: 40, stream: 7, attempt };
        assert_eq!(told.lock().map(|t| t.clone()).unwrap_or_default(), [shortage(1), shortage(2)]);
    }

    #[test]
    fn an_out_of_memory_callback_may_give_up_and_is_not_asked_of_other_errors() {
        let asked = Arc::new(AtomicU64::new(0));
        let policy = OutOfMemoryPolicy::Callback({
            let asked = asked.clone();
            Arc::new(move |_: &Shortage| {
                asked.fetch_add(1, Relaxed);
                false
            })
        });
        assert_eq!(policy.allocate(SPACE, 1, 0, oom::<()>), oom());
        assert_eq!(asked.load(Relaxed), 1);
        let invalid = policy.allocate(SPACE, 1, 0, || Err::<(), _>(Error::invalid("no")));
        assert_eq!((invalid, asked.load(Relaxed)), (Err(Error::invalid("no")), 1));
        assert_eq!(OutOfMemoryPolicy::Fail.allocate(SPACE, 1, 0, oom::<()>), oom());
    }

    /// The try after a callback is made outside of it. Making room for it may need memory of
    /// another space, whose callback is called as before.
    #[test]
    fn the_try_after_an_out_of_memory_callback_is_not_inside_it() {
        let again = OutOfMemoryPolicy::Callback(Arc::new(|s: &Shortage| s.attempt == 1));
        let mut tries = 0;
        let got = again.allocate(SPACE, 1, 0, || {
            tries += 1;
            match tries {
                1 => oom(),
                _ => {
                    let mut left = 1;
                    again.allocate(SPACE, 1, 0, || match std::mem::replace(&mut left, 0) {
                        0 => Ok("memory"),
                        _ => oom(),
                    })
                }
            }
        });
        assert_eq!((got, tries), (Ok("memory"), 2));
    }

    /// A callback that allocates does not come back to itself, and is there again for the next
    /// allocation.
    #[test]
    fn an_out_of_memory_callback_does_not_recurse() {
        let calls = Arc::new(AtomicU64::new(0));
        let own: Arc<std::sync::OnceLock<OutOfMemoryPolicy>> = Arc::default();
        let policy = OutOfMemoryPolicy::Callback({
            let (calls, own) = (calls.clone(), own.clone());
            Arc::new(move |_: &Shortage| {
                calls.fetch_add(1, Relaxed);
                own.get().is_none_or(|p| p.allocate(SPACE, 1, 0, oom::<()>).is_ok())
            })
        });
        let policy = own.get_or_init(|| policy);
        for round in 1..=2 {
            assert_eq!(policy.allocate(SPACE, 1, 0, oom::<()>), oom());
            assert_eq!(calls.load(Relaxed), round);
        }
    }
}
