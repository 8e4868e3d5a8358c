//! The scenario `paths`: how well TCP sends over paths of many kinds.
//!
//! The other scenarios check bytes, leaks and hangs. This one has a path model ([`leg`]), a receiver
//! with the options of today's ([`receiver`]), and bounds on goodput, retransmissions and windows
//! ([`oracle`]), which follow from the parameters of the path. A seed determines one [`plan`].
//!
//! It refuses TLS and more than one receiver: a path of its own makes the bounds simple.

pub(crate) mod leg;
mod marks;
mod meter;
mod oracle;
mod plan;
mod ranges;
mod receiver;
mod run;
#[cfg(test)]
mod tests;

use tcp::Fault;

use crate::world::Outcome;
use crate::world::frame_log::FrameLog;
use plan::PathsPlan;
use run::Run;

/// One run of a seed, with a fault that is to be found.
pub(crate) fn run(seed: u64, fault: Option<Fault>, frame_log: FrameLog) -> (Outcome, FrameLog) {
    Run::new(&PathsPlan::draw(seed), fault, frame_log).run()
}

/// The plan of a seed, for people.
pub(crate) fn describe(seed: u64) -> String {
    format!("{:#?}", PathsPlan::draw(seed))
}
