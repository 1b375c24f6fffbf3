//! The log of RMM's logging adaptor. There, a resize is a free and an allocation.

use gpumem::observe::History;
use std::io::{self, Write};

/// Writes every begin and end of an allocation as a line.
pub fn write(history: &History, out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
    for change in &history.changes {
        let Some(life) = history.lives.get(change.life as usize) else { continue };
        let (action, stream) = if change.begins { ("allocate", life.stream) } else { ("free", life.freed_on) };
        let (seconds, micros) = (change.time / 1_000_000_000, change.time / 1000 % 1_000_000);
        writeln!(
            out,
            "{},{:02}:{:02}:{:02}:{micros:06},{action},{:#x},{},{stream:#x}",
            change.thread,
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            life.address,
            life.bytes
        )?;
    }
    Ok(())
}
