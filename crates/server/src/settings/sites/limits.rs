//! `rate`, `bandwidth` and `limit` of sites and rules: how fast, and how many.
//!
//! It refuses amounts out of range, and a burst of no rate. Bounds: those of [`sites::limits`].

use std::ops::RangeInclusive;

use sites::bandwidth::Bandwidth;
use sites::limits::{BURST_MAX, CONNECTIONS_MAX, Limit, REQUESTS_PER_SECOND_MAX, RequestRate};
use sites::rules::Rate;

use super::{LimitTable, Place};
use crate::failure::Failure;
use crate::settings::file::Amount;
use ::amount::{parse_number, parse_rate, parse_size};

/// What `rate` may be, bytes a second: as the server's `connection_rate_max`.
const RATE_RANGE: RangeInclusive<u64> = 10_000..=100_000_000_000;

const SECOND_NS: u64 = 1_000_000_000;

pub(super) fn resolve_rate(
    rate: Option<Amount>,
    after: Option<Amount>,
    place: &Place,
) -> Result<Option<Rate>, Failure> {
    match (rate, after) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(place.refuse("rate_after without rate", "say the rate, too")),
        (Some(rate), after) => {
            let size = |Amount(text): Amount| parse_size(&text).ok();
            let after_bytes = after.map_or(Some(0), size);
            let rate = parse_rate(&rate.0).ok();
            let found = rate
                .filter(|rate| RATE_RANGE.contains(rate))
                .zip(after_bytes.filter(|bytes| *bytes <= i64::MAX.unsigned_abs()));
            let (bytes_per_second, after_bytes) = found.ok_or_else(|| {
                place.refuse(
                    "rate or rate_after: no rate and size, or out of range",
                    "write them like \"5Mbit/s\" and \"10MiB\", from 10kB/s to 100GB/s",
                )
            })?;
            Ok(Some(Rate {
                bytes_per_second,
                after_bytes,
            }))
        }
    }
}

pub(super) fn resolve_bandwidth(
    bandwidth: Option<Amount>,
    place: &Place,
) -> Result<Option<Bandwidth>, Failure> {
    let Some(Amount(text)) = bandwidth else {
        return Ok(None);
    };
    let rate = parse_rate(&text).ok();
    let rate = rate.filter(|rate| RATE_RANGE.contains(rate));
    let rate = rate.ok_or_else(|| {
        place.refuse(
            format_args!("bandwidth {text}: no rate, or out of range"),
            "write it like \"2Gbit/s\" or \"250MB/s\", from 10kB/s to 100GB/s",
        )
    })?;
    Ok(Some(Bandwidth::new(rate)))
}

pub(super) fn resolve_limit(
    table: Option<LimitTable>,
    place: &Place,
) -> Result<Option<Limit>, Failure> {
    let Some(LimitTable {
        connections,
        requests,
        burst,
    }) = table
    else {
        return Ok(None);
    };
    if connections.is_none() && requests.is_none() {
        return Err(place.refuse(
            "limit: of nothing",
            "write { connections = 8 }, or { requests = \"10/s\" }, or both",
        ));
    }
    let connections = connections.map(|Amount(text)| {
        let number = parse_number(&text).ok();
        let number = number.and_then(|number| u16::try_from(number).ok());
        number.filter(|number| *number > 0).ok_or_else(|| {
            place.refuse(
                format_args!("limit.connections {text}: no number, or out of range"),
                format!("use 1 to {CONNECTIONS_MAX}"),
            )
        })
    });
    let rate = requests.map(|Amount(text)| {
        interval_of(&text).ok_or_else(|| {
            place.refuse(
                format_args!("limit.requests {text}: no rate of requests, or out of range"),
                format!(
                    "write it like \"10/s\" or \"90/min\", 1/min to {REQUESTS_PER_SECOND_MAX}/s"
                ),
            )
        })
    });
    let (connections, interval_ns) = (connections.transpose()?, rate.transpose()?);
    let limit = |requests| Limit::new(connections, requests);
    match (interval_ns, burst) {
        (None, None) => Ok(Some(limit(None))),
        (None, Some(_)) => Err(place.refuse("limit.burst without requests", "say their rate, too")),
        (Some(interval_ns), burst) => {
            // As many as come in a second.
            let usual = u32::try_from(SECOND_NS / interval_ns).unwrap_or(BURST_MAX);
            let burst = burst.map_or(Some(usual), |Amount(text)| {
                let number = parse_number(&text).ok();
                let number = number.and_then(|number| u32::try_from(number).ok());
                number.filter(|number| *number <= BURST_MAX)
            });
            let burst = burst.ok_or_else(|| {
                place.refuse(
                    "limit.burst: no number, or out of range",
                    format!("use 0 to {BURST_MAX}"),
                )
            })?;
            Ok(Some(limit(Some(RequestRate { interval_ns, burst }))))
        }
    }
}

/// Nanoseconds between two requests of a rate such as `10/s` or `90/min`; a number alone is of a second.
fn interval_of(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let period_ns = match unit.trim() {
        "s" => SECOND_NS,
        "m" | "min" => 60 * SECOND_NS,
        _ => return None,
    };
    let number = parse_number(number.trim())
        .ok()
        .filter(|number| *number > 0)?;
    let interval_ns = period_ns / number;
    (interval_ns >= SECOND_NS / REQUESTS_PER_SECOND_MAX).then_some(interval_ns)
}

#[cfg(test)]
mod tests {
    use sites::limits::RequestRate;

    use crate::settings::tests::with_file;

    /// The limits of a site and of its rule, in debug form.
    fn limits(site: &str, rule: &str) -> Result<String, String> {
        let text = format!("[[site]]\n{site}\n[[site.rule]]\npaths = [\"/**\"]\n{rule}\n");
        let settings = with_file(&text).map_err(|failure| failure.to_string())?;
        Ok(format!("{:?}", settings.sites))
    }

    #[test]
    fn limits_have_numbers_and_rates_in_their_ranges() {
        for (limit, rate) in [
            ("requests = \"1000/s\"", (1_000_000, 1000)),
            ("requests = \"1/min\"", (60_000_000_000, 0)),
            ("requests = \"90/m\", burst = 5", (666_666_666, 5)),
            ("requests = 10", (100_000_000, 10)),
            ("requests = \"10 / s\", burst = 0", (100_000_000, 0)),
            ("requests = 10, burst = 100000", (100_000_000, 100_000)),
            ("requests = 10, connections = 65535", (100_000_000, 10)),
        ] {
            let shown = limits("", &format!("limit = {{ {limit} }}")).unwrap();
            let (interval_ns, burst) = rate;
            let expected = format!("{:?}", RequestRate { interval_ns, burst });
            assert!(shown.contains(&expected), "{limit}: {shown}");
        }
        assert!(
            limits("limit = { connections = 1 }", "")
                .unwrap()
                .contains("connections: Some(1)")
        );
    }

    #[test]
    fn what_is_no_limit_is_told_with_its_place() {
        for (limit, problem) in [
            ("", "limit: of nothing"),
            ("connections = 0", "limit.connections 0: no number, or out"),
            ("connections = 65536", "limit.connections 65536"),
            ("requests = \"1001/s\"", "limit.requests 1001/s: no rate"),
            ("requests = \"0/s\"", "limit.requests 0/s"),
            ("requests = \"10/h\"", "limit.requests 10/h"),
            ("requests = \"10MB/s\"", "limit.requests 10MB/s"),
            ("connections = 1, burst = 1", "limit.burst without requests"),
            ("requests = 1, burst = 100001", "limit.burst: no number, or"),
        ] {
            for (site, rule, place) in [(true, false, "1"), (false, true, "1, rule 1")] {
                let limit = format!("limit = {{ {limit} }}");
                let text = |is_here| if is_here { limit.as_str() } else { "" };
                let told = limits(text(site), text(rule)).unwrap_err();
                let expected = format!("site {place}: {problem}");
                assert!(told.contains(&expected), "{limit}: {told}");
            }
        }
    }
}
