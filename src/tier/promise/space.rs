//! One place that memory can be in, and the counters of its bytes.
//!
//! One word, `room`, says what may still be promised or used: the available bytes, signed, times
//! two; the lowest bit says whether anything waits for them. So an allocation outside of any
//! reservation is counted with one compare-and-swap, and its end with one addition. That addition
//! shows at once whether there is a waiter to serve, so no wake-up is lost between two looks.
//!
//! - `committed == promised + unreserved == limit - available`
//! - `used == sum of what is drawn from reservations + unreserved`, and `used <= committed` at
//!   every moment: bytes are taken from the room before they count as used, and go back to it
//!   after.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::thresholds::Thresholds;
use super::usage::Usage;
use crate::base::sync::{lock, Apart, AtomicU64, Mutex};
use crate::base::{size, Error, Result};
use std::fmt;
use std::sync::atomic::Ordering::*;
use std::sync::Weak;

/// More bytes than any space has: sums of a few such counts fit the counters.
pub const MAX_BYTES: u64 = 1 << 60;

/// The bit of `room` that says that there are waiters.
const WAITED: u64 = 1;

/// A kind of memory: the lower, the faster and scarcer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// A device's memory.
    Gpu = 0,
    /// Pinned memory of the host.
    Host = 1,
    /// Files.
    Disk = 2,
}

/// A space: a device, a host's NUMA node, or a disk's mount, as they are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId {
    /// Its kind.
    pub tier: Tier,
    /// Which one of the kind.
    pub id: u32,
}

impl SpaceId {
    /// The space `id` of a tier.
    pub const fn new(tier: Tier, id: u32) -> SpaceId {
        SpaceId { tier, id }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Gpu => "GPU",
            Tier::Host => "HOST",
            Tier::Disk => "DISK",
        })
    }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.tier, self.id)
    }
}

/// What a space is made of.
#[derive(Clone, Copy, Debug)]
pub struct SpaceOptions {
    /// Bytes there are.
    pub capacity: u64,
    /// Bytes that may be promised or used, at most the capacity; `None` is the capacity.
    pub limit: Option<u64>,
    /// When data should be moved out, in parts of the limit.
    pub thresholds: Thresholds,
    /// The NUMA node that it is near to, if known: data goes to a space of the same node first.
    pub numa: Option<u32>,
    /// Whether to count use and peak for each stream, too.
    pub per_stream: bool,
}

impl SpaceOptions {
    /// A space of this capacity, with defaults for the rest.
    pub fn new(capacity: u64) -> SpaceOptions {
        SpaceOptions { capacity, limit: None, thresholds: Thresholds::default(), numa: None, per_stream: true }
    }
}

/// The counters of a space at one moment: bytes, except for the last two. Exact while nothing is
/// drawn or given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Bytes there are.
    pub capacity: u64,
    /// Bytes that may be promised or used.
    pub limit: u64,
    /// Sum of the sizes of its live reservations.
    pub promised: u64,
    /// Live allocations outside of any live reservation.
    pub unreserved: u64,
    /// Live allocations, in reservations and outside.
    pub used: u64,
    /// The most `used` has been since the last reset.
    pub peak: u64,
    /// Bytes that can still be promised or used.
    pub available: u64,
    /// How far `promised + unreserved` is above the limit. Only a policy or a lowered limit can
    /// bring that about.
    pub beyond: u64,
    /// From this use on data should be moved out.
    pub trigger: u64,
    /// At this use moving stops.
    pub stop: u64,
    /// Live reservations.
    pub reservations: u64,
    /// Requests that wait for this space, among others or alone.
    pub waiters: u64,
}

impl SpaceUsage {
    /// Whether so much is used that data should be moved out.
    pub fn should_downgrade(&self) -> bool {
        self.used >= self.trigger && self.used > self.stop
    }

    /// Bytes to move out to bring the use down to the stop; 0 if it is not above that.
    pub fn amount_to_downgrade(&self) -> u64 {
        self.used.saturating_sub(self.stop)
    }
}

/// Keeps the books of all spaces under one mutex, the manager's.
pub(super) trait Clerk: fmt::Debug + Send + Sync {
    /// Runs `change` under the mutex. If that returns true, serves the waiters before anything else
    /// can come.
    fn with_mutex(&self, change: &mut dyn FnMut() -> bool);
}

/// One place that memory can be in.
#[derive(Debug)]
pub struct Space {
    pub(super) id: SpaceId,
    /// Its place in the manager's list.
    pub(super) index: usize,
    pub(super) numa: Option<u32>,
    pub(super) per_stream: bool,
    /// The number of its manager.
    pub(super) manager: u64,
    clerk: Weak<dyn Clerk>,
    /// Available bytes, times two, and [`WAITED`].
    room: Apart<AtomicU64>,
    pub(super) usage: Apart<Usage>,
    // From here on: written under the manager's mutex only.
    capacity: AtomicU64,
    limit: AtomicU64,
    pub(super) promised: AtomicU64,
    /// Live reservations.
    pub(super) reservations: AtomicU64,
    /// The most that `committed` was allowed to exceed the limit by.
    excused: AtomicU64,
    /// As they were given: their bytes change with the limit.
    thresholds: Mutex<Thresholds>,
    trigger: AtomicU64,
    stop: AtomicU64,
}

#[inline]
fn available(room: u64) -> i64 {
    (room as i64) >> 1
}

impl Space {
    pub(super) fn new(
        id: SpaceId,
        options: &SpaceOptions,
        index: usize,
        (manager, clerk): (u64, Weak<dyn Clerk>),
    ) -> Result<Space> {
        let limit = options.limit.unwrap_or(options.capacity);
        check(id, options.capacity, limit)?;
        let space = Space {
            id,
            index,
            numa: options.numa,
            per_stream: options.per_stream,
            manager,
            clerk,
            room: Apart(AtomicU64::new(limit << 1)),
            usage: Apart::default(),
            capacity: AtomicU64::new(options.capacity),
            limit: AtomicU64::new(limit),
            promised: AtomicU64::new(0),
            reservations: AtomicU64::new(0),
            excused: AtomicU64::new(0),
            thresholds: Mutex::new(options.thresholds),
            trigger: AtomicU64::new(0),
            stop: AtomicU64::new(0),
        };
        space.set_thresholds(options.thresholds);
        Ok(space)
    }

    /// Which space it is.
    pub fn id(&self) -> SpaceId {
        self.id
    }

    /// The NUMA node that it is at, if that is known.
    pub fn numa(&self) -> Option<u32> {
        self.numa
    }

    /// Bytes there are.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Acquire)
    }

    /// Bytes that may be promised or used.
    pub fn limit(&self) -> u64 {
        self.limit.load(Acquire)
    }

    /// Live allocations' bytes, and their peak.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Bytes that can still be promised or used.
    pub fn available(&self) -> u64 {
        available(self.room.load(Acquire)).max(0) as u64
    }

    /// Bytes that must be given back before `bytes` can be taken, where the commitments may be
    /// `above` the limit. What they are above it by is missing as well.
    pub fn missing_for(&self, bytes: u64, above: u64) -> u64 {
        let there = i128::from(available(self.room.load(Acquire))) + i128::from(above);
        u64::try_from(i128::from(bytes) - there).unwrap_or(0)
    }

    /// How far above the limit a policy may let the commitments go.
    pub(super) fn above_limit(&self) -> u64 {
        self.capacity().saturating_sub(self.limit())
    }

    /// Whether so much is used that data should be moved out.
    #[inline]
    pub fn should_downgrade(&self) -> bool {
        let used = self.usage.now();
        used >= self.trigger.load(Acquire) && used > self.stop.load(Acquire)
    }

    /// Bytes to move out to bring the use down to the stop; 0 if it is not above that.
    pub fn amount_to_downgrade(&self) -> u64 {
        self.usage.now().saturating_sub(self.stop.load(Acquire))
    }

    /// Whether moving data out, once started, should stop.
    pub fn should_stop_downgrading(&self) -> bool {
        self.amount_to_downgrade() == 0
    }

    /// Takes `bytes` if that many are available.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.take_between(bytes, bytes, 0).is_some()
    }

    /// Takes at least `least` and at most `most` bytes (neither above [`MAX_BYTES`]), leaving at
    /// least `floor` available. Returns how many.
    #[inline]
    pub(super) fn take_between(&self, least: u64, most: u64, floor: i64) -> Option<u64> {
        let mut room = self.room.load(Acquire);
        loop {
            let there = available(room).checked_sub(floor).and_then(|n| u64::try_from(n).ok())?;
            let n = most.min(there);
            if n < least {
                return None;
            }
            match self.room.compare_exchange_weak(room, room.wrapping_sub(n << 1), AcqRel, Acquire) {
                Ok(_) => return Some(n),
                Err(now) => room = now,
            }
        }
    }

    /// Takes `bytes` although the limit forbids it, but not more than the capacity. Under the
    /// mutex.
    pub(super) fn take_beyond(&self, bytes: u64) -> bool {
        let taken = self.take_between(bytes, bytes, -(self.above_limit() as i64)).is_some();
        self.excuse();
        taken
    }

    /// Takes `bytes` (at most [`MAX_BYTES`]), although that many may not be available, because they
    /// are in use already. Under the mutex.
    pub(super) fn take_anyway(&self, bytes: u64) {
        self.room.fetch_sub(bytes << 1, AcqRel);
        self.excuse();
    }

    /// Notes how far the commitments are above the limit, by leave of a policy. Under the mutex.
    fn excuse(&self) {
        let beyond = available(self.room.load(Acquire)).min(0).unsigned_abs();
        self.excused.fetch_max(beyond, AcqRel);
    }

    /// Gives bytes back and serves the waiters for them.
    #[inline]
    pub(super) fn put(&self, bytes: u64) {
        if self.room.fetch_add(bytes << 1, AcqRel) & WAITED != 0 {
            self.serve();
        }
    }

    #[cold]
    fn serve(&self) {
        // Without a manager nothing can wait.
        self.with_mutex(|| ((), true));
    }

    /// Runs `change` under the mutex, and serves the waiters if that says so. Does nothing and
    /// returns `None` if the manager is gone.
    pub(super) fn with_mutex<T>(&self, change: impl FnOnce() -> (T, bool)) -> Option<T> {
        let clerk = self.clerk.upgrade()?;
        let (mut change, mut done) = (Some(change), None);
        clerk.with_mutex(&mut || {
            let Some((value, serve)) = change.take().map(|change| change()) else { return false };
            done = Some(value);
            serve
        });
        done
    }

    /// Gives bytes back. Under the mutex; its holder serves the waiters.
    pub(super) fn put_quietly(&self, bytes: u64) {
        self.room.fetch_add(bytes << 1, AcqRel);
    }

    /// Says whether there are waiters. Under the mutex.
    pub(super) fn set_waited(&self, waited: bool) {
        match waited {
            true => self.room.fetch_or(WAITED, AcqRel),
            false => self.room.fetch_and(!WAITED, AcqRel),
        };
    }

    /// Under the mutex.
    pub(super) fn set_limits(&self, capacity: u64, limit: u64) -> Result<()> {
        check(self.id, capacity, limit)?;
        let old = self.limit.swap(limit, AcqRel);
        self.capacity.store(capacity, Release);
        self.room.fetch_add(limit.wrapping_sub(old) << 1, AcqRel);
        self.excuse();
        self.refigure(*lock(&self.thresholds));
        Ok(())
    }

    /// Under the mutex.
    pub(super) fn set_thresholds(&self, thresholds: Thresholds) {
        *lock(&self.thresholds) = thresholds;
        self.refigure(thresholds);
    }

    /// Works out the thresholds' bytes, as parts of the limit and not of the capacity: a limit
    /// below the trigger would leave nothing to move out ever.
    fn refigure(&self, thresholds: Thresholds) {
        let limit = self.limit();
        self.trigger.store(thresholds.trigger_bytes(limit), Release);
        self.stop.store(thresholds.stop_bytes(limit), Release);
    }

    /// The counters; the caller knows the last. Under the mutex.
    pub(super) fn snapshot(&self, waiters: u64) -> SpaceUsage {
        let (limit, promised) = (self.limit(), self.promised.load(Acquire));
        let available = available(self.room.load(Acquire));
        let committed = i128::from(limit) - i128::from(available);
        SpaceUsage {
            capacity: self.capacity(),
            limit,
            promised,
            unreserved: u64::try_from(committed - i128::from(promised)).unwrap_or(0),
            used: self.usage.now(),
            peak: self.usage.peak(),
            available: available.max(0) as u64,
            beyond: available.min(0).unsigned_abs(),
            trigger: self.trigger.load(Acquire),
            stop: self.stop.load(Acquire),
            reservations: self.reservations.load(Acquire),
            waiters,
        }
    }

    /// Checks the equations above, given the number of its live reservations, the sums of their
    /// sizes and of what is drawn from them, and whether there are waiters. Under the mutex, while
    /// nothing is drawn or given back.
    pub(super) fn validate(&self, (live, sizes, drawn): (u64, u64, u64), waited: bool) -> Result<()> {
        let bad = |what: &str| Err(Error::internal(format!("{}: {what}; {:?}", self.id, self.snapshot(0))));
        let room = self.room.load(Acquire);
        let u = self.snapshot(0);
        if (u.reservations, u.promised) != (live, sizes) {
            return bad(&format!("{live} reservations of {sizes} bytes are alive"));
        }
        if i128::from(u.limit) - i128::from(available(room)) != i128::from(u.promised + u.unreserved) {
            return bad("less than what is promised is committed");
        }
        if u.used != drawn + u.unreserved {
            return bad(&format!("{drawn} bytes are drawn from reservations"));
        }
        if u.peak < u.used {
            return bad("the peak is below the use");
        }
        if u.limit > u.capacity || u.beyond > self.excused.load(Acquire) {
            return bad("more than the limit is committed");
        }
        if waited != (room & WAITED != 0) {
            return bad(&format!("waited for: {waited}"));
        }
        Ok(())
    }
}

fn check(id: SpaceId, capacity: u64, limit: u64) -> Result<()> {
    if capacity > MAX_BYTES {
        return Err(Error::invalid(format!(
            "{id}: a capacity of {capacity} bytes is too large; {MAX_BYTES} is the most"
        )));
    }
    if limit > capacity {
        return Err(Error::invalid(format!(
            "{id}: a limit of {} exceeds the capacity, {}; lower it",
            size::exact(limit),
            size::exact(capacity)
        )));
    }
    Ok(())
}
