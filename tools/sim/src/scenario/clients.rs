//! The clients of a scenario: where they are, what they request, how they behave.
//!
//! Bounded: at most [`CLIENTS_MAX`] clients, and a budget of body bytes for all of them together;
//! a request that would exceed it becomes a HEAD.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use clock::Instant;

use super::SIZE_SMALL_MAX;
use super::theme::{Fault, Swarm};
use crate::client::plan::{
    ClientPlan, Condition, Conduct, ConnectionPlan, Departure, Instead, ObjectPlan, PARTS_MAX,
    PartList, Pause, RangePlan, RequestPlan, StreamEnd,
};
use crate::rng::Rng;

/// Most clients of one run.
pub(super) const CLIENTS_MAX: usize = 8;
/// Most body bytes that all clients of an ordinary run request together, so that runs stay short.
const BODY_BYTES_MAX: u64 = 600_000;
/// The same for the one run in a hundred that is large.
pub(super) const BODY_BYTES_MAX_LARGE: u64 = 12_000_000;
/// IPv6 needs links of 1280 bytes (RFC 8200 s5).
pub(super) const MTU_BYTES_MIN_V6: u16 = 1280;

/// The clients of a run.
pub(super) fn draw_clients(
    rng: &mut Rng,
    swarm: Swarm,
    epoch: Instant,
    mtu_bytes: u16,
    objects: &[ObjectPlan],
) -> Vec<ClientPlan> {
    let count = rng.size(1..=CLIENTS_MAX);
    let budget = if swarm.has(Fault::Large) {
        BODY_BYTES_MAX_LARGE
    } else {
        BODY_BYTES_MAX
    };
    let mut budget_bytes = budget;
    (0..u8::try_from(count).expect("invariant: few"))
        .map(|number| {
            let v6 = mtu_bytes >= MTU_BYTES_MIN_V6 && rng.chance(400);
            let address = if v6 {
                IpAddr::from(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 1, number.into()))
            } else {
                IpAddr::from(Ipv4Addr::new(10, 9, 1, number))
            };
            let narrow = if v6 {
                MTU_BYTES_MIN_V6
            } else {
                576.min(mtu_bytes)
            };
            let connections = (0..rng.range(1..=3))
                .map(|_| draw_connection(rng, swarm, objects, &mut budget_bytes))
                .collect();
            ClientPlan {
                number,
                address,
                starts: epoch + rng.log_micros(1..=200_000),
                mtu_bytes: if rng.chance(800) { mtu_bytes } else { narrow },
                receive_bytes: draw_window(rng),
                delays_acks: rng.chance(500),
                timestamps: rng.chance(500),
                seed: rng.bits(),
                secure: None,
                connections,
            }
        })
        .collect()
}

/// A receive buffer: ordinary ones, tiny ones, ones that need window scaling.
fn draw_window(rng: &mut Rng) -> usize {
    let any = rng.log_range(256..=500_000);
    let bytes = rng.pick(&[any, 65_535, 65_536, 262_144, 4_096, 131_072]);
    usize::try_from(bytes).expect("invariant: within usize")
}

fn draw_connection(
    rng: &mut Rng,
    swarm: Swarm,
    objects: &[ObjectPlan],
    budget_bytes: &mut u64,
) -> ConnectionPlan {
    let count = rng.pick(&[1, 1, 1, 2, 2, 3, 5]);
    let mut requests: Vec<_> = (0..count)
        .map(|_| draw_request(rng, objects, budget_bytes))
        .collect();
    if let Some(last) = requests.last_mut() {
        last.close = rng.chance(300);
    }
    let asked = requests.iter().filter(|request| !request.head);
    let body_bytes: u64 = asked
        .map(|request| request.expected().body.object_bytes())
        .sum();
    let pause = rng.chance(120).then(|| Pause {
        after_bytes: rng.range(1..=body_bytes.max(1)),
        lasts: rng.log_micros(1_000..=8_000_000),
    });
    let slow = rng.chance(150);
    ConnectionPlan {
        gap: rng.log_micros(1..=100_000),
        requests,
        pipeline: rng.pick(&[1, 1, 2, 4]),
        think: if rng.chance(300) {
            rng.log_micros(100..=500_000)
        } else {
            Duration::ZERO
        },
        pause,
        read_bytes_max: if slow {
            rng.size(500..=20_000)
        } else {
            usize::MAX
        },
        read_interval: rng.log_micros(50..=5_000),
        conduct: draw_conduct(rng, swarm, body_bytes),
        stream_end: StreamEnd::Fin,
        stream_end_after_bytes: 0,
        refresh_bytes: None,
        attempt: 0,
    }
}

fn draw_request(rng: &mut Rng, objects: &[ObjectPlan], budget_bytes: &mut u64) -> RequestPlan {
    let object = objects[rng.size(0..=objects.len() - 1)];
    let condition = match rng.range(0..=19) {
        0 => Condition::IfNoneMatch,
        1 => Condition::StaleIfRange,
        _ => Condition::None,
    };
    let mut request = RequestPlan {
        object: (!rng.chance(50)).then_some(object),
        instead: rng.pick(&Instead::ALL),
        head: rng.chance(100),
        range: draw_range(rng, object.size_bytes),
        condition,
        close: false,
    };
    if !request.head {
        match budget_bytes.checked_sub(request.expected().body.object_bytes()) {
            Some(left) => *budget_bytes = left,
            None => request.head = true,
        }
    }
    request
}

fn draw_range(rng: &mut Rng, size: u64) -> Option<RangePlan> {
    if size > SIZE_SMALL_MAX {
        return Some(draw_distant_range(rng, size));
    }
    Some(match rng.range(0..=9) {
        0 => {
            let first = rng.range(0..=size + 1);
            RangePlan::FirstToLast(first, first + rng.log_range(1..=size + 2) - 1)
        }
        1 => RangePlan::From(rng.range(0..=size)),
        2 => RangePlan::Last(rng.log_range(1..=size + 5)),
        3 if size >= 1000 => RangePlan::Several(draw_parts(rng, size)),
        _ => return None,
    })
}

/// A small part of a large object, where offsets outgrow 31 or 32 bits, or at its end.
fn draw_distant_range(rng: &mut Rng, size: u64) -> RangePlan {
    let near = rng.pick(&[1 << 31, 1 << 32, size, size / 2]).min(size);
    let first = near - rng.range(1..=40_000);
    let last = first + rng.log_range(1..=60_000);
    match rng.range(0..=3) {
        0 => RangePlan::Last(rng.log_range(1..=50_000)),
        1 if last + 20_000 < size => {
            RangePlan::Several(PartList::new(&[(first, 5_000), (last + 6_000, 10_000)]))
        }
        _ => RangePlan::FirstToLast(first, last),
    }
}

/// Parts that follow each other with gaps, at least a byte each.
fn draw_parts(rng: &mut Rng, size: u64) -> PartList {
    let count = rng.size(2..=PARTS_MAX);
    let share = size / count as u64;
    let parts: Vec<_> = (0..count as u64)
        .map(|part| {
            let skipped = rng.range(0..=share / 2);
            (part * share + skipped, rng.range(1..=share - skipped))
        })
        .collect();
    PartList::new(&parts)
}

fn draw_conduct(rng: &mut Rng, swarm: Swarm, body_bytes: u64) -> Conduct {
    let departure = |rng: &mut Rng| Departure {
        after_bytes: rng.range(0..=body_bytes + 200),
        after: rng.log_micros(10..=2_000_000),
    };
    if rng.chance(80) {
        return Conduct::HalfClose;
    }
    if rng.chance(60) {
        return Conduct::Dribble {
            interval: rng.log_micros(10..=10_000),
        };
    }
    if !swarm.has(Fault::Misconduct) || rng.chance(600) {
        return Conduct::Proper;
    }
    match rng.range(0..=3) {
        0 => Conduct::Reset(departure(rng)),
        1 => Conduct::Vanish(departure(rng)),
        2 => Conduct::StallHead {
            sent_bytes: rng.size(0..=60),
        },
        _ => Conduct::Garbage {
            length: rng.size(1..=5000),
            key: rng.bits(),
            is_sealed: false,
        },
    }
}
