//! Clients that come at a rate, whatever became of those before: each connects, makes its handshake, gets one object
//! and goes, by a reset.
//!
//! They have the first numbers of the connections. A visit that fails, or takes too long, is counted and is no
//! fault of the run. No clock. It refuses nothing. Bounded by `AT_ONCE` at once, each for `PATIENCE` at most:
//! where nobody is free, fewer come.

use std::collections::VecDeque;

use clock::{Duration, Instant};
use serde::{Deserialize, Serialize};
use testbed::latency::{Latency, LatencySummary};

use crate::pace::Rate;

/// Visits at once: fewer than the connections that Atlas takes by default.
pub(crate) const AT_ONCE: u32 = 16_000;

/// Longest visit: the SYN was sent three times by then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);

/// What became of visits in the window.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct VisitReport {
    /// Those that began.
    pub begun: u64,
    /// Those whose object came.
    pub completed: u64,
    /// Those that were refused, reset, wrong or not over in time.
    pub failed: u64,
    /// From the SYN to the end of the handshake, of TLS if it is spoken, microseconds.
    pub handshake: LatencySummary,
}

/// How late visitors may come: then the clients' core is full, and fewer come.
const CATCH_UP: Duration = Duration::from_secs(1);

/// A visit under way.
#[derive(Clone, Copy, Debug)]
struct Visit {
    since: Instant,
    has_asked: bool,
}

/// All visits; without a rate there are none.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    rate: Option<Rate>,
    /// Numbers that nobody has, those that nobody had for longest first.
    free: VecDeque<u32>,
    /// By number.
    under_way: Vec<Option<Visit>>,
    /// Beginnings, the first first; those of visits that are over among them.
    begun: VecDeque<(Instant, u32)>,
    report: VisitReport,
    handshake: Latency,
}

impl Visits {
    /// So many a second, if any.
    pub(crate) fn new(per_second: Option<u32>) -> Self {
        let count = per_second.map_or(0, |_| AT_ONCE);
        Self {
            rate: per_second.map(|it| Rate::new(it, CATCH_UP)),
            free: (0..count).collect(),
            under_way: vec![None; count as usize],
            ..Self::default()
        }
    }

    /// How many numbers are visitors': the first ones.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.under_way.len()).unwrap_or(u32::MAX)
    }

    /// Whether a connection is a visitor's.
    pub(crate) fn has(&self, connection: u32) -> bool {
        connection < self.count()
    }

    /// Who comes now, if it is time.
    pub(crate) fn begin(&mut self, now: Instant) -> Option<u32> {
        if self.free.is_empty() || !self.rate.as_mut()?.take(now) {
            return None;
        }
        let connection = self.free.pop_front()?;
        *self.under_way.get_mut(connection as usize)? = Some(Visit {
            since: now,
            has_asked: false,
        });
        self.begun.push_back((now, connection));
        self.report.begun += 1;
        Some(connection)
    }

    /// Who has been here for too long: a failure.
    pub(crate) fn take_late(&mut self, now: Instant) -> Option<u32> {
        while let Some(&(since, connection)) = self.begun.front() {
            let is_under_way = self.visit(connection).is_some_and(|it| it.since == since);
            if is_under_way && now.since(since) < PATIENCE {
                return None;
            }
            self.begun.pop_front();
            if is_under_way {
                return Some(connection);
            }
        }
        None
    }

    /// Whether a visitor is to ask now: once.
    pub(crate) fn asks(&mut self, connection: u32) -> bool {
        let visit = self.under_way.get_mut(connection as usize);
        visit
            .and_then(Option::as_mut)
            .is_some_and(|visit| !std::mem::replace(&mut visit.has_asked, true))
    }

    /// The handshake of a visitor is over.
    pub(crate) fn on_handshake(&mut self, connection: u32, now: Instant) {
        if let Some(visit) = self.visit(connection) {
            self.handshake.record(now.since(visit.since));
        }
    }

    /// A visitor goes.
    pub(crate) fn end(&mut self, connection: u32, is_completed: bool) {
        let visit = self.under_way.get_mut(connection as usize);
        if visit.and_then(Option::take).is_some() {
            self.report.completed += u64::from(is_completed);
            self.report.failed += u64::from(!is_completed);
            self.free.push_back(connection);
        }
    }

    /// Forgets what was counted so far.
    pub(crate) fn begin_window(&mut self) {
        self.report = VisitReport::default();
        self.handshake = Latency::default();
    }

    /// What became of them, if there are any.
    pub(crate) fn report(&self) -> Option<VisitReport> {
        self.rate.map(|_| VisitReport {
            handshake: self.handshake.summary(),
            ..self.report
        })
    }

    fn visit(&self, connection: u32) -> Option<Visit> {
        self.under_way.get(connection as usize).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn visitors_come_at_their_rate_ask_once_and_leave_their_number_for_others() {
        let mut visits = Visits::new(Some(100));
        assert_eq!(visits.begin(at(1000)), Some(0));
        assert_eq!(visits.begin(at(1009)), None, "a hundred a second");
        assert_eq!(visits.begin(at(1010)), Some(1));
        assert!(visits.asks(0) && !visits.asks(0) && !visits.asks(2));
        visits.on_handshake(0, at(1007));
        visits.end(0, true);
        visits.end(0, true);
        visits.end(1, false);
        let report = visits.report().expect("a rate");
        assert_eq!((report.begun, report.completed, report.failed), (2, 1, 1));
        assert_eq!((report.handshake.count, report.handshake.p50), (1, 7_003));
        assert_eq!(visits.free.back(), Some(&1));
        assert!(visits.has(AT_ONCE - 1) && !visits.has(AT_ONCE));
    }

    #[test]
    fn who_stays_too_long_is_told_and_who_has_gone_is_not() {
        let mut visits = Visits::new(Some(1000));
        let come = [0, 1, 2].map(|millis| visits.begin(at(millis)));
        assert_eq!(come, [Some(0), Some(1), Some(2)]);
        visits.end(1, true);
        assert_eq!(visits.take_late(at(3_999)), None);
        assert_eq!(visits.take_late(at(4_000)), Some(0));
        visits.end(0, false);
        assert_eq!(visits.take_late(at(4_001)), None);
        assert_eq!(visits.take_late(at(4_002)), Some(2));
    }

    #[test]
    fn without_a_rate_nobody_comes_and_where_nobody_is_free_nobody_more() {
        let mut none = Visits::new(None);
        assert_eq!((none.begin(at(1)), none.has(0)), (None, false));
        assert!(none.report().is_none());
        let mut all = Visits::new(Some(10_000_000));
        let come = (0..2 * u64::from(AT_ONCE)).filter(|step| {
            let now = Instant::ZERO + Duration::from_nanos(100 * step);
            all.begin(now).is_some()
        });
        assert_eq!(come.count(), AT_ONCE as usize);
    }
}
