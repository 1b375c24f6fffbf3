//! One NUMA node: its chunks, the pinning of them, and how much may be pinned.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::blocks::{Blocks, Piece};
use super::options::{HostNode, HostOptions, HostStats};
use super::parts::{Parts, SMALLEST};
use crate::base::sync::{lock, Condvar, Mutex, MutexGuard};
use crate::base::{size, DeviceId, Error, Result, Status};
use crate::driver::{pages, Driver};
use crate::tier::promise::space::MAX_BYTES;
use crate::tier::{Manager, Space, SpaceId, SpaceOptions, Tier};
use std::sync::{Arc, PoisonError};

/// The smallest part handed out as a piece: what direct I/O can read into.
const SMALLEST_PIECE: u64 = 4096;

/// Bytes of a block and of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) block: u64,
    pub(super) chunk: u64,
}

/// The shape in which memory is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Pieces,
    One,
}

/// What is wanted, in whole blocks and parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A part of this many bytes.
    Part(u64),
    /// Blocks of this many bytes in all.
    Blocks(u64, Shape),
}

impl Want {
    /// The bytes it counts as.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Want::Part(bytes) | Want::Blocks(bytes, _) => bytes,
        }
    }
}

/// What the thread that pins ahead of need has to do for a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ahead {
    #[default]
    Nothing,
    Asked,
    /// It was refused: no further try before another thread pins or unpins a chunk. Blocks that are
    /// given back do not change what the system lets be pinned.
    Refused,
}

/// See the words in [`host`](super).
pub(super) struct Node {
    pub(super) id: u32,
    pub(super) space: Arc<Space>,
    pub(super) geometry: Geometry,
    driver: Arc<dyn Driver>,
    /// A device near to the node. The driver may pin in the name of another one that is in use.
    device: DeviceId,
    state: Mutex<State>,
    /// Rung when `busy` or `ahead` change.
    changed: Condvar,
}

/// What the lock guards.
struct State {
    blocks: Blocks,
    parts: Parts,
    /// Whether a thread is pinning or unpinning.
    busy: bool,
    ahead: Ahead,
    /// Bytes of the first use that are still to be pinned.
    first: u64,
    /// Bytes of whole blocks that are given out.
    given: u64,
    peak: u64,
    pins: u64,
    refused: u64,
}

type Held<'a> = MutexGuard<'a, State>;

impl State {
    fn take(&mut self, want: Want, block: u64) -> Option<Vec<Piece>> {
        match want {
            Want::Part(bytes) => {
                let addr = match self.parts.take(bytes) {
                    Some(addr) => addr,
                    None => self.parts.take_of_new(self.blocks.take_one(block)?, bytes),
                };
                Some(vec![Piece { addr, bytes }])
            }
            Want::Blocks(bytes, shape) => {
                let pieces = match shape {
                    Shape::One => vec![Piece { addr: self.blocks.take_one(bytes)?, bytes }],
                    Shape::Pieces => self.blocks.take_many(bytes)?,
                };
                self.given += bytes;
                Some(pieces)
            }
        }
    }

    fn stranded(&self) -> u64 {
        self.parts.shared() - self.parts.given()
    }

    fn stats(&self) -> HostStats {
        HostStats {
            pinned: self.blocks.pinned(),
            peak: self.peak,
            blocks: self.given,
            shared: self.parts.shared(),
            parts: self.parts.given(),
            free: self.blocks.free(),
            longest: self.blocks.longest(),
            chunks: self.blocks.chunks(),
            pins: self.pins,
            refused: self.refused,
        }
    }
}

impl Node {
    pub(super) fn new(
        driver: &Arc<dyn Driver>,
        manager: &Manager,
        options: &HostOptions,
        node: &HostNode,
    ) -> Result<Node> {
        // A setting may be larger than any machine's memory.
        let capacity = node.capacity.min(MAX_BYTES);
        let space = SpaceOptions {
            limit: Some(node.limit.min(capacity)),
            thresholds: options.thresholds,
            numa: Some(node.id),
            per_stream: false,
            ..SpaceOptions::new(capacity)
        };
        let space = manager.add_space(SpaceId::new(Tier::Host, node.id), &space)?;
        let near = |d: &DeviceId| driver.device_props(*d).is_ok_and(|p| p.numa == Some(node.id));
        let block = options.block_bytes;
        let chunk = block * u64::from(options.blocks);
        let first = chunk.saturating_mul(options.chunks.into());
        let state = State {
            blocks: Blocks::default(),
            parts: Parts::new(block),
            busy: false,
            ahead: Ahead::Nothing,
            first,
            given: 0,
            peak: 0,
            pins: 0,
            refused: 0,
        };
        Ok(Node {
            id: node.id,
            space,
            geometry: Geometry { block, chunk },
            driver: driver.clone(),
            device: (0..driver.device_count()).map(DeviceId).find(near).unwrap_or(DeviceId(0)),
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> Held<'_> {
        lock(&self.state)
    }

    fn wait<'a>(&self, st: Held<'a>) -> Held<'a> {
        self.changed.wait(st).unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks or the part a request needs.
    pub(super) fn want(&self, bytes: u64, shape: Shape) -> Result<Want> {
        let block = self.geometry.block;
        let least = match shape {
            Shape::Pieces => SMALLEST_PIECE,
            Shape::One => SMALLEST,
        };
        let part = bytes.checked_next_power_of_two().map(|n| n.max(least)).filter(|&n| n <= block / 2);
        match (part, size::round_up(bytes, block)) {
            _ if bytes == 0 => Err(Error::invalid("0 bytes of pinned memory were asked for; ask for at least 1")),
            (Some(part), _) => Ok(Want::Part(part)),
            (None, Some(bytes)) => Ok(Want::Blocks(bytes, shape)),
            (None, None) => Err(Error::new(
                Status::OutOfMemory,
                format!("{bytes} bytes of pinned memory are more than any machine has; ask for less"),
            )),
        }
    }

    /// Gives out memory that has been counted in the space. Returns whether more should be pinned
    /// ahead of need.
    pub(super) fn take(&self, want: Want) -> Result<(Vec<Piece>, bool)> {
        let mut st = self.lock();
        loop {
            if let Some(pieces) = st.take(want, self.geometry.block) {
                let ask = st.ahead == Ahead::Nothing && self.due(&st) > 0;
                if ask {
                    st.ahead = Ahead::Asked;
                }
                return Ok((pieces, ask));
            }
            st = self.make_room(st, want)?;
        }
    }

    /// Takes memory back.
    pub(super) fn give(&self, want: Want, pieces: &[Piece]) {
        let mut st = self.lock();
        let block = self.geometry.block;
        for piece in pieces {
            match want {
                Want::Part(bytes) => {
                    if let Some(addr) = st.parts.give(piece.addr, bytes) {
                        st.blocks.give(addr, block);
                    }
                }
                Want::Blocks(..) => {
                    let bytes = size::round_up(piece.bytes, block).unwrap_or(piece.bytes);
                    st.blocks.give(piece.addr, bytes);
                    st.given -= bytes;
                }
            }
        }
    }

    /// How many more bytes, in whole blocks, may be pinned if `stranded` bytes of shared blocks are
    /// not handed out.
    fn allowed(&self, st: &State, stranded: u64) -> u64 {
        let most = self.space.limit().max(self.space.usage().now());
        size::round_down(most.saturating_add(stranded).saturating_sub(st.blocks.pinned()), self.geometry.block)
    }

    /// Waits for the thread that is pinning, or pins or unpins something. Afterwards it is worth
    /// looking again.
    fn make_room<'a>(&'a self, st: Held<'a>, want: Want) -> Result<Held<'a>> {
        if st.busy {
            return Ok(self.wait(st));
        }
        let Geometry { block, chunk } = self.geometry;
        let (missing, stranded) = match want {
            Want::Part(bytes) => (block, st.stranded() + block - bytes),
            Want::Blocks(bytes, Shape::One) => (bytes, st.stranded()),
            Want::Blocks(bytes, Shape::Pieces) => (bytes.saturating_sub(st.blocks.free()), st.stranded()),
        };
        let allowed = self.allowed(&st, stranded);
        if allowed < missing {
            // Unpinning free blocks that are not where they are needed makes room.
            let excess = missing - allowed;
            let idle: u64 = st.blocks.idle().map(|c| c.1).sum();
            if want != Want::Blocks(missing, Shape::One) || idle < excess {
                return Err(self.no_room(&st, want));
            }
            let enough = st.blocks.idle().filter(|c| c.1 >= excess).min_by_key(|c| c.1);
            let victim = enough.or_else(|| st.blocks.idle().max_by_key(|c| c.1));
            return self.unpin(st, victim);
        }
        // Pieces come chunk by chunk, as smaller chunks are easier to trim.
        let least = match want {
            Want::Blocks(_, Shape::Pieces) => missing.min(chunk),
            _ => missing,
        };
        self.pin(st, least, chunk.max(least).min(allowed))
    }

    /// Pins a chunk of `most` bytes or, if that is refused, one of `least`.
    fn pin<'a>(&'a self, mut st: Held<'a>, least: u64, most: u64) -> Result<Held<'a>> {
        st.busy = true;
        drop(st);
        let mut bytes = most;
        let pin = |bytes| self.driver.host_alloc_on(self.device, bytes, Some(self.id));
        let mut pinned = pin(bytes);
        let mut refused = u64::from(pinned.is_err());
        if pinned.as_ref().is_err_and(|e| e.status == Status::OutOfMemory) && least < most {
            bytes = least;
            pinned = pin(bytes);
            refused += u64::from(pinned.is_err());
        }
        let mut st = self.lock();
        st.busy = false;
        st.refused += refused;
        match st.ahead {
            _ if refused > 0 => st.ahead = Ahead::Refused,
            Ahead::Refused => st.ahead = Ahead::Nothing,
            _ => {}
        }
        self.changed.notify_all();
        match pinned {
            Ok(addr) => {
                st.blocks.add_chunk(addr, bytes);
                st.pins += 1;
                st.peak = st.peak.max(st.blocks.pinned());
                st.first = st.first.saturating_sub(bytes);
                Ok(st)
            }
            Err(e) => Err(self.refusal(&st, bytes, e)),
        }
    }

    /// Unpins an idle chunk.
    fn unpin<'a>(&'a self, mut st: Held<'a>, chunk: Option<(u64, u64)>) -> Result<Held<'a>> {
        let Some((addr, bytes)) = chunk else { return Err(Error::internal("no chunk to unpin")) };
        st.blocks.remove_chunk(addr, bytes);
        st.busy = true;
        drop(st);
        let freed = self.driver.host_free(self.device, addr);
        let mut st = self.lock();
        st.busy = false;
        self.changed.notify_all();
        match freed {
            Ok(()) => {
                if st.ahead == Ahead::Refused {
                    st.ahead = Ahead::Nothing;
                }
                Ok(st)
            }
            Err(e) => {
                st.blocks.add_chunk(addr, bytes);
                Err(e.context(format!("unpinning {} of {}", size::human(bytes), self.space.id())))
            }
        }
    }

    fn no_room(&self, st: &State, want: Want) -> Error {
        let (Want::Part(bytes) | Want::Blocks(bytes, _)) = want;
        let why = match want {
            Want::Blocks(_, Shape::One) if st.blocks.free() >= bytes => {
                let longest = size::human(st.blocks.longest());
                format!("what is free is in pieces, the longest of {longest}; take pieces, free neighbours, or raise the limit")
            }
            _ => "free something, or raise the limit".to_string(),
        };
        let (asked, id, limit) = (size::human(bytes), self.space.id(), size::human(self.space.limit()));
        let text = format!("{id}: {asked} asked, {}, the limit is {limit}; {why}", st.stats());
        Error::new(Status::OutOfMemory, text)
    }

    fn refusal(&self, st: &State, bytes: u64, e: Error) -> Error {
        let lock_limit = pages::lock_limit().map_or("unlimited".to_string(), size::human);
        let (asked, id, limit) = (size::human(bytes), self.space.id(), size::human(self.space.limit()));
        e.context(format!(
            "{id}: {asked} more could not be pinned; {}, the limit is {limit}, ulimit -l is {lock_limit}; free memory of the \
             machine, trim, or lower the limit",
            st.stats()
        ))
    }

    // ---- ahead of need --------------------------------------------------------------------------

    /// How many bytes should be pinned ahead of need.
    fn due(&self, st: &State) -> u64 {
        let chunk = self.geometry.chunk;
        if st.first == 0 && st.blocks.free() >= chunk / 2 {
            return 0;
        }
        // The last of what may be pinned, and what may be pinned once more, is left to requests
        // that need it.
        match chunk.min(self.allowed(st, 0)) {
            bytes if bytes < chunk / 2 => 0,
            bytes => bytes,
        }
    }

    /// Pins what is due. To be called by one thread only.
    pub(super) fn grow_ahead(&self) {
        let mut st = self.lock();
        while st.ahead == Ahead::Asked {
            if st.busy {
                st = self.wait(st);
                continue;
            }
            let bytes = self.due(&st);
            if bytes == 0 {
                st.ahead = Ahead::Nothing;
                break;
            }
            st = match self.pin(st, bytes, bytes) {
                Ok(st) => st,
                // Threads that need memory will hear of it.
                Err(_) => return,
            };
        }
        drop(st);
        self.changed.notify_all();
    }

    /// Stops pinning ahead of need until a later pinning succeeds.
    pub(super) fn end_growing(&self) {
        self.lock().ahead = Ahead::Refused;
        self.changed.notify_all();
    }

    /// Waits until nothing is being pinned ahead of need.
    pub(super) fn settle(&self) {
        let mut st = self.lock();
        while st.ahead == Ahead::Asked || st.busy {
            st = self.wait(st);
        }
    }

    // ---- by hand --------------------------------------------------------------------------------

    pub(super) fn prepare(&self, bytes: u64) -> Result<()> {
        let Geometry { block, chunk } = self.geometry;
        let whole = size::round_up(bytes, block).unwrap_or(u64::MAX);
        let mut st = self.lock();
        while st.blocks.free() < whole {
            if st.busy {
                st = self.wait(st);
                continue;
            }
            let missing = whole - st.blocks.free();
            let allowed = self.allowed(&st, st.stranded());
            if allowed < missing {
                return Err(self.no_room(&st, Want::Blocks(whole, Shape::Pieces)));
            }
            st = self.pin(st, missing.min(chunk), chunk.min(allowed))?;
        }
        Ok(())
    }

    pub(super) fn trim(&self, keep: u64) -> Result<u64> {
        let mut st = self.lock();
        let mut unpinned = 0;
        // The chunks of the first use are not wanted any more, either.
        st.first = 0;
        loop {
            if st.busy {
                st = self.wait(st);
                continue;
            }
            let spare = st.blocks.free().saturating_sub(keep);
            let Some(chunk) = st.blocks.idle().filter(|c| c.1 <= spare).max_by_key(|c| c.1) else { break };
            st = self.unpin(st, Some(chunk))?;
            unpinned += chunk.1;
        }
        Ok(unpinned)
    }

    pub(super) fn stats(&self) -> HostStats {
        self.lock().stats()
    }

    pub(super) fn validate(&self) -> Result<()> {
        let st = self.lock();
        st.blocks.validate()?;
        st.parts.validate()?;
        let (s, used) = (st.stats(), self.space.usage().now());
        // Counted first: what waits for memory to be pinned has none yet.
        let given = s.blocks + s.parts;
        let fits = s.pinned == s.blocks + s.shared + s.free
            && (used == given || st.busy && used > given)
            && s.peak >= s.pinned
            && (st.busy || s.pins >= s.chunks);
        match fits {
            true => Ok(()),
            false => Err(Error::internal(format!("{}: {used} bytes are counted, but {s:?}", self.space.id()))),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // None of its memory is handed out any more. Memory that cannot be unpinned stays to the
        // end of the process.
        let chunks: Vec<_> = self.lock().blocks.all().collect();
        for (addr, _) in chunks {
            let _ = self.driver.host_free(self.device, addr);
        }
    }
}
