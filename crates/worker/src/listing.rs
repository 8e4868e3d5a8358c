//! Connections listed for operators, with the paths of what they are sent.

use std::net::SocketAddr;

use clock::Instant;
use diskmap::Disk;
use link::Link;
use session::{ListedConnection, PageLimits};

use super::Worker;

/// A connection, and the path of what it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// What the session says.
    pub connection: ListedConnection,
    /// The path of its object.
    pub path: Option<String>,
}

/// A page of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Connections, in the order of their places.
    pub rows: Vec<Row>,
    /// Where the next page begins; `None`: this was the last.
    pub next: Option<u32>,
}

impl<L: Link, D: Disk> Worker<L, D> {
    /// The page of the table that begins at place `from`, with the connections of wanted peers. It changes nothing.
    #[must_use]
    pub fn list_connections(
        &self,
        now: Instant,
        from: u32,
        limits: PageLimits,
        is_wanted: &dyn Fn(&SocketAddr) -> bool,
    ) -> Page {
        let mut rows = Vec::with_capacity(limits.rows_max);
        let next = self
            .conductor
            .list_connections(now, from, limits, is_wanted, &mut |row| {
                let path = row.object.map(|object| self.objects.path_of(object));
                rows.push(Row {
                    connection: row,
                    path,
                });
            });
        Page { rows, next }
    }
}
