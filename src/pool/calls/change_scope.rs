//! Which scope an allocation belongs to, and moving it to another, or out of what the abort of a
//! capture frees.

use crate::base::Result;
use crate::pool::calls::find::Found;
use crate::pool::heap::Known;
use crate::pool::state::Pool;
use crate::pool::types::{AllocInfo, Scope};
use std::sync::Arc;

/// The outcome of [`Pool::change_scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeChange {
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
    pub fn change_scope(&self, ptr: u64, from: Option<&Scope>, to: Option<&Arc<Scope>>) -> ScopeChange {
        let elsewhere = |now: Option<&Scope>| from.is_some_and(|from| now.is_none_or(|now| !std::ptr::eq(now, from)));
        match self.around(ptr) {
            Ok(Found::Pooled { mut st, place }) => {
                let Known { id, requested, .. } = st.at(place);
                if elsewhere(st.scope_at(place).as_deref()) {
                    return ScopeChange::Foreign(id);
                }
                st.move_to(to, place, self.number);
                ScopeChange::Moved(id, requested)
            }
            Ok(Found::Dedicated { mut core, info }) => {
                let AllocInfo { base, id, requested, .. } = info;
                let Some(d) = core.dedicated.get_mut(&base) else { return ScopeChange::Unknown };
                if elsewhere(d.scope.as_deref()) {
                    return ScopeChange::Foreign(id);
                }
                if let Some(old) = d.scope.take() {
                    old.remove_dedicated(self.number, base, id, requested);
                }
                d.scope = self.join_dedicated(to, &info);
                ScopeChange::Moved(id, requested)
            }
            Err(_) => ScopeChange::Unknown,
        }
    }

    /// Takes the live allocation that contains `ptr` out of what the abort of a capture frees.
    pub fn outlive_aborts(&self, ptr: u64) {
        let Ok(Found::Pooled { st, place }) = self.around(ptr) else { return };
        let (Some(part), Known { id, .. }) = (st.private.clone(), st.at(place)) else { return };
        drop(st);
        part.counts.made.lock().remove(&id);
    }

    /// The scope of the live allocation that contains `ptr`.
    pub fn scope_containing(&self, ptr: u64) -> Result<Option<Arc<Scope>>> {
        Ok(match self.around(ptr)? {
            Found::Pooled { st, place } => st.scope_at(place),
            Found::Dedicated { core, info } => core.dedicated.get(&info.base).and_then(|d| d.scope.clone()),
        })
    }
}
