//! Which live allocations of a heap belong to which scope.
//!
//! Each allocation in a scope has a *member* record, and its block or object keeps the record's
//! number (`member`). Records of one scope form a list. A record lasts as long as its allocation:
//! an early free leaves nothing behind. An allocation with a receipt (`types/receipts.rs`) has a
//! record to keep it in, too, which may be of no scope.

use crate::pool::types::{Receipt, Scope, ScopeCounts, NONE};
use std::sync::Arc;

/// The number of no record, for an allocation that is in no scope and has no receipt.
pub(crate) const NO_MEMBER: u32 = 0;

/// The list of records that only keep a receipt.
const LOOSE: u32 = NONE - 1;

/// Where a live allocation of a heap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Block { region: u32 },
    Object { slab: u32, number: u32 },
}

/// One record. A vacant one has only a `next`.
#[derive(Clone, Copy, Debug)]
struct Member {
    place: Place,
    /// Position in `lists`; [`NONE`] in a vacant record, [`LOOSE`] in one of no scope.
    list: u32,
    prev: u32,
    next: u32,
}

/// A heap's allocations of one scope.
#[derive(Debug)]
struct List {
    scope: Arc<Scope>,
    head: u32,
    counts: ScopeCounts,
}

/// A heap's records.
///
/// Invariants: every record is vacant, or in the list it names, or loose; a list's `joined - left`
/// is its length; no two lists are of one scope; vacant records have no receipt, and loose ones
/// have one.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// The first is never used, so that 0, [`NO_MEMBER`], is no record.
    all: Vec<Member>,
    vacant: u32,
    lists: Vec<Option<List>>,
    /// The list that was joined last.
    recent: u32,
    /// Receipts by record; shorter than `all`, or empty, if the last records have none.
    receipts: Vec<Option<Box<dyn Receipt>>>,
}

impl Members {
    /// Enters an allocation of `bytes` into a scope, or if that is closed, into the nearest open
    /// one around it. Returns the number of the record, or [`NO_MEMBER`] if all are closed.
    #[inline]
    pub(crate) fn join(&mut self, pool: u64, heap: u32, scope: &Arc<Scope>, place: Place, bytes: u64) -> u32 {
        let recent = self.lists.get(self.recent as usize).and_then(Option::as_ref);
        let again = recent.is_some_and(|list| Arc::ptr_eq(&list.scope, scope) && !scope.is_closed());
        if !again && !self.find_list(pool, heap, scope) {
            return NO_MEMBER;
        }
        let at = self.recent;
        let Some(Some(list)) = self.lists.get_mut(at as usize) else { return NO_MEMBER };
        list.scope.grow(bytes);
        list.counts.joined += 1;
        let head = list.head;
        let number = self.take_record(Member { place, list: at, prev: NO_MEMBER, next: head });
        if let Some(old) = record(&mut self.all, head) {
            old.prev = number;
        }
        if let Some(Some(list)) = self.lists.get_mut(at as usize) {
            list.head = number;
        }
        number
    }

    #[inline]
    fn take_record(&mut self, member: Member) -> u32 {
        let number = self.vacant;
        match record(&mut self.all, number) {
            Some(vacant) => {
                self.vacant = vacant.next;
                *vacant = member;
                number
            }
            None => self.push(member),
        }
    }

    /// Takes a record of no scope, to keep a receipt in.
    pub(crate) fn hold(&mut self, place: Place) -> u32 {
        self.take_record(Member { place, list: LOOSE, prev: NO_MEMBER, next: NO_MEMBER })
    }

    /// The receipt a record has; [`NO_MEMBER`] has none.
    pub(crate) fn receipt(&self, member: u32) -> Option<&dyn Receipt> {
        self.receipts.get(member as usize)?.as_deref()
    }

    pub(crate) fn receipt_mut(&mut self, member: u32) -> Option<&mut Box<dyn Receipt>> {
        self.receipts.get_mut(member as usize)?.as_mut()
    }

    pub(crate) fn keep_receipt(&mut self, member: u32, receipt: Box<dyn Receipt>) {
        let at = member as usize;
        if self.receipts.len() <= at {
            self.receipts.resize_with(at + 1, || None);
        }
        self.receipts[at] = Some(receipt);
    }

    #[inline]
    pub(crate) fn take_receipt(&mut self, member: u32) -> Option<Box<dyn Receipt>> {
        self.receipts.get_mut(member as usize)?.take()
    }

    #[cold]
    fn push(&mut self, member: Member) -> u32 {
        if self.all.is_empty() {
            self.all.push(Member::VACANT);
        }
        self.all.push(member);
        (self.all.len() - 1) as u32
    }

    /// Makes the list of a scope, or of the nearest open one around it, the recent one. `false` if
    /// all are closed.
    #[cold]
    fn find_list(&mut self, pool: u64, heap: u32, scope: &Arc<Scope>) -> bool {
        for scope in std::iter::successors(Some(scope), |s| s.parent()) {
            if let Some(i) = self.list_of(scope).filter(|_| !scope.is_closed()) {
                self.recent = i as u32;
                return true;
            }
            if scope.add_heap(pool, heap) {
                let at = self.lists.iter().position(Option::is_none).unwrap_or(self.lists.len());
                if at == self.lists.len() {
                    self.lists.push(None);
                }
                self.lists[at] = Some(List { scope: scope.clone(), head: NO_MEMBER, counts: ScopeCounts::default() });
                self.recent = at as u32;
                return true;
            }
        }
        false
    }

    fn list_of(&self, scope: &Scope) -> Option<usize> {
        self.lists.iter().position(|l| l.as_ref().is_some_and(|l| std::ptr::eq(&*l.scope, scope)))
    }

    /// The scope a record is of; [`NO_MEMBER`] is of none.
    #[inline]
    pub(crate) fn scope_of(&self, member: u32) -> Option<&Arc<Scope>> {
        let list = self.all.get(member as usize)?.list;
        self.lists.get(list as usize)?.as_ref().map(|l| &l.scope)
    }

    /// Whether a record is of a scope whose allocations count as freed.
    #[inline]
    pub(crate) fn is_reclaimed(&self, member: u32) -> bool {
        member != NO_MEMBER && self.has_reclaimed_scope(member)
    }

    #[inline(never)]
    fn has_reclaimed_scope(&self, member: u32) -> bool {
        self.scope_of(member).is_some_and(|s| s.is_of_reclaimed())
    }

    /// Takes an allocation of `bytes` out of its scope, and drops its record and its receipt.
    #[inline]
    pub(crate) fn leave(&mut self, member: u32, bytes: u64) {
        drop(self.take_receipt(member));
        let vacant = self.vacant;
        let Some(m) = self.all.get_mut(member as usize) else { return };
        let (list, prev, next) = (m.list, m.prev, m.next);
        *m = Member { next: vacant, ..Member::VACANT };
        self.vacant = member;
        if let Some(n) = record(&mut self.all, next) {
            n.prev = prev;
        }
        let Some(Some(list)) = self.lists.get_mut(list as usize) else { return };
        list.scope.shrink(bytes);
        list.counts.left += 1;
        if prev == NO_MEMBER {
            list.head = next;
        } else if let Some(p) = self.all.get_mut(prev as usize) {
            p.next = next;
        }
    }

    /// An allocation in a scope now has `after` bytes.
    pub(crate) fn resized(&self, member: u32, before: u64, after: u64) {
        if let Some(scope) = self.scope_of(member) {
            scope.shrink(before);
            scope.grow(after);
        }
    }

    /// The allocation of a scope that joined last, and its record.
    pub(crate) fn last_of(&self, scope: &Scope) -> Option<(u32, Place)> {
        let head = self.lists.get(self.list_of(scope)?)?.as_ref()?.head;
        let m = self.all.get(head as usize).filter(|_| head != NO_MEMBER)?;
        Some((head, m.place))
    }

    /// Takes the last allocations to join a scope off its list, as many as `places` has room for.
    /// Returns how many. They still hold the numbers of their records, which are gone with their
    /// receipts, and the scope still counts their bytes.
    pub(crate) fn pop(&mut self, scope: &Scope, places: &mut [Place]) -> usize {
        let Some(i) = self.list_of(scope) else { return 0 };
        let Some(Some(list)) = self.lists.get_mut(i) else { return 0 };
        let (mut at, mut n) = (list.head, 0);
        for place in places {
            let Some(m) = record(&mut self.all, at) else { break };
            *place = m.place;
            let next = m.next;
            *m = Member { next: self.vacant, ..Member::VACANT };
            drop(self.receipts.get_mut(at as usize).and_then(Option::take));
            self.vacant = std::mem::replace(&mut at, next);
            n += 1;
        }
        list.head = at;
        list.counts.left += n as u64;
        if let Some(m) = record(&mut self.all, at) {
            m.prev = NO_MEMBER;
        }
        n
    }

    /// What a scope's list has counted here.
    pub(crate) fn counts(&self, scope: &Scope) -> ScopeCounts {
        let list = self.list_of(scope).and_then(|i| self.lists.get(i)?.as_ref());
        list.map_or_else(ScopeCounts::default, |l| l.counts)
    }

    /// Drops the empty list of a scope. Returns what it had counted.
    pub(crate) fn drop_list(&mut self, scope: &Scope) -> Option<ScopeCounts> {
        let at = self.list_of(scope)?;
        self.lists[at].take_if(|l| l.head == NO_MEMBER).map(|l| l.counts)
    }

    /// Every record in use: its number and place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        let used = self.all.iter().enumerate().filter(|(_, m)| m.list != NONE);
        used.map(|(i, m)| (i as u32, m.place))
    }

    /// Checks the invariants written above.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let used = self.all.iter().filter(|m| m.list != NONE && m.list != LOOSE).count();
        let held = |i: usize| self.receipts.get(i).is_some_and(Option::is_some);
        let wrong = |(i, m): &(usize, &Member)| (m.list == NONE && held(*i)) || (m.list == LOOSE && !held(*i));
        if let Some((i, m)) = self.all.iter().enumerate().find(wrong) {
            return Err(format!("record {i} of list {} has a receipt: {}", m.list, held(i)));
        }
        let mut listed = 0;
        for (i, list) in self.lists.iter().enumerate() {
            let Some(list) = list else { continue };
            ensure!(self.list_of(&list.scope) == Some(i), "two lists are of one scope");
            let (mut at, mut prev, mut len) = (list.head, NO_MEMBER, 0);
            while at != NO_MEMBER {
                let m = &self.all[at as usize];
                let linked = m.list as usize == i && m.prev == prev && len <= used;
                ensure!(linked, "record {at} is not linked as its scope's list says");
                (prev, at) = (at, m.next);
                len += 1;
            }
            let counts = list.counts;
            ensure!(counts.joined - counts.left == len as u64, "{counts:?} counted in a scope's list of {len}");
            listed += len;
        }
        ensure!(listed == used, "{used} records of allocations in scopes, {listed} in lists");
        Ok(())
    }
}

/// A record by its number, [`NO_MEMBER`] being none.
#[inline(always)]
fn record(all: &mut [Member], number: u32) -> Option<&mut Member> {
    all.get_mut(number as usize).filter(|_| number != NO_MEMBER)
}

impl Member {
    const VACANT: Member =
        Member { place: Place::Block { region: NONE }, list: NONE, prev: NO_MEMBER, next: NO_MEMBER };
}
