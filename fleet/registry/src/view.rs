//! What is known of a fleet's members, and how fresh it is.

use std::sync::Arc;

use placement::Member;
use tokio::sync::watch::Sender;
use tokio::time::Instant;

/// The members, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// In the order of their names.
    pub members: Arc<Vec<Member>>,
    /// How fresh they are.
    pub freshness: Freshness,
    /// What the registry lists and is no member: the first few, each with what is wrong with it.
    pub refused: Arc<Vec<String>>,
}

/// How fresh a view is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Nothing has been heard yet.
    #[default]
    Waiting,
    /// The registry says so now.
    Current,
    /// The registry said so last; what it says now is missing or cannot be.
    LastKnown {
        /// Since when.
        since: Instant,
        /// What is wrong.
        why: String,
    },
}

/// Most of what is refused that a view names.
const REFUSED_MAX: usize = 8;

/// Makes views out of what a registry says.
#[derive(Debug)]
pub(crate) struct ViewSender {
    sender: Sender<View>,
}

impl ViewSender {
    pub(crate) fn new(sender: Sender<View>) -> Self {
        Self { sender }
    }

    /// The registry lists these, and what is wrong with others.
    ///
    /// A list of nobody, where somebody was, is not believed: a registry that has just lost its content, or whose
    /// leases all ended while it was down, would take the whole fleet away from the players.
    pub(crate) fn learned(&self, mut members: Vec<Member>, mut refused: Vec<String>) {
        if members.is_empty() && !self.sender.borrow().members.is_empty() {
            return self.lost("the registry lists no members");
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        refused.truncate(REFUSED_MAX);
        self.sender.send_if_modified(|view| {
            let is_same = view.freshness == Freshness::Current
                && *view.members == members
                && *view.refused == refused;
            if !is_same {
                *view = View {
                    members: Arc::new(members),
                    freshness: Freshness::Current,
                    refused: Arc::new(refused),
                };
            }
            !is_same
        });
    }

    /// The registry does not answer, or says what cannot be.
    pub(crate) fn lost(&self, reason: &str) {
        self.sender.send_if_modified(|view| {
            let since = match &view.freshness {
                Freshness::LastKnown { why, .. } if why == reason => return false,
                Freshness::LastKnown { since, .. } => *since,
                Freshness::Waiting | Freshness::Current => Instant::now(),
            };
            view.freshness = Freshness::LastKnown {
                since,
                why: reason.to_owned(),
            };
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch::channel;

    use super::*;

    fn member(name: &str) -> Member {
        Member::new(name, "http://a")
    }

    #[test]
    fn the_last_known_members_stay_and_it_is_said_since_when_and_why() {
        let (sender, mut view) = channel(View::default());
        let views = ViewSender::new(sender);
        views.lost("down");
        assert!(matches!(
            view.borrow_and_update().freshness,
            Freshness::LastKnown { .. }
        ));
        views.learned(vec![member("b"), member("a")], vec![]);
        let names: Vec<String> = view
            .borrow_and_update()
            .members
            .iter()
            .map(|it| it.name.clone())
            .collect();
        assert_eq!(names, ["a", "b"]);
        views.learned(vec![member("a"), member("b")], vec![]);
        assert!(!view.has_changed().unwrap());
        for reason in ["down", "down", "still down"] {
            views.lost(reason);
        }
        let last = view.borrow_and_update().clone();
        assert_eq!(last.members.len(), 2);
        assert!(matches!(last.freshness, Freshness::LastKnown { why, .. } if why == "still down"));
        views.learned(vec![], vec![]);
        let last = view.borrow_and_update().clone();
        assert_eq!(last.members.len(), 2);
        assert!(
            matches!(last.freshness, Freshness::LastKnown { why, .. } if why.contains("no members"))
        );
        views.learned(vec![member("c")], vec!["d: no".to_owned(); 20]);
        let now = view.borrow_and_update().clone();
        assert_eq!(
            (now.freshness, now.members.len(), now.refused.len()),
            (Freshness::Current, 1, 8)
        );
    }

    #[test]
    fn a_fleet_that_never_had_members_is_empty_and_current() {
        let (sender, view) = channel(View::default());
        ViewSender::new(sender).learned(vec![], vec![]);
        assert_eq!(view.borrow().freshness, Freshness::Current);
    }
}
