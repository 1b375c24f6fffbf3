//! Events: what happened, in a few words of memory each.

#![deny(unsafe_code, clippy::unwrap_used)]

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// The kind of an event, which decides what its fields mean. Numbers are part of the file
        /// format and never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $number,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            /// Its name in texts.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }

            /// The kind with this number.
            pub fn from_number(number: u8) -> Option<Kind> {
                match number { $($number => Some(Kind::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Memory was handed out: `address`, `bytes` asked for, `stream`, `tag`, `arena`, `stack`.
    Malloc = 1, "malloc";
    /// Memory was given back: `address`, and the `stream` in whose order if one was named, which
    /// `other` says. The time is the start of the call.
    Free = 2, "free";
    /// An allocation has another size: `address` now, `other` before, `bytes` asked for. The time
    /// is the start of the call.
    Realloc = 3, "realloc";
    /// A request failed for lack of memory: `bytes`, `stream`, `tag`, `arena`, `stack`; `other`:
    /// its number in the process.
    OutOfMemory = 4, "out of memory";
    /// An allocation was live when the recording began: fields as for `Malloc`. The time is the
    /// start of the recording.
    Existing = 5, "existing";
    /// An arena was opened: `arena`; `other`: the enclosing one, or 0; `bytes`: the number of its
    /// name among the strings.
    ArenaEnter = 6, "arena enter";
    /// An arena has ended, and everything in it is free: `arena`; `other`: nanoseconds that it
    /// took.
    ArenaExit = 7, "arena exit";
    /// An allocation moved to another arena: `address`; `arena`: where it is now, or 0.
    Move = 8, "move";
    /// Free memory was given back to the device: `bytes` that were to stay; `other`: nanoseconds.
    Trim = 9, "trim";
    /// Evictable memory left the device: `address` or `tag`; `bytes` moved; `other`: nanoseconds.
    Evict = 10, "evict";
    /// Evictable memory came back: `address` or `tag`; `bytes` moved; `other`: nanoseconds.
    Restore = 11, "restore";
    /// A capture of `stream` began.
    CaptureBegin = 12, "capture begin";
    /// A capture of `stream` ended.
    CaptureEnd = 13, "capture end";
    /// The memory of a capture of `stream` became ordinary again.
    CaptureRelease = 14, "capture release";
    /// A request was met with new physical memory: `address`, `bytes` added; `other`: nanoseconds
    /// of the whole request.
    Growth = 15, "growth";
    /// A request was met by mapping memory elsewhere: `address`, `bytes` mapped; `other`:
    /// nanoseconds of the whole request.
    Stitch = 16, "stitch";
    /// Addresses were reserved: `address`, `bytes`; `other`: nanoseconds.
    Reserve = 17, "reserve addresses";
    /// A reservation was given back: `address`, `bytes`; `other`: nanoseconds.
    Unreserve = 18, "give addresses back";
    /// Physical memory was made: `address`: its handle, `bytes`; `other`: nanoseconds.
    Create = 19, "create";
    /// Physical memory was given back: `address`: its handle; `other`: nanoseconds.
    Release = 20, "release";
    /// Physical memory was mapped: `address`, `bytes`; `tag`: its handle; `other`: nanoseconds.
    Map = 21, "map";
    /// Addresses were unmapped: `address`, `bytes`; `other`: nanoseconds.
    Unmap = 22, "unmap";
    /// Devices were given access: `address`, `bytes`; `other`: nanoseconds.
    SetAccess = 23, "set access";
}

impl Kind {
    /// Whether it comes from the slow path, which costs more than a lock.
    pub fn is_slow(self) -> bool {
        self >= Kind::Trim || self == Kind::OutOfMemory
    }

    /// Whether the driver did it.
    pub fn is_of_driver(self) -> bool {
        self >= Kind::Reserve
    }

    /// Whether it makes an address live.
    pub fn allocates(self) -> bool {
        matches!(self, Kind::Malloc | Kind::Existing)
    }
}

/// One event. Fields that its kind does not name are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the start of the recording.
    pub time: u64,
    /// An address, or a handle.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Depends on the kind.
    pub other: u64,
    /// A stream as callers name it; 0 is the legacy default stream.
    pub stream: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The arena's number; 0: none.
    pub arena: u32,
    /// The number of a stack; 0: not known.
    pub stack: u32,
    /// What happened.
    pub kind: Kind,
    /// The device's ordinal; 0 where it is about no single device.
    pub device: u8,
}

impl Event {
    /// An event of a kind, all else 0.
    pub fn new(kind: Kind, time: u64) -> Event {
        Event { time, address: 0, bytes: 0, other: 0, stream: 0, tag: 0, arena: 0, stack: 0, kind, device: 0 }
    }
}

// One cache line: a thread's buffer takes one store of it an event.
const _: () = assert!(size_of::<Event>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_lead_back() {
        for (i, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, i + 1);
            assert_eq!(Kind::from_number(i as u8 + 1), Some(*kind));
        }
        assert_eq!(Kind::from_number(0), None);
        assert_eq!(Kind::from_number(Kind::ALL.len() as u8 + 1), None);
        assert!(Kind::Growth.is_slow() && !Kind::Growth.is_of_driver() && !Kind::Malloc.is_slow());
    }
}
