//! One record of the input: a buffer.

use super::columns::{Column, Header};
use crate::source::{decimal, quote};
use csv::ByteRecord;
use gpumem::plan::problem::{MAX_ALIGNMENT, MAX_BYTES};
use gpumem::plan::{Buffer, Interval, Kind, Place};

/// The kind of buffers that are left out: their bytes are not in any arena.
pub const LEFT_OUT: Kind = Kind::Parameter;

/// The most arenas of a file. Each costs something, even if it is empty.
const MOST_ARENAS: u32 = 65_536;

/// What is wrong with a record.
pub enum Bad {
    Count,
    /// The column, and what it should hold.
    Field(Column, String),
    /// The library's message.
    Refused(String),
}

/// One record and what its fields mean.
pub struct Row<'a> {
    pub header: &'a Header,
    pub record: &'a ByteRecord,
}

impl Row<'_> {
    fn field(&self, column: Column) -> Option<&[u8]> {
        self.record.get(self.header.at(column)?)
    }

    /// A number in decimal digits; the default when it is optional, and empty or absent.
    fn number(&self, column: Column, default: Option<u64>, expected: &str) -> Result<u64, Bad> {
        let field = self.field(column).unwrap_or_default().trim_ascii();
        match default {
            Some(default) if field.is_empty() => Ok(default),
            _ => decimal(field).ok_or_else(|| Bad::Field(column, format!("{expected}, decimal digits below 2^64"))),
        }
    }

    /// The buffer, of kind [`LEFT_OUT`] if it is left out; its bytes are added to `total` if not.
    pub fn buffer(&self, total: &mut u64) -> Result<Buffer, Bad> {
        if self.record.len() != self.header.names.len() {
            return Err(Bad::Count);
        }
        let bad = |column, expected: String| Err(Bad::Field(column, expected));
        let Ok(id) = std::str::from_utf8(self.field(Column::Id).unwrap_or_default()) else {
            return bad(Column::Id, "text in UTF-8".to_string());
        };
        if id.trim().is_empty() {
            return bad(Column::Id, "a name or number".to_string());
        }
        let lower = self.number(Column::Lower, None, "a step")?;
        let mut upper = self.number(Column::Upper, None, "a step")?;
        if self.header.inclusive {
            if upper < lower {
                return bad(Column::Upper, format!("the last step, at or after the first, {lower}"));
            }
            let Some(after) = upper.checked_add(1) else {
                return bad(Column::Upper, "a step below 2^64 - 1".to_string());
            };
            upper = after;
        } else if upper < lower {
            return bad(Column::Upper, format!("the first step after its last use, at or after lower, {lower}"));
        }
        let size = self.number(Column::Size, None, "bytes")?;
        let guard = self.number(Column::Guard, Some(0), "bytes")?;
        let (arena, kind) = self.arena()?;
        let mut none = 0;
        let total = if kind == LEFT_OUT { &mut none } else { total };
        for (column, bytes) in [(Column::Size, size), (Column::Guard, guard)] {
            match total.checked_add(bytes) {
                Some(sum) if sum <= MAX_BYTES => *total = sum,
                _ => {
                    let before = *total;
                    return bad(
                        column,
                        format!("at most 2^62 bytes in all buffers together; those before have {before}"),
                    );
                }
            }
        }
        let alignment = self.number(Column::Alignment, Some(1), "a power of two")?;
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return bad(Column::Alignment, "a power of two from 1 to 2^40".to_string());
        }
        let place = self.place(alignment, size + guard)?;
        let gaps = self.gaps(Interval::new(lower, upper))?;
        let mut buffer = Buffer::new(size, lower, upper);
        buffer.name = Some(id.into());
        (buffer.guard, buffer.alignment, buffer.place, buffer.gaps) = (guard, alignment, place, gaps);
        (buffer.arena, buffer.kind) = (arena, kind);
        Ok(buffer)
    }

    /// The arena that it is bound to, and whether it is left out.
    fn arena(&self) -> Result<(Option<u32>, Kind), Bad> {
        match self.field(Column::Arena).unwrap_or_default().trim_ascii() {
            b"" => Ok((None, Kind::Temporary)),
            b"-" => Ok((None, LEFT_OUT)),
            field => match decimal(field).and_then(|arena| u32::try_from(arena).ok()).filter(|&a| a < MOST_ARENAS) {
                Some(arena) => Ok((Some(arena), Kind::Temporary)),
                None => Err(Bad::Field(
                    Column::Arena,
                    format!("the number of an arena below {MOST_ARENAS}, - for a buffer that is left out, or nothing"),
                )),
            },
        }
    }

    fn place(&self, alignment: u64, extent: u64) -> Result<Place, Bad> {
        let given = |column| self.field(column).is_some_and(|f| !f.trim_ascii().is_empty() && f.trim_ascii() != b"-1");
        let fixed = self.field(Column::Offset).is_some_and(|f| !f.trim_ascii().is_empty());
        let column = match (fixed, given(Column::Hint)) {
            (true, _) => Column::Offset,
            (false, true) => Column::Hint,
            (false, false) => return Ok(Place::Anywhere),
        };
        let at = self.number(column, None, "an offset in bytes")?;
        if !at.is_multiple_of(alignment) {
            return Err(Bad::Field(column, format!("a multiple of the alignment, {alignment}")));
        }
        if at > MAX_BYTES - extent {
            return Err(Bad::Field(column, "an offset that keeps its end within 2^62 bytes".to_string()));
        }
        Ok(if fixed { Place::Fixed(at) } else { Place::Preferred(at) })
    }

    fn gaps(&self, life: Interval) -> Result<Vec<Interval>, Bad> {
        let bad = |expected: String| Bad::Field(Column::Gaps, expected);
        let mut gaps = Vec::new();
        let words = self.field(Column::Gaps).unwrap_or_default().split(u8::is_ascii_whitespace);
        for word in words.filter(|w| !w.is_empty()) {
            if word.contains(&b'@') {
                return Err(bad("gaps without windows (@): a buffer that keeps some of its bytes in a gap cannot be \
                                planned; leave the gap out, or make the rest a buffer of its own"
                    .to_string()));
            }
            let mut ends = word.split(|&b| b == b'-').map(decimal);
            let (Some(Some(lower)), Some(Some(upper)), None) = (ends.next(), ends.next(), ends.next()) else {
                return Err(bad(format!("ranges of steps as 7-9, separated by blanks; {:?} is none", quote(word))));
            };
            let upper = if self.header.inclusive { upper.checked_add(1) } else { Some(upper) };
            let Some(gap) = upper.map(|upper| Interval::new(lower, upper)).filter(|g| !g.is_empty()) else {
                return Err(bad(format!("gaps of at least one step; {:?} has none", quote(word))));
            };
            gaps.push(gap);
        }
        gaps.sort_unstable();
        let apart = gaps.windows(2).all(|pair| matches!(pair, [a, b] if a.upper <= b.lower));
        let inside = gaps.iter().all(|g| life.lower <= g.lower && g.upper <= life.upper);
        if !apart || !inside {
            let Interval { lower, upper } = life;
            // As the column has it, and gaps are written.
            let upper = if self.header.inclusive { upper.saturating_sub(1) } else { upper };
            return Err(bad(format!("gaps that are apart and inside the buffer's steps, {lower}-{upper}")));
        }
        Ok(gaps)
    }
}
