//! All spaces of a process, and the promises in them.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{Account, Policies};
use super::cancel::Cancel;
use super::drawn::{Drawn, Source};
use super::hub::Hub;
use super::lack::{Counting, Lack, Refused};
use super::policy::OutOfMemoryPolicy;
use super::queue;
use super::relief::{Relief, Want};
use super::request::Request;
use super::reservation::Reservation;
use super::settled::settled;
use super::space::{Clerk, Space, SpaceId, SpaceOptions, SpaceUsage};
use super::strategy::find;
use super::thresholds::Thresholds;
use super::usage::Usage;
use crate::base::{Error, Result, Status};
use std::cell::Cell;
use std::sync::Arc;

/// All spaces, and the promises in them. Dropping it shuts it down.
///
/// Every method may be called from any thread.
#[derive(Debug)]
pub struct Manager {
    hub: Arc<Hub>,
}

/// What an allocation is counted in.
#[derive(Clone, Copy, Debug)]
pub enum DrawFrom<'a> {
    /// In the reservation attached to the stream, else in the one attached to the thread in this
    /// space, else outside of any.
    Attached,
    /// In this one, which must be of the space.
    Reservation(&'a Reservation),
    /// Outside of any reservation, whatever is attached.
    Outside,
    /// In the reservation of an earlier receipt while that lives, and else like any other.
    Successor(&'a Source),
}

impl<'a> From<Option<&'a Reservation>> for DrawFrom<'a> {
    fn from(reservation: Option<&'a Reservation>) -> DrawFrom<'a> {
        reservation.map_or(DrawFrom::Attached, DrawFrom::Reservation)
    }
}

impl Default for Manager {
    fn default() -> Manager {
        Manager::new()
    }
}

impl Manager {
    /// A manager without spaces.
    pub fn new() -> Manager {
        Manager { hub: Hub::new() }
    }

    /// Adds a space.
    pub fn add_space(&self, id: SpaceId, options: &SpaceOptions) -> Result<Arc<Space>> {
        let clerk = Arc::downgrade(&(self.hub.clone() as Arc<dyn Clerk>));
        let mut state = self.hub.lock();
        let books = &mut state.books;
        if books.spaces.iter().any(|s| s.id == id) {
            return Err(Error::invalid(format!("space {id} exists already; change that one")));
        }
        let space = Arc::new(Space::new(id, options, books.spaces.len(), (self.hub.id, clerk))?);
        books.spaces.push(space.clone());
        books.out_of_memory.push(OutOfMemoryPolicy::default());
        Ok(space)
    }

    /// Every space, in the order in which they were added.
    pub fn spaces(&self) -> Vec<Arc<Space>> {
        self.hub.lock().books.spaces.clone()
    }

    /// The space with this name.
    pub fn space(&self, id: SpaceId) -> Result<Arc<Space>> {
        find(&self.hub.lock().books.spaces, id).cloned()
    }

    /// The counters of a space.
    pub fn usage(&self, id: SpaceId) -> Result<SpaceUsage> {
        let state = self.hub.lock();
        let space = find(&state.books.spaces, id)?;
        Ok(space.snapshot(state.queue.wanting(space.index)))
    }

    /// Sets how many bytes a space has, and how many of them may be promised or used. What is above
    /// a lowered limit stays and counts as `beyond`; a waiter for more than can ever be granted
    /// gets an error. The thresholds are parts of the limit.
    pub fn set_limits(&self, id: SpaceId, capacity: u64, limit: u64, thresholds: Thresholds) -> Result<()> {
        let mut state = self.hub.lock();
        let space = find(&state.books.spaces, id)?.clone();
        space.set_limits(capacity, limit)?;
        space.set_thresholds(thresholds);
        state.end_hopeless();
        state.serve();
        Ok(())
    }

    /// Sets how many of a space's bytes may be promised or used, all of them with `None`, as
    /// [`Manager::set_limits`] does. The thresholds stay the same parts of it.
    pub fn set_limit(&self, id: SpaceId, limit: Option<u64>) -> Result<()> {
        let mut state = self.hub.lock();
        let space = find(&state.books.spaces, id)?.clone();
        space.set_limits(space.capacity(), limit.unwrap_or(space.capacity()))?;
        state.end_hopeless();
        state.serve();
        Ok(())
    }

    /// Sets at which use of a space data should be moved out, and down to which, in parts of its
    /// limit.
    pub fn set_thresholds(&self, id: SpaceId, thresholds: Thresholds) -> Result<()> {
        let state = self.hub.lock();
        find(&state.books.spaces, id)?.set_thresholds(thresholds);
        Ok(())
    }

    /// Sets what allocations in a space do if there is no memory for them, unless their reservation
    /// says otherwise.
    pub fn set_out_of_memory_policy(&self, id: SpaceId, policy: OutOfMemoryPolicy) -> Result<()> {
        // Declared here, so that the old policy ends with no lock held.
        let _old;
        let mut state = self.hub.lock();
        let index = find(&state.books.spaces, id)?.index;
        _old = state.books.out_of_memory.get_mut(index).map(|p| std::mem::replace(p, policy));
        drop(state);
        Ok(())
    }

    /// Promises bytes, or waits for them. The reservation's size says how many: exactly those asked
    /// for, or with [`Amount::UpTo`](super::Amount::UpTo) at least the fewest. If they are not
    /// there, the relief makes room, a few times if others take it. Requests then wait in turn:
    /// none overtakes another in a space that both want. Call it with no lock held.
    pub fn reserve(&self, request: Request) -> Result<Reservation> {
        let (least, most) = request.amount.bounds();
        if least == 0 {
            return Err(Error::invalid("a reservation of 0 bytes; ask for at least 1"));
        }
        if least > most {
            return Err(Error::invalid(format!(
                "the least that will do, {least} bytes, is more than what is asked for, {most}; swap them, or leave the \
                 least out"
            )));
        }
        let Request { amount, strategy, wait, cancel, policy, out_of_memory } = request;
        let want = queue::Want::New { amount, policies: Policies { limit: policy, out_of_memory } };
        let trigger = cancel.map(|c| c.trigger(&self.hub)).transpose()?;
        let account = self.hub.request_with_room(want, |books| strategy.candidates(&books.spaces), wait, trigger)?;
        Ok(Reservation::new(self.hub.clone(), account))
    }

    /// A token that ends waits.
    pub fn cancel_token(&self) -> Cancel {
        Cancel::new(self.hub.clone())
    }

    /// How many requests wait, in any space.
    pub fn waiters(&self) -> usize {
        self.hub.lock().queue.len()
    }

    /// Counts an allocation that is made already. To be called with no lock held: the reservation's
    /// policy may call back.
    pub fn draw<'a>(
        &self,
        space: &Arc<Space>,
        from: impl Into<DrawFrom<'a>>,
        bytes: u64,
        stream: u64,
    ) -> Result<Drawn> {
        self.own(space)?;
        self.draw_once(space, from.into(), bytes, stream).map(Drawn::made).map_err(|refused| refused.error)
    }

    /// Counts an allocation and makes it with `allocate`, which gets the receipt. Whoever keeps
    /// that says when the allocation has been [made](Drawn::made). If either finds no memory, the
    /// relief makes room, or else the out-of-memory policy decides whether to try both again. If
    /// `allocate` gets a flag besides, it fails rather than find memory at the cost of a capture,
    /// and sets it; it is tried without one after the relief. Call it with no lock held.
    pub fn allocate_with<'a, T>(
        &self,
        space: &Arc<Space>,
        from: impl Into<DrawFrom<'a>>,
        bytes: u64,
        stream: u64,
        allocate: impl FnMut(Drawn, Option<&Cell<bool>>) -> Result<T>,
    ) -> Result<T> {
        self.own(space)?;
        let from = from.into();
        let account = || match from {
            DrawFrom::Attached => self.hub.attachments.current(self.hub.id, space, stream).account,
            DrawFrom::Reservation(r) => r.account_in(space).ok().cloned(),
            DrawFrom::Outside => None,
            DrawFrom::Successor(source) => source
                .live_in(space)
                .cloned()
                .or_else(|| self.hub.attachments.current(self.hub.id, space, stream).account),
        };
        let draw = || self.draw_once(space, from, bytes, stream);
        self.attempt(space, (bytes, stream), account, draw, allocate, &Cell::new(None))
    }

    fn draw_once(&self, space: &Arc<Space>, from: DrawFrom<'_>, bytes: u64, stream: u64) -> Counting<Drawn> {
        match from {
            DrawFrom::Attached => self.hub.draw(space, bytes, stream),
            DrawFrom::Reservation(r) => self.hub.draw_from(r.account_in(space)?, bytes, stream),
            DrawFrom::Outside => self.hub.draw_outside(space, bytes, stream),
            DrawFrom::Successor(source) => match source.live_in(space) {
                Some(account) => match self.hub.draw_from(account, bytes, stream) {
                    // Released in between.
                    Err(_) if account.released() => self.hub.draw(space, bytes, stream),
                    drawn => drawn,
                },
                None => self.hub.draw(space, bytes, stream),
            },
        }
    }

    /// Like [`Manager::allocate_with`], for an allocation that left memory and comes back. It is
    /// counted as by an earlier receipt: in the same reservation while that lives, or else outside
    /// of any. Fails with `Capturing` where a capture has kept the relief from making room.
    pub fn allocate_again<T>(
        &self,
        source: &Source,
        bytes: u64,
        allocate: impl FnMut(Drawn, Option<&Cell<bool>>) -> Result<T>,
    ) -> Result<T> {
        let space = source.space();
        self.own(space)?;
        let draw = || self.hub.draw_again(source, bytes);
        let hindered = Cell::new(None);
        let account = || source.account().cloned();
        let made = self.attempt(space, (bytes, source.stream()), account, draw, allocate, &hindered);
        made.map_err(|e| match hindered.get() {
            Some(Status::Capturing) if e.status == Status::OutOfMemory => Error::new(Status::Capturing, e.message),
            _ => e,
        })
    }

    /// Makes memory that counts only once it is handed out, such as a capture's: `bytes` of it. If
    /// there is none, makes room and tries again as [`Manager::allocate_with`] does.
    pub fn make_uncounted<T>(&self, space: &Arc<Space>, bytes: u64, mut make: impl FnMut() -> Result<T>) -> Result<T> {
        let nothing = || Ok(self.hub.draw_anyway(space, 0, 0));
        self.attempt(space, (bytes, 0), || None, nothing, |_, _| make(), &Cell::new(None))
    }

    /// Tries an allocation. If there is no memory, tries again after the relief has made room, and
    /// as often as the policy says. `from` is the reservation it is counted in, if any. `hindered`
    /// gets the relief's error of the last try, if it had one: the policy sees to a lack of memory,
    /// whatever has kept the relief from making room.
    fn attempt<T>(
        &self,
        space: &Arc<Space>,
        (bytes, stream): (u64, u64),
        from: impl Fn() -> Option<Arc<Account>>,
        draw: impl Fn() -> Counting<Drawn>,
        mut allocate: impl FnMut(Drawn, Option<&Cell<bool>>) -> Result<T>,
        hindered: &Cell<Option<Status>>,
    ) -> Result<T> {
        let mut relieved = || {
            let spared = Cell::new(false);
            let mut spare = self.hub.relief.get().is_some();
            loop {
                hindered.set(None);
                let (error, lack) = match draw() {
                    Err(Refused { error, lack }) => (error, lack),
                    Ok(drawn) => match allocate(drawn, spare.then_some(&spared)) {
                        Err(e) if e.status == Status::OutOfMemory => (e, Some(Lack::Memory(bytes))),
                        other => return other,
                    },
                };
                let (Some(relief), Some(lack)) = (self.hub.relief.get(), lack) else { return Err(error) };
                let error = match relief(&Want { space: space.id, lack }) {
                    Ok(true) => continue,
                    Ok(false) => error,
                    Err(why) => {
                        hindered.set(Some(why.status));
                        let text = format!("{}; nothing could be moved out: {}", error.message, why.message);
                        Error::new(error.status, text)
                    }
                };
                spare = false;
                if !spared.replace(false) {
                    return Err(error);
                }
            }
        };
        match relieved() {
            Err(e) if e.status == Status::OutOfMemory => {
                let policy = self.hub.out_of_memory(space, from().as_ref());
                policy.go_on(Err(e), space.id, bytes, stream, relieved)
            }
            other => other,
        }
    }

    /// Sets the relief, which makes room when there is no memory: it is told what is wanted, and
    /// says whether to try again. Called with no lock held. Only the first one counts.
    pub fn set_relief(&self, relief: Relief) {
        self.hub.relief.set(relief);
    }

    /// Counts an allocation that is still to be made, outside of any reservation. Nothing makes
    /// room for it, and no policy is asked.
    pub fn draw_quietly(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Result<Drawn> {
        self.own(space)?;
        self.hub.draw_outside(space, bytes, stream).map_err(|refused| refused.error)
    }

    /// Counts an allocation that exists already, outside of any reservation, even if the limit
    /// forbids it. May be called under any lock.
    pub fn draw_anyway(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Drawn {
        self.hub.draw_anyway(space, bytes, stream)
    }

    /// The number of the reservation the calling thread's allocations on a stream draw from.
    pub fn current(&self, space: &Arc<Space>, stream: u64) -> Result<Option<u64>> {
        self.own(space)?;
        let current = self.hub.attachments.find(self.hub.id, space, stream);
        Ok(current.account.filter(|a| !a.released()).map(|a| a.id))
    }

    /// What a stream's live allocations use in a space, and their peak; `None` if that is not
    /// counted. That of a stream without any so far is nobody's.
    pub fn stream_usage(&self, space: &Arc<Space>, stream: u64) -> Result<Option<Arc<Usage>>> {
        self.own(space)?;
        let usage = || self.hub.attachments.find(self.hub.id, space, stream).usage.unwrap_or_default();
        Ok(space.per_stream.then(usage))
    }

    /// Detaches a stream's reservation in a space.
    pub fn detach_stream(&self, space: &Space, stream: u64) -> Result<()> {
        self.own(space)?;
        self.hub.attachments.detach_stream(space, stream)
    }

    /// Detaches the calling thread's reservation in a space.
    pub fn detach_thread(&self, space: &Space) -> Result<()> {
        self.own(space)?;
        self.hub.attachments.detach_thread(self.hub.id, space, None)
    }

    /// Forgets a stream that is gone: its attachments and its usage. Allocations made on it stay
    /// counted.
    pub fn forget_stream(&self, stream: u64) {
        self.hub.attachments.forget_stream(stream);
    }

    /// Refuses every request from now on and ends every wait with an error. Allocations and
    /// releases go on as before.
    pub fn shut_down(&self) {
        self.hub.shut_down();
    }

    fn own(&self, space: &Space) -> Result<()> {
        match space.manager == self.hub.id {
            true => Ok(()),
            false => Err(Error::invalid(format!("this {} is another manager's", space.id))),
        }
    }

    /// Checks the equations of [`tier`](super). Other threads may draw and give back meanwhile.
    pub fn validate(&self) -> Result<()> {
        settled(|| self.validate_now())
    }

    fn validate_now(&self) -> Result<()> {
        let state = self.hub.lock();
        for space in &state.books.spaces {
            let live = || state.books.live.values().filter(|a| a.space.index == space.index);
            if let Some(a) = live().find(|a| a.room() > a.size() || a.released()) {
                return Err(Error::internal(format!("reservation {}: more room than size: {a:?}", a.id)));
            }
            let sums = (live().count() as u64, live().map(|a| a.size()).sum(), live().map(|a| a.drawn()).sum());
            let waited = state.queue.iter().any(|w| w.spaces().any(|s| s == space.index));
            space.validate(sums, waited)?;
        }
        // Nobody waits for bytes that are available.
        let mut held = vec![false; state.books.spaces.len()];
        for waiter in state.queue.iter() {
            for space in waiter.spaces() {
                let there = state.books.spaces.get(space).map_or(0, |s| s.available());
                if let Some(held @ false) = held.get_mut(space) {
                    *held = true;
                    if there >= waiter.want.least() {
                        return Err(Error::internal(format!(
                            "{there} bytes are there for the first to wait: {waiter:?}"
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.hub.shut_down();
        // Callbacks end with the manager, not with the last allocation.
        let policies = std::mem::take(&mut self.hub.lock().books.out_of_memory);
        drop(policies);
    }
}
