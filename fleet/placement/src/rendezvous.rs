//! Weighted rendezvous hashing.
//!
//! For a title and a member, a hash is a number u between 0 and 1. The member's cost is -ln(u) / weight: an exponential
//! variable whose rate is the weight, so that of several members one is the cheapest with a probability of its weight
//! over that of all (Schindelhauer and Schomaker, 2005). Nobody's cost depends on who else is there. So the order of the
//! others stays as it is when a member comes or leaves.
//!
//! The hash is fixed for good, so that programs of different versions agree: SipHash-1-3 of the title's SipHash-2-4
//! (key 0, little-endian), with the SipHash-2-4-128 (key 0) of the member's name as its key. Its upper 52 bits, and a
//! half, are u.

use siphasher::sip::{SipHasher13, SipHasher24};
use siphasher::sip128;

use crate::Member;
use crate::logarithm::ln;

/// 2 to the power of -52.
const UNIT: f64 = 1.0 / (1_u64 << 52) as f64;

/// What a member's costs are made of.
#[derive(Clone, Copy, Debug)]
struct Key {
    hasher: SipHasher13,
    /// Breaks ties, independent of the members' order.
    name: (u64, u64),
    /// 0 for a member that takes no content.
    weight: f64,
}

/// Members, ready to be ranked for many titles.
///
/// A look-up computes one hash and one logarithm for each member.
#[derive(Clone, Debug)]
pub struct Placement {
    keys: Vec<Key>,
}

impl Placement {
    /// These members, weighted by capacity. One that drains or has no capacity gets no title.
    ///
    /// Whether a member is healthy does not matter: what it holds is not copied elsewhere because it was slow for a
    /// minute. Whom players are sent to is another question.
    #[must_use]
    pub fn new(members: &[Member]) -> Self {
        Self::of(members.iter())
    }

    /// The same of members that are not beside each other.
    pub(crate) fn of<'a>(members: impl Iterator<Item = &'a Member>) -> Self {
        let key = |member: &Member| {
            #[expect(
                clippy::cast_precision_loss,
                reason = "a capacity's upper 53 bits are enough of a weight"
            )]
            let weight = if member.takes_content() {
                member.capacity_bytes as f64
            } else {
                0.0
            };
            Key::new(&member.name, weight)
        };
        Self {
            keys: members.map(key).collect(),
        }
    }

    /// The indices of the members that hold a title, best first: as many as `copies`, or all if they are fewer.
    #[must_use]
    pub fn holders(&self, title: &str, copies: usize) -> Vec<usize> {
        self.ranked(title, copies)
            .into_iter()
            .map(|(_, index)| index)
            .collect()
    }

    /// Whether the member with this index is one of the title's holders.
    #[must_use]
    pub fn is_holder(&self, index: usize, title: &str, copies: usize) -> bool {
        self.ranked(title, copies)
            .iter()
            .any(|(_, holder)| *holder == index)
    }

    /// The cheapest members, with what orders them.
    fn ranked(&self, title: &str, copies: usize) -> Vec<(Cost, usize)> {
        let title = SipHasher24::new().hash(title.as_bytes()).to_le_bytes();
        let mut best: Vec<(Cost, usize)> = Vec::new();
        if copies == 0 {
            return best;
        }
        for (index, key) in self.keys.iter().enumerate() {
            if key.weight <= 0.0 {
                continue;
            }
            let cost = key.cost(title);
            if best.len() == copies && best.last().is_none_or(|(worst, _)| *worst <= cost) {
                continue;
            }
            let place = best.partition_point(|(other, _)| *other < cost);
            best.insert(place, (cost, index));
            best.truncate(copies);
        }
        best
    }
}

/// A member's cost for a title. Smaller is better.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Cost {
    cost: f64,
    name: (u64, u64),
}

impl Key {
    fn new(name: &str, weight: f64) -> Self {
        let hash = sip128::SipHasher24::new().hash(name.as_bytes());
        Self {
            hasher: SipHasher13::new_with_keys(hash.h1, hash.h2),
            name: (hash.h1, hash.h2),
            weight,
        }
    }

    fn cost(&self, title: [u8; 8]) -> Cost {
        let hash = self.hasher.hash(&title) >> 12;
        #[expect(
            clippy::cast_precision_loss,
            reason = "52 bits and a half are exact in 53"
        )]
        let share = (hash as f64 + 0.5) * UNIT;
        Cost {
            cost: -ln(share) / self.weight,
            name: self.name,
        }
    }
}

/// A holder's cost for a client, weighted by what it has left to send with: the client's holder is the cheapest.
pub(crate) fn spread(member: &Member, title: &str, client: &str) -> f64 {
    // Somebody who can send no more is still an edge, if there is no other.
    let left = (1.0 - member.load).max(0.01);
    let pair = SipHasher24::new_with_keys(SipHasher24::new().hash(title.as_bytes()), 0);
    Key::new(&member.name, left)
        .cost(pair.hash(client.as_bytes()).to_le_bytes())
        .cost
}

/// The members that hold a title, best first: as many as `copies`, or all that take content if they are fewer.
///
/// For many titles make a [`Placement`] once.
#[must_use]
pub fn holders<'a>(members: &'a [Member], title: &str, copies: usize) -> Vec<&'a Member> {
    let indices = Placement::new(members).holders(title, copies);
    indices.into_iter().map(|index| &members[index]).collect()
}
