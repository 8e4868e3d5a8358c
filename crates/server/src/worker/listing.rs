//! Connections listed for operators, with the paths of what they are sent.

use clock::Instant;
use diskmap::Disk;
use link::Link;

use super::Worker;
use crate::connections::{Page, Question, Row};

impl<L: Link, D: Disk> Worker<L, D> {
    /// The page that is asked for. It changes nothing.
    #[must_use]
    pub fn list_connections(&self, now: Instant, question: &Question) -> Page {
        let Question {
            from,
            peers,
            limits,
            ..
        } = question;
        let is_wanted = |peer: &_| peers.is_none_or(|peers| peers.contains(peer));
        let mut rows = Vec::with_capacity(limits.rows_max);
        let next = self
            .conductor
            .list_connections(now, *from, *limits, &is_wanted, &mut |row| {
                let path = row.object.map(|object| self.objects.path_of(object));
                rows.push(Row {
                    connection: row,
                    path,
                });
            });
        Page { rows, next }
    }
}
