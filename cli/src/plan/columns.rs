//! The columns of the input, and which of them a file has.

use csv::ByteRecord;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Id,
    Lower,
    Upper,
    Size,
    Alignment,
    Guard,
    Offset,
    Hint,
    Gaps,
    Arena,
    Name,
}

/// The columns by name.
const NAMES: [(&str, Column); 16] = [
    ("id", Column::Id),
    ("buffer", Column::Id),
    ("buffer_id", Column::Id),
    ("lower", Column::Lower),
    ("start", Column::Lower),
    ("begin", Column::Lower),
    ("upper", Column::Upper),
    (LAST, Column::Upper),
    ("size", Column::Size),
    ("alignment", Column::Alignment),
    ("guard", Column::Guard),
    ("offset", Column::Offset),
    ("hint", Column::Hint),
    ("gaps", Column::Gaps),
    ("arena", Column::Arena),
    ("name", Column::Name),
];

/// With this column, its steps and the upper ends of gaps are the last ones in a range.
const LAST: &str = "end";

const COLUMNS: usize = 11;

/// The positions of the columns.
#[derive(Debug, Default)]
pub struct Header {
    /// Names, as in the file.
    pub names: Vec<String>,
    /// The position of each [`Column`].
    at: [Option<usize>; COLUMNS],
    /// Whether upper ends are last steps.
    pub inclusive: bool,
}

impl Header {
    /// The position of a column, if the file has it.
    pub fn at(&self, column: Column) -> Option<usize> {
        self.at.get(column as usize).copied().flatten()
    }

    /// The names of columns that are ignored.
    pub fn ignored(&self) -> Vec<String> {
        let known = |i: usize| self.at.contains(&Some(i));
        self.names.iter().enumerate().filter(|&(i, _)| !known(i)).map(|(_, name)| name.clone()).collect()
    }

    pub fn name(&self, column: Column) -> String {
        self.at(column).and_then(|i| self.names.get(i)).cloned().unwrap_or_default()
    }

    /// Reads the first record; the error says what is wrong with it.
    pub fn parse(record: &ByteRecord) -> Result<Header, String> {
        let mut header = Header::default();
        for (i, field) in record.iter().enumerate() {
            let name = String::from_utf8_lossy(field.trim_ascii()).into_owned();
            let known = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(&name));
            if let Some(&(known, column)) = known {
                if let Some(first) = header.at(column) {
                    let first = header.names.get(first).cloned().unwrap_or_default();
                    return Err(if first == name {
                        format!("column {name} is there twice")
                    } else {
                        format!("columns {first} and {name} mean the same; leave one out")
                    });
                }
                if let Some(place) = header.at.get_mut(column as usize) {
                    *place = Some(i);
                }
                header.inclusive |= known == LAST;
            }
            header.names.push(name);
        }
        for (column, name) in
            [(Column::Id, "id"), (Column::Lower, "lower"), (Column::Upper, "upper"), (Column::Size, "size")]
        {
            if header.at(column).is_none() {
                return Err(format!("there is no column {name}"));
            }
        }
        Ok(header)
    }
}
