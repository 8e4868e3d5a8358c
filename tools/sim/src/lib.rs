//! The whole server on a virtual clock, one thread, seeded: everything but the kernel.
//!
//! A **seed** is drawn out into a scenario (link, cable, disk, objects, clients, troubles). The
//! product's own worker serves it over a simulated link and disk; real TCP clients (smoltcp, not
//! our code) ask for objects and compare every byte, some of them over TLS (rustls). Time jumps
//! from event to event. A run ends when nothing moves any more; then the books must balance. The
//! same seed is the same run on any machine, byte by byte but for key material and what is sealed
//! with it: that has the same length, at the same moment (see `credentials`, `world::tape`).
//!
//! What a run checks, beyond the assertions of the rooms themselves:
//!
//! | Promise                                                              | Checked by           |
//! |----------------------------------------------------------------------|----------------------|
//! | a delivered byte is the object's byte                                | the clients          |
//! | a reply is whole, or its connection is reset, never ended by a FIN   | the clients          |
//! | over TLS: never by a `close_notify`, which comes before every FIN    | the clients          |
//! | whatever a client does, what it hears can be opened with its keys    | the clients          |
//! | a record that was tampered with asks for nothing                     | the clients          |
//! | what is sent again is, byte by byte, what was sent first             | `repeats`            |
//! | nothing follows a reset: nothing of a file that has changed          | `repeats`            |
//! | status, length and range of a reply are what was asked for           | the clients          |
//! | nothing fails that no injected trouble explains                      | `Scenario::permits`  |
//! | every request of a well-behaved client is answered in the end        | the clients          |
//! | who misbehaves is answered, or its connection ended                  | the clients          |
//! | what is read from the disk is in proportion to what is sent          | the world            |
//! | no connection outlives the server's patience, whatever its peer says | the rude peers       |
//! | at quiet: all slots free, no reads, connections or objects held      | the world            |
//! | a run goes quiet                                                     | the world            |
//!
//! Troubles: lost, late, doubled and damaged frames; narrow links and paths; full queues; failing,
//! slow and changing files, and files that change and do not show it; few slots, connections and
//! objects; an interface that goes down; a server told to end; counters about to wrap; keys that
//! wear out; clients that reset, vanish, stall, dribble, look away, talk nonsense, change their
//! keys or one bit, or speak no TLS where they should; floods of handshakes that nobody finishes;
//! a stranger who forges segments; peers that answer for ever to stay, or to have much read; a router
//! that hands over to another. `scenario` says what each may excuse.
//!
//! That the checkers can fail is shown by canaries: deliberate bugs outside the product. What the
//! product's guard against changed records is there for is one of them: the same change without
//! TLS, which nobody notices but `repeats`.
//!
//! It refuses wall clocks, threads within a run and sockets. Bounded: see `world` and `scenario`.
#![forbid(unsafe_code)]

mod atlas;
mod client;
mod command;
mod content;
mod credentials;
mod dice;
mod forge;
#[cfg(test)]
mod model;
mod repeats;
mod rude;
mod scenario;
mod strangers;
mod witness;
mod world;

#[cfg(test)]
mod tests;

use client::Client;
use rude::Rude;
use scenario::{SERVER_V4, SERVER_V6, Scenario, Theme};
use world::spoofer::Spoofer;
use world::tape::Tape;
use world::{Canary, Outcome, Surroundings, World};

pub use command::{CommandError, run_command};
pub use strangers::{serve_strangers, strangers_seeds};

/// One run of the product: the seed under a theme, with a canary if one is to be found.
fn run(seed: u64, theme: &Theme, canary: Option<Canary>, tape: Tape) -> (Outcome, Tape) {
    let mut scenario = match canary {
        Some(Canary::Unnoticed) => Scenario::draw_unguarded(seed, theme),
        _ => Scenario::draw(seed, theme),
    };
    match canary {
        Some(Canary::Reads) => scenario.read_limits = world::UNLIMITED_READS,
        Some(Canary::Patience) => scenario.send_timeout = world::ENDLESS_PATIENCE,
        _ => {}
    }
    let (server, port) = atlas::assemble(&scenario);
    let clients = make_clients(&scenario, canary);
    let spoofer = Spoofer::new(scenario.trouble_seed, scenario.spoof_permille);
    let surroundings = Surroundings {
        epoch: scenario.epoch,
        agenda: scenario.agenda,
        path_mtu_bytes: scenario.path_mtu_bytes,
        spoofer: Some(spoofer),
        handover_at: scenario.handover_at,
        rude: scenario.rude.iter().cloned().map(Rude::new).collect(),
    };
    let mut world = World::new(server, port, clients, surroundings, tape);
    if let Some(canary) = canary {
        world.plant(canary);
    }
    world.run()
}

fn make_clients(scenario: &Scenario, canary: Option<Canary>) -> Vec<Client> {
    let permits = scenario.permits();
    let make = |plan: &client::plan::ClientPlan| {
        let v4 = plan.address.is_ipv4();
        let server = if v4 {
            SERVER_V4.into()
        } else {
            SERVER_V6.into()
        };
        let mut client = Client::new(plan.clone(), (server, plan.port()), permits);
        if canary == Some(Canary::Belief) {
            client.plant_false_belief();
        }
        client
    };
    scenario.clients.iter().map(make).collect()
}
