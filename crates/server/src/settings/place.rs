//! Where values of settings are kept: how each type is set from what was written, and shown.
//!
//! It refuses a value that is not what it must be, with flag or key, value and remedy. Bounds: the ranges of
//! the keys.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Cors;
use record::AeadLibrary;
use session::CongestionControl;

use super::Origin;
use super::UserName;
use super::file::Amount;
use super::key::{Key, OFF};
use crate::failure::Failure;
use crate::observe::access_log::{AccessLogTarget, Fields, Format};
use crate::observe::log::LogFormat;
use crate::run::coalescing::Pauses;

/// A value that is set from what was written as `W`.
pub(super) trait Place<W> {
    /// Sets it.
    fn set(&mut self, written: W, key: &Key, origin: &Origin) -> Result<(), Failure>;

    /// As the file would say it; `None` if there is no value.
    fn shown(&self) -> Option<String> {
        None
    }
}

impl Place<bool> for bool {
    fn set(&mut self, written: bool, _: &Key, _: &Origin) -> Result<(), Failure> {
        *self = written;
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Place<bool> for Cors {
    fn set(&mut self, written: bool, _: &Key, _: &Origin) -> Result<(), Failure> {
        *self = if written { Self::AnyOrigin } else { Self::Off };
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        Some((*self != Self::Off).to_string())
    }
}

/// A value that is a whole number, or nothing. The ranges of the keys are made so that every number fits.
pub(super) trait Whole {
    /// The value of this number.
    fn of(number: u64) -> Self;
    /// Its number.
    fn number(&self) -> Option<u64>;
}

impl Whole for u32 {
    fn of(number: u64) -> Self {
        narrow(number)
    }

    fn number(&self) -> Option<u64> {
        Some((*self).into())
    }
}

impl Whole for usize {
    fn of(number: u64) -> Self {
        narrow(number)
    }

    fn number(&self) -> Option<u64> {
        u64::try_from(*self).ok()
    }
}

impl Whole for u64 {
    fn of(number: u64) -> Self {
        number
    }

    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

impl<T: Whole> Whole for Option<T> {
    fn of(number: u64) -> Self {
        Some(T::of(number))
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

impl Whole for Pauses {
    fn of(number: u64) -> Self {
        Self::Fixed(Duration::from_micros(number))
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Fixed(pause) => u64::try_from(pause.as_micros()).ok(),
            Self::ByRoundTrip => None,
        }
    }
}

impl<T: Whole> Place<Amount> for T {
    fn set(&mut self, written: Amount, key: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = T::of(key.parse_amount(&written.0, origin)?);
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        self.number().map(|number| number.to_string())
    }
}

impl Place<Amount> for Duration {
    fn set(&mut self, written: Amount, key: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = Self::from_micros(key.parse_amount(&written.0, origin)?);
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        Some(self.as_secs().to_string())
    }
}

impl Place<Amount> for Option<u16> {
    fn set(&mut self, written: Amount, key: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = match written.0.as_str() {
            OFF => None,
            text => Some(narrow(key.parse_amount(text, origin)?)),
        };
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        self.map(|port| port.to_string())
    }
}

impl Place<PathBuf> for Option<PathBuf> {
    fn set(&mut self, written: PathBuf, _: &Key, _: &Origin) -> Result<(), Failure> {
        *self = Some(written);
        Ok(())
    }
}

impl Place<PathBuf> for Option<AccessLogTarget> {
    fn set(&mut self, written: PathBuf, _: &Key, _: &Origin) -> Result<(), Failure> {
        *self = Some(AccessLogTarget::parse(written));
        Ok(())
    }
}

impl Place<String> for Format {
    fn set(&mut self, name: String, _: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = Self::from_name(&name).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {name}: unknown format"),
                "write combined or json",
            )
        })?;
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        Some(format!("\"{}\"", self.name()))
    }
}

impl Place<Vec<String>> for Fields {
    fn set(&mut self, names: Vec<String>, _: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = Self::from_names(&names).map_err(|name| {
            Failure::refused(
                format!("{origin} {name}: no such field"),
                format!("there are {}", Self::known()),
            )
        })?;
        Ok(())
    }
}

impl Place<String> for LogFormat {
    fn set(&mut self, name: String, _: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = Self::from_name(&name).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {name}: unknown format"),
                "write text or json",
            )
        })?;
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        Some(format!("\"{}\"", self.name()))
    }
}

impl Place<String> for CongestionControl {
    fn set(&mut self, name: String, _: &Key, origin: &Origin) -> Result<(), Failure> {
        *self = Self::from_name(&name).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {name}: unknown algorithm"),
                "write cubic, reno or bbr",
            )
        })?;
        Ok(())
    }

    fn shown(&self) -> Option<String> {
        Some(format!("\"{}\"", self.name()))
    }
}

/// The library's name, or `auto`.
impl Place<String> for Option<AeadLibrary> {
    fn set(&mut self, name: String, _: &Key, origin: &Origin) -> Result<(), Failure> {
        if name == "auto" {
            *self = None;
            return Ok(());
        }
        let library = AeadLibrary::from_name(&name).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {name}: unknown library"),
                "write auto, aws-lc or ring",
            )
        })?;
        *self = Some(library);
        Ok(())
    }
}

impl Place<String> for Option<SocketAddr> {
    fn set(&mut self, text: String, _: &Key, origin: &Origin) -> Result<(), Failure> {
        let address = text.parse::<SocketAddr>().ok();
        let address = address.filter(|address| address.port() > 0);
        let refuse = || {
            Failure::refused(
                format!("{origin} {text}: not an address with a port"),
                "write it like 127.0.0.1:9100 or [::1]:9100",
            )
        };
        *self = Some(address.ok_or_else(refuse)?);
        Ok(())
    }
}

impl Place<String> for Option<(UserName, Origin)> {
    fn set(&mut self, text: String, _: &Key, origin: &Origin) -> Result<(), Failure> {
        let name = UserName::parse(&text).ok_or_else(|| {
            Failure::refused(
                format!("{origin} {text}: not a user"),
                "write NAME or NAME:GROUP, or numbers",
            )
        })?;
        *self = Some((name, origin.clone()));
        Ok(())
    }
}

/// The ranges of the keys are made so that every value fits where it is kept.
pub(super) fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value)
        .ok()
        .expect("invariant: the setting's range fits its type")
}
