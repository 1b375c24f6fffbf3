//! The log of RMM's logging adaptor. There, a resize is a free and an allocation.

use gpumem::observe::{History, Kind, Recording};
use std::io::{self, Write};

/// Writes every begin and end of an allocation, and every failure, as a line.
pub fn write(recording: &Recording, history: &History, out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"Thread,Time,Action,Pointer,Size,Stream\n")?;
    let mut failures = recording.events.iter().filter(|h| h.event.kind == Kind::OutOfMemory).peekable();
    for change in history.changes.iter().map(Some).chain([None]) {
        while let Some(h) = failures.next_if(|h| change.is_none_or(|c| h.event.time < c.time)) {
            let e = &h.event;
            line(out, (h.thread, e.time), "allocate failure", "(nil)", (e.bytes, e.stream))?;
        }
        let Some(change) = change else { break };
        let Some(life) = history.lives.get(change.life as usize) else { continue };
        let (action, stream) = if change.begins { ("allocate", life.stream) } else { ("free", life.freed_on) };
        let pointer = format!("{:#x}", life.address);
        line(out, (change.thread, change.time), action, &pointer, (life.bytes, stream))?;
    }
    Ok(())
}

fn line(
    out: &mut impl Write,
    (thread, time): (u32, u64),
    action: &str,
    pointer: &str,
    (bytes, stream): (u64, u64),
) -> io::Result<()> {
    let (seconds, micros) = (time / 1_000_000_000, time / 1000 % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    writeln!(out, "{thread},{hours:02}:{minutes:02}:{seconds:02}:{micros:06},{action},{pointer},{bytes},{stream:#x}")
}
