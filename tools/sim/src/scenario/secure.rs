//! TLS in a scenario: who speaks it and how, and the troubles that only it knows.
//!
//! Drawn last, by dice of their own: what a scenario is apart from TLS does not depend on what is
//! drawn here. Bounded: at most [`FLOOD_MAX`] clients more.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use super::theme::Swarm;
use super::{Happening, Scenario};
use crate::client::plan::{
    Aead, ClientPlan, Condition, Conduct, ConnectionPlan, Farewell, Instead, Later, Misstep,
    RequestPlan, SecurePlan, Version,
};
use crate::content::Content;
use crate::dice::Dice;

/// Most clients of a flood.
pub(super) const FLOOD_MAX: usize = 80;
/// Length of an ordinary ClientHello: what is behind it is sealed.
const HELLO_BYTES: usize = 228;
/// A dribbled handshake is longer than a dribbled head, and has no more time.
const DRIBBLE_INTERVAL_MAX: Duration = Duration::from_millis(2);

impl Scenario {
    /// Lets some of the clients speak TLS, and whatever that brings.
    pub(super) fn draw_secure(&mut self, dice: &mut Dice, swarm: Swarm) {
        let wear = dice.log_range(64..=400);
        let share = dice.pick(&[0, 300, 500, 1000]);
        if !swarm.tls {
            return;
        }
        self.chain = dice.size(1..=4);
        if swarm.worn_keys {
            self.key_records_max = wear;
        }
        if swarm.unnoticed {
            self.alter_objects(dice);
        }
        // Without TLS nobody notices what nobody can see.
        let share = if swarm.unnoticed { 1000 } else { share };
        for client in &mut self.clients {
            if dice.chance(share) {
                let plan = draw_plan(dice);
                client.secure = Some(plan);
                for connection in &mut client.connections {
                    secure_connection(dice, swarm, plan, connection);
                }
            }
        }
        if swarm.flood {
            self.flood(dice);
        }
    }

    /// Objects whose bytes change and whose files do not show it.
    pub(super) fn alter_objects(&mut self, dice: &mut Dice) {
        for object in &mut self.objects {
            if object.later.is_some() || dice.chance(200) {
                continue;
            }
            object.later = Some(Later {
                content: Content::new(dice.bits(), object.number as u64, 2),
                is_noticed: false,
            });
            let at = self.epoch + dice.log_micros(10_000..=1_000_000);
            let object = object.number;
            self.agenda.push((at, Happening::Alter { object }));
        }
        self.agenda.sort_by_key(|(at, _)| *at);
        let connections = self
            .clients
            .iter_mut()
            .flat_map(|client| &mut client.connections);
        let requests = connections.flat_map(|connection| &mut connection.requests);
        for object in requests.filter_map(|request| request.object.as_mut()) {
            *object = self.objects[object.number];
        }
    }

    /// Many who begin a handshake and do not end it. The table has room for all, so that nobody
    /// else may be refused.
    fn flood(&mut self, dice: &mut Dice) {
        let first = self.clients.len();
        let count = dice.size(20..=FLOOD_MAX);
        for number in first..first + count {
            let number = u8::try_from(number).expect("invariant: few");
            let secure = draw_plan(dice);
            let connections = (0..dice.range(1..=2))
                .map(|_| self.draw_flooding(dice))
                .collect();
            self.clients.push(ClientPlan {
                number,
                address: IpAddr::from(Ipv4Addr::new(10, 9, 1, number)),
                starts: self.epoch + dice.log_micros(100..=400_000),
                mtu_bytes: self.mtu_bytes,
                receive_bytes: 16_384,
                delays_acks: false,
                timestamps: dice.chance(500),
                seed: dice.bits(),
                secure: Some(secure),
                connections,
            });
        }
        self.connections_max = self.connections_max.max(self.connections_wanted());
    }

    fn draw_flooding(&self, dice: &mut Dice) -> ConnectionPlan {
        let misstep = Misstep {
            after_bytes: dice.range(0..=1500),
            after: dice.log_micros(1_000..=1_000_000),
        };
        let conduct = match dice.range(0..=5) {
            0..=2 => draw_stall(dice),
            3 => Conduct::Reset(misstep),
            4 => Conduct::Vanish(misstep),
            _ => draw_garbage(dice),
        };
        let request = RequestPlan {
            object: self.objects.first().copied(),
            instead: Instead::Nothing,
            head: true,
            range: None,
            condition: Condition::None,
            close: false,
        };
        ConnectionPlan {
            gap: dice.log_micros(1..=100_000),
            requests: vec![request],
            pipeline: 1,
            think: Duration::ZERO,
            pause: None,
            read_bytes_max: usize::MAX,
            read_interval: Duration::ZERO,
            conduct,
            farewell: Farewell::NotifyAndFin,
            farewell_after_bytes: 0,
            refresh_bytes: None,
            attempt: 0,
        }
    }
}

pub(super) fn draw_plan(dice: &mut Dice) -> SecurePlan {
    SecurePlan {
        version: dice.pick(&[Version::Tls13, Version::Tls13, Version::Tls12]),
        aead: dice.pick(&[Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305]),
        resumes: dice.chance(600),
        is_sent_back: dice.chance(60),
        record_bytes_max: dice.chance(200).then(|| dice.size(40..=2000)),
    }
}

/// What changes for a connection because it is one of TLS.
fn secure_connection(
    dice: &mut Dice,
    swarm: Swarm,
    plan: SecurePlan,
    connection: &mut ConnectionPlan,
) {
    let asked = connection.requests.iter().filter(|request| !request.head);
    let body_bytes: u64 = asked
        .map(|request| request.expected().body.object_bytes())
        .sum();
    connection.farewell = dice.pick(&[
        Farewell::Fin,
        Farewell::Notify,
        Farewell::NotifyAndFin,
        Farewell::NotifyAndGarbage,
    ]);
    if dice.chance(500) {
        connection.farewell_after_bytes = dice.range(0..=body_bytes + 2000);
    }
    let refresh_bytes = dice.log_range(500..=200_000);
    if plan.version == Version::Tls13 && dice.chance(250) {
        connection.refresh_bytes = Some(refresh_bytes);
    }
    match &mut connection.conduct {
        Conduct::Dribble { interval } => *interval = (*interval).min(DRIBBLE_INTERVAL_MAX),
        Conduct::Garbage { is_sealed, .. } => *is_sealed = dice.chance(500),
        Conduct::Proper if swarm.misconduct && dice.chance(250) => {
            connection.conduct = draw_misconduct(dice);
        }
        _ => {}
    }
}

fn draw_misconduct(dice: &mut Dice) -> Conduct {
    match dice.range(0..=3) {
        0 => draw_stall(dice),
        1 => Conduct::Unsealed,
        _ => {
            let at_bytes = match dice.size(0..=1200) {
                // The first requests are met more often than chance would.
                place @ 600..=900 => HELLO_BYTES + (place - 600),
                place => place,
            };
            Conduct::Flip {
                at_bytes,
                bit: u8::try_from(dice.range(0..=7)).expect("invariant: a bit of a byte"),
            }
        }
    }
}

fn draw_stall(dice: &mut Dice) -> Conduct {
    Conduct::StallHandshake {
        sent_bytes: dice.size(0..=500),
        closes: dice.chance(300),
    }
}

fn draw_garbage(dice: &mut Dice) -> Conduct {
    Conduct::Garbage {
        length: dice.size(1..=3000),
        key: dice.bits(),
        is_sealed: dice.chance(300),
    }
}
