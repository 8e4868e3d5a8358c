//! Which edges of a fleet hold which title, computed by each edge, filler and steerer for itself.
//!
//! A [`Member`] is an edge as the registry tells it, JSON with a version. A [`Layout`] says which paths belong together
//! as one title, and on how many edges each is. A [`Fleet`] is both. It ranks the members for a title by weighted rendezvous
//! hashing ([`holders`]): who has the same members and the same layout gets the same answer, on every machine, in any order of the
//! members. An edge that leaves moves its own share only, an edge that comes takes its share only.
//!
//! It makes no system call, reads no clock, and has no state. Bounded by: [`MEMBERS_MAX`], [`COPIES_MAX`], and the bytes
//! of the documents that it parses.

#![forbid(unsafe_code)]

mod fleet;
mod layout;
mod logarithm;
mod member;
mod rendezvous;

pub use fleet::{BUSY_LOAD, Choice, Fleet};
pub use layout::{COPIES_MAX, Layout, LayoutError, Place, RULES_MAX, Rule, copies_for_share};
pub use member::{
    FLEET_BYTES_MAX, MEMBER_BYTES_MAX, MEMBERS_MAX, Member, MemberError, NAME_BYTES_MAX,
    SCHEMA_VERSION, State, URL_BYTES_MAX, ZONE_BYTES_MAX, fleet_to_json, parse_fleet, parse_member,
};
pub use rendezvous::{Placement, holders};
