//! Amounts as people write them: durations, rates and sizes with their units.
//!
//! It refuses fractions, units that may mean bits as well as bytes, and months. No amount has two readings: `K`, `M`
//! and `G` alone are powers of 1024, as for truncate(1) and lvcreate(8), and mean nothing in a rate. Bounds: the
//! digits of a `u64`.

#![forbid(unsafe_code)]

/// What was written, and is no amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AmountProblem {
    /// It is written in another way.
    Syntax,
    /// It is a number, but negative or greater than any range.
    Range,
    /// A rate that does not say whether it is of bits or of bytes.
    BitsOrBytes,
}

/// The unit of a duration's number that has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUnit {
    /// Of keys that end with `_us`.
    Microseconds,
    /// Of keys that end with `_seconds`.
    Seconds,
}

impl TimeUnit {
    /// As messages and the documentation name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "microseconds",
            Self::Seconds => "seconds",
        }
    }

    /// Microseconds in one.
    #[must_use]
    pub const fn microseconds(self) -> u64 {
        match self {
            Self::Microseconds => 1,
            Self::Seconds => 1_000_000,
        }
    }
}

/// A whole number.
///
/// # Errors
/// It is written in another way, or is too large.
pub fn parse_number(text: &str) -> Result<u64, AmountProblem> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AmountProblem::Syntax);
    }
    // `u64::from_str` refuses what begins with `-`, and what is too large.
    text.parse().map_err(|_| AmountProblem::Range)
}

/// The microseconds of a duration: numbers with their units, such as `20s`, `1h30m` or `75 s`; a number alone is of
/// `unit`.
///
/// # Errors
/// It is written in another way, or is too large.
pub fn parse_duration(text: &str, unit: TimeUnit) -> Result<u64, AmountProblem> {
    let number = parse_number(text.trim());
    if number != Err(AmountProblem::Syntax) {
        return in_unit(number?, unit.microseconds());
    }
    let mut rest = text.trim();
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let (number, behind) = split_number(rest)?;
        let length = behind.find(|it: char| !it.is_ascii_alphabetic());
        let (unit, behind) = behind.split_at(length.unwrap_or(behind.len()));
        let microseconds = match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" | "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return Err(AmountProblem::Syntax),
        };
        let part = in_unit(number, microseconds)?;
        sum = sum.checked_add(part).ok_or(AmountProblem::Range)?;
        rest = behind.trim_start();
    }
    if text.trim().is_empty() {
        return Err(AmountProblem::Syntax);
    }
    Ok(sum)
}

/// The bytes a second of a rate, such as `10MB/s`, `10MiB/s` or `80Mbit/s`; a number alone is of bytes a second.
///
/// # Errors
/// It is written in another way, or is too large.
pub fn parse_rate(text: &str) -> Result<u64, AmountProblem> {
    let number = parse_number(text.trim());
    if number != Err(AmountProblem::Syntax) {
        return number;
    }
    let (number, unit) = split_number(text.trim())?;
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    if let Some(prefix) = unit.strip_suffix("bit") {
        let factor = power_of(1000, prefix).ok_or(AmountProblem::Syntax)?;
        return in_unit(number, factor).map(|bits| bits / 8);
    }
    let (prefix, base) = match (unit.strip_suffix("iB"), unit.strip_suffix('B')) {
        (Some(prefix), _) if !prefix.is_empty() => (prefix, 1024),
        (None, Some(prefix)) => (prefix, 1000),
        // `10M`, `10Mb/s`, `10Mbps`.
        _ => {
            let prefix = unit.trim_end_matches(['b', 'p', 's']);
            return Err(match power_of(1000, prefix) {
                Some(_) if !unit.is_empty() => AmountProblem::BitsOrBytes,
                _ => AmountProblem::Syntax,
            });
        }
    };
    in_unit(number, power_of(base, prefix).ok_or(AmountProblem::Syntax)?)
}

/// The bytes of a size: `64M` and `64MiB` are powers of 1024, `64MB` of 1000; a number alone is of bytes.
///
/// # Errors
/// It is written in another way, or is too large.
pub fn parse_size(text: &str) -> Result<u64, AmountProblem> {
    let (number, unit) = split_number(text.trim())?;
    let unit = unit.to_ascii_lowercase();
    let (prefix, base) = match (unit.strip_suffix("ib"), unit.strip_suffix('b')) {
        (Some(prefix), _) if !prefix.is_empty() => (prefix, 1024),
        (None, Some(prefix)) => (prefix, 1000),
        (None, None) => (unit.as_str(), 1024),
        _ => return Err(AmountProblem::Syntax),
    };
    in_unit(number, power_of(base, prefix).ok_or(AmountProblem::Syntax)?)
}

/// A number and what is behind it.
fn split_number(text: &str) -> Result<(u64, &str), AmountProblem> {
    let length = text.find(|it: char| !it.is_ascii_digit());
    let (digits, behind) = text.split_at(length.unwrap_or(text.len()));
    Ok((parse_number(digits)?, behind.trim_start()))
}

fn in_unit(number: u64, unit: u64) -> Result<u64, AmountProblem> {
    number.checked_mul(unit).ok_or(AmountProblem::Range)
}

/// What a prefix of units stands for: a power of `base`.
fn power_of(base: u64, prefix: &str) -> Option<u64> {
    let power = match prefix {
        "" => 0,
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        "t" | "T" => 4,
        "p" | "P" => 5,
        _ => return None,
    };
    Some(base.pow(power))
}

#[cfg(test)]
mod tests {
    use super::AmountProblem::{BitsOrBytes, Range, Syntax};
    use super::{TimeUnit, parse_duration, parse_rate, parse_size};

    #[test]
    fn durations_have_units_or_are_of_the_key_s() {
        let of = |text| parse_duration(text, TimeUnit::Seconds);
        for (text, microseconds) in [
            ("0", 0),
            ("20", 20_000_000),
            ("20s", 20_000_000),
            ("75 s", 75_000_000),
            (" 2m ", 120_000_000),
            ("2min", 120_000_000),
            ("1h30m", 5_400_000_000),
            ("1h 30 m", 5_400_000_000),
            ("2d", 172_800_000_000),
            ("200ms", 200_000),
            ("1s500ms7us", 1_500_007),
        ] {
            assert_eq!(of(text), Ok(microseconds), "{text:?}");
        }
        for text in [
            "", " ", "s", "1.5h", "1 h 30", "20S", "1M", "1month", "1h-30m", "+1", "١s", "20s!",
        ] {
            assert_eq!(of(text), Err(Syntax), "{text:?}");
        }
        let most = u64::MAX.to_string();
        for text in [
            &most,
            "-1",
            "99999999999999999999",
            "99999999999999d",
            &format!("{most}us1us"),
        ] {
            assert_eq!(of(text), Err(Range), "{text:?}");
        }
        let of = |text| parse_duration(text, TimeUnit::Microseconds);
        assert_eq!(
            (of("50"), of("50us"), of("1ms")),
            (Ok(50), Ok(50), Ok(1_000))
        );
        assert_eq!(of(&most), Ok(u64::MAX));
    }

    #[test]
    fn rates_are_of_bytes_or_of_bits_and_say_which() {
        for (text, bytes) in [
            ("10000", 10_000),
            ("10kB/s", 10_000),
            ("10MB/s", 10_000_000),
            ("10 MB", 10_000_000),
            ("10MiB/s", 10 << 20),
            ("80Mbit/s", 10_000_000),
            ("80 mbit", 10_000_000),
            ("1Gbit/s", 125_000_000),
            ("15bit/s", 1),
            ("7B/s", 7),
        ] {
            assert_eq!(parse_rate(text), Ok(bytes), "{text:?}");
        }
        for text in ["10M", "10m", "10M/s", "10Mb/s", "10Mbps", "10bps", "10G"] {
            assert_eq!(parse_rate(text), Err(BitsOrBytes), "{text:?}");
        }
        for text in [
            "",
            "/s",
            "10/s",
            "10iB/s",
            "10Mibit/s",
            "1.5MB/s",
            "10MB/h",
            "10XB/s",
            "fast",
        ] {
            assert_eq!(parse_rate(text), Err(Syntax), "{text:?}");
        }
        assert_eq!(parse_rate("-1"), Err(Range));
        assert_eq!(parse_rate("99999999999PB/s"), Err(Range));
    }

    #[test]
    fn sizes_are_binary_but_those_that_end_in_mb_and_the_like() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("64MB", 64_000_000),
            ("64mb", 64_000_000),
            ("2T", 2 << 40),
            ("512B", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text:?}");
        }
        for text in ["", "M", "-1", "1.5G", "1X", "1iB", "1MBit", "1 M B"] {
            assert_eq!(parse_size(text), Err(Syntax), "{text:?}");
        }
        for text in ["99999999999P", "18446744073709551616"] {
            assert_eq!(parse_size(text), Err(Range), "{text:?}");
        }
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
    }
}
