//! What the origin does not have any more, and whether it is believed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Name, Now, Plan, Versions, Wanted};

/// So many objects may always be removed.
const REMOVALS_FREE: u64 = 10;

/// What an update leads to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removals {
    /// To be removed now. They are gone from the plan.
    pub names: Vec<Name>,
    /// So many would have been removed; none of them is, because the origin is more likely to be wrong.
    pub refused: usize,
}

impl Removals {
    /// These, of `all` that the origin was asked for, unless they are too many of them. `has_nothing`: it has no object.
    fn of(gone: Vec<Name>, all: u64, has_nothing: bool, percent_max: u64) -> Self {
        let count = u64::try_from(gone.len()).unwrap_or(u64::MAX);
        let is_too_many = count.saturating_mul(100) > all.saturating_mul(percent_max)
            || (has_nothing && percent_max < 100);
        // A few objects of a small store are any share of it.
        if is_too_many && (count > REMOVALS_FREE || has_nothing) && count > 0 {
            return Self {
                names: Vec::new(),
                refused: gone.len(),
            };
        }
        Self {
            names: gone,
            refused: 0,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.names.extend(other.names);
        self.refused += other.refused;
    }
}

/// What the origin said of objects one by one, since the last update.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    /// It has so many.
    present: u64,
    /// It does not have these, which are held.
    absent: HashSet<Name>,
}

impl Round {
    pub(super) fn is_present(&mut self, name: &Name) {
        self.present += 1;
        self.absent.remove(name);
    }

    pub(super) fn is_absent(&mut self, name: &Name) {
        self.absent.insert(Arc::clone(name));
    }
}

impl Plan {
    /// What the origin was asked for since the last time and does not have, where it cannot be listed. A listing says
    /// this itself.
    pub fn end_round(&mut self) -> Removals {
        let round = std::mem::take(&mut self.round);
        if matches!(self.versions, Versions::Listed(_)) {
            return Removals::default();
        }
        let is_gone = |name: &Name| self.held.contains_key(name) && !self.busy.contains_key(name);
        let gone: Vec<Name> = round.absent.into_iter().filter(is_gone).collect();
        let count = u64::try_from(gone.len()).unwrap_or(u64::MAX);
        let all = round.present.saturating_add(count);
        let percent_max = self.config.removals_percent_max;
        let removals = Removals::of(gone, all, round.present == 0, percent_max);
        for name in &removals.names {
            self.forget(name);
        }
        removals
    }

    /// What is there and should not be: not listed any more, or expired.
    pub(super) fn removals(
        &self,
        now: Now,
        began_ms: u64,
        wanted: Option<&HashMap<Name, Wanted>>,
        versions: &Versions,
    ) -> Removals {
        let is_expired = |name: &Name| {
            let expires = wanted.and_then(|it| it.get(name)).and_then(|it| it.expires);
            expires.is_some_and(|expires| expires <= now.unix_seconds)
        };
        let held = self
            .held
            .keys()
            .filter(|name| !self.busy.contains_key(*name));
        let (expired, rest): (Vec<&Name>, Vec<&Name>) = held.partition(|name| is_expired(name));
        let mut removals = Removals {
            names: expired.into_iter().cloned().collect(),
            refused: 0,
        };
        if let Versions::Listed(listed) = versions {
            // What came while the listing was made may be newer than its place in it.
            let is_older = |name: &&Name| self.held[*name].since_ms <= began_ms;
            let gone = rest.into_iter().filter(|name| !listed.contains_key(*name));
            let gone = gone.filter(is_older).cloned().collect();
            let all = u64::try_from(self.held.len()).unwrap_or(u64::MAX);
            let percent_max = self.config.removals_percent_max;
            removals.add(Removals::of(gone, all, listed.is_empty(), percent_max));
        }
        removals
    }
}
