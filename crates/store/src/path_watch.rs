//! When the served path is asked whether it still leads to the directory that is open.
//!
//! The worker asks the kernel's caches once in each turn that has look-ups. If they name another directory, or
//! have no answer, look-ups go through threads, which open the directory that the path leads to first, unless
//! it is open. Where the caches have had no answer for [`SETTLING_TIME`], that happens once in [`UNKNOWN_BELIEF`];
//! where the worker may not ask them, once in [`PATH_BELIEF`].
//!
//! They have no answer right after a symbolic link was made, since its readers have to note the time until that is
//! another one than the link's.
//!
//! An answer is good for one turn, and not for a time, however short: a turn may begin long before it receives a
//! request, if other programs have the processor in between.
//!
//! It refuses to know paths. Pure; a few moments.

use std::time::Duration;

use clock::Instant;

/// The kernel's caches may have no answer for so long after a change: some ticks of its clock.
pub(crate) const SETTLING_TIME: Duration = Duration::from_millis(100);
/// How long a thread's answer is believed where the kernel's caches have none for longer.
pub(crate) const UNKNOWN_BELIEF: Duration = Duration::from_millis(5);
/// How long it is believed where the worker may not ask them, and how long a directory that could not be opened is
/// left alone.
pub(crate) const PATH_BELIEF: Duration = Duration::from_secs(1);

/// What the kernel's caches say of the served path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathAnswer {
    /// It leads to the directory that is open, or nowhere.
    Same,
    /// It leads elsewhere.
    Elsewhere,
    /// They do not know.
    Unknown,
    /// The worker may not ask them.
    NotAsked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathWatch {
    /// The turn of the last ask.
    asked_at: Option<Instant>,
    /// What the last ask came to: look-ups go through threads.
    follows: bool,
    /// Since when the caches have had no answer.
    unknown_since: Option<Instant>,
    /// Until when a thread's answer is believed if the caches have none.
    believed_until: Option<Instant>,
    /// Until when the path is not followed, since that failed.
    failed_until: Instant,
}

impl PathWatch {
    /// Of a directory that was opened just now.
    pub(crate) const fn new() -> Self {
        Self {
            asked_at: None,
            follows: false,
            unknown_since: None,
            believed_until: None,
            failed_until: Instant::ZERO,
        }
    }

    /// Whether a look-up is to be done by a thread that follows the path first. `ask` asks the kernel's
    /// caches.
    pub(crate) fn wants_follow(&mut self, now: Instant, ask: impl FnOnce() -> PathAnswer) -> bool {
        if self.asked_at == Some(now) {
            return self.follows;
        }
        self.asked_at = Some(now);
        let answer = ask();
        if answer != PathAnswer::Unknown {
            self.unknown_since = None;
        }
        self.follows = match answer {
            PathAnswer::Same => false,
            PathAnswer::Elsewhere => now >= self.failed_until,
            PathAnswer::Unknown => {
                let since = *self.unknown_since.get_or_insert(now);
                let is_settling = now.since(since) < SETTLING_TIME;
                is_settling || self.believed_until.is_none_or(|until| now >= until)
            }
            // The directory was opened at the start.
            PathAnswer::NotAsked => now >= *self.believed_until.get_or_insert(now + PATH_BELIEF),
        };
        self.follows
    }

    /// A thread has followed the path, and found another directory or not; `None`: it failed to. `may_ask`: the
    /// worker may ask the caches.
    pub(crate) fn note_followed(&mut self, now: Instant, is_new: Option<bool>, may_ask: bool) {
        let belief = if may_ask { UNKNOWN_BELIEF } else { PATH_BELIEF };
        self.believed_until = Some(now + belief);
        match is_new {
            // The caches have no answer for another reason than before: its link is new.
            Some(true) => self.unknown_since = None,
            Some(false) => {}
            None => self.failed_until = now + PATH_BELIEF,
        }
        self.asked_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::PathAnswer::{Elsewhere, NotAsked, Same, Unknown};
    use super::*;

    const NS: Duration = Duration::from_nanos(1);
    const START: Instant = Instant::from_millis(5);

    fn never() -> PathAnswer {
        panic!("asked too soon")
    }

    #[test]
    fn an_answer_of_the_caches_holds_for_the_turn() {
        for (answer, follows) in [(Same, false), (Elsewhere, true)] {
            let mut watch = PathWatch::new();
            assert_eq!(watch.wants_follow(START, || answer), follows);
            assert_eq!(watch.wants_follow(START, never), follows);
            let next = START + NS;
            assert!(watch.wants_follow(next, || Elsewhere));
            watch.note_followed(next + NS, Some(true), true);
            assert!(!watch.wants_follow(next + NS, || Same));
        }
    }

    #[test]
    fn without_an_answer_for_long_a_thread_asks_once_in_a_while() {
        let mut watch = PathWatch::new();
        assert!(watch.wants_follow(START, || Unknown));
        watch.note_followed(START, Some(false), true);
        let settled = START + SETTLING_TIME;
        assert!(watch.wants_follow(settled - NS, || Unknown));
        watch.note_followed(settled - NS, Some(false), true);
        assert!(!watch.wants_follow(settled, || Unknown));
        let due = settled - NS + UNKNOWN_BELIEF;
        assert!(!watch.wants_follow(due - NS, || Unknown));
        assert!(watch.wants_follow(due, || Unknown));
        watch.note_followed(due, Some(false), true);
        let next = due + NS;
        assert!(!watch.wants_follow(next, || Same));
        let after = next + NS;
        assert!(watch.wants_follow(after, || Unknown), "it was known before");
    }

    #[test]
    fn a_path_that_is_switched_again_and_again_is_followed_each_time() {
        let mut watch = PathWatch::new();
        let mut now = START;
        for _ in 0..100 {
            assert!(watch.wants_follow(now, || Unknown), "at {now:?}");
            watch.note_followed(now, Some(true), true);
            now += UNKNOWN_BELIEF / 2;
        }
    }

    #[test]
    fn a_worker_that_may_not_ask_has_a_thread_do_it_once_in_a_while() {
        let mut watch = PathWatch::new();
        assert!(!watch.wants_follow(START, || NotAsked), "opened just now");
        let due = START + PATH_BELIEF;
        assert!(!watch.wants_follow(due - NS, || NotAsked));
        assert!(watch.wants_follow(due, || NotAsked));
        watch.note_followed(due + NS, Some(false), false);
        let next = due + NS + PATH_BELIEF;
        assert!(!watch.wants_follow(next - NS, || NotAsked));
        assert!(watch.wants_follow(next, || NotAsked));
    }

    #[test]
    fn a_directory_that_cannot_be_opened_is_left_alone_for_a_while() {
        let mut watch = PathWatch::new();
        assert!(watch.wants_follow(START, || Elsewhere));
        watch.note_followed(START, None, true);
        let due = START + PATH_BELIEF;
        assert!(!watch.wants_follow(due - NS, || Elsewhere));
        assert!(watch.wants_follow(due, || Elsewhere));
        watch.note_followed(due, Some(false), true);
        let next = due + NS;
        assert!(watch.wants_follow(next, || Elsewhere), "another directory");
    }
}
