//! Look-ups of names that are not there yet, and that wait until they are (`on_miss` with `hold`).
//!
//! Requests for one name wait in one entry, and one of them is looked up every [`LOOK_EVERY`], if the look-up before has its
//! answer: a file system that hangs has one look-up of the name. When one finds the name, all are looked up. None takes a thread
//! while it waits.
//!
//! It refuses a request for one name more than [`HELD_NAMES_MAX`], and one more than there may be connections: they are answered
//! at once. Bounds: those two.

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
    /// That of the request for it that came first.
    plan: LookupPlan,
    /// When it is looked up next.
    look_at: Instant,
    /// A look-up of it has no answer yet.
    is_looking: bool,
    /// It was found: all of its requests are due.
    is_found: bool,
    /// Those that end first, first. Empty only while one is looked up.
    requests: VecDeque<WaitingRequest>,
}

#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    token: LookupToken,
    /// Sites may share a folder, and so a name.
    site: u16,
    until: Instant,
}

/// Why a request is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotHeld {
    /// Its time is over, or it may not wait.
    TimeOver,
    /// Too many names or requests wait.
    TooMany,
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
    /// Its time is over, or too many are held.
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        plan: LookupPlan,
        until: Instant,
    ) -> Result<(), NotHeld> {
        if until <= now {
            return Err(NotHeld::TimeOver);
        }
        if self.count >= self.requests_max {
            return Err(NotHeld::TooMany);
        }
        let LookupPlan { token, site, .. } = plan;
        let look_at = now + LOOK_EVERY;
        let is_it = |name: &HeldName| name.is_of(plan.directory, &plan.path);
        let index = match self.names.iter().position(is_it) {
            Some(index) => index,
            None if self.names.len() < HELD_NAMES_MAX => {
                self.names.push(HeldName {
                    plan,
                    look_at,
                    is_looking: false,
                    is_found: false,
                    requests: VecDeque::new(),
                });
                self.names.len() - 1
            }
            None => return Err(NotHeld::TooMany),
        };
        let name = &mut self.names[index];
        if name.is_found {
            // It has gone again.
            name.is_found = false;
            name.look_at = look_at;
        }
        let request = WaitingRequest { token, site, until };
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

    /// The look-up of a name that [`HeldLookups::poll`] returned has its answer.
    pub(crate) fn on_answered(&mut self, directory: u16, path: &str) {
        let is_it = |name: &HeldName| name.is_of(directory, path);
        let Some(index) = self.names.iter().position(is_it) else {
            return;
        };
        let name = &mut self.names[index];
        name.is_looking = false;
        if name.requests.is_empty() {
            self.names.swap_remove(index);
        } else {
            self.next_at = self.next_at.min(name.due_at());
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
                name.is_looking = true;
            }
            let plan = LookupPlan {
                token: request.token,
                site: request.site,
                ..name.plan.clone()
            };
            Due::LookUp(plan, request.until)
        };
        if name.requests.is_empty() && !name.is_looking {
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

    /// When something is to be done with its first request.
    fn due_at(&self) -> Instant {
        match self.requests.front() {
            None => Instant::FAR_FUTURE,
            Some(first) if self.is_looking && !self.is_found => first.until,
            Some(first) => first.until.min(self.look_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};
    use session::{LookupPlan, LookupPurpose, LookupToken};

    use super::{Due, HELD_NAMES_MAX, HeldLookups, LOOK_EVERY, NotHeld};

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
        let refused = Err(NotHeld::TooMany);
        assert_eq!(held.hold(START, plan(9999, 0, "/x"), until), refused);
        assert_eq!(held.hold(START, plan(9999, 0, "/0"), until), Ok(()));
        assert_eq!(held.hold(START, plan(9999, 0, "/0"), until), refused);
        // One whose time is over is not held.
        let mut held = HeldLookups::new(1);
        let refused = Err(NotHeld::TimeOver);
        assert_eq!(held.hold(until, plan(9999, 0, "/0"), until), refused);
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
        for directory in [0, 1] {
            held.on_answered(directory, "/a");
        }
        assert_eq!((held.count(), held.poll_timeout()), (0, None));
    }

    #[test]
    fn a_name_has_one_look_up_at_a_time() {
        let until = START + Duration::from_secs(1);
        let mut held = HeldLookups::new(9);
        for number in [1, 2, 3] {
            assert_eq!(held.hold(START, plan(number, 0, "/a"), until), Ok(()));
        }
        let mut now = START + LOOK_EVERY;
        let found = Some("/a".to_owned());
        assert_eq!(due(&mut held, now), Some((1, found.clone())));
        // It has no answer for long.
        now += LOOK_EVERY * 5;
        assert_eq!(due(&mut held, now), None);
        assert_eq!(held.poll_timeout(), Some(until));
        assert_eq!(held.hold(now, plan(1, 0, "/a"), until), Ok(()));
        held.on_answered(0, "/a");
        assert_eq!(held.poll_timeout(), Some(START + LOOK_EVERY * 2));
        assert_eq!(due(&mut held, now), Some((2, found.clone())));
        assert_eq!(due(&mut held, now), None);
        // Another request finds it meanwhile.
        held.on_found(now, 0, "/a");
        assert_eq!(due(&mut held, now), Some((3, found.clone())));
        assert_eq!(due(&mut held, now), Some((1, found)));
        assert_eq!(due(&mut held, until), None);
        held.on_answered(0, "/a");
        assert_eq!((held.count(), held.poll_timeout()), (0, None));
    }

    #[test]
    fn requests_that_wait_keep_their_sites() {
        let until = START + Duration::from_secs(1);
        let mut held = HeldLookups::new(9);
        for site in [7, 8] {
            let plan = LookupPlan {
                site,
                ..plan(site.into(), 0, "/a")
            };
            assert_eq!(held.hold(START, plan, until), Ok(()));
        }
        held.on_found(START, 0, "/a");
        let mut sites = Vec::new();
        while let Some(Due::LookUp(plan, _)) = held.poll(START) {
            sites.push((plan.token, plan.site));
        }
        assert_eq!(sites, [(LookupToken(7), 7), (LookupToken(8), 8)]);
    }
}
