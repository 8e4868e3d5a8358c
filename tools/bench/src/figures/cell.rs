//! One point of the comparison: what is asked of a server, and from how far.
//!
//! It refuses nothing. Bounded by: nothing to bound.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What one point asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// TLS 1.3 with AES-128-GCM; otherwise plain HTTP.
    pub(crate) is_tls: bool,
    /// Share of requests for objects that were read into the page cache before, per cent.
    pub(crate) cached_percent: u8,
    /// Connections, all open all the time.
    pub(crate) connections: u32,
    /// Each connection has a round trip of its own between 10 and 40 ms; otherwise none is added.
    pub(crate) is_distant: bool,
    /// Packets of the server that are lost, in a million.
    pub(crate) loss_ppm: u32,
    /// Each connection asks for an object each so many seconds; 0: as soon as it has the one before.
    pub(crate) every_seconds: u32,
}

impl Cell {
    /// Objects from a cold disk, asked for without a pause.
    pub(crate) const fn cold(is_tls: bool, connections: u32) -> Self {
        Self {
            is_tls,
            cached_percent: 0,
            connections,
            // A rack's clients and the internet's: few connections are near.
            is_distant: connections >= 1000,
            loss_ppm: 0,
            every_seconds: 0,
        }
    }

    /// What is asked for, in Gb/s of bodies, if it is a fixed amount.
    pub(crate) fn offered_gbps(&self, object_bytes: u32) -> Option<f64> {
        let bits = f64::from(self.connections) * f64::from(object_bytes) * 8.0;
        (self.every_seconds > 0).then(|| bits / f64::from(self.every_seconds) / 1e9)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { "TLS" } else { "plaintext" })?;
        write!(f, ", {} connections", thousands(self.connections.into()))?;
        match self.cached_percent {
            0 => f.write_str(", cold")?,
            percent => write!(f, ", {percent} % cached")?,
        }
        if self.is_distant {
            f.write_str(", 10-40 ms")?;
        }
        if self.loss_ppm > 0 {
            write!(f, ", {} % lost", f64::from(self.loss_ppm) / 1e4)?;
        }
        if self.every_seconds > 0 {
            write!(f, ", an object each {} s", self.every_seconds)?;
        }
        Ok(())
    }
}

/// A number with commas between its thousands.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_what_it_asks() {
        let cell = Cell::cold(true, 16_000);
        assert_eq!(cell.to_string(), "TLS, 16,000 connections, cold, 10-40 ms");
        let cell = Cell {
            cached_percent: 25,
            loss_ppm: 1_000,
            every_seconds: 4,
            ..Cell::cold(false, 64)
        };
        assert_eq!(
            cell.to_string(),
            "plaintext, 64 connections, 25 % cached, 0.1 % lost, an object each 4 s"
        );
    }

    #[test]
    fn what_paced_viewers_ask_for_is_known() {
        let cell = Cell {
            every_seconds: 4,
            ..Cell::cold(false, 1_000)
        };
        let gbps = cell.offered_gbps(307_200).unwrap();
        assert!((gbps - 0.6144).abs() < 1e-9);
        assert_eq!(Cell::cold(false, 1_000).offered_gbps(307_200), None);
    }

    #[test]
    fn thousands_are_parted_by_commas() {
        let of = |number| thousands(number);
        assert_eq!(
            [of(0), of(999), of(1_000), of(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
