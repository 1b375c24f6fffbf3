//! Which scope an allocation belongs to, and moving it to another.

use crate::base::sync::lock;
use crate::base::{Error, Result, Status};
use crate::pool::calls::find::Found;
use crate::pool::state::Pool;
use crate::pool::types::Scope;
use std::sync::Arc;

/// The outcome of [`Pool::keep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The allocation has moved: its id and requested bytes.
    Moved(u64, u64),
    /// The allocation is live and not in the scope to move it from: its id.
    Foreign(u64),
    /// The pointer is in no live allocation of this pool.
    Unknown,
}

impl Pool {
    /// Moves the live allocation that contains `ptr` to the scope `to`, or out of all scopes if
    /// that is `None`. With `from`, moves it only if it is in that scope.
    pub fn keep(&self, ptr: u64, from: Option<&Scope>, to: Option<&Arc<Scope>>) -> Kept {
        let elsewhere = |now: Option<&Scope>| from.is_some_and(|from| now.is_none_or(|now| !std::ptr::eq(now, from)));
        // Until the lock is held, the allocation may be freed and its address handed out again.
        for _ in 0..64 {
            let Ok(info) = self.info_containing(ptr) else { return Kept::Unknown };
            let id = info.id;
            match self.look(info.base) {
                Ok(Found::Pooled { heap, mut st, place }) if st.at(place).id == id => {
                    let now = st.scope_at(place);
                    if now.as_ref().is_some_and(|s| s.is_of_reclaimed()) {
                        return Kept::Unknown;
                    }
                    if elsewhere(now.as_deref()) {
                        return Kept::Foreign(id);
                    }
                    let bytes = st.at(place).requested;
                    st.move_to(to, place, self.number);
                    heap.publish(&st);
                    return Kept::Moved(id, bytes);
                }
                Ok(Found::Dedicated) => {
                    let mut core = lock(&*self.core);
                    let Some(d) = core.dedicated.get_mut(&info.base).filter(|d| d.info.id == id) else { continue };
                    if elsewhere(d.scope.as_deref()) {
                        return Kept::Foreign(id);
                    }
                    if let Some(old) = d.scope.take() {
                        old.remove_dedicated(self.number, info.base, id, info.requested);
                    }
                    d.scope = self.join_dedicated(to, info.base, id, info.requested);
                    return Kept::Moved(id, info.requested);
                }
                _ => {}
            }
        }
        Kept::Unknown
    }

    /// The scope of the live allocation that contains `ptr`.
    pub fn scope_containing(&self, ptr: u64) -> Result<Option<Arc<Scope>>> {
        // The allocation may be freed before it is looked at. That must not look as if it were in
        // no scope.
        for _ in 0..64 {
            let info = self.info_containing(ptr)?;
            match self.look(info.base) {
                Ok(Found::Pooled { st, place, .. }) if st.at(place).id == info.id => return Ok(st.scope_at(place)),
                Ok(Found::Dedicated) => {
                    let core = lock(&*self.core);
                    if let Some(d) = core.dedicated.get(&info.base).filter(|d| d.info.id == info.id) {
                        return Ok(d.scope.clone());
                    }
                }
                _ => {}
            }
        }
        Err(Error::new(Status::UnknownPointer, format!("{ptr:#x} is being freed or resized")))
    }
}
