//! What a setting is: its name, its flag, what it may be, and its row in `docs/run/configuration.md`.
//!
//! [`settings!`] makes of one entry a setting's key, the field of the configuration file, the flag with its
//! help, and the way to where its value is kept ([`super::place`]). The entries are in [`super::table`].
//! It refuses defaults: a value's default is that of the struct that keeps it, and the page shows it. Bounds: a
//! fixed table.

use super::{Origin, Settings};
use crate::failure::Failure;
use ::amount::{AmountProblem, TimeUnit, parse_duration, parse_number, parse_rate};

/// The value that disables a port.
pub(super) const OFF: &str = "off";
/// The value for as many workers as there are processors.
pub(super) const AUTO: &str = "auto";

/// The interface when none is given.
pub(super) const LINK_DEFAULT: &str = "tap:atlas0";
/// Our address when none is given.
pub(super) const ADDRESS_DEFAULT: &str = "10.77.0.2/24";
/// Whose MAC when it is not said.
pub(super) const MAC_DEFAULT: &str = "own";
/// The log level when neither `log` nor `-v` nor `-q` is given.
pub(super) const LOG_DEFAULT: &str = "info";

/// A setting.
#[derive(Debug)]
pub(crate) struct Key {
    /// The key in the file.
    pub name: &'static str,
    /// The flag that wins over it; empty if there is none.
    pub flag: &'static str,
    /// What is allowed.
    pub kind: Kind,
    /// What it does, as the documentation says it.
    pub about: &'static str,
    /// The value that these settings have, as the file would say it, if it is kept there.
    pub(super) shown: fn(&Settings) -> Option<String>,
}

/// What a setting may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A boolean.
    Switch,
    /// A whole number.
    Number(Number),
    /// A duration. A number alone is of this unit, as the key's name says.
    Duration(TimeUnit, Number),
    /// Bytes a second, or a rate with its unit.
    Rate(Number),
    /// A whole number, or [`OFF`].
    Port(Number),
    /// Anything else, as the documentation says it.
    Text {
        /// TOML type.
        unit: &'static str,
        /// What holds if nothing is configured, where no value is shown.
        default: &'static str,
        /// What is allowed.
        range: &'static str,
    },
}

/// What a number may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Number {
    /// What one of it is.
    pub unit: &'static str,
    /// What holds if nothing is configured, where no value is shown.
    pub default: &'static str,
    /// The least one.
    pub least: u64,
    /// The greatest one.
    pub most: u64,
}

pub(super) const fn number(
    unit: &'static str,
    default: &'static str,
    least: u64,
    most: u64,
) -> Kind {
    Kind::Number(Number {
        unit,
        default,
        least,
        most,
    })
}

/// A duration of a key whose name ends with `_us` or `_seconds`.
pub(super) const fn duration(unit: TimeUnit, default: &'static str, least: u64, most: u64) -> Kind {
    Kind::Duration(
        unit,
        Number {
            unit: unit.name(),
            default,
            least,
            most,
        },
    )
}

/// A rate, in bytes a second.
pub(super) const fn rate(default: &'static str, least: u64, most: u64) -> Kind {
    Kind::Rate(Number {
        unit: "bytes a second",
        default,
        least,
        most,
    })
}

pub(super) const fn port(unit: &'static str, default: &'static str, least: u64, most: u64) -> Kind {
    Kind::Port(Number {
        unit,
        default,
        least,
        most,
    })
}

pub(super) const fn text(unit: &'static str, default: &'static str, range: &'static str) -> Kind {
    Kind::Text {
        unit,
        default,
        range,
    }
}

impl Kind {
    /// What is right, as messages say it.
    pub(super) const fn expected(self) -> &'static str {
        match self {
            Self::Switch => "true or false",
            Self::Number(_) | Self::Port(_) => "a whole number",
            Self::Duration(TimeUnit::Seconds, _) => "a duration such as 20s or 1h30m",
            Self::Duration(TimeUnit::Microseconds, _) => "a duration such as 50us or 1ms",
            Self::Rate(_) => "a rate such as 10MB/s or 80Mbit/s",
            Self::Text { .. } => "a whole number or a text",
        }
    }
}

impl Key {
    /// What the number may be.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub(crate) const fn number(&self) -> Number {
        match self.kind {
            Kind::Number(number)
            | Kind::Duration(_, number)
            | Kind::Rate(number)
            | Kind::Port(number) => number,
            Kind::Switch | Kind::Text { .. } => panic!("invariant: the setting is a number"),
        }
    }

    /// The amount that was written, if it is in the key's range: microseconds of a duration, bytes a second of a
    /// rate, else a number.
    pub(super) fn parse_amount(&self, text: &str, origin: &Origin) -> Result<u64, Failure> {
        let Number {
            unit, least, most, ..
        } = self.number();
        let (amount, scale) = match self.kind {
            Kind::Duration(unit, _) => (parse_duration(text, unit), unit.microseconds()),
            Kind::Rate(_) => (parse_rate(text), 1),
            _ => (parse_number(text), 1),
        };
        let problem = match amount {
            Ok(amount) if (least * scale..=most * scale).contains(&amount) => return Ok(amount),
            Ok(_) | Err(AmountProblem::Range) => "out of range",
            Err(AmountProblem::BitsOrBytes) => {
                "bits or bytes? expected a rate such as 10MB/s or 80Mbit/s"
            }
            Err(AmountProblem::Syntax) => &format!("expected {}", self.kind.expected()),
        };
        let otherwise = match self.kind {
            Kind::Port(_) => ", or off",
            _ => "",
        };
        Err(Failure::refused(
            format!("{origin} {text}: {problem}"),
            format!("use {least} to {most} ({unit}){otherwise}"),
        ))
    }

    /// The value that these settings have, as the file would say it, if it is kept there.
    #[must_use]
    pub(crate) fn shown_of(&self, settings: &Settings) -> Option<String> {
        (self.shown)(settings)
    }

    /// The row: key, flag, unit, default, range, meaning. `defaults` are the settings when nothing is
    /// configured.
    pub(super) fn markdown(&self, defaults: &Settings) -> String {
        let Self {
            name, flag, about, ..
        } = self;
        let flag = if flag.is_empty() {
            "-".into()
        } else {
            format!("`{flag}`")
        };
        let (unit, default, range) = self.cells(defaults);
        format!("| `{name}` | {flag} | {unit} | {default} | {range} | {about} |\n")
    }

    /// For a terminal: key, what a change of it `needs`, default, range, unit.
    pub(super) fn line(&self, defaults: &Settings, needs: &str) -> String {
        let (unit, default, range) = self.cells(defaults);
        let cells = [default, range].map(|cell| cell.replace('`', ""));
        let [default, range] = cells;
        format!(
            "{:<27} {needs:<10} {default:<16} {range} ({unit})\n",
            self.name
        )
    }

    /// Unit, default and range.
    fn cells(&self, defaults: &Settings) -> (String, String, String) {
        let (unit, default, range) = match self.kind {
            Kind::Switch => ("boolean".to_owned(), "", "`true`, `false`".into()),
            Kind::Number(number) => (number.unit.into(), number.default, number.range()),
            Kind::Duration(unit, number) => {
                let unit = format!("duration, or {}", unit.name());
                (unit, number.default, number.range())
            }
            Kind::Rate(number) => {
                let unit = format!("rate, or {}", number.unit);
                (unit, number.default, number.range())
            }
            Kind::Port(number) => {
                let range = format!("{}, or `\"{OFF}\"`", number.range());
                (number.unit.into(), number.default, range)
            }
            Kind::Text {
                unit,
                default,
                range,
            } => (unit.into(), default, range.into()),
        };
        let shown = (self.shown)(defaults).map(|value| format!("`{value}`"));
        (unit, shown.unwrap_or_else(|| default.into()), range)
    }
}

impl Number {
    fn range(&self) -> String {
        format!("{} to {}", self.least, self.most)
    }
}

/// Makes the settings of their entries: `KEYS` and a constant for each, `FileConfig` with a field for each,
/// and `CommonArgs` with the flags.
///
/// An entry is `KEY = key: TYPE => PLACE, KIND, ABOUT, flag FLAG { ... };`: the name in the file and the type
/// there; the field of [`Settings`] that keeps the value, without which [`Settings::merge`] has to take it
/// from the file; what it may be; the row's text; the flag's help and field. PLACE and the flag may be missing.
macro_rules! settings {
    (
        first { $($first:tt)* }
        last { $($last:tt)* }
        $(
            $constant:ident = $key:ident: $written:ty $(=> $($place:ident).+)?, $kind:expr, $about:literal
            $(, flag $flag:literal { $($(#[$help:meta])+ $field:ident: $typed:ty,)* })?;
        )+
    ) => {
        $(
            #[doc = concat!("`", stringify!($key), "`.")]
            pub(crate) static $constant: Key = Key {
                name: stringify!($key),
                flag: concat!($($flag)?),
                kind: $kind,
                about: $about,
                shown: |_settings| {
                    $(return Place::<$written>::shown(&_settings.$($place).+);)?
                    #[allow(unreachable_code, reason = "behind the return of a key with a place")]
                    None
                },
            };
        )+

        /// Every setting, in the order of the documentation.
        pub(crate) static KEYS: &[&Key] = &[$(&$constant),+];

        /// The configuration file as it was written, or with the flags laid over it.
        #[derive(Clone, Debug, Default, serde::Serialize)]
        pub(crate) struct FileConfig {
            $(pub $key: Option<$written>,)+
            /// What it was read from.
            #[serde(skip)]
            pub source: Arc<FileText>,
        }

        impl Table for FileConfig {
            const NAME: &'static str = "the file";
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),+];

            fn read_key(&mut self, key: &str, value: &Value<'_>, reader: &mut Reader<'_>) {
                match key {
                    $(stringify!($key) => {
                        let expected = $constant.kind.expected();
                        self.$key = <$written as Written>::read(value, expected, reader);
                    })+
                    _ => {}
                }
            }
        }

        /// What `atlas serve` serves, and the flags of settings.
        #[derive(clap::Args, Clone, Debug, Default)]
        pub(crate) struct CommonArgs {
            $($first)*
            $($($($(#[$help])+ pub $field: $typed,)*)?)+
            $($last)*
        }

        impl FileConfig {
            /// The names of the keys that have a value.
            pub(super) fn names(&self) -> Vec<&'static str> {
                let is_given = [$((stringify!($key), self.$key.is_some())),+];
                let given = is_given.into_iter().filter(|(_, is_given)| *is_given);
                given.map(|(name, _)| name).collect()
            }

            /// The names of the keys whose values are others.
            pub(crate) fn differing(&self, other: &Self) -> Vec<&'static str> {
                let is_other = [$((stringify!($key), self.$key != other.$key)),+];
                let others = is_other.into_iter().filter(|(_, is_other)| *is_other);
                others.map(|(name, _)| name).collect()
            }

            /// Lays the flags over it.
            pub(super) fn lay_flags(&mut self, args: &CommonArgs) {
                $($($(
                    let typed: Option<$written> = Typed::given(&args.$field);
                    if typed.is_some() {
                        self.$key = typed;
                    }
                )*)?)+
            }

            /// Takes the values of the keys that have a place.
            pub(super) fn settle(&mut self, keys: &Keys, settings: &mut Settings, problems: &mut Problems) {
                $($(
                    if let Some(written) = self.$key.take() {
                        let place = &mut settings.$($place).+;
                        problems.take(Place::<$written>::set(place, written, &$constant, &keys.origin(&$constant)));
                    }
                )?)+
            }
        }
    };
}
pub(super) use settings;
