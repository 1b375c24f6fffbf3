//! The contents of a handle for another process.

use crate::cuda::{IpcHandle, Ptr};

/// The first bytes of gpumem's handles, and of none of the driver's.
const MAGIC: &[u8; 8] = b"gpumem\x01\xf5";

/// A handle's content. The address is the exporter's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    pub pid: u32,
    pub device: u32,
    /// Chosen at random by the exporting process: processes of two containers may have the same
    /// number.
    pub nonce: u64,
    pub base: Ptr,
    pub id: u64,
    pub bytes: u64,
}

impl Name {
    pub fn write(self) -> IpcHandle {
        let mut handle = IpcHandle([0; 64]);
        let words = [self.nonce, self.base, self.id, self.bytes].map(u64::to_ne_bytes).concat();
        let parts =
            [MAGIC.to_vec(), self.pid.to_ne_bytes().to_vec(), self.device.to_ne_bytes().to_vec(), words].concat();
        handle.0.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        handle
    }

    pub fn read(handle: &IpcHandle) -> Option<Name> {
        let rest = handle.0.strip_prefix(MAGIC)?;
        let word = |at: usize| Some(u64::from_ne_bytes(rest.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        Some(Name {
            pid: half(0)?,
            device: half(4)?,
            nonce: word(8)?,
            base: word(16)?,
            id: word(24)?,
            bytes: word(32)?,
        })
    }
}
