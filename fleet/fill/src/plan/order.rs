//! The order of the queue.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Name;

/// Why an object is fetched, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    /// A viewer missed it, and without it plays nothing.
    MissedPlaylist,
    /// A viewer missed it.
    Missed,
    /// A playlist of a live channel that has its age.
    Live,
    /// Wanted, and nobody waits for it.
    Playlist,
    /// The same.
    Wanted,
}

impl Class {
    pub(super) const fn is_missed(self) -> bool {
        matches!(self, Self::MissedPlaylist | Self::Missed)
    }
}

/// A place in the queue. Among what is wanted the priority comes before the kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    is_wanted: bool,
    urgency: Option<Class>,
    priority: Reverse<i64>,
    pub(super) class: Class,
    name: Name,
}

impl Key {
    pub(super) fn new(class: Class, priority: i64, name: &Name) -> Self {
        let is_wanted = class > Class::Live;
        Self {
            is_wanted,
            urgency: (!is_wanted).then_some(class),
            priority: Reverse(priority),
            class,
            name: Arc::clone(name),
        }
    }

    /// Higher comes first.
    pub(super) fn priority(&self) -> i64 {
        self.priority.0
    }
}

/// Whether players read it first.
pub(super) fn is_playlist(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    ["m3u8", "mpd"]
        .iter()
        .any(|it| extension.eq_ignore_ascii_case(it))
}
