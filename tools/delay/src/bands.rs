//! The delays to choose from, as they are written: `10-40`, `10-40/5`, `10,20,40`, `0.5`.
//!
//! A list of items with commas between them. An item is one delay or a range `LOW-HIGH/STEP`, all
//! in milliseconds with at most three decimals; without `/STEP` the step is 1 ms. A range has LOW
//! and every further STEP up to HIGH; HIGH itself only if a step meets it. An item named twice
//! gets twice the flows.
//!
//! Refuses delays above [`DELAY_MAX`], and more than [`BANDS_MAX`] of them.

use std::fmt;
use std::str::FromStr;

use clock::Duration;
use thiserror::Error;

/// Most bands: each has its own queues, and every round looks at all of them.
pub const BANDS_MAX: usize = 256;

/// Longest delay. What is held must fit the bounds of the queues; ten times round the earth.
pub const DELAY_MAX: Duration = Duration::from_secs(2);

/// The step of a range that names none.
const STEP_DEFAULT_US: u64 = 1_000;

const MICROS_PER_MILLI: u64 = 1_000;

/// The delays flows are spread over, at least one, in the order they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bands(Vec<Duration>);

/// Why a list of delays was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BandsError {
    /// Not a number of milliseconds.
    #[error("{0:?} is not a number of milliseconds such as 20 or 0.5 (at most three decimals)")]
    Number(String),
    /// A range that goes down.
    #[error("{0:?} ends below its start; write the lower delay first")]
    Backwards(String),
    /// A range that does not move.
    #[error("{0:?} has a step of nothing; use a step above 0")]
    NoStep(String),
    /// A delay longer than [`DELAY_MAX`].
    #[error("{0:?} is longer than {max} ms", max = DELAY_MAX.as_millis())]
    TooLong(String),
    /// More than [`BANDS_MAX`].
    #[error("more than {BANDS_MAX} bands; use larger steps")]
    TooMany,
}

impl Bands {
    /// A single band.
    ///
    /// # Panics
    /// If it is longer than [`DELAY_MAX`].
    #[must_use]
    pub fn single(delay: Duration) -> Self {
        assert!(
            delay <= DELAY_MAX,
            "a band of {delay:?} is above {DELAY_MAX:?}"
        );
        Self(vec![delay])
    }

    /// The delays, at least one.
    #[must_use]
    pub fn delays(&self) -> &[Duration] {
        &self.0
    }
}

impl FromStr for Bands {
    type Err = BandsError;

    fn from_str(text: &str) -> Result<Self, BandsError> {
        let mut delays = Vec::new();
        for item in text.split(',') {
            let (low, high, step) = parse_item(item)?;
            let mut at = low;
            while at <= high {
                if delays.len() == BANDS_MAX {
                    return Err(BandsError::TooMany);
                }
                delays.push(Duration::from_micros(at));
                at += step;
            }
        }
        // `split` yields at least one item, and each item yields its low end.
        assert!(
            !delays.is_empty(),
            "a list of delays without a delay: {text:?}"
        );
        Ok(Self(delays))
    }
}

impl fmt::Display for Bands {
    /// Every delay in milliseconds, in a form that is read back as the same bands.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, delay) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let (whole, part) = (delay.as_millis(), delay.subsec_micros() % 1_000);
            if part == 0 {
                write!(formatter, "{comma}{whole}")?;
            } else {
                write!(formatter, "{comma}{whole}.{part:03}")?;
            }
        }
        Ok(())
    }
}

/// The ends and the step of one item, microseconds; the step is above 0.
fn parse_item(item: &str) -> Result<(u64, u64, u64), BandsError> {
    let item = item.trim();
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => (range, parse_micros(step)?),
        None => (item, STEP_DEFAULT_US),
    };
    if step == 0 {
        return Err(BandsError::NoStep(item.to_owned()));
    }
    let (low, high) = match range.split_once('-') {
        Some((low, high)) => (parse_micros(low)?, parse_micros(high)?),
        None => (parse_micros(range)?, parse_micros(range)?),
    };
    if high < low {
        return Err(BandsError::Backwards(item.to_owned()));
    }
    if u128::from(high) > DELAY_MAX.as_micros() {
        return Err(BandsError::TooLong(item.to_owned()));
    }
    Ok((low, high, step))
}

/// Milliseconds with up to three decimals, as microseconds.
fn parse_micros(text: &str) -> Result<u64, BandsError> {
    let refused = || BandsError::Number(text.to_owned());
    let (whole, decimals) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let is_number = |digits: &str| {
        !digits.is_empty() && digits.len() <= 9 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 3 {
        return Err(refused());
    }
    let whole: u64 = whole.parse().map_err(|_| refused())?;
    let decimals: u64 = format!("{decimals:0<3}").parse().map_err(|_| refused())?;
    Ok(whole * MICROS_PER_MILLI + decimals)
}

#[cfg(test)]
mod tests {
    use super::{BANDS_MAX, Bands, BandsError};

    fn micros(text: &str) -> Vec<u128> {
        let bands: Bands = text.parse().unwrap();
        bands.delays().iter().map(|d| d.as_micros()).collect()
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(micros("20"), [20_000]);
        assert_eq!(micros("0"), [0]);
        assert_eq!(micros("0.5"), [500]);
        assert_eq!(micros("10-12"), [10_000, 11_000, 12_000]);
        assert_eq!(micros("10-40/15"), [10_000, 25_000, 40_000]);
        assert_eq!(
            micros("10-40/16"),
            [10_000, 26_000],
            "the end is not stepped over"
        );
        assert_eq!(
            micros(" 1, 3-4 ,0.25-0.5/0.25"),
            [1_000, 3_000, 4_000, 250, 500]
        );
        assert_eq!(micros("10-40").len(), 31);
    }

    #[test]
    fn bad_lists_are_refused_with_the_reason() {
        let refused = |text: &str| text.parse::<Bands>().unwrap_err();
        for text in [
            "", "x", "1,,2", "-5", "1.2345", "1.", ".5", "1e3", "١", "10-", "10/",
        ] {
            assert!(matches!(refused(text), BandsError::Number(_)), "{text:?}");
        }
        assert!(matches!(refused("40-10"), BandsError::Backwards(_)));
        assert!(matches!(refused("10-40/0"), BandsError::NoStep(_)));
        assert!(matches!(refused("99999999999"), BandsError::Number(_)));
    }

    #[test]
    fn limits_hold_on_both_sides() {
        assert_eq!(micros("2000"), [2_000_000]);
        let refused = |text: &str| text.parse::<Bands>().unwrap_err();
        assert!(matches!(refused("2000.001"), BandsError::TooLong(_)));
        assert_eq!(micros("1-256").len(), BANDS_MAX);
        assert_eq!(refused("1-257"), BandsError::TooMany);
    }

    #[test]
    fn bands_are_printed_as_they_are_read() {
        for text in ["10,20,40", "0.500,1", "7"] {
            assert_eq!(text.parse::<Bands>().unwrap().to_string(), text);
        }
    }
}
