//! What each connection got: whether it is warm, and how even the window was.
//!
//! A connection is warm once it has had so many replies and so many bytes of bodies: a window that
//! begins before measures slow start and the server's own start. No clock. It refuses nothing. Bounded
//! by 16 bytes for each connection.

use crate::report::{float, ratio};

/// What a connection must have had to be warm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Complete replies.
    pub replies: u32,
    /// Bytes of bodies.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Before the window, from the start; then in the window.
    bytes: u64,
    replies: u32,
    is_warm: bool,
}

/// What each connection got.
#[derive(Debug)]
pub(crate) struct Tallies {
    wanted: Work,
    each: Vec<Tally>,
    warm: u32,
}

impl Tallies {
    pub(crate) fn new(connections: usize, wanted: Work) -> Self {
        let mut tallies = Self {
            wanted,
            each: vec![Tally::default(); connections],
            warm: 0,
        };
        for index in 0..connections {
            tallies.look(index);
        }
        tallies
    }

    pub(crate) fn on_body(&mut self, connection: u32, bytes: u32) {
        if let Some(tally) = self.each.get_mut(connection as usize) {
            tally.bytes += u64::from(bytes);
        }
    }

    pub(crate) fn on_reply(&mut self, connection: u32) {
        if let Some(tally) = self.each.get_mut(connection as usize) {
            tally.replies = tally.replies.saturating_add(1);
        }
        self.look(connection as usize);
    }

    fn look(&mut self, connection: usize) {
        if let Some(tally) = self.each.get_mut(connection)
            && !tally.is_warm
            && tally.replies >= self.wanted.replies
            && tally.bytes >= self.wanted.bytes
        {
            tally.is_warm = true;
            self.warm += 1;
        }
    }

    /// Connections that are warm.
    pub(crate) const fn warm(&self) -> u32 {
        self.warm
    }

    /// Forgets the bytes so far.
    pub(crate) fn begin_window(&mut self) {
        for tally in &mut self.each {
            tally.bytes = 0;
        }
    }

    /// Jain's index of the bytes of each.
    pub(crate) fn fairness(&self) -> f64 {
        let bytes = || self.each.iter().map(|it| float(it.bytes));
        let squares: f64 = bytes().map(|it| it.powi(2)).sum();
        let count = float(self.each.len() as u64);
        ratio(bytes().sum::<f64>().powi(2), count * squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_warm_with_its_last_reply_and_its_last_byte() {
        let wanted = Work {
            replies: 2,
            bytes: 10,
        };
        let mut tallies = Tallies::new(2, wanted);
        tallies.on_body(0, 10);
        tallies.on_reply(0);
        assert_eq!(tallies.warm(), 0, "a reply short");
        tallies.on_reply(0);
        assert_eq!(tallies.warm(), 1);
        tallies.on_body(1, 9);
        tallies.on_reply(1);
        tallies.on_reply(1);
        assert_eq!(tallies.warm(), 1, "a byte short");
        tallies.on_body(1, 1);
        tallies.on_reply(1);
        tallies.on_reply(1);
        assert_eq!(tallies.warm(), 2);
        assert_eq!(Tallies::new(3, Work::default()).warm(), 3, "nothing wanted");
    }

    #[test]
    fn fairness_is_one_for_all_alike_and_a_share_if_one_has_all() {
        let mut tallies = Tallies::new(4, Work::default());
        tallies.on_body(0, 7);
        tallies.begin_window();
        for index in 0..4 {
            tallies.on_body(index, 5);
        }
        let even = tallies.fairness();
        assert!((even - 1.0).abs() < 1e-9, "{even:?}");
        tallies.begin_window();
        tallies.on_body(2, 8);
        let one = tallies.fairness();
        assert!((one - 0.25).abs() < 1e-9, "{one:?}");
    }
}
