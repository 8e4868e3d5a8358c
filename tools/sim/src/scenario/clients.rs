//! The clients of a scenario: where they are, what they ask for, how they behave.
//!
//! Bounded: at most [`CLIENTS_MAX`] clients, and a budget of body bytes for all of them together;
//! what would exceed it is asked for with HEAD.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use clock::Instant;

use super::SIZE_SMALL_MAX;
use super::theme::Swarm;
use crate::client::plan::{
    ClientPlan, Condition, Conduct, ConnectionPlan, Farewell, Instead, Misstep, ObjectPlan,
    PARTS_MAX, PartList, Pause, RangePlan, RequestPlan,
};
use crate::dice::Dice;

/// Most clients of one run.
pub(super) const CLIENTS_MAX: usize = 8;
/// Body bytes all clients of an ordinary run may ask for together, so that runs stay short.
const BODY_BYTES_MAX: u64 = 600_000;
/// The same for the one run in a hundred that is large.
pub(super) const BODY_BYTES_MAX_LARGE: u64 = 12_000_000;
/// IPv6 needs links of 1280 bytes (RFC 8200 s5).
pub(super) const MTU_BYTES_MIN_V6: u16 = 1280;

/// The clients of a run.
pub(super) fn draw_clients(
    dice: &mut Dice,
    swarm: Swarm,
    epoch: Instant,
    mtu_bytes: u16,
    objects: &[ObjectPlan],
) -> Vec<ClientPlan> {
    let count = dice.size(1..=CLIENTS_MAX);
    let budget = if swarm.large {
        BODY_BYTES_MAX_LARGE
    } else {
        BODY_BYTES_MAX
    };
    let mut budget_bytes = budget;
    (0..u8::try_from(count).expect("invariant: few"))
        .map(|number| {
            let v6 = mtu_bytes >= MTU_BYTES_MIN_V6 && dice.chance(400);
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
            let connections = (0..dice.range(1..=3))
                .map(|_| draw_connection(dice, swarm, objects, &mut budget_bytes))
                .collect();
            ClientPlan {
                number,
                address,
                starts: epoch + dice.log_micros(1..=200_000),
                mtu_bytes: if dice.chance(800) { mtu_bytes } else { narrow },
                receive_bytes: draw_window(dice),
                delays_acks: dice.chance(500),
                timestamps: dice.chance(500),
                seed: dice.bits(),
                secure: None,
                connections,
            }
        })
        .collect()
}

/// A receive buffer: ordinary ones, tiny ones, ones that need window scaling.
fn draw_window(dice: &mut Dice) -> usize {
    let any = dice.log_range(256..=500_000);
    let bytes = dice.pick(&[any, 65_535, 65_536, 262_144, 4_096, 131_072]);
    usize::try_from(bytes).expect("invariant: within usize")
}

fn draw_connection(
    dice: &mut Dice,
    swarm: Swarm,
    objects: &[ObjectPlan],
    budget_bytes: &mut u64,
) -> ConnectionPlan {
    let count = dice.pick(&[1, 1, 1, 2, 2, 3, 5]);
    let mut requests: Vec<_> = (0..count)
        .map(|_| draw_request(dice, objects, budget_bytes))
        .collect();
    if let Some(last) = requests.last_mut() {
        last.close = dice.chance(300);
    }
    let asked = requests.iter().filter(|request| !request.head);
    let body_bytes: u64 = asked
        .map(|request| request.expected().body.object_bytes())
        .sum();
    let pause = dice.chance(120).then(|| Pause {
        after_bytes: dice.range(1..=body_bytes.max(1)),
        lasts: dice.log_micros(1_000..=8_000_000),
    });
    let slow = dice.chance(150);
    ConnectionPlan {
        gap: dice.log_micros(1..=100_000),
        requests,
        pipeline: dice.pick(&[1, 1, 2, 4]),
        think: if dice.chance(300) {
            dice.log_micros(100..=500_000)
        } else {
            Duration::ZERO
        },
        pause,
        read_bytes_max: if slow {
            dice.size(500..=20_000)
        } else {
            usize::MAX
        },
        read_interval: dice.log_micros(50..=5_000),
        conduct: draw_conduct(dice, swarm, body_bytes),
        farewell: Farewell::Fin,
        farewell_after_bytes: 0,
        refresh_bytes: None,
        attempt: 0,
    }
}

fn draw_request(dice: &mut Dice, objects: &[ObjectPlan], budget_bytes: &mut u64) -> RequestPlan {
    let object = objects[dice.size(0..=objects.len() - 1)];
    let condition = match dice.range(0..=19) {
        0 => Condition::IfNoneMatch,
        1 => Condition::StaleIfRange,
        _ => Condition::None,
    };
    let mut request = RequestPlan {
        object: (!dice.chance(50)).then_some(object),
        instead: dice.pick(&Instead::ALL),
        head: dice.chance(100),
        range: draw_range(dice, object.size_bytes),
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

fn draw_range(dice: &mut Dice, size: u64) -> Option<RangePlan> {
    if size > SIZE_SMALL_MAX {
        return Some(draw_distant_range(dice, size));
    }
    Some(match dice.range(0..=9) {
        0 => {
            let first = dice.range(0..=size + 1);
            RangePlan::FirstToLast(first, first + dice.log_range(1..=size + 2) - 1)
        }
        1 => RangePlan::From(dice.range(0..=size)),
        2 => RangePlan::Last(dice.log_range(1..=size + 5)),
        3 if size >= 1000 => RangePlan::Several(draw_parts(dice, size)),
        _ => return None,
    })
}

/// A small part of a large object, where offsets outgrow 31 or 32 bits, or at its end.
fn draw_distant_range(dice: &mut Dice, size: u64) -> RangePlan {
    let near = dice.pick(&[1 << 31, 1 << 32, size, size / 2]).min(size);
    let first = near - dice.range(1..=40_000);
    let last = first + dice.log_range(1..=60_000);
    match dice.range(0..=3) {
        0 => RangePlan::Last(dice.log_range(1..=50_000)),
        1 if last + 20_000 < size => {
            RangePlan::Several(PartList::new(&[(first, 5_000), (last + 6_000, 10_000)]))
        }
        _ => RangePlan::FirstToLast(first, last),
    }
}

/// Parts that follow each other with gaps, at least a byte each.
fn draw_parts(dice: &mut Dice, size: u64) -> PartList {
    let count = dice.size(2..=PARTS_MAX);
    let share = size / count as u64;
    let parts: Vec<_> = (0..count as u64)
        .map(|part| {
            let skipped = dice.range(0..=share / 2);
            (part * share + skipped, dice.range(1..=share - skipped))
        })
        .collect();
    PartList::new(&parts)
}

fn draw_conduct(dice: &mut Dice, swarm: Swarm, body_bytes: u64) -> Conduct {
    let misstep = |dice: &mut Dice| Misstep {
        after_bytes: dice.range(0..=body_bytes + 200),
        after: dice.log_micros(10..=2_000_000),
    };
    if dice.chance(80) {
        return Conduct::HalfClose;
    }
    if dice.chance(60) {
        return Conduct::Dribble {
            interval: dice.log_micros(10..=10_000),
        };
    }
    if !swarm.misconduct || dice.chance(600) {
        return Conduct::Proper;
    }
    match dice.range(0..=3) {
        0 => Conduct::Reset(misstep(dice)),
        1 => Conduct::Vanish(misstep(dice)),
        2 => Conduct::StallHead {
            sent_bytes: dice.size(0..=60),
        },
        _ => Conduct::Garbage {
            length: dice.size(1..=5000),
            key: dice.bits(),
            is_sealed: false,
        },
    }
}
