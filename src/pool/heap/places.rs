//! One live block or object of a heap: what is known about it, its scope and its receipt.

use crate::base::{DeviceId, Result, StreamHandle};
use crate::pool::heap::members::{Place, NO_MEMBER};
use crate::pool::heap::region::State;
use crate::pool::heap::slab::{Object, Slab};
use crate::pool::heap::state::HeapState;
use crate::pool::memory::Entry;
use crate::pool::types::{rounded, AllocFlags, AllocInfo, AllocRequest, Counter, Receipt, Scope};
use std::any::Any;
use std::sync::Arc;

/// What is known about a live block or object.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) addr: u64,
    /// Bytes usable.
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) id: u64,
    /// Its record, [`NO_MEMBER`] when it is in no scope and has no receipt.
    pub(crate) member: u32,
    /// Whether it is an object that was made for a stream that had the heap before.
    pub(crate) inherited: bool,
}

impl HeapState {
    /// Takes the last allocations to join a scope out of it, as many as `places` has room for. The
    /// caller frees them under the same hold of the lock. Returns how many, and their requested
    /// bytes.
    pub(crate) fn pop_members(&mut self, scope: &Scope, places: &mut [Place]) -> (usize, u64) {
        let n = self.members.pop(scope, places);
        let mut bytes = 0;
        for &mut place in places.iter_mut().take(n) {
            bytes += self.at(place).requested;
            self.set_member(place, NO_MEMBER);
        }
        scope.shrink(bytes);
        (n, bytes)
    }

    /// A block or object just handed out joins a scope.
    #[inline]
    pub(crate) fn join(&mut self, scope: Option<&Arc<Scope>>, place: Place, pool: u64) {
        if let Some(scope) = scope {
            let bytes = self.at(place).requested;
            let member = self.members.join(pool, self.number, scope, place, bytes);
            self.set_member(place, member);
        }
    }

    /// What is known about a live block or object.
    #[inline]
    pub(crate) fn at(&self, place: Place) -> Known {
        match place {
            Place::Block { region } => self.known_block(region),
            Place::Object { slab, number } => {
                self.slabs.try_get(slab).map_or(Known::default(), |s| known_object(s, number))
            }
        }
    }

    #[inline(always)]
    fn known_block(&self, region: u32) -> Known {
        let (r, b) = (self.regions.get(region), self.regions.block(region));
        Known { addr: r.addr, size: r.size, requested: b.requested, id: b.id, member: b.member, inherited: false }
    }

    /// Facts for users about a live block or object. `of_objects` is the stream of the heap's
    /// objects.
    pub(crate) fn info(&self, place: Place, device: DeviceId, of_objects: StreamHandle) -> AllocInfo {
        let Known { addr: base, size: usable, requested, id, .. } = self.at(place);
        let (stream, tag) = match place {
            Place::Block { region } => (self.regions.block(region).stream, self.regions.block(region).user_tag),
            Place::Object { .. } => (of_objects, self.user_tags.get(&base).copied().unwrap_or(0)),
        };
        AllocInfo { base, requested, usable, device, stream, id, tag, flags: AllocFlags::default() }
    }

    /// Every live block and object, including those that count as freed.
    pub(crate) fn live(&self) -> impl Iterator<Item = Place> + '_ {
        let blocks = self.regions.iter().filter(|(_, r)| r.state == State::Live);
        let objects =
            self.slabs.iter().flat_map(|(slab, s)| s.live().map(move |number| Place::Object { slab, number }));
        blocks.map(|(region, _)| Place::Block { region }).chain(objects)
    }

    /// The live block or object that starts at `addr`, where the index has `entry`; it may count as
    /// freed.
    #[inline(always)]
    pub(crate) fn find(&self, entry: Entry, addr: u64) -> Option<(Place, Known)> {
        match entry {
            Entry::Block { region, .. } => {
                let r = self.regions.try_get(region)?;
                let starts = r.addr == addr && r.state == State::Live;
                starts.then(|| (Place::Block { region }, self.known_block(region)))
            }
            Entry::Slab { slab, .. } => {
                let s = self.slabs.try_get(slab)?;
                let number = s.object_at(addr)?;
                s.is_live(number).then(|| (Place::Object { slab, number }, known_object(s, number)))
            }
            _ => None,
        }
    }

    /// Whether a live block or object counts as freed.
    pub(crate) fn is_reclaimed(&self, place: Place) -> bool {
        self.members.is_reclaimed(self.at(place).member)
    }

    #[inline]
    fn set_member(&mut self, place: Place, member: u32) {
        match place {
            Place::Block { region } => self.regions.block_mut(region).member = member,
            Place::Object { slab, number } => self.slabs.set_member(slab, number, member),
        }
    }

    /// The scope a live block or object is in.
    pub(crate) fn scope_at(&self, place: Place) -> Option<Arc<Scope>> {
        self.members.scope_of(self.at(place).member).cloned()
    }

    /// Moves a live block or object from its scope, if it has one, to another or none. Its receipt
    /// goes with it, unless it counts as freed there.
    pub(crate) fn move_to(&mut self, to: Option<&Arc<Scope>>, place: Place, pool: u64) {
        let Known { member, requested, .. } = self.at(place);
        let mut receipt = None;
        if member != NO_MEMBER {
            receipt = self.members.take_receipt(member);
            self.members.leave(member, requested);
            self.set_member(place, NO_MEMBER);
        }
        self.join(to, place, pool);
        if let Some(receipt) = receipt.filter(|_| !self.is_reclaimed(place)) {
            self.give_receipt(place, receipt);
        }
    }

    /// Gives a live block or object a receipt.
    pub(crate) fn give_receipt(&mut self, place: Place, receipt: Box<dyn Receipt>) {
        let mut member = self.at(place).member;
        if member == NO_MEMBER {
            member = self.members.hold(place);
            self.set_member(place, member);
        }
        self.members.keep_receipt(member, receipt);
    }

    /// Enters a block or object just handed out into its request's scope, and gives it its receipt.
    #[inline]
    pub(crate) fn admit(&mut self, req: &AllocRequest, place: Place, pool: u64) {
        self.join(req.scope, place, pool);
        if req.slip.is_some() || self.counter.is_some() {
            self.enter(req, place);
        }
    }

    #[cold]
    fn enter(&mut self, req: &AllocRequest, place: Place) {
        let bytes = rounded(self.at(place).requested);
        if let Some(receipt) = req.receipt(self.counter.as_ref(), bytes) {
            self.give_receipt(place, receipt);
        }
    }

    /// Starts counting: from now on no allocation is a hit, and each without a receipt gets one.
    pub(crate) fn start_counting(&mut self, counter: &Arc<dyn Counter>, of_objects: StreamHandle) {
        self.counter = Some(counter.clone());
        for place in self.live().collect::<Vec<_>>() {
            let Known { member, requested, .. } = self.at(place);
            if !self.members.is_reclaimed(member) && self.members.receipt(member).is_none() {
                let stream = match place {
                    Place::Block { region } => self.regions.block(region).stream,
                    Place::Object { .. } => of_objects,
                };
                self.give_receipt(place, counter.count(rounded(requested), stream));
            }
        }
    }

    /// Resizes the receipt of a block or object that has, or is about to have, `requested` bytes.
    pub(crate) fn resize_receipt(&mut self, place: Place, requested: u64) -> Result<()> {
        let receipt = self.members.receipt_mut(self.at(place).member);
        receipt.map_or(Ok(()), |r| r.resize(rounded(requested)))
    }

    /// Tells the receipt of a block or object that it could not grow.
    pub(crate) fn undo_receipt_growth(&mut self, place: Place) {
        if let Some(receipt) = self.members.receipt_mut(self.at(place).member) {
            receipt.undo_growth();
        }
    }

    /// Tells the receipt of a block or object that it has grown.
    pub(crate) fn receipt_made(&mut self, place: Place) {
        if let Some(receipt) = self.members.receipt_mut(self.at(place).member) {
            receipt.made();
        }
    }

    /// What the receipt of a block or object says of where its successor should be counted.
    pub(crate) fn source_of(&self, place: Place) -> Option<Box<dyn Any + Send>> {
        self.members.receipt(self.at(place).member)?.source()
    }

    /// The sum of the bytes counted here. Fails if a live allocation is not counted, or with wrong
    /// bytes.
    pub(crate) fn counted(&self) -> std::result::Result<u64, String> {
        let mut sum = 0;
        for place in self.live() {
            let Known { member, requested, .. } = self.at(place);
            let (counted, due) = (self.members.receipt(member).map(|r| r.bytes()), rounded(requested));
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

#[inline(always)]
fn known_object(s: &Slab, number: u32) -> Known {
    let Object { id, requested, member } = s.object(number);
    Known {
        addr: s.addr_of(number),
        size: s.size,
        requested: requested.into(),
        id,
        member,
        inherited: s.is_inherited(number),
    }
}
