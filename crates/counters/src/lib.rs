//! Counters since the start: plain integers with one owner, no locks, each declared once.
//!
//! [`counters!`] takes a struct. A field's name is the counter's, its doc comment is what operators read
//! in `docs/run/metrics.md` and in the metrics, and its type says whether it only grows. It refuses a counter
//! without a doc comment. Bounded by the structs: nothing is added at run time.

#![forbid(unsafe_code)]

use core::time::Duration;

/// Name and meaning of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meaning {
    /// The name, which no other counter has.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
    /// In a sentence.
    pub help: &'static str,
}

/// Whether a value only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, from 0 at start.
    Counter,
    /// It rises and falls.
    Gauge,
    /// How often it was at most so much, and the sum.
    Histogram,
}

/// A value that rises and falls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gauge(pub u64);

/// Durations: how many were so long, and their sum. A record costs a search among 18 numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// How many were at most each of [`Histogram::BOUNDS_US`] and longer than the one before; behind them,
    /// how many were longer than all.
    counts: [u64; Self::BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl Histogram {
    /// Bounds of its buckets, microseconds: from a read of an NVMe device to a reply that takes minutes.
    pub const BOUNDS_US: [u64; 18] = [
        50,
        100,
        250,
        500,
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        10_000_000,
        60_000_000,
        600_000_000,
    ];
    /// How many numbers [`Histogram::values`] are.
    pub const VALUES: usize = Self::BOUNDS_US.len() + 2;

    /// Adds a duration.
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS_US.partition_point(|bound_us| bound_us * 1_000 < nanos);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(nanos);
    }

    /// What it holds, as numbers that may be added up: those of [`Histogram::from_values`].
    #[must_use]
    pub fn values(&self) -> [u64; Self::VALUES] {
        let mut values = [self.sum_ns; Self::VALUES];
        for (value, count) in values.iter_mut().zip(self.counts) {
            *value = count;
        }
        values
    }

    /// The histogram that has these values.
    #[must_use]
    pub fn from_values(values: [u64; Self::VALUES]) -> Self {
        let mut histogram = Self::ZERO;
        for (count, value) in histogram.counts.iter_mut().zip(values) {
            *count = value;
        }
        [.., histogram.sum_ns] = values;
        histogram
    }

    /// How many durations were at most each bound, in order; without a bound, at last, how many there were.
    pub fn at_most(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = Self::BOUNDS_US.iter().map(|bound| Some(*bound));
        let mut sum = 0;
        let each = bounds.chain([None]).zip(self.counts);
        each.map(move |(bound_us, count)| {
            sum += count;
            (bound_us, sum)
        })
    }

    /// All durations added up, nanoseconds.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }
}

impl Value for Histogram {
    const KIND: Kind = Kind::Histogram;
    const ZERO: Self = Self {
        counts: [0; Self::BOUNDS_US.len() + 1],
        sum_ns: 0,
    };

    /// How many there were.
    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            counts: self.counts.plus(&other.counts),
            sum_ns: self.sum_ns.saturating_add(other.sum_ns),
        }
    }
}

/// What a field of a struct of counters may be: a `u64`, a [`Gauge`], a [`Histogram`], or a table of `u64`, of
/// which the sum is told.
pub trait Value {
    /// Whether it only grows.
    const KIND: Kind;
    /// At start.
    const ZERO: Self;

    /// As it is told.
    fn total(&self) -> u64;
    /// Both together.
    #[must_use]
    fn plus(&self, other: &Self) -> Self;
}

impl Value for u64 {
    const KIND: Kind = Kind::Counter;
    const ZERO: Self = 0;

    fn total(&self) -> u64 {
        *self
    }

    fn plus(&self, other: &Self) -> Self {
        self + other
    }
}

impl Value for Gauge {
    const KIND: Kind = Kind::Gauge;
    const ZERO: Self = Self(0);

    fn total(&self) -> u64 {
        self.0
    }

    fn plus(&self, other: &Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl<const LENGTH: usize> Value for [u64; LENGTH] {
    const KIND: Kind = Kind::Counter;
    const ZERO: Self = [0; LENGTH];

    fn total(&self) -> u64 {
        self.iter().sum()
    }

    fn plus(&self, other: &Self) -> Self {
        std::array::from_fn(|index| self[index] + other[index])
    }
}

/// A struct made by [`counters!`].
pub trait CounterSet: Default {
    /// Every counter, in the order of the fields.
    const MEANINGS: &'static [Meaning];

    /// The value of every counter, in the same order.
    fn totals(&self) -> impl Iterator<Item = u64>;

    /// Name and value of every counter, in the same order.
    fn as_pairs(&self) -> Vec<(&'static str, u64)> {
        let names = Self::MEANINGS.iter().map(|meaning| meaning.name);
        names.zip(self.totals()).collect()
    }

    /// Both together.
    #[must_use]
    fn plus(&self, other: &Self) -> Self;
}

/// Declares a struct of counters, which implements [`CounterSet`] and `Default`. With `prefix` and a
/// text, the counters' names are the fields' behind that.
///
/// ```
/// counters::counters! {
///     /// What a pump did.
///     #[derive(Clone, Copy, Debug)]
///     pub struct PumpCounters prefix "pump_" {
///         /// Strokes made.
///         pub stroke_count: u64,
///         /// Litres in the tank.
///         pub tank_litres: counters::Gauge,
///     }
/// }
/// use counters::CounterSet as _;
///
/// let mut pump = PumpCounters::default();
/// pump.stroke_count += 2;
/// assert_eq!(pump.as_pairs(), [("pump_stroke_count", 2), ("pump_tank_litres", 0)]);
/// assert_eq!(PumpCounters::MEANINGS[0].help, "Strokes made.");
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident prefix $prefix:literal {
            $($(#[doc = $help:literal])+ $field_visibility:vis $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[doc = $help])+ $field_visibility $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::Value::ZERO,)+ }
            }
        }

        impl $crate::CounterSet for $name {
            const MEANINGS: &'static [$crate::Meaning] = &[
                $($crate::Meaning {
                    name: concat!($prefix, stringify!($field)),
                    kind: <$type as $crate::Value>::KIND,
                    help: concat!($($help),+).trim_ascii(),
                },)+
            ];

            fn totals(&self) -> impl Iterator<Item = u64> {
                [$($crate::Value::total(&self.$field),)+].into_iter()
            }

            fn plus(&self, other: &Self) -> Self {
                Self { $($field: $crate::Value::plus(&self.$field, &other.$field),)+ }
            }
        }
    };
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident { $($fields:tt)+ }) => {
        $crate::counters! {
            $(#[$attribute])* $visibility struct $name prefix "" { $($fields)+ }
        }
    };
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{CounterSet as _, Gauge, Histogram, Kind, Value as _};

    crate::counters! {
        /// Of each type one.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        struct Each prefix "each_" {
            /// Grows, and has a meaning
            /// of two lines.
            sent_frames: u64,
            /// Rises and falls.
            free_slots: Gauge,
            /// Grows by reason.
            drop_count: [u64; 40],
        }
    }

    fn each() -> Each {
        let mut drop_count = [0; 40];
        (drop_count[0], drop_count[39]) = (5, 6);
        Each {
            sent_frames: 3,
            free_slots: Gauge(4),
            drop_count,
        }
    }

    #[test]
    fn pairs_and_meanings_carry_the_names_of_the_fields_in_their_order() {
        let pairs = each().as_pairs();
        let expected = [
            ("each_sent_frames", 3),
            ("each_free_slots", 4),
            ("each_drop_count", 11),
        ];
        assert_eq!(pairs, expected);
        let names: Vec<_> = Each::MEANINGS.iter().map(|it| it.name).collect();
        assert_eq!(names, expected.map(|(name, _)| name));
        let kinds: Vec<_> = Each::MEANINGS.iter().map(|it| it.kind).collect();
        assert_eq!(kinds, [Kind::Counter, Kind::Gauge, Kind::Counter]);
        let help = Each::MEANINGS[0].help;
        assert_eq!(help, "Grows, and has a meaning of two lines.");
    }

    #[test]
    fn two_are_added_field_by_field() {
        assert_eq!(each().plus(&Each::default()), each());
        let expected = each().as_pairs().into_iter().map(|(name, n)| (name, 2 * n));
        assert!(each().plus(&each()).as_pairs().into_iter().eq(expected));
    }

    crate::counters! {
        /// Without a prefix.
        struct Plain {
            /// One.
            plain_count: u64,
        }
    }

    #[test]
    fn without_a_prefix_a_counter_has_the_name_of_its_field() {
        assert_eq!(Plain::default().as_pairs(), [("plain_count", 0)]);
    }

    #[test]
    fn a_duration_is_in_the_first_bucket_that_it_does_not_exceed() {
        for (place, bound_us) in Histogram::BOUNDS_US.into_iter().enumerate() {
            for (nanos, expected) in [(bound_us * 1_000, place), (bound_us * 1_000 + 1, place + 1)]
            {
                let mut histogram = Histogram::ZERO;
                histogram.record(Duration::from_nanos(nanos));
                let at_most: Vec<_> = histogram.at_most().collect();
                let first = at_most.iter().position(|(_, count)| *count == 1);
                assert_eq!(first, Some(expected), "{nanos} ns");
                assert_eq!(at_most.last(), Some(&(None, 1)));
                assert_eq!((histogram.total(), histogram.sum_ns()), (1, nanos));
            }
        }
        assert!(Histogram::BOUNDS_US.is_sorted());
    }

    #[test]
    fn histograms_are_added_and_read_back_from_their_values() {
        let mut one = Histogram::ZERO;
        one.record(Duration::ZERO);
        one.record(Duration::from_secs(3_600));
        let both = one.plus(&one);
        assert_eq!(both.total(), 4);
        assert_eq!(both.sum_ns(), 7_200_000_000_000);
        let values = one.values();
        assert_eq!(Histogram::from_values(values), one);
        assert_eq!(Histogram::from_values(values.map(|value| 2 * value)), both);
    }
}
