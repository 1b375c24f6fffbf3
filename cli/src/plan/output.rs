//! The layout as columns of the input.

use super::columns::Column;
use super::input::Input;
use gpumem::plan::{BufferId, Layout};
use std::io::{self, Write};

/// Writes the input's records with an offset each, in the input's offset column or a new one at the
/// end. If the input has an arena column, it gets the arenas.
pub fn csv(input: &Input, layout: &Layout, out: &mut dyn Write) -> io::Result<()> {
    let column = input.header.at(Column::Offset);
    let arenas = input.header.at(Column::Arena);
    let mut writer = csv::Writer::from_writer(out);
    for name in &input.header.names {
        writer.write_field(name)?;
    }
    if column.is_none() {
        writer.write_field("offset")?;
    }
    writer.write_record(None::<&[u8]>)?;
    let mut records = input.records();
    for id in (0..input.problem.buffers().len() as u32).map(BufferId) {
        let Some(record) = records.next() else { break };
        let slot = layout.slot(id);
        let offset = slot.map(|slot| slot.offset.to_string()).unwrap_or_default();
        let arena = slot.map(|slot| slot.arena.to_string());
        for (i, field) in record.iter().enumerate() {
            writer.write_field(match &arena {
                _ if column == Some(i) => offset.as_bytes(),
                Some(arena) if arenas == Some(i) => arena.as_bytes(),
                _ => field,
            })?;
        }
        if column.is_none() {
            writer.write_field(&offset)?;
        }
        writer.write_record(None::<&[u8]>)?;
    }
    writer.flush()
}
