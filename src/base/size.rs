//! Byte counts: units, checked rounding, parsing and printing.

use super::{Error, Result};

/// 1 KiB in bytes.
pub const KIB: u64 = 1 << 10;
/// 1 MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// 1 GiB in bytes.
pub const GIB: u64 = 1 << 30;
/// 1 TiB in bytes.
pub const TIB: u64 = 1 << 40;

/// `bytes` rounded up to a multiple of `unit` (a power of two), or `None` on overflow.
#[inline]
pub fn round_up(bytes: u64, unit: u64) -> Option<u64> {
    debug_assert!(unit.is_power_of_two());
    Some(bytes.checked_add(unit - 1)? & !(unit - 1))
}

/// `bytes` rounded down to a multiple of `unit` (a power of two).
#[inline]
pub fn round_down(bytes: u64, unit: u64) -> u64 {
    debug_assert!(unit.is_power_of_two());
    bytes & !(unit - 1)
}

/// A size for people: `0 B`, `1.50 MiB`, `16.00 GiB`.
pub fn human(bytes: u64) -> String {
    for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= unit {
            return format!("{:.2} {name}", bytes as f64 / unit as f64);
        }
    }
    format!("{bytes} B")
}

/// Like [`human`], but where two decimals hide bytes, their exact number follows:
/// `8.00 MiB (8388864 bytes)`.
pub fn exact(bytes: u64) -> String {
    let unit = [TIB, GIB, MIB, KIB].into_iter().find(|unit| bytes >= *unit).unwrap_or(1);
    match u128::from(bytes) * 100 % u128::from(unit) {
        0 => human(bytes),
        _ => format!("{} ({bytes} bytes)", human(bytes)),
    }
}

/// Parses a byte count: digits with an optional binary suffix `K`, `M`, `G` or `T`, each optionally
/// followed by `B` or `iB`, in either case (`512M`, `2 GiB`, `1048576`).
pub fn parse(text: &str) -> Result<u64> {
    let bad = || {
        Error::invalid(format!(
            "{text:?} is not a size; write bytes, or a number with K, M, G or T (powers of 1024), such as 512M"
        ))
    };
    let t = text.trim();
    let digits = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
    let number: u64 = t[..digits].parse().map_err(|_| bad())?;
    let unit = match t[digits..].trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => KIB,
        "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => GIB,
        "t" | "tb" | "tib" => TIB,
        _ => return Err(bad()),
    };
    number.checked_mul(unit).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_checked() {
        assert_eq!(round_up(0, 512), Some(0));
        assert_eq!(round_up(1, 512), Some(512));
        assert_eq!(round_up(512, 512), Some(512));
        assert_eq!(round_up(u64::MAX, 512), None);
        assert_eq!(round_up(u64::MAX - 511, 512), Some(u64::MAX - 511));
        assert_eq!(round_down(1023, 512), 512);
    }

    #[test]
    fn sizes_parse_or_say_why() {
        for (text, want) in [("0", 0), ("17", 17), ("2k", 2048), ("3 MiB", 3 * MIB), ("4GB", 4 * GIB), ("1t", TIB)] {
            assert_eq!(parse(text).ok(), Some(want), "{text}");
        }
        for text in ["", "k", "-1", "1.5G", "12x", "99999999999T", "18446744073709551616"] {
            let e = parse(text).err().map(|e| e.message).unwrap_or_default();
            assert!(e.contains(text), "{text}: {e}");
        }
    }

    #[test]
    fn sizes_print_with_two_digits() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1536 * KIB), "1.50 MiB");
        assert_eq!(human(16 * GIB), "16.00 GiB");
        assert_eq!(exact(17), "17 B");
        assert_eq!(exact(1536 * KIB), "1.50 MiB");
        assert_eq!(exact(8 * MIB + 256), "8.00 MiB (8388864 bytes)");
        assert_eq!(exact(u64::MAX), "16777216.00 TiB (18446744073709551615 bytes)");
    }
}
