//! Files that change in a scenario: which, how, when and how often.
//!
//! It refuses to let a file become shorter other than by being rewritten, which is the same for its clients. Bounded:
//! at most [`TIMES_MAX`] changes of a file, not more than one in [`INTERVAL_MICROS_MIN`].

use super::{Event, SIZE_SMALL_MAX, Scenario};
use crate::client::plan::{Change, Condition, Later, RequestPlan};
use crate::content::Content;
use crate::rng::Rng;

/// Most times that a file grows or is rewritten.
const TIMES_MAX: u64 = 100;
/// Shortest time from one of these to the next, and longest.
const INTERVAL_MICROS_MIN: u64 = 10_000;
const INTERVAL_MICROS_MAX: u64 = 500_000;
/// Most bytes that all growths of a file add, about.
const ADDED_BYTES_MAX: u64 = 200_000;

impl Scenario {
    /// Lets most of the objects that do not change yet change in one of these ways.
    pub(super) fn change_objects(&mut self, rng: &mut Rng, changes: &[Change]) {
        for object in &mut self.objects {
            if object.later.is_some() || rng.chance(200) {
                continue;
            }
            let bits = rng.bits();
            let first = self.epoch + rng.log_micros(10_000..=1_000_000);
            // A stream of its own, so that its draws do not change others.
            let mut rng = Rng::new(bits, 9);
            let change = rng.pick(changes);
            let content = match change {
                Change::Grown | Change::Touched | Change::Attributed => object.content,
                _ => Content::new(bits, object.number as u64, 1),
            };
            let mut later = Later {
                first,
                ..Later::once(change, content)
            };
            match change {
                Change::Grown | Change::Rewritten => {
                    let times = rng.log_range(1..=TIMES_MAX);
                    later.times = u32::try_from(times).expect("invariant: few");
                    later.interval = rng.log_micros(INTERVAL_MICROS_MIN..=INTERVAL_MICROS_MAX);
                    if change == Change::Grown {
                        later.added_bytes = rng.log_range(1..=ADDED_BYTES_MAX).div_ceil(times);
                    }
                }
                Change::Replaced => later.added_bytes = rng.pick(&[0, 1, 5000]),
                _ => {}
            }
            object.later = Some(later);
            for time in 0..later.times {
                let object = object.number;
                self.events
                    .push((first + later.interval * time, Event::Change { object }));
            }
        }
        self.events.sort_by_key(|(at, _)| *at);
        let connections = self
            .clients
            .iter_mut()
            .flat_map(|client| &mut client.connections);
        for request in connections.flat_map(|connection| &mut connection.requests) {
            if let Some(object) = &mut request.object {
                *object = self.objects[object.number];
            }
            if changes.len() > 1 && may_resume(request) && rng.chance(300) {
                request.condition = Condition::FirstIfRange;
            }
        }
    }

    /// Whether a file changes so.
    pub(super) fn changes(&self, change: Change) -> bool {
        let mut changes = self.objects.iter().filter_map(|object| object.later);
        changes.any(|later| later.change == change)
    }
}

/// Whether a request may get all of its object instead of a range.
fn may_resume(request: &RequestPlan) -> bool {
    let is_small = request
        .object
        .is_some_and(|object| object.size_bytes <= SIZE_SMALL_MAX);
    is_small && request.range.is_some() && request.condition == Condition::None
}
