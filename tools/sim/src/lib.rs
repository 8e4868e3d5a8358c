//! The whole server on a virtual clock, one thread, seeded: everything but the kernel.
//!
//! A **seed** determines a scenario: link, network, disk, objects, clients and faults. The
//! product's own worker serves it over a simulated link and disk; TCP clients (smoltcp, not our
//! code) request objects and compare every byte, some of them over TLS (rustls). Time jumps from
//! event to event. A run ends when nobody has anything to do; then the server must hold no
//! resources. The same seed is the same run on any machine, byte by byte but for key material and
//! ciphertext: that has the same length, at the same moment (see `credentials`,
//! `world::frame_log`).
//!
//! What a run checks, beyond the assertions of the rooms themselves:
//!
//! | Property                                                             | Checked by           |
//! |----------------------------------------------------------------------|----------------------|
//! | a delivered byte is the object's byte                                | the clients          |
//! | a reply is whole, or its connection is reset, never ended by a FIN   | the clients          |
//! | over TLS: never by a `close_notify`, which comes before every FIN    | the clients          |
//! | whatever a client sends, its keys open what the server sends         | the clients          |
//! | a record that was altered on its way requests nothing                | the clients          |
//! | a retransmission has the bytes of the first transmission             | `retransmissions`    |
//! | no data follows a reset, so none of a file that has changed          | `retransmissions`    |
//! | status, length and range of a reply are what was requested           | the clients          |
//! | every byte is of the version whose entity tag the reply has          | the clients          |
//! | that version is not older than the request                           | the clients          |
//! | no reply is cut by a file that grows, is replaced, or is touched     | the clients          |
//! | nothing fails that no injected fault explains                        | `Scenario::permits`  |
//! | every request of a well-behaved client is answered in the end        | the clients          |
//! | a client that misbehaves is answered, or its connection ended        | the clients          |
//! | bytes read from the disk are in proportion to bytes sent             | the world            |
//! | nobody is refused while the connection table has room                | `occupancy`          |
//! | no connection outlives the server's timeouts, whatever its peer does | the abusive peers    |
//! | at the end: all slots free; no reads, connections or objects in use  | the world            |
//! | a run ends                                                           | the world            |
//! | goodput, retransmissions and windows are within bounds of the path   | `paths::oracle`      |
//!
//! Faults: lost, delayed, duplicated and corrupted frames; low rates and small path MTUs; full
//! queues; reads that fail or hang; files that grow, are replaced, touched or rewritten, visibly or not; few
//! slots, connections and objects; an interface that goes down; a server that is shut down; counters about to wrap; keys
//! that reach their limit; clients that reset, vanish, stop reading, send a byte at a time or
//! garbage, update their keys, flip one bit, or send plaintext to the TLS port; floods of
//! unfinished handshakes; an off-path attacker; peers that hold connections open for ever or cause
//! many reads; a router that fails over; several workers, whose clients change from one to the other.
//! `Scenario::permits` lists which failures each may cause.
//!
//! The scenario `paths` is apart from the others: it has a path model and receivers of its own, and
//! checks how well TCP sends. See `paths`. What TCP achieves by RTT, loss and buffer is committed in
//! `snapshots/loss_matrix.txt`.
//!
//! That the checks can fail is shown by canaries: deliberate bugs outside the product. One of them
//! is what the product's guard against changed records is for: the same change without TLS, which
//! only `retransmissions` can see. Those for `paths` are faults that TCP once had, and two are of slots that are
//! kept: the feature `canaries` of `atlas-tcp` and `atlas-session` puts them in.
//!
//! It refuses wall clocks, threads within a run and sockets. Bounded: see `world` and `scenario`.
#![forbid(unsafe_code)]

mod abusive_peer;
mod atlas;
mod checked_link;
mod client;
mod command;
mod content;
mod crafted;
mod credentials;
mod fuzzed_controller;
mod fuzzed_peers;
mod memory_traffic;
mod occupancy;
mod paths;
mod retransmissions;
mod rng;
mod scenario;
mod segment;
mod workers;
mod world;

#[cfg(test)]
mod tests;

use scenario::{Scenario, Theme};
use world::frame_log::FrameLog;
use world::{Canary, Outcome, World};

pub use command::{CommandError, Options, memory_tables, run_command};
pub use fuzzed_controller::{controller_seeds, drive_fuzzed_controller};
pub use fuzzed_peers::{fuzz_seeds, serve_fuzzed_peers};

/// One run of the product: the seed under a theme, with a canary if one is to be found.
fn run(
    seed: u64,
    theme: &Theme,
    canary: Option<Canary>,
    frame_log: FrameLog,
) -> (Outcome, FrameLog) {
    if theme.is_paths() {
        let fault = canary.and_then(Canary::tcp_fault);
        return paths::run(seed, fault, frame_log);
    }
    let mut scenario = match canary {
        Some(Canary::Unnoticed) => Scenario::draw_unguarded(seed, theme),
        _ => Scenario::draw(seed, theme),
    };
    match canary {
        Some(Canary::Reads) => scenario.session.read_limits = world::UNLIMITED_READS,
        Some(Canary::Cut) => scenario.session.beginnings_max = 1,
        Some(Canary::SendTimeout) => scenario.session.send_timeout = world::SEND_TIMEOUT_NEVER,
        _ => {}
    }
    if let Some(fault) = canary.and_then(Canary::tcp_fault) {
        scenario.session.tcp.canary = tcp::Canary::of(fault);
    }
    if let Some(fault) = canary.and_then(Canary::session_fault) {
        scenario.session.canary = session::Canary::of(fault);
    }
    World::new(&scenario, canary, frame_log).run()
}
