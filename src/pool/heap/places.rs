//! One live block or object of a heap: what is known about it, its scope and its receipt.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::{Result, StreamHandle};
use crate::pool::heap::members::{Place, NO_MEMBER};
use crate::pool::heap::region::State;
use crate::pool::heap::state::HeapState;
use crate::pool::types::allocation::AllocRequest;
use crate::pool::types::receipts::{rounded, Counter, Receipt, Slip};
use crate::pool::types::scope::Scope;
use std::sync::Arc;

impl HeapState {
    /// Takes up to as many allocations out of a scope as there is room for, those that joined last; the caller frees them
    /// under the same hold of the lock. Returns how many, and the bytes asked for.
    pub(crate) fn pop_members(&mut self, scope: &Scope, places: &mut [Place]) -> (usize, u64) {
        let n = self.members.pop(scope, places);
        let mut bytes = 0;
        for &mut place in places.iter_mut().take(n) {
            bytes += self.requested_at(place);
            self.set_member(place, NO_MEMBER);
        }
        scope.shrink(bytes);
        (n, bytes)
    }

    /// A block or object just handed out joins a scope.
    #[inline]
    pub(crate) fn join(&mut self, scope: Option<&Arc<Scope>>, place: Place, pool: u64) {
        if let Some(scope) = scope {
            let bytes = self.requested_at(place);
            let member = self.members.join(pool, self.number, scope, place, bytes);
            self.set_member(place, member);
        }
    }

    pub(crate) fn requested_at(&self, place: Place) -> u64 {
        match place {
            Place::Block { region } => self.regions.block(region).requested,
            Place::Object { slab, number } => {
                self.slabs.try_get(slab).map_or(0, |s| u64::from(s.object(number).requested))
            }
        }
    }

    /// The id of a live block or object.
    pub(crate) fn id_at(&self, place: Place) -> u64 {
        match place {
            Place::Block { region } => self.regions.block(region).id,
            Place::Object { slab, number } => self.slabs.try_get(slab).map_or(0, |s| s.object(number).id),
        }
    }

    /// The address of a live block or object.
    pub(crate) fn addr_at(&self, place: Place) -> u64 {
        match place {
            Place::Block { region } => self.regions.get(region).addr,
            Place::Object { slab, number } => self.slabs.try_get(slab).map_or(0, |s| s.addr_of(number)),
        }
    }

    /// The record of a live block or object, [`NO_MEMBER`] when it is in no scope.
    #[inline]
    pub(crate) fn member_at(&self, place: Place) -> u32 {
        match place {
            Place::Block { region } => self.regions.block(region).member,
            Place::Object { slab, number } => self.slabs.try_get(slab).map_or(NO_MEMBER, |s| s.object(number).member),
        }
    }

    /// Whether a live block or object counts as freed.
    pub(crate) fn is_reclaimed(&self, place: Place) -> bool {
        self.members.is_reclaimed(self.member_at(place))
    }

    #[inline]
    fn set_member(&mut self, place: Place, member: u32) {
        match place {
            Place::Block { region } => self.regions.block_mut(region).member = member,
            Place::Object { slab, number } => self.slabs.set_member(slab, number, member),
        }
    }

    /// The scope that a live block or object is in.
    pub(crate) fn scope_at(&self, place: Place) -> Option<Arc<Scope>> {
        let member = self.member_at(place);
        self.members.scope_of(member).filter(|_| member != NO_MEMBER).cloned()
    }

    /// A live block or object goes from the scope that it is in, if it is in one, to another one or none. Its receipt goes
    /// with it, unless it counts as freed there.
    pub(crate) fn move_to(&mut self, to: Option<&Arc<Scope>>, place: Place, pool: u64) {
        let member = self.member_at(place);
        let mut receipt = None;
        if member != NO_MEMBER {
            receipt = self.members.take_receipt(member);
            self.members.leave(member, self.requested_at(place));
            self.set_member(place, NO_MEMBER);
        }
        self.join(to, place, pool);
        if let Some(receipt) = receipt.filter(|_| !self.is_reclaimed(place)) {
            self.give_receipt(place, receipt);
        }
    }

    /// A live block or object has a receipt from now on.
    pub(crate) fn give_receipt(&mut self, place: Place, receipt: Box<dyn Receipt>) {
        let mut member = self.member_at(place);
        if member == NO_MEMBER {
            member = self.members.hold(place);
            self.set_member(place, member);
        }
        self.members.keep_receipt(member, receipt);
    }

    /// A block or object just handed out joins what its request says, and gets its receipt.
    #[inline]
    pub(crate) fn admit(&mut self, req: &AllocRequest, place: Place, pool: u64) {
        self.join(req.scope, place, pool);
        if req.slip.is_some() || self.counter.is_some() {
            self.enter(req, place);
        }
    }

    #[cold]
    fn enter(&mut self, req: &AllocRequest, place: Place) {
        let bytes = rounded(self.requested_at(place));
        let brought = req.slip.and_then(Slip::take);
        let receipt = brought.or_else(|| self.counter.as_ref().map(|c| c.count(bytes, req.stream)));
        if let Some(receipt) = receipt {
            self.give_receipt(place, receipt);
        }
    }

    /// From now on hits are left to those who count, and every allocation that has no receipt gets one.
    pub(crate) fn start_counting(&mut self, counter: &Arc<dyn Counter>, stream_of_objects: StreamHandle) {
        self.counter = Some(counter.clone());
        for (place, stream) in self.live_places(stream_of_objects) {
            let member = self.member_at(place);
            if !self.members.is_reclaimed(member) && self.members.receipt(member).is_none() {
                let receipt = counter.count(rounded(self.requested_at(place)), stream);
                self.give_receipt(place, receipt);
            }
        }
    }

    /// Every live block and object, and its stream.
    fn live_places(&self, stream_of_objects: StreamHandle) -> Vec<(Place, StreamHandle)> {
        let regions = self.regions.spans().flat_map(|span| self.regions.walk(span));
        let live = regions.filter(|&r| self.regions.get(r).state == State::Live);
        let mut found: Vec<_> =
            live.map(|region| (Place::Block { region }, self.regions.block(region).stream)).collect();
        for (slab, s) in self.slabs.iter() {
            let live = (0..s.capacity).filter(|&n| s.is_live(n));
            found.extend(live.map(|number| (Place::Object { slab, number }, stream_of_objects)));
        }
        found
    }

    /// The receipt of a block or object that is `requested` bytes large, or going to be.
    pub(crate) fn resize_receipt(&mut self, place: Place, requested: u64) -> Result<()> {
        let member = self.member_at(place);
        match self.members.receipt_mut(member).filter(|_| member != NO_MEMBER) {
            Some(receipt) => receipt.resize(rounded(requested)),
            None => Ok(()),
        }
    }

    /// The sum of what is counted here. An error when anything live is not, or not with its bytes.
    pub(crate) fn counted(&self) -> std::result::Result<u64, String> {
        let mut sum = 0;
        for (place, _) in self.live_places(StreamHandle::LEGACY) {
            let member = self.member_at(place);
            let (counted, due) = (self.members.receipt(member).map(|r| r.bytes()), rounded(self.requested_at(place)));
            let right = match (counted, self.members.is_reclaimed(member)) {
                (Some(bytes), false) => bytes == due,
                (Some(_), true) => false,
                (None, reclaimed) => reclaimed || self.counter.is_none(),
            };
            if !right {
                return Err(format!("{place:?} of {due} bytes counts as {counted:?}"));
            }
            sum += counted.unwrap_or(0);
        }
        Ok(sum)
    }
}
