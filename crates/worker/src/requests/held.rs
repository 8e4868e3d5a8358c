//! Look-ups of names that are not there yet, and that wait until they are (`on_miss` with `hold`).
//!
//! Requests for one name wait in one entry, and of each name one is looked up every [`LOOK_EVERY`]: when that finds it, all are
//! looked up. None takes a thread while it waits.
//!
//! It refuses to hold a name more than [`HELD_NAMES_MAX`], and requests of more clients than there may be: they are answered at
//! once. Bounds: those two.

use std::collections::VecDeque;

use clock::{Duration, Instant};
use session::{LookupPlan, LookupToken};

/// Most names that are waited for at once.
pub(crate) const HELD_NAMES_MAX: usize = 256;
/// How often a name is looked up. A playlist that comes is told to players a twentieth of a second later in the mean, and
/// as many names as may be cost 2,560 look-ups a second.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(crate) struct HeldLookups {
    names: Vec<HeldName>,
    /// Requests of all names, and how many there may be.
    count: usize,
    requests_max: usize,
    /// Nothing is due before.
    next_at: Instant,
}

#[derive(Debug)]
struct HeldName {
    /// One of its requests.
    plan: LookupPlan,
    /// When it is looked up next.
    look_at: Instant,
    /// It was found: all of its requests are due.
    is_found: bool,
    /// Those that end first, first.
    requests: VecDeque<HeldRequest>,
}

#[derive(Clone, Copy, Debug)]
struct HeldRequest {
    token: LookupToken,
    until: Instant,
}

/// What is to be done with a request that was held.
#[derive(Debug)]
pub(crate) enum Due {
    /// It is looked up again; until when it may be held.
    LookUp(LookupPlan, Instant),
    /// It was held for as long as it may be.
    GiveUp(LookupToken),
}

impl HeldLookups {
    /// For so many requests at once.
    pub(crate) const fn new(requests_max: usize) -> Self {
        Self {
            names: Vec::new(),
            count: 0,
            requests_max,
            next_at: Instant::FAR_FUTURE,
        }
    }

    /// Holds a request whose name is not there, up to a time.
    ///
    /// # Errors
    /// Too many are held, or its time is over.
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        plan: LookupPlan,
        until: Instant,
    ) -> Result<(), LookupToken> {
        let token = plan.token;
        if until <= now || self.count >= self.requests_max {
            return Err(token);
        }
        let look_at = now + LOOK_EVERY;
        let is_it = |name: &HeldName| name.is_of(plan.directory, &plan.path);
        let index = match self.names.iter().position(is_it) {
            Some(index) => index,
            None if self.names.len() < HELD_NAMES_MAX => {
                self.names.push(HeldName {
                    plan,
                    look_at,
                    is_found: false,
                    requests: VecDeque::new(),
                });
                self.names.len() - 1
            }
            None => return Err(token),
        };
        let name = &mut self.names[index];
        if name.is_found {
            // It has gone again.
            name.is_found = false;
            name.look_at = look_at;
        }
        let request = HeldRequest { token, until };
        // Mostly the last one; the first if it was looked up again.
        let before = (name.requests.iter()).rposition(|other| other.until <= until);
        let place = before.map_or(0, |before| before + 1);
        name.requests.insert(place, request);
        self.count += 1;
        self.next_at = self.next_at.min(name.due_at());
        Ok(())
    }

    /// A name was found: who waits for it need not wait any more.
    pub(crate) fn on_found(&mut self, now: Instant, directory: u16, path: &str) {
        let mut names = self.names.iter_mut();
        if let Some(name) = names.find(|name| name.is_of(directory, path)) {
            name.is_found = true;
            name.look_at = now;
            self.next_at = now;
        }
    }

    /// The next request of which something is to be done.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Due> {
        if now < self.next_at {
            return None;
        }
        let index = self.names.iter().position(|name| name.due_at() <= now);
        let Some(index) = index else {
            let due = self.names.iter().map(HeldName::due_at).min();
            self.next_at = due.unwrap_or(Instant::FAR_FUTURE);
            return None;
        };
        let name = &mut self.names[index];
        let request = name.requests.pop_front()?;
        self.count -= 1;
        let due = if request.until <= now {
            Due::GiveUp(request.token)
        } else {
            if !name.is_found {
                name.look_at = now + LOOK_EVERY;
            }
            let plan = LookupPlan {
                token: request.token,
                ..name.plan.clone()
            };
            Due::LookUp(plan, request.until)
        };
        if name.requests.is_empty() {
            self.names.swap_remove(index);
        }
        Some(due)
    }

    /// When [`HeldLookups::poll`] next has something.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (!self.names.is_empty()).then_some(self.next_at)
    }

    /// Requests that wait.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }
}

impl HeldName {
    fn is_of(&self, directory: u16, path: &str) -> bool {
        self.plan.directory == directory && self.plan.path == path
    }

    fn due_at(&self) -> Instant {
        let first = self.requests.front().map(|first| first.until);
        first.map_or(self.look_at, |until| until.min(self.look_at))
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};
    use session::{LookupPlan, LookupPurpose, LookupToken};

    use super::{Due, HELD_NAMES_MAX, HeldLookups, LOOK_EVERY};

    const START: Instant = Instant::from_millis(1000);

    fn plan(number: u64, directory: u16, path: &str) -> LookupPlan {
        LookupPlan {
            token: LookupToken(number),
            directory,
            path: path.to_owned(),
            site: 0,
            purpose: LookupPurpose::Object {
                hold: Duration::ZERO,
            },
        }
    }

    /// Which request is due, and for which path it is looked up.
    fn due(held: &mut HeldLookups, now: Instant) -> Option<(u64, Option<String>)> {
        Some(match held.poll(now)? {
            Due::LookUp(plan, _) => (plan.token.0, Some(plan.path)),
            Due::GiveUp(token) => (token.0, None),
        })
    }

    #[test]
    fn names_and_requests_have_limits() {
        let until = START + Duration::from_secs(1);
        let mut held = HeldLookups::new(HELD_NAMES_MAX + 1);
        for number in 0..HELD_NAMES_MAX as u64 {
            let plan = plan(number, 0, &format!("/{number}"));
            assert_eq!(held.hold(START, plan, until), Ok(()));
        }
        let one_more = LookupToken(9999);
        assert_eq!(held.hold(START, plan(9999, 0, "/x"), until), Err(one_more));
        assert_eq!(held.hold(START, plan(9999, 0, "/0"), until), Ok(()));
        assert_eq!(held.hold(START, plan(9999, 0, "/0"), until), Err(one_more));
        // One whose time is over is not held.
        let mut held = HeldLookups::new(1);
        assert_eq!(held.hold(until, plan(9999, 0, "/0"), until), Err(one_more));
        assert_eq!((held.count(), held.poll_timeout()), (0, None));
    }

    #[test]
    fn a_name_is_that_of_a_directory_and_one_that_has_gone_again_is_waited_for() {
        let until = START + Duration::from_secs(1);
        let mut held = HeldLookups::new(9);
        for (number, directory) in [(1, 0), (2, 1), (3, 0)] {
            let plan = plan(number, directory, "/a");
            assert_eq!(held.hold(START, plan, until), Ok(()));
        }
        held.on_found(START, 0, "/a");
        let found = Some("/a".to_owned());
        assert_eq!(due(&mut held, START), Some((1, found.clone())));
        // The first one finds nothing, after all.
        assert_eq!(held.hold(START, plan(1, 0, "/a"), until), Ok(()));
        assert_eq!(due(&mut held, START), None);
        assert_eq!(held.poll_timeout(), Some(START + LOOK_EVERY));
        let next = START + LOOK_EVERY;
        let mut both = [due(&mut held, next), due(&mut held, next)].map(Option::unwrap);
        both.sort_unstable();
        assert_eq!(both, [(2, found.clone()), (3, found)]);
        assert_eq!(due(&mut held, next), None);
        assert_eq!(due(&mut held, until), Some((1, None)));
        assert_eq!((held.count(), held.poll_timeout()), (0, None));
    }
}
