//! Call stacks: taken as addresses when memory is requested, named later by the writer.

#![deny(unsafe_code, clippy::unwrap_used)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::Hasher;

/// The most frames of gpumem's own on top of a caller's.
const OWN: usize = 24;

/// A stack that has not been named yet.
pub(super) enum Raw {
    /// Return addresses, innermost first.
    Addresses(Vec<usize>),
    /// One frame a line, innermost first: what a [`StackSource`](super::StackSource) said.
    Text(String),
}

impl Raw {
    /// The calling thread's stack, up to `depth` frames and gpumem's own.
    pub(super) fn here(depth: usize) -> Raw {
        let mut addresses = Vec::with_capacity(depth + OWN);
        backtrace::trace(|frame| {
            // Some unwinders end with a null frame.
            addresses.extend(Some(frame.ip() as usize).filter(|ip| *ip != 0));
            addresses.len() < depth + OWN
        });
        Raw::Addresses(addresses)
    }

    /// Equal for equal stacks. It has 128 bits, so different stacks do not collide in practice.
    fn key(&self) -> (u64, u64) {
        let hash = |seed| {
            let mut hash = twox_hash::XxHash3_64::with_seed(seed);
            match self {
                Raw::Addresses(all) => all.iter().for_each(|a| hash.write_usize(*a)),
                Raw::Text(text) => hash.write(text.as_bytes()),
            }
            hash.finish()
        };
        (hash(1), hash(2))
    }
}

/// Strings and stacks of one recording, by number; the numbers begin at 1.
#[derive(Default)]
pub(super) struct Names {
    strings: HashMap<String, u32>,
    new_strings: Vec<(u32, String)>,
    stacks: HashMap<(u64, u64), u32>,
    new_stacks: Vec<(u32, Raw)>,
}

impl Names {
    /// The number of a string.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = u32::try_from(self.strings.len() + 1).unwrap_or(u32::MAX);
        self.strings.insert(text.to_string(), number);
        self.new_strings.push((number, text.to_string()));
        number
    }

    /// The number of a stack.
    pub(super) fn stack(&mut self, raw: Raw) -> u32 {
        let next = u32::try_from(self.stacks.len() + 1).unwrap_or(u32::MAX);
        let number = *self.stacks.entry(raw.key()).or_insert(next);
        if number == next {
            self.new_stacks.push((number, raw));
        }
        number
    }

    /// Takes the strings added since the last call.
    pub(super) fn take_strings(&mut self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.new_strings)
    }

    /// Takes the stacks added since the last call.
    pub(super) fn take_stacks(&mut self) -> Vec<(u32, Raw)> {
        std::mem::take(&mut self.new_stacks)
    }
}

/// The names of addresses found so far.
#[derive(Default)]
pub(super) struct Symbols {
    /// The functions at each return address, the innermost inlined one first.
    known: HashMap<usize, Vec<String>>,
}

impl Symbols {
    /// Reads what naming needs of this library. The first time takes long, so it comes before
    /// events wait for it.
    pub(super) fn warm_up(&mut self) {
        if let Raw::Addresses(all) = Raw::here(1) {
            all.iter().for_each(|a| {
                self.at(*a);
            });
        }
    }

    /// The frames of a stack, innermost first, gpumem's own left out, `depth` at most.
    pub(super) fn frames(&mut self, raw: &Raw, depth: usize) -> Vec<String> {
        let all: Vec<String> = match raw {
            Raw::Text(text) => text.lines().map(str::to_string).collect(),
            Raw::Addresses(addresses) => {
                let named: Vec<String> = addresses.iter().flat_map(|a| self.at(*a).to_vec()).collect();
                let own = named.iter().take(2 * OWN).rposition(|f| is_own(f)).map_or(0, |i| i + 1);
                named.into_iter().skip(own).collect()
            }
        };
        all.into_iter().take(depth).collect()
    }

    fn at(&mut self, address: usize) -> &[String] {
        self.known.entry(address).or_insert_with(|| {
            let mut names = Vec::new();
            backtrace::resolve(address as *mut c_void, |symbol| {
                let name = symbol.name().map_or_else(|| format!("{address:#x}"), |n| format!("{n:#}"));
                names.push(match (symbol.filename(), symbol.lineno()) {
                    (Some(file), Some(line)) => format!("{name} ({}:{line})", file.display()),
                    _ => name,
                });
            });
            if names.is_empty() {
                names.push(format!("{address:#x}"));
            }
            names
        })
    }
}

/// Whether a frame is between a caller and the recorder.
fn is_own(frame: &str) -> bool {
    let parts = ["gpumem::observe::", "gpumem::context::", "gpumem::capi::", "gpumem_preload::"];
    parts.iter().any(|p| frame.contains(p)) || (frame.starts_with("gpumem_") && !frame.contains("::"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[inline(never)]
    fn a_function_with_a_name(depth: usize) -> Raw {
        std::hint::black_box(Raw::here(depth))
    }

    #[test]
    fn frames_have_the_name_and_the_line() {
        let raw = a_function_with_a_name(8);
        let frames = Symbols::default().frames(&raw, 8);
        // This test is inside gpumem, so its own frames are left out; those around it are not.
        assert!(!frames.is_empty() && frames.len() <= 8, "{frames:?}");
        let Raw::Addresses(addresses) = &raw else { return };
        let all: Vec<String> = addresses.iter().flat_map(|a| Symbols::default().at(*a).to_vec()).collect();
        let mine = all.iter().find(|f| f.contains("a_function_with_a_name")).unwrap();
        assert!(mine.contains("stacks.rs:"), "{mine}");
    }

    #[test]
    fn equal_stacks_have_one_number_and_are_written_once() {
        let mut names = Names::default();
        let text = |t: &str| Raw::Text(t.to_string());
        assert_eq!([names.stack(text("a\nb")), names.stack(text("a")), names.stack(text("a\nb"))], [1, 2, 1]);
        assert_eq!(names.take_stacks().len(), 2);
        assert_eq!([names.string("x"), names.string("y"), names.string("x")], [1, 2, 1]);
        assert_eq!(names.take_strings(), [(1, "x".into()), (2, "y".into())]);
        assert!(names.take_strings().is_empty() && names.take_stacks().is_empty());
        assert_eq!(Symbols::default().frames(&text("a\nb\nc"), 2), ["a", "b"]);
    }

    #[test]
    fn own_frames_are_told_from_others() {
        assert!(is_own("gpumem_malloc_async") && is_own("gpumem::context::Context::malloc (a.rs:1)"));
        assert!(!is_own("main (leak.c:20)") && !is_own("gpumem_cli::replay::run"));
    }
}
