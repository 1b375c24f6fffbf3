//! One evictable allocation: where its bytes are, and who may change that.
//!
//! A thread *claims* an item before it moves it. Meanwhile the item's bytes belong to the claim,
//! and other threads wait only for the claim's end. An item's lock is held for moments only, and is
//! the last of all but the manager's.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::inside::in_a_shift;
use super::register::{Listed, Register};
use crate::base::sync::{lock, Condvar, Mutex};
use crate::base::{size::human, DeviceId, Error, Result, Status};
use crate::driver::process::thread_number;
use crate::pool::{AllocInfo, Guest, Receipt};
use crate::tier::disk::{Slot, Store};
use crate::tier::host::HostMemory;
use crate::tier::promise::Lack;
use crate::tier::{Drawn, Source, Space, SpaceId, Tier};
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// The longest wait for the end of a claim that may be over soon.
const MOMENT: Duration = Duration::from_millis(10);

/// Where bytes are.
pub(super) enum Place {
    /// In the device's memory, at the allocation's addresses.
    Device,
    /// In pinned memory of the host.
    Host(HostMemory),
    /// In a file.
    Disk(Filed),
}

/// Bytes in a slot of a store. The drop removes the slot, or leaves it and its receipt to the store
/// to remove later.
pub(super) struct Filed {
    pub(super) store: Arc<Store>,
    pub(super) slot: Slot,
    pub(super) space: Arc<Space>,
    pub(super) drawn: Option<Drawn>,
}

impl Drop for Filed {
    fn drop(&mut self) {
        if let Some(drawn) = self.drawn.take() {
            self.store.discard(self.slot, drawn);
        }
    }
}

impl Place {
    /// The space it is in.
    pub(super) fn space(&self, device: DeviceId) -> SpaceId {
        match self {
            Place::Device => SpaceId::new(Tier::Gpu, device.0),
            Place::Host(memory) => SpaceId::new(Tier::Host, memory.node()),
            Place::Disk(filed) => filed.space.id(),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Device => f.write_str("device"),
            Place::Host(m) => write!(f, "host {}", m.node()),
            Place::Disk(d) => write!(f, "disk {}", d.space.id()),
        }
    }
}

/// The thread that has claimed an item.
#[derive(Clone, Copy, Debug)]
struct Holder {
    /// The system's number: unlike Rust's, it is known until the thread has ended.
    thread: u32,
    /// The space whose memory the claim will free, if all goes well.
    leaves: Option<SpaceId>,
}

/// What an item's lock guards.
#[derive(Debug)]
struct State {
    /// `None` while it is claimed.
    place: Option<Place>,
    by: Option<Holder>,
    /// How often it is held.
    holds: u32,
    /// Whether the allocation has ended.
    gone: bool,
    /// The receipt of its device memory, exactly while it has some.
    drawn: Option<Drawn>,
}

/// One evictable allocation.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) base: u64,
    pub(super) id: u64,
    pub(super) device: DeviceId,
    /// Bytes asked for: those that are moved.
    pub(super) bytes: u64,
    /// Bytes of device memory that it takes.
    pub(super) mapped: u64,
    pub(super) tag: u64,
    /// What its device memory is drawn from.
    pub(super) source: Source,
    register: Weak<Register<Item>>,
    state: Mutex<State>,
    idle: Condvar,
}

impl Listed for Item {
    fn base(&self) -> u64 {
        self.base
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn is_held(&self) -> bool {
        lock(&self.state).holds > 0
    }
}

/// The pool's link to an item, made before the allocation is.
#[derive(Debug, Default)]
pub(super) struct Ticket(OnceLock<Arc<Item>>);

impl Guest for Ticket {
    fn gone(&self) {
        if let Some(item) = self.0.get() {
            item.end();
        }
    }
}

/// The outcome of a try to claim.
pub(super) enum Outcome {
    /// It is the caller's.
    Claimed(Claim),
    /// The allocation has ended.
    Gone,
    /// Another thread has it; the space whose memory that will free, if any.
    Busy(Option<SpaceId>),
    /// It is held, and how often.
    Held(u32),
}

/// The right to move an item's bytes. Dropping it puts them where `place` says.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) item: Arc<Item>,
    /// `None` only in its own drop.
    place: Option<Place>,
}

impl Item {
    pub(super) fn new(info: &AllocInfo, mapped: u64, drawn: Drawn, register: Weak<Register<Item>>) -> Arc<Item> {
        let source = drawn.source();
        let state = State { place: Some(Place::Device), by: None, holds: 0, gone: false, drawn: Some(drawn.made()) };
        Arc::new(Item {
            base: info.base,
            id: info.id,
            device: info.device,
            bytes: info.requested,
            mapped,
            tag: info.tag,
            source,
            register,
            state: Mutex::new(state),
            idle: Condvar::new(),
        })
    }

    /// Links the pool's ticket to this item.
    pub(super) fn enter(self: &Arc<Item>, ticket: &Ticket) {
        // Each ticket is used once.
        let _ = ticket.0.set(self.clone());
    }

    /// Ends the item: its bytes go, now or with the claim that has them.
    fn end(&self) {
        if let Some(register) = self.register.upgrade() {
            register.remove(self);
        }
        let _left = {
            let mut st = lock(&self.state);
            st.gone = true;
            (st.place.take(), st.drawn.take())
        };
        self.idle.notify_all();
    }

    /// Claims it for a move. `any_holds`: even if it is held; `leaves`: see [`Claim::leaves`].
    pub(super) fn try_claim(self: &Arc<Item>, any_holds: bool, leaves: bool) -> Outcome {
        let mut st = lock(&self.state);
        if st.gone {
            return Outcome::Gone;
        }
        if let Some(by) = st.by {
            return Outcome::Busy(by.leaves);
        }
        if st.holds > 0 && !any_holds {
            return Outcome::Held(st.holds);
        }
        let place = st.place.take();
        let leaves = place.as_ref().filter(|_| leaves).map(|place| place.space(self.device));
        st.by = Some(Holder { thread: thread_number(), leaves });
        Outcome::Claimed(Claim { item: self.clone(), place })
    }

    /// Like [`Item::try_claim`], waiting while another thread has it. `None` when the allocation
    /// has ended.
    pub(super) fn claim(self: &Arc<Item>, any_holds: bool) -> Result<Option<Claim>> {
        loop {
            match self.try_claim(any_holds, false) {
                Outcome::Claimed(claim) => return Ok(Some(claim)),
                Outcome::Gone => return Ok(None),
                Outcome::Busy(_) => self.wait()?,
                Outcome::Held(holds) => {
                    let often = if holds == 1 { "once".into() } else { format!("{holds} times") };
                    return Err(Error::invalid(format!(
                        "{:#x} ({}) is held {often} and cannot be moved; unhold it first",
                        self.base,
                        human(self.bytes)
                    )));
                }
            }
        }
    }

    /// Waits until no thread has it. Fails in a callback of a move.
    pub(super) fn wait(&self) -> Result<()> {
        if in_a_shift() {
            return Err(Error::invalid(format!(
                "{:#x} is being moved; in a callback of a move nothing that is moved can be waited for",
                self.base
            )));
        }
        let mut st = lock(&self.state);
        while st.by.is_some() {
            st = self.idle.wait(st).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Waits while another thread has it that takes it out of the space.
    pub(super) fn wait_to_leave(&self, space: SpaceId) {
        let me = thread_number();
        let mut st = lock(&self.state);
        while st.by.is_some_and(|by| by.leaves == Some(space) && by.thread != me) {
            st = self.idle.wait(st).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits a moment if another thread has it that does not say that it takes it out of its space.
    pub(super) fn wait_a_moment(&self) {
        let me = thread_number();
        let st = lock(&self.state);
        if st.by.is_some_and(|by| by.leaves.is_none() && by.thread != me) {
            drop(self.idle.wait_timeout(st, MOMENT));
        }
    }

    /// Holds it if it is in device memory and unclaimed. Returns whether it was.
    pub(super) fn hold_resident(&self) -> Result<bool> {
        let mut st = lock(&self.state);
        if st.gone {
            return Err(ended(self.base));
        }
        let resident = st.by.is_none() && matches!(st.place, Some(Place::Device));
        if resident {
            st.holds = st.holds.checked_add(1).ok_or_else(|| Error::invalid("held too often"))?;
        }
        Ok(resident)
    }

    /// Takes one hold off.
    pub(super) fn unhold(&self) -> Result<()> {
        let mut st = lock(&self.state);
        st.holds = st.holds.checked_sub(1).ok_or_else(|| {
            Error::invalid(format!("{:#x} is not held; each unhold ends one hold of the same allocation", self.base))
        })?;
        Ok(())
    }

    /// How often it is held, and where it is; `None` while it is claimed.
    pub(super) fn look(&self) -> (u32, Option<SpaceId>) {
        let st = lock(&self.state);
        (st.holds, st.place.as_ref().map(|p| p.space(self.device)))
    }

    /// Whether the allocation has ended.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.state).gone
    }

    /// How many bytes its device memory would give back, of those an allocation lacks.
    pub(super) fn helps(&self, lack: &Lack) -> u64 {
        lock(&self.state).drawn.as_ref().map_or(0, |drawn| drawn.helps(lack))
    }

    /// Sets the receipt of the device memory, or gives it back. For the thread that has claimed it.
    pub(super) fn set_drawn(&self, drawn: Option<Drawn>) {
        // Dropped after the lock is released.
        let _old = std::mem::replace(&mut lock(&self.state).drawn, drawn);
    }

    /// Tells the receipt of the device memory that the bytes are there.
    pub(super) fn drawn_made(&self) {
        if let Some(drawn) = &mut lock(&self.state).drawn {
            Receipt::made(drawn);
        }
    }

    /// What is wrong with it, if it is unclaimed. It must be in one place, the one in the register,
    /// with a receipt of what it takes there and of nothing else; in device memory if it is held.
    pub(super) fn fault(&self, said: SpaceId) -> Option<&'static str> {
        let st = lock(&self.state);
        if st.place.as_ref().is_some_and(|place| place.space(self.device) != said) {
            return Some("it is elsewhere than the register says");
        }
        if st.by.is_some() || st.gone {
            return None;
        }
        let bytes = self.bytes.max(1);
        match (&st.place, &st.drawn) {
            (None, _) => Some("it is nowhere"),
            (Some(Place::Device), None) => Some("its device memory is not counted"),
            (Some(Place::Device), Some(d)) if d.bytes() != self.mapped => Some("its device memory is counted wrong"),
            (Some(Place::Device), Some(d)) if d.space().id() != SpaceId::new(Tier::Gpu, self.device.0) => {
                Some("its device memory is counted elsewhere")
            }
            (Some(Place::Device), Some(_)) => None,
            (Some(_), Some(_)) => Some("device memory that it has not is counted"),
            (Some(_), None) if st.holds > 0 => Some("it is held, and not in the device"),
            (Some(Place::Host(m)), None) if m.bytes() != bytes || m.counted() < bytes => {
                Some("its pinned memory is of another size")
            }
            (Some(Place::Disk(f)), None) if f.drawn.as_ref().is_none_or(|d| d.bytes() < bytes) => {
                Some("its file is not counted")
            }
            (Some(_), None) => None,
        }
    }
}

/// The error for an allocation that is none any more.
pub(super) fn ended(base: u64) -> Error {
    Error::new(Status::UnknownPointer, format!("{base:#x} was freed meanwhile"))
}

impl Claim {
    /// Where the bytes are.
    pub(super) fn place(&self) -> &Place {
        // Only `drop` takes it.
        self.place.as_ref().unwrap_or(&Place::Device)
    }

    /// Notes that the bytes are elsewhere now.
    pub(super) fn set_place(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Holds it before anybody else can have it.
    pub(super) fn hold(&self) {
        let mut st = lock(&self.item.state);
        st.holds = st.holds.saturating_add(1);
    }

    /// Says that it is about to be moved out, and that nothing that others may hold up is in the
    /// way: a thread that wants memory of its space may wait for it.
    pub(super) fn leaves(&self) {
        if let Some(by) = &mut lock(&self.item.state).by {
            by.leaves = self.place.as_ref().map(|place| place.space(self.item.device));
            self.item.idle.notify_all();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let item = &self.item;
        let space = self.place.as_ref().map(|p| p.space(item.device));
        // Entered first: the next claim finds it where it is.
        if let (Some(register), Some(space)) = (item.register.upgrade(), space) {
            register.shelve(item, space);
        }
        let _left = {
            let mut st = lock(&item.state);
            st.by = None;
            match st.gone {
                true => (self.place.take(), st.drawn.take()),
                false => {
                    st.place = self.place.take();
                    (None, None)
                }
            }
        };
        item.idle.notify_all();
    }
}
