//! TLS in a scenario: which clients use it, their parameters, and the faults of TLS.
//!
//! Drawn from a stream of its own: the rest of the scenario does not depend on it. Bounded: at most
//! [`FLOOD_MAX`] clients more.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use super::Scenario;
use super::theme::{Fault, Swarm};
use crate::client::plan::{
    Change, ClientPlan, Conduct, ConnectionPlan, Departure, RequestPlan, SecurePlan, StreamEnd,
};
use crate::client::secure::{TLS12_SUITES, TLS13_SUITES};
use crate::rng::Rng;

/// Most clients of a flood.
pub(super) const FLOOD_MAX: usize = 80;
/// Length of an ordinary ClientHello: most that follows is encrypted.
const HELLO_BYTES: usize = 228;
/// A dribbled handshake is longer than a dribbled head, and has no more time.
const DRIBBLE_INTERVAL_MAX: Duration = Duration::from_millis(2);

impl Scenario {
    /// Draws which clients use TLS, and the faults of TLS.
    pub(super) fn draw_secure(&mut self, rng: &mut Rng, swarm: Swarm) {
        let wear = rng.log_range(64..=400);
        let share = rng.pick(&[0, 300, 500, 1000]);
        self.chain = rng.size(1..=4);
        if swarm.has(Fault::WornKeys) {
            self.session.key_records_max = wear;
        }
        if swarm.has(Fault::Unnoticed) {
            self.change_objects(rng, &[Change::Unnoticed]);
        }
        // Without TLS nothing detects an unnoticed change.
        let share = if swarm.has(Fault::Unnoticed) {
            1000
        } else {
            share
        };
        for client in &mut self.clients {
            if rng.chance(share) {
                let plan = draw_plan(rng);
                client.secure = Some(plan);
                for connection in &mut client.connections {
                    secure_connection(rng, swarm, plan, connection);
                }
            }
        }
        if swarm.has(Fault::Flood) {
            self.flood(rng);
        }
    }

    /// Many clients that begin a handshake and do not complete it. The connection table has room
    /// for all, so that no other client may be refused.
    fn flood(&mut self, rng: &mut Rng) {
        let first = self.clients.len();
        let count = rng.size(20..=FLOOD_MAX);
        for number in first..first + count {
            let number = u8::try_from(number).expect("invariant: few");
            let secure = draw_plan(rng);
            let connections = (0..rng.range(1..=2))
                .map(|_| self.draw_flooding(rng))
                .collect();
            self.clients.push(ClientPlan {
                number,
                address: IpAddr::from(Ipv4Addr::new(10, 9, 1, number)),
                starts: self.epoch + rng.log_micros(100..=400_000),
                mtu_bytes: self.link.mtu_bytes,
                receive_bytes: 16_384,
                delays_acks: false,
                timestamps: rng.chance(500),
                seed: rng.bits(),
                secure: Some(secure),
                connections,
            });
        }
        let connections_wanted = self.connections_wanted();
        let connections_max = &mut self.session.connections_max;
        *connections_max = (*connections_max).max(connections_wanted);
    }

    fn draw_flooding(&self, rng: &mut Rng) -> ConnectionPlan {
        let departure = Departure {
            after_bytes: rng.range(0..=1500),
            after: rng.log_micros(1_000..=1_000_000),
        };
        let conduct = match rng.range(0..=5) {
            0..=2 => draw_stall(rng),
            3 => Conduct::Reset(departure),
            4 => Conduct::Vanish(departure),
            _ => draw_garbage(rng),
        };
        let request = RequestPlan {
            object: self.objects.first().copied(),
            head: true,
            ..RequestPlan::default()
        };
        ConnectionPlan {
            gap: rng.log_micros(1..=100_000),
            requests: vec![request],
            pipeline: 1,
            think: Duration::ZERO,
            pause: None,
            read_bytes_max: usize::MAX,
            read_interval: Duration::ZERO,
            conduct,
            stream_end: StreamEnd::NotifyAndFin,
            stream_end_after_bytes: 0,
            refresh_bytes: None,
            attempt: 0,
        }
    }
}

pub(super) fn draw_plan(rng: &mut Rng) -> SecurePlan {
    let suites = rng.pick(&[&TLS13_SUITES, &TLS13_SUITES, &TLS12_SUITES]);
    SecurePlan {
        suite: rng.pick(suites),
        resumes: rng.chance(600),
        is_sent_back: rng.chance(60),
        record_bytes_max: rng.chance(200).then(|| rng.size(40..=2000)),
    }
}

/// Changes the plan of a connection for TLS.
fn secure_connection(
    rng: &mut Rng,
    swarm: Swarm,
    plan: SecurePlan,
    connection: &mut ConnectionPlan,
) {
    let asked = connection.requests.iter().filter(|request| !request.head);
    let body_bytes: u64 = asked
        .map(|request| request.expected().body.object_bytes())
        .sum();
    connection.stream_end = rng.pick(&[
        StreamEnd::Fin,
        StreamEnd::Notify,
        StreamEnd::NotifyAndFin,
        StreamEnd::NotifyAndGarbage,
    ]);
    if rng.chance(500) {
        connection.stream_end_after_bytes = rng.range(0..=body_bytes + 2000);
    }
    let refresh_bytes = rng.log_range(500..=200_000);
    if plan.is_tls13() && rng.chance(250) {
        connection.refresh_bytes = Some(refresh_bytes);
    }
    match &mut connection.conduct {
        Conduct::Dribble { interval } => *interval = (*interval).min(DRIBBLE_INTERVAL_MAX),
        Conduct::Garbage { is_sealed, .. } => *is_sealed = rng.chance(500),
        Conduct::Proper if swarm.has(Fault::Misconduct) && rng.chance(250) => {
            connection.conduct = draw_misconduct(rng);
        }
        _ => {}
    }
}

fn draw_misconduct(rng: &mut Rng) -> Conduct {
    match rng.range(0..=3) {
        0 => draw_stall(rng),
        1 => Conduct::Unsealed,
        _ => {
            let at_bytes = match rng.size(0..=1200) {
                // The first requests are met more often than chance would.
                place @ 600..=900 => HELLO_BYTES + (place - 600),
                place => place,
            };
            Conduct::Flip {
                at_bytes,
                bit: u8::try_from(rng.range(0..=7)).expect("invariant: a bit of a byte"),
            }
        }
    }
}

fn draw_stall(rng: &mut Rng) -> Conduct {
    Conduct::StallHandshake {
        sent_bytes: rng.size(0..=500),
        closes: rng.chance(300),
    }
}

fn draw_garbage(rng: &mut Rng) -> Conduct {
    Conduct::Garbage {
        length: rng.size(1..=3000),
        key: rng.bits(),
        is_sealed: rng.chance(300),
    }
}
