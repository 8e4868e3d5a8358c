//! Sizes as people write them, with binary units, and names for a terminal.

use std::borrow::Cow;

/// Suffixes, each 1024 times the one before.
const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// A size with three digits and its unit, such as `1.50 GiB`.
pub(super) fn size(bytes: u64) -> String {
    let mut unit = 0;
    let mut divisor = 1_u64;
    while unit + 1 < UNITS.len() && bytes / divisor >= 1024 {
        divisor *= 1024;
        unit += 1;
    }
    if divisor == 1 {
        return format!("{bytes} B");
    }
    let whole = bytes / divisor;
    let digits = match whole {
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    let factor = 10_u128.pow(digits);
    // Rounded down: what is free is not said to be more than it is.
    let scaled = u128::from(bytes) * factor / u128::from(divisor);
    let (whole, rest) = (scaled / factor, scaled % factor);
    match usize::try_from(digits).unwrap_or(0) {
        0 => format!("{whole} {}", UNITS[unit]),
        digits => format!("{whole}.{rest:0digits$} {}", UNITS[unit]),
    }
}

/// An object's name for a terminal: control characters, which older versions stored, as escapes, and then
/// backslashes, too, so that no two names look alike.
pub(super) fn name(name: &str) -> Cow<'_, str> {
    if !name.contains(char::is_control) {
        return name.into();
    }
    let escape = |character: char| match character {
        '\\' => "\\\\".to_owned(),
        _ if character.is_control() => character.escape_default().to_string(),
        _ => character.to_string(),
    };
    name.chars().map(escape).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::{name, size};

    #[test]
    fn control_characters_of_names_are_escaped() {
        for (stored, shown) in [
            ("films/a b.mp4", "films/a b.mp4"),
            ("ü\\n", "ü\\n"),
            ("a\nb", "a\\nb"),
            ("a\\n\n", "a\\\\n\\n"),
            ("\u{1b}[2J\u{7f}\u{9b}", "\\u{1b}[2J\\u{7f}\\u{9b}"),
        ] {
            assert_eq!(name(stored), shown);
        }
    }

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 * 1024 - 1, "9.99 KiB"),
            (10 * 1024, "10.0 KiB"),
            (100 << 20, "100 MiB"),
            (1023 << 30, "1023 GiB"),
            (3 << 39, "1.50 TiB"),
            (u64::MAX, "16383 PiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }
}
