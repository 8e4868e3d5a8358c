//! How fast may be filled, and when: rates by time of day, and the bucket that holds to them.
//!
//! Pure: the time of day and the instant come in as arguments. Bounded by [`WINDOWS_MAX`] windows. Of two windows
//! that overlap the first one written counts.

use amount::parse_rate;

/// Most windows.
pub const WINDOWS_MAX: usize = 24;
/// Minutes of a day.
const DAY_MINUTES: u32 = 24 * 60;
/// What may leave at once after a pause, as a time at the rate, milliseconds.
const BURST_MS: u64 = 100;

/// A part of each day, and how fast may be filled in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its first minute of the day.
    from: u32,
    /// The minute behind its last one; before `from` if it goes over midnight.
    until: u32,
    /// Bytes a second; `None` for no limit.
    rate: Option<u64>,
}

impl Window {
    /// As it is written: `02:00-14:00 1200Mbit/s`, or without a rate.
    ///
    /// # Errors
    /// What is wrong, and how it is written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = "write it like \"02:00-14:00 1200Mbit/s\"";
        let (times, rate) = match text.trim().split_once(' ') {
            Some((times, rate)) => (times, Some(rate.trim())),
            None => (text.trim(), None),
        };
        let (from, until) = times
            .split_once('-')
            .and_then(|(from, until)| Some((minute(from)?, minute(until)?)))
            .ok_or_else(|| format!("{text:?}: no times of the day; {form}"))?;
        if from == until % DAY_MINUTES && until != DAY_MINUTES {
            return Err(format!("{text:?}: it has no length; {form}"));
        }
        let rate = rate.map(|rate| match parse_rate(rate) {
            Ok(rate) if rate > 0 => Ok(rate),
            _ => Err(format!("{text:?}: {rate:?} is no rate; {form}")),
        });
        Ok(Self {
            from,
            until,
            rate: rate.transpose()?,
        })
    }

    fn contains(&self, minute: u32) -> bool {
        if self.from < self.until {
            (self.from..self.until).contains(&minute)
        } else {
            minute >= self.from || minute < self.until
        }
    }
}

/// A time of the day, `HH:MM` up to `24:00`, as its minute.
fn minute(text: &str) -> Option<u32> {
    let (hours, minutes) = text.trim().split_once(':')?;
    let number = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let minute = number(hours)? * 60 + number(minutes).filter(|it| *it < 60)?;
    (minute <= DAY_MINUTES).then_some(minute)
}

/// What may be filled now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// Whether all that is wanted is fetched; else only what viewers missed.
    pub is_open: bool,
    /// Bytes a second; `None` for no limit.
    pub rate: Option<u64>,
}

/// What may be filled at a minute of the day: by the windows, and by the rate for all the time.
#[must_use]
pub fn allowed(windows: &[Window], rate: Option<u64>, minute: u32) -> Allowed {
    if windows.is_empty() {
        return Allowed {
            is_open: true,
            rate,
        };
    }
    let window = windows.iter().find(|window| window.contains(minute));
    let rates = [rate, window.and_then(|window| window.rate)];
    Allowed {
        is_open: window.is_some(),
        rate: rates.into_iter().flatten().min(),
    }
}

/// A token bucket that may be overdrawn: who takes more than there is waits until it would be there again.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    rate: Option<u64>,
    /// When what was taken will have been paid for, nanoseconds.
    paid_ns: u64,
}

impl Bucket {
    /// Sets the rate, bytes a second. What was taken before is not forgotten.
    pub fn set_rate(&mut self, rate: Option<u64>) {
        self.rate = rate;
    }

    /// Takes bytes; returns the time that is to be waited for before any more are taken, nanoseconds.
    pub fn take(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else {
            self.paid_ns = now_ns;
            return 0;
        };
        let burst_ns = BURST_MS * 1_000_000;
        let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let from = self.paid_ns.max(now_ns.saturating_sub(burst_ns));
        self.paid_ns = from.saturating_add(u64::try_from(cost_ns).unwrap_or(u64::MAX));
        self.paid_ns.saturating_sub(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(hours: u32, minutes: u32) -> u32 {
        hours * 60 + minutes
    }

    #[test]
    fn windows_have_two_times_and_perhaps_a_rate() {
        let night = Window::parse("02:00-14:00 1200Mbit/s").unwrap();
        assert_eq!(night.rate, Some(150_000_000));
        for (minute, is_in) in [
            (at(1, 59), false),
            (at(2, 0), true),
            (at(13, 59), true),
            (at(14, 0), false),
        ] {
            assert_eq!(night.contains(minute), is_in, "{minute}");
        }
        let midnight = Window::parse("22:30-06:00").unwrap();
        for (minute, is_in) in [
            (at(22, 29), false),
            (at(22, 30), true),
            (0, true),
            (at(5, 59), true),
            (at(6, 0), false),
        ] {
            assert_eq!(midnight.contains(minute), is_in, "{minute}");
        }
        let whole = Window::parse("00:00-24:00 10MB/s").unwrap();
        assert!(whole.contains(0) && whole.contains(DAY_MINUTES - 1));
        for text in [
            "",
            "02:00",
            "2-14",
            "02:00-25:00",
            "02:60-03:00",
            "02:00-24:01",
            "02:00-02:00",
            "+2:00-03:00",
        ] {
            let error = Window::parse(text).unwrap_err();
            assert!(error.contains("write it like"), "{text:?}: {error}");
        }
        for rate in ["10M", "0", "fast"] {
            let error = Window::parse(&format!("02:00-14:00 {rate}")).unwrap_err();
            assert!(error.contains("no rate"), "{error}");
        }
    }

    #[test]
    fn outside_of_all_windows_only_what_was_missed_is_fetched() {
        let windows = ["02:00-14:00 100MB/s", "13:00-15:00 10MB/s"];
        let windows = windows.map(|text| Window::parse(text).unwrap());
        let of = |rate, minute| {
            let allowed = allowed(&windows, rate, minute);
            (allowed.is_open, allowed.rate)
        };
        assert_eq!(of(None, at(13, 30)), (true, Some(100_000_000)));
        assert_eq!(of(None, at(14, 30)), (true, Some(10_000_000)));
        assert_eq!(of(None, at(15, 0)), (false, None));
        assert_eq!(of(Some(1_000), at(15, 0)), (false, Some(1_000)));
        assert_eq!(of(Some(50_000_000), at(3, 0)), (true, Some(50_000_000)));
        let always = allowed(&[], Some(5), 0);
        assert_eq!((always.is_open, always.rate), (true, Some(5)));
    }

    #[test]
    fn a_bucket_gives_the_rate_and_a_short_burst() {
        const SECOND: u64 = 1_000_000_000;
        let mut bucket = Bucket::default();
        assert_eq!(bucket.take(0, u64::MAX), 0);
        bucket.set_rate(Some(1_000));
        let start = 10 * SECOND;
        // 100 ms at the rate are free after a pause.
        assert_eq!(bucket.take(start, 100), 0);
        assert_eq!(bucket.take(start, 500), SECOND / 2);
        // Who comes before the time waits for its rest, too.
        assert_eq!(bucket.take(start + SECOND / 4, 1_000), SECOND + SECOND / 4);
        // A pause does not save up more than the burst.
        assert_eq!(bucket.take(100 * SECOND, 1_100), SECOND);
        bucket.set_rate(None);
        assert_eq!(bucket.take(100 * SECOND, 1 << 40), 0);
    }
}
