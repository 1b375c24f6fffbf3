//! Mapping runs of extents, unmapping old addresses, and what to do when the driver refuses an
//! undo: the addresses become zombies.

use crate::base::size::{human, GIB};
use crate::base::{Error, Result, Status};
use crate::driver::{PhysFlags, PhysHandle};
use crate::pool::memory::{Extent, Unmapping};
use crate::pool::state::{Core, Pool};
use crate::pool::types::{too_large, Want};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// The fewest and the most aliases that a request unmaps when there are too many: 16 µs each on an
/// H200. Usually as many as the last request left.
const REAPED: (usize, usize) = (8, 64);

/// Or one part in this many of the surplus, if that is more. So requests that leave more than the
/// most do not outrun the bound.
const PART_OF_SURPLUS: usize = 8;

/// Bytes of old addresses that stay mapped at least, and for each mapped byte. Each 32 MiB of them
/// may take 4 KiB of the index.
const KEPT: (u64, u64) = (64 * GIB, 16);

/// Runs of aliases among which it looks for the longest unused ones, at least. To look at all of
/// them would take milliseconds, once there are tens of thousands.
const LOOKED_AT: usize = 64;

impl Pool {
    /// Gives the pool's addresses back at its end. None of them is mapped.
    pub(crate) fn give_up_addresses(&self) -> Result<()> {
        let core = self.core.lock();
        // All are tried, even if one fails.
        let reservations = core.holes.roots().map(|(base, len)| (base, len + self.page));
        reservations.map(|(base, len)| self.driver.va_free(self.dev, base, len)).fold(Ok(()), Result::and)
    }

    /// Takes addresses anywhere.
    pub(crate) fn take_addresses(&self, len: u64, align: u64) -> Result<u64> {
        self.or_without_old_addresses(|| self.find_addresses(len, align.max(self.page)))
    }

    /// Does what needs addresses or mappings. If the system has none left, does it again after old
    /// addresses of moved extents, which may have used them up, are unmapped.
    pub(crate) fn or_without_old_addresses<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        match attempt() {
            Err(e) if e.status == Status::OutOfMemory && self.core.lock().aliases.dormant() > 0 => {
                self.reap()?;
                attempt()
            }
            done => done,
        }
    }

    fn find_addresses(&self, len: u64, align: u64) -> Result<u64> {
        let mut core = self.core.lock();
        core.no_place = None;
        let taken = core.holes.take(len, align);
        while let Some((addr, len)) = core.holes.woken.pop() {
            self.index.forget(core.holes.around(addr), addr, len);
        }
        if let Some(va) = taken {
            return Ok(va);
        }
        let reserved = self.reserve_root(&mut core, len.checked_add(align).ok_or_else(|| too_large(len))?);
        reserved.inspect_err(|e| core.no_place = Some(e.clone()))?;
        core.holes.take(len, align).ok_or_else(|| Error::internal("a fresh reservation is too small"))
    }

    /// Claims `bytes` of the limit for memory about to be created, so that threads that grow at
    /// once cannot exceed it; [`Pool::sub_mapped`] gives them back.
    pub(crate) fn claim(&self, bytes: u64) -> Result<()> {
        let limit = self.limit.load(Relaxed);
        let more = |now: u64| now.checked_add(bytes).filter(|&then| then <= limit || bytes == 0);
        let claimed = self.counters.mapped.fetch_update(Relaxed, Relaxed, more);
        claimed.map(drop).map_err(|now| {
            let [bytes, now, limit] = [bytes, now, limit].map(human);
            let why = format!("{bytes} more than the {now} mapped would exceed the limit of {limit}");
            Error::new(Status::OutOfMemory, why)
        })
    }

    /// Maps extents one after the other from `va` on, the created ones last. If that fails, nothing
    /// stays mapped, and the `len` bytes of addresses are holes again.
    pub(crate) fn map_run(
        &self,
        va: u64,
        len: u64,
        moved: impl Iterator<Item = Extent>,
        creates: &[u64],
    ) -> Result<Vec<Extent>> {
        let mut run: Vec<Extent> = moved.collect();
        let first_new = run.len();
        let mut mapped = 0;
        let created = creates.iter().sum();
        self.claim(created).inspect_err(|_| self.core.lock().holes.give(va, len))?;
        let done = (|| {
            for &size in creates {
                let handle = self.driver.phys_create(self.dev, size, PhysFlags::default()).inspect_err(|e| {
                    self.counters.device_is_full.fetch_or(e.status == Status::OutOfMemory, Relaxed);
                })?;
                run.push(Extent { handle, size, id: u32::MAX });
            }
            for e in &run {
                let done = self.driver.map(self.dev, va + mapped, e.size, e.handle);
                done.inspect_err(|e| self.core.lock().no_place = Some(e.clone()))?;
                mapped += e.size;
            }
            self.driver.set_access(va, mapped, &self.access)
        })();
        if let Err(e) = done {
            self.sub_mapped(created);
            self.core.lock().holes.give(va + mapped, len - mapped);
            // What cannot be undone now is put off, as zombies and orphans.
            self.undo_map(va, mapped);
            for x in &run[first_new..] {
                let _ = self.drop_handle(x.handle);
            }
            return Err(e);
        }
        self.note_peak();
        if first_new < run.len() {
            let mut core = self.core.lock();
            run[first_new..].iter_mut().for_each(|e| *e = core.aliases.add_extent(e.handle, e.size));
        }
        Ok(run)
    }

    /// Unmaps addresses that were never handed out, so there is nothing to wait for, and makes them
    /// holes again. If the driver refuses, they become zombies, which are unmapped later.
    fn undo_map(&self, va: u64, len: u64) {
        if len == 0 {
            return;
        }
        let done = self.driver.unmap(va, len);
        let mut core = self.core.lock();
        match done {
            Ok(()) => core.holes.give(va, len),
            Err(_) => core.zombies.push((va, len)),
        }
    }

    /// Drops a handle that the pool has no mapping for. If the driver refuses, it becomes an
    /// orphan, which is dropped later.
    pub(crate) fn drop_handle(&self, handle: PhysHandle) -> Result<()> {
        self.driver.phys_release(handle).inspect_err(|_| self.core.lock().orphans.push(handle))
    }

    /// Drops the handles that could not be dropped before.
    pub(crate) fn drop_orphans(&self) -> Result<()> {
        let orphans = std::mem::take(&mut self.core.lock().orphans);
        // All are tried, even if one fails.
        orphans.into_iter().map(|h| self.drop_handle(h)).fold(Ok(()), Result::and)
    }

    /// Unmaps zombies; their addresses become holes.
    pub(crate) fn reap_zombies(&self) -> Result<()> {
        // A closure, so that the lock is released.
        let next = || self.core.lock().zombies.pop();
        while let Some((addr, len)) = next() {
            self.driver.unmap(addr, len).inspect_err(|_| self.core.lock().zombies.push((addr, len)))?;
            self.core.lock().holes.give(addr, len);
        }
        Ok(())
    }

    /// Unmaps dormant aliases that the caller claimed; their addresses become holes. After a
    /// failure the others are as before.
    pub(crate) fn unmap_claims(&self, claims: &[Unmapping]) -> Result<()> {
        for (i, &c) in claims.iter().enumerate() {
            self.driver.unmap(c.addr, c.size).inspect_err(|_| {
                let mut core = self.core.lock();
                claims[i..].iter().for_each(|&c| core.aliases.unclaim(c));
            })?;
            let mut core = self.core.lock();
            core.aliases.gone(c);
            self.give_used_addresses(&mut core, c.addr, c.size);
        }
        Ok(())
    }

    /// Makes addresses a hole at which blocks have been, and nothing is mapped any more.
    pub(crate) fn give_used_addresses(&self, core: &mut Core, addr: u64, len: u64) {
        core.holes.give(addr, len);
        self.index.forget(core.holes.around(addr), addr, len);
    }

    /// Unmaps some dormant aliases if there are more than the pool keeps: of a few runs the longest
    /// unused that the device has passed. If it has not passed some of the request's stream, that
    /// stream gets a marker, and they go another time.
    pub(crate) fn reap_surplus(&self, want: Want) -> Result<()> {
        self.reap_zombies()?;
        let (claims, waits) = {
            let mut core = self.core.lock();
            let surplus = self.surplus_aliases(&core);
            if surplus == 0 {
                return Ok(());
            }
            let most = surplus.clamp(REAPED.0, REAPED.1.max(surplus / PART_OF_SURPLUS));
            core.aliases.claim_oldest(most, most.max(LOOKED_AT), &self.order)
        };
        let done = self.unmap_claims(&claims);
        if waits.iter().any(|&t| t.lane() == want.lane && !self.order.marked(t)) {
            self.order.mark(want.lane, want.stream)?;
        }
        self.order.poll(waits.iter().map(|t| t.lane()).collect::<BTreeSet<u32>>())?;
        done
    }

    /// How many dormant aliases there are too many, or that take too many addresses: more than half
    /// of all, or, unless the pool is to be tight, than [`KEPT`] allows.
    fn surplus_aliases(&self, core: &Core) -> usize {
        let (aliases, bytes) = (core.aliases.dormant(), core.aliases.dormant_bytes());
        let kept = if self.options.finer { u64::MAX } else { KEPT.0 + KEPT.1 * self.mapped_now() };
        let excess = bytes.saturating_sub(kept.min(core.holes.totals().0 / 2));
        let too_much = excess.div_ceil((bytes / aliases.max(1) as u64).max(1)) as usize;
        aliases.saturating_sub(self.options.max_aliases.min(self.props.max_mappings)).max(too_much)
    }

    /// Asks the device whether it has passed the last uses of dormant aliases.
    pub(crate) fn poll_aliases(&self) -> Result<()> {
        let lanes: BTreeSet<u32> = self.core.lock().aliases.waits(&self.order).map(|t| t.lane()).collect();
        self.order.poll(lanes)
    }

    /// Unmaps all dormant aliases that the device has passed.
    pub(crate) fn reap(&self) -> Result<()> {
        self.reap_zombies()?;
        self.poll_aliases()?;
        let (claims, _) = self.core.lock().aliases.claim_oldest(usize::MAX, usize::MAX, &self.order);
        self.unmap_claims(&claims)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::base::DeviceId;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::pool::memory::Entry;
    use crate::pool::{AllocFlags, AllocRequest, Pool, PoolOptions};

    /// Dedicated allocations lie far apart, so each has a page of the index to itself.
    #[test]
    fn the_index_forgets_addresses_that_rest_no_more() {
        let pool = Pool::new(HostDriver::new(HostOptions::default()).unwrap(), DeviceId(0), PoolOptions::default());
        let pool = pool.unwrap();
        let request = AllocRequest { size: 1, flags: AllocFlags::SINGLE_HANDLE, ..AllocRequest::default() };
        let used: Vec<u64> = (0..400)
            .map(|_| {
                let p = pool.malloc(&request).unwrap();
                pool.free(p, None).unwrap();
                p
            })
            .collect();
        let known = |&p: &u64| pool.index.get(p) != Entry::Empty;
        assert!(known(used.last().unwrap()), "it was freed a moment ago");
        assert!(!known(&used[0]) && used.iter().filter(|&p| known(p)).count() < 300);
    }
}
