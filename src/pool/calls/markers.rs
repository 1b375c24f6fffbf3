//! Recording the markers that frees need, only on streams that the caller guarantees to be alive.

use crate::base::{Result, StreamHandle};
use crate::pool::order::{Tag, CONTEXT};
use crate::pool::state::Pool;

impl Pool {
    /// The tag of memory that was allocated on a stream and is freed in that stream's order: the
    /// lane's open epoch, if the stream is still the lane's, and the context's if not.
    pub(crate) fn tag_of(&self, lane: u32, stream_id: u64) -> Tag {
        // The identity is read after the epoch: a thread that sees an epoch behind a barrier sees
        // the new identity.
        let tag = self.order.tag(lane);
        match self.order.identity(lane) == stream_id {
            true => tag,
            false => self.order.tag(CONTEXT),
        }
    }

    pub(crate) fn tags(&self, free: Tag, users: &[u32]) -> Vec<Tag> {
        users.iter().copied().filter(|&u| u != free.lane()).map(|l| self.order.tag(l)).chain([free]).collect()
    }

    /// Records the markers for memory that another heap waits for: on every stream that also used
    /// it, and on the freeing stream if a batch is full or a heap waits. Touches only streams that
    /// the caller guarantees to be alive.
    pub(crate) fn mark_free(&self, size: u64, lane: u32, stream: Option<StreamHandle>, users: &[u32]) {
        self.mark_users(users);
        let Some(stream) = stream else { return };
        if !users.is_empty() || self.order.due(lane, size) || self.order.take_asked(lane) || self.is_relay(stream) {
            let _ = self.mark_stream(stream);
        }
    }

    /// Like [`Self::mark_user`], for several. A later context marker makes up for those that fail.
    pub(crate) fn mark_users(&self, users: &[u32]) {
        for &user in users {
            let _ = self.mark_user(user);
        }
    }

    /// Records a marker on a stream named to `record_stream`, which the caller keeps alive until
    /// the free. A stream that this thread cannot name (another thread's own) is covered by the
    /// context's next marker.
    pub(crate) fn mark_user(&self, user: u32) -> Result<()> {
        if user == CONTEXT {
            return Ok(());
        }
        let handle = self.order.stream(user);
        if self.driver.stream_id(self.dev, handle)? == self.order.identity(user) {
            self.order.mark(user, handle)?;
        }
        Ok(())
    }

    /// Records a marker on a stream that the caller of this API call named.
    pub(crate) fn mark_stream(&self, stream: StreamHandle) -> Result<()> {
        // The heap's lane, since the marker must be on the lane's present stream. What lets the
        // stream allocate from an arena is held until then, so that no other gets the lane.
        let (heap, _routed) = self.heap_and_route(stream)?;
        self.order.mark(heap.lane, stream).map(|_| ())
    }
}
