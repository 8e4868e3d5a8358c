//! Logs changes and failures of the link while the server runs: checked once a second, one line each; and has
//! changes of addresses followed ([`AddressWatch`]), as soon as the kernel notifies them.
//!
//! It refuses to change anything of the link but its limits (MTU, GSO size), and to log an event more often
//! than once in [`REPEAT_AFTER`]. Bound: one comparison of times in most rounds.

use std::os::fd::BorrowedFd;

use clock::{Duration, Instant};
use diskmap::Disk;
use link::{InterfaceState, InterfaceWatch, Link, LinkCounters, SetupError};
use session::AddressConflict;
use tracing::{info, warn};

use crate::run::address_watch::AddressWatch;
use crate::start::claim;
use worker::Worker;

/// How often the link is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What goes on happening is said again after this.
pub(crate) const REPEAT_AFTER: Duration = Duration::from_secs(10);
/// A server that received no frame at all for this long says what the reason may be.
pub(crate) const SILENCE_HINT_AFTER: Duration = Duration::from_secs(60);

/// Watches the link of one worker. Workers share an interface: only the first logs what concerns all,
/// and announces our addresses.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    watch: InterfaceWatch,
    /// `None`: no addresses are followed.
    addresses: Option<AddressWatch>,
    /// The interface's name when last looked at.
    name: String,
    is_first: bool,
    /// Why the interface could not be asked at the last look: logged once.
    failure: Option<SetupError>,
    /// Our MAC is one that the network may not let through.
    has_own_mac: bool,
    next_look: Instant,
    /// When to say that nothing was received; `None` once that is said or untrue.
    hint_at: Option<Instant>,
    /// Counters when last looked at.
    counters: LinkCounters,
    /// When refused frames may be told of again.
    refusals_told_until: Instant,
}

impl LinkWatch {
    /// Begins at `now`. `has_own_mac`: on an interface that has another one. `is_first`: of the first
    /// worker.
    #[must_use]
    pub(crate) fn new(
        watch: InterfaceWatch,
        now: Instant,
        has_own_mac: bool,
        is_first: bool,
    ) -> Self {
        Self {
            name: watch.name().to_owned(),
            watch,
            addresses: None,
            is_first,
            failure: None,
            has_own_mac,
            next_look: now,
            hint_at: Some(now + SILENCE_HINT_AFTER),
            counters: LinkCounters::default(),
            refusals_told_until: now,
        }
    }

    /// Has addresses followed from now on.
    ///
    /// # Errors
    /// The kernel does not let us.
    pub(crate) fn follow(&mut self, addresses: AddressWatch) -> Result<(), SetupError> {
        self.watch.follow_addresses()?;
        self.addresses = Some(addresses);
        Ok(())
    }

    /// Readable when [`LinkWatch::wake`] is to be called; `None`: nothing is waited for.
    pub(crate) fn poll_fd(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        let addresses = self.addresses.as_ref()?;
        addresses.is_waiting(now).then(|| self.watch.poll_fd())
    }

    /// It is time to look.
    pub(crate) const fn wake(&mut self) {
        self.next_look = Instant::ZERO;
    }

    /// When it is time to look.
    #[must_use]
    pub(crate) const fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Looks, if it is time to.
    pub(crate) fn look<L: Link, D: Disk>(&mut self, now: Instant, worker: &mut Worker<L, D>) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_INTERVAL;
        if let Some(AddressConflict { address, mac }) = worker.poll_conflict() {
            warn!(
                "the station {mac} on {} claims our address {address}: one of the two must give \
                 it up",
                self.watch.name()
            );
        }
        let before = self.watch.state();
        match self.watch.take_change() {
            Ok(change) => {
                self.failure = None;
                if let Some(state) = change {
                    self.on_change(now, before, state, worker);
                }
            }
            Err(error) => self.on_failure(error),
        }
        if let Some(addresses) = &mut self.addresses
            && let Some(at) = addresses.look(now, &mut self.watch, worker)
        {
            self.next_look = at;
        }
        self.tell_new_name();
        self.look_at_counters(now, worker.link().counters());
    }

    /// Nothing but messages depends on the name.
    fn tell_new_name(&mut self) {
        let name = self.watch.name();
        if name == self.name {
            return;
        }
        if self.is_first {
            info!("{} is called {name} now", self.name);
        }
        name.clone_into(&mut self.name);
    }

    /// The interface cannot be asked; the next look asks again. A link whose interface was removed notices it by
    /// itself. A tap may serve on where the interface was moved to.
    fn on_failure(&mut self, error: SetupError) {
        let is_known = self.failure.as_ref() == Some(&error);
        if self.is_first && !is_known {
            warn!("changes of {} cannot be followed: {error}", self.name);
        }
        self.failure = Some(error);
    }

    fn on_change<L: Link, D: Disk>(
        &mut self,
        now: Instant,
        before: InterfaceState,
        state: InterfaceState,
        worker: &mut Worker<L, D>,
    ) {
        let name = self.watch.name();
        match (before.carries_frames(), state.carries_frames()) {
            _ if !self.is_first => {}
            (_, false) => warn!("{}", claim::down_reason(name, state)),
            (false, true) => {
                info!("{name} carries frames again");
                worker.announce();
            }
            (true, true) => {}
        }
        if worker.apply_interface_state(now, &state) && self.is_first {
            info!(
                mtu_bytes = state.mtu_bytes,
                segmentation_bytes_max = state.segmentation_bytes_max,
                "{name} has other limits now"
            );
        }
    }

    fn look_at_counters(&mut self, now: Instant, counters: LinkCounters) {
        let before = std::mem::replace(&mut self.counters, counters);
        let is_silent = self.is_silent(now, counters.received_frames);
        let name = self.watch.name();
        if counters.bypass_end_events > before.bypass_end_events {
            info!(
                "{name} stopped segmenting or refused frames: they go through its queueing \
                 discipline from now on"
            );
        }
        if counters.refused_frames > before.refused_frames && now >= self.refusals_told_until {
            self.refusals_told_until = now + REPEAT_AFTER;
            warn!(
                refused_frames = counters.refused_frames,
                "{name} takes no frames for {} ms and longer: some are lost; see its queue \
                 (tc -s qdisc show dev {name}) and its driver's log",
                link::REFUSED_FOR_MAX.as_millis()
            );
        }
        if is_silent {
            info!(
                "nothing was received for our addresses on {name} for {} s: if clients cannot \
                 connect, the network may drop MAC addresses it does not know, as clouds, container \
                 networks and Wi-Fi do: try --mac interface",
                SILENCE_HINT_AFTER.as_secs()
            );
        }
    }

    /// Whether it is time to say that nothing was received: once, and only where that has a remedy.
    fn is_silent(&mut self, now: Instant, received_frames: u64) -> bool {
        if received_frames > 0 || !self.has_own_mac {
            self.hint_at = None;
        }
        self.hint_at.take_if(|hint_at| now >= *hint_at).is_some()
    }
}

#[cfg(test)]
mod tests {
    use clock::{Duration, Instant};
    use link::InterfaceWatch;

    use super::{LinkWatch, SILENCE_HINT_AFTER};

    const START: Instant = Instant::from_millis(5);

    fn watch(has_own_mac: bool) -> LinkWatch {
        LinkWatch::new(
            InterfaceWatch::open("lo").unwrap(),
            START,
            has_own_mac,
            true,
        )
    }

    #[test]
    fn a_link_without_received_frames_is_logged_once_and_only_with_a_mac_of_our_own() {
        let at = START + SILENCE_HINT_AFTER;
        let before = START + (SILENCE_HINT_AFTER - Duration::from_nanos(1));
        let mut silent = watch(true);
        assert!(!silent.is_silent(before, 0));
        assert!(silent.is_silent(at, 0));
        assert!(!silent.is_silent(at, 0));
        let mut heard = watch(true);
        assert!(!heard.is_silent(before, 1));
        assert!(!heard.is_silent(at, 1));
        assert!(!watch(false).is_silent(at, 0));
    }
}
