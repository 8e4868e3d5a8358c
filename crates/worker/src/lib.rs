//! One worker: carries frames, reads and lookups between the rooms, one bounded round at a time.
//!
//! [`Worker::step`] is the whole data path's control flow, and the same code in the simulator,
//! which hands it a virtual time, a simulated link and a simulated disk. It refuses to read a
//! clock, to wait and to make a system call of its own.
//!
//! The order within a round is chosen for latency: what has just arrived turns into what leaves
//! before the round ends.
//!
//! ```text
//!   frames ──▶ conductor ◀── lookups answered, reads completed, timers due
//!                  │
//!                  ├──▶ handshakes: a quarter of the time, each costs as much as sealing megabytes
//!                  ├──▶ lookups: a cached answer is returned at once
//!                  ├──▶ reads: the credit of the ACKs above, submitted by one system call
//!                  └──▶ frames: the reads completed above, while the device works on the new ones
//! ```
//!
//! Reads are submitted before frames are sent, although a sent frame would free a slot that is still
//! in the cache: the device then starts tens of microseconds earlier, and the LIFO arena keeps few
//! enough slots in use that they stay in the cache.
//!
//! Bounds: [`RECEIVE_FRAMES_MAX`], [`COMPLETIONS_MAX`], those of [`handshakes`], [`LOOKUPS_MAX`],
//! [`READS_MAX`] and [`TRANSMIT_FRAMES_MAX`] a round. Nothing is allocated here after start, but
//! for what `objects` and [`tls`] say.

#![forbid(unsafe_code)]

mod faults;
mod frame_watch;
pub mod handshakes;
pub mod limiter;
mod listing;
mod objects;
pub mod qlog;
pub mod requests;
mod slot_budget;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tls;
pub mod warnings;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use clock::{Duration, Instant, UnixTime, earlier};
use counters::{CounterSet as _, Gauge, counters};
use diskmap::{Completion, Disk, DiskError, FileIndex, Read};
use link::{InterfaceState, Link, LinkError, Received, Sent, TransmitError};
use memory::Arena;
use session::{
    AddressConflict, Conductor, ConnectionTrace, CrossingError, Histograms, ObjectHandle, Process,
    ReadError, ReadPlan, RequestLog, SiteCounters, Stray, TlsAnswer, TlsPlan, TlsToken,
    TransmitProgress, Transmitted,
};
use sites::Sites;
use store::Store;
use wire::MacAddress;

use handshakes::{Credit, KEYS_MAX, RECORDS_MAX};

use objects::Objects;
use requests::{Counted, Missed};
use slot_budget::SlotBudget;
use tls::{Handshaker, Loaded};
use warnings::{Kind, Warning, Warnings, push_errno};

pub use frame_watch::FrameWatch;
pub use listing::{Page, Row};
pub use objects::LookupCounters;
pub use slot_budget::LEAST as SLOTS_IN_USE_LEAST;

/// Most frames received in a round: as many as the packet link's ring holds, so that each round
/// begins with nothing left unread. Clients send up to two dozen acknowledgments for each frame of
/// 64 KiB; a bound near [`COMPLETIONS_MAX`] let the ring run over with thousands of busy clients,
/// and each acknowledgment lost there cost a tail loss probe. The price is paid in floods, where a
/// full ring comes before the 64 completions of a round: of acknowledgments it leaves what is being
/// served about half of the core, of SYN, each answered, about a fifth `[guess]`.
pub const RECEIVE_FRAMES_MAX: usize = 2_048;
/// Most completions taken in a round.
pub const COMPLETIONS_MAX: usize = 64;
/// Most lookups begun, most answered later, and most begun again after they waited for room in the
/// store, in a round.
pub const LOOKUPS_MAX: usize = 64;
/// Most places of the table of connections in which users of outdated objects are looked for in a round.
pub const PLACES_MAX: u32 = 1024;
/// Most reads enqueued in a round. The disk's queue and the slots bound them too.
pub const READS_MAX: usize = 256;
/// Most frames sent in a round: an answer for each frame received, and a frame for each completion.
/// Those of 64 KiB are the latter: a millisecond or two of one core.
pub const TRANSMIT_FRAMES_MAX: usize = RECEIVE_FRAMES_MAX + COMPLETIONS_MAX;

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Whether anything happened. If so, another round may find more at once.
    pub progressed: bool,
    /// Whether frames wait because the link is full.
    pub blocked_on_link: bool,
    /// When the next round has work even if nothing arrives.
    pub next_timeout: Option<Instant>,
    /// The same without clients' timers, which may fire a moment late: when devices are asked that wake nobody.
    pub next_look: Option<Instant>,
}

/// An error that ends a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The interface was removed.
    #[error("{0}")]
    Link(LinkError),
    /// The kernel accepts no more reads.
    #[error("the disk takes no more reads: {0}")]
    Disk(DiskError),
}

/// Everything one worker owns.
#[derive(Debug)]
pub struct Worker<L: Link, D: Disk> {
    link: L,
    disk: D,
    objects: Objects,
    conductor: Conductor,
    arena: Arena,
    /// `None`: nothing is served over TLS.
    tls: Option<Handshaker>,
    /// What handshakes may still cost.
    credit: Credit,
    /// Those taken from the disk in this round; at most [`COMPLETIONS_MAX`].
    completions: VecDeque<Completion>,
    /// What was last read into each slot, by the slot's index.
    reading: Vec<Option<(ObjectHandle, FileIndex)>>,
    /// How many slots may be in use.
    slots: SlotBudget,
    /// The place of the table of connections from which on users of outdated objects are looked for.
    outdated_from: Option<u32>,
    /// Failures that affect clients, for the log.
    warnings: Warnings,
    counters: Counters,
    /// How long slots were on loan, added up, as the rounds saw it.
    lent_time_ns: u128,
    /// Up to when the time of slots on loan is counted.
    lent_until: Instant,
    /// Is shown frames; `None`: nobody is.
    frame_watch: Option<Box<dyn FrameWatch>>,
}

impl<L: Link, D: Disk> Drop for Worker<L, D> {
    fn drop(&mut self) {
        // The arena is there, and nothing looks into its slots any more.
        self.link.return_slots();
    }
}

counters! {
    /// What a worker did, and has.
    #[derive(Clone, Copy, Debug)]
    pub struct Counters {
        /// Rounds of the worker.
        server_step_rounds: u64,
        /// Rounds without progress.
        server_empty_rounds: u64,
        /// Rounds that ended with the link full.
        server_blocked_rounds: u64,
        /// Rounds that began fewer reads than clients wanted, because of the limit of read buffers in
        /// use.
        server_held_rounds: u64,
        /// Microseconds that read buffers were lent to the network device, added up: divided by
        /// `link_lent_frames`, how long one is.
        server_lent_slots_us: u64,
        /// Open connections, half-open ones included.
        server_open_connections: Gauge,
        /// Read buffers that are free.
        memory_free_slots: Gauge,
        /// Read buffers that the network device has not read yet, of frames sent without a copy.
        memory_lent_slots: Gauge,
        /// Read buffers that were sent from and are kept, for the next bursts of their clients and for what is lost.
        memory_kept_slots: Gauge,
        /// Read buffers that may be in use now: as many as keep the disk and the network device busy.
        memory_limit_slots: Gauge,
        /// Read buffers in all.
        memory_all_slots: Gauge,
    }
}

impl<L: Link, D: Disk> Worker<L, D> {
    /// Puts a worker together. `disk` was made for `arena`, `conductor` told the capabilities of
    /// `link`, and `tls` as many connections as the conductor.
    #[must_use]
    pub fn new(
        link: L,
        disk: D,
        store: Store,
        conductor: Conductor,
        arena: Arena,
        tls: Option<Handshaker>,
    ) -> Self {
        Self {
            link,
            disk,
            // A client has one look-up at a time.
            objects: Objects::new(store, conductor.connections_max()),
            conductor,
            completions: VecDeque::with_capacity(COMPLETIONS_MAX),
            reading: vec![None; arena.slot_count()],
            slots: SlotBudget::new(arena.slot_count()),
            outdated_from: None,
            arena,
            tls,
            credit: Credit::new(),
            warnings: Warnings::default(),
            counters: Counters::default(),
            lent_time_ns: 0,
            lent_until: Instant::ZERO,
            frame_watch: None,
        }
    }

    /// One bounded round.
    ///
    /// # Errors
    /// The interface was removed, or the disk accepts no more reads: the worker cannot go on.
    pub fn step(&mut self, now: Instant) -> Result<Step, WorkerError> {
        self.slots.begin_round(now);
        let mut progressed = self.receive(now)? > 0;
        progressed |= self.take_answers(now);
        progressed |= self.take_completions(now);
        progressed |= self.fire_timers(now);
        progressed |= self.drive_handshakes(now, !progressed);
        self.objects.expire_unused(now);
        progressed |= self.end_outdated(now);
        // Handles retired by the answers above are free again for the look-ups below.
        progressed |= self.objects.close_unused(&mut self.disk);
        progressed |= self.look_up(now);
        // As late as it can be: a read takes the slot that came back last.
        progressed |= self.take_back_slots(now);
        progressed |= self.fetch(now)?;
        let (sent, blocked_on_link) = self.transmit(now);
        progressed |= sent;
        self.conductor.expire_kept(now, &mut self.arena);
        // Before objects are released: the log needs their paths.
        self.log_warnings(now);
        progressed |= self.release_objects();
        self.slots.end_round(now, progressed, blocked_on_link);
        self.counters.server_step_rounds += 1;
        self.counters.server_empty_rounds += u64::from(!progressed);
        self.counters.server_blocked_rounds += u64::from(blocked_on_link);
        let next_look = self.next_look(now, blocked_on_link);
        Ok(Step {
            progressed,
            blocked_on_link,
            next_timeout: earlier(self.conductor.poll_timeout(), next_look),
            next_look,
        })
    }

    /// For handshakes that begin from now on; means nothing without TLS.
    pub fn set_tls(&mut self, loaded: &Loaded) {
        if let Some(tls) = &mut self.tls {
            tls.set_config(Arc::clone(&loaded.config));
            tls.set_certificate_end(loaded.certificates.earliest_end());
        }
    }

    /// For requests that are answered from now on.
    pub fn set_sites(&mut self, sites: Arc<Sites>) {
        self.conductor.set_sites(sites);
    }

    /// Tells the wall clock's time, which replies are dated with ([`Conductor::set_unix_seconds`]) and from
    /// which the age of files is reckoned: to be called right before each round. A clock that is ahead of
    /// the one that the kernel dates files by would call files older than they are.
    pub fn set_unix_time(&mut self, unix_time: UnixTime) {
        self.conductor.set_unix_seconds(unix_time.whole_seconds());
        self.objects.set_unix_time(unix_time);
    }

    /// Whether the names that requests ask for are kept, for [`Worker::take_missed`] and [`Worker::counted`].
    pub const fn keep_names(&mut self, is_kept: bool) {
        self.objects.keep_names(is_kept);
    }

    /// Names that were asked for and are not there, each once, since this was last called.
    pub fn take_missed(&mut self) -> Vec<Missed> {
        self.objects.take_missed()
    }

    /// Keeps names that [`Worker::take_missed`] has just returned, and that nobody was told.
    pub fn put_back_missed(&mut self, names: Vec<Missed>) {
        self.objects.put_back_missed(names);
    }

    /// How often objects were asked for, of those that are asked for most; from which one on, and how many at most.
    /// Returns from where on there are more.
    #[must_use]
    pub fn counted(&self, from: usize, most: usize) -> (Vec<Counted>, Option<usize>) {
        self.objects.counted(from, most)
    }

    /// From now on `log` is told of every request.
    pub fn set_request_log(&mut self, log: Box<dyn RequestLog>) {
        self.conductor.set_request_log(log);
    }

    /// Asks `trace` about every connection that is established from now on.
    pub fn set_connection_trace(&mut self, trace: Box<dyn ConnectionTrace>) {
        self.conductor.set_connection_trace(trace);
    }

    /// Asks `trace` about every connection there is, and about those that come; `None`: none is traced any more.
    pub fn trace_from_now(&mut self, now: Instant, trace: Option<Box<dyn ConnectionTrace>>) {
        self.conductor.trace_from_now(now, trace);
    }

    /// Shows frames to `watch` from now on; `None`: to nobody.
    pub fn watch_frames(&mut self, watch: Option<Box<dyn FrameWatch>>) {
        self.frame_watch = watch;
    }

    /// Refuses new connections and requests; replies under way go on.
    pub fn shut_down(&mut self, now: Instant) {
        self.conductor.shut_down(now);
    }

    /// After [`Worker::shut_down`]: whether all that is left is clients that have everything and do not close.
    pub fn is_finished(&mut self) -> bool {
        self.conductor.is_finished()
    }

    /// Resets every connection that is not finished. The resets leave in the rounds that follow.
    pub fn abort_all(&mut self) {
        self.conductor.abort_all();
    }

    /// Sends frames and does nothing else: sends the resets of [`Worker::abort_all`] after the disk
    /// or the link has failed, or after a second signal.
    pub fn transmit_only(&mut self, now: Instant) -> Step {
        let (progressed, blocked_on_link) = self.transmit(now);
        let next_look = blocked_on_link.then(|| now + link::FULL_RETRY_AFTER);
        Step {
            progressed,
            blocked_on_link,
            next_timeout: next_look,
            next_look,
        }
    }

    /// Announces our addresses to the network again.
    pub fn announce(&mut self) {
        self.conductor.announce();
    }

    /// The last conflict about one of our addresses that has not been asked for yet.
    pub fn poll_conflict(&mut self) -> Option<AddressConflict> {
        self.conductor.poll_conflict()
    }

    /// Applies the state of the interface; whether its limits have changed.
    pub fn apply_interface_state(&mut self, now: Instant, state: &InterfaceState) -> bool {
        let before = self.link.capabilities();
        let after = self.link.apply_interface_state(state);
        if after == before {
            return false;
        }
        let (mtu, segmentation) = (after.mtu_bytes, after.segmentation_bytes_max);
        self.conductor.set_link_limits(now, mtu, segmentation);
        true
    }

    /// Serves at these addresses from now on, and at no others. Returns how many connections are reset, because
    /// their address is none of them.
    pub fn set_addresses(&mut self, addresses: &[IpAddr], virtual_addresses: &[IpAddr]) -> usize {
        self.conductor.set_addresses(addresses, virtual_addresses)
    }

    /// Has the link take frames to these addresses of the host's, for all workers.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn share_addresses(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        let shared = self.link.share_addresses(addresses);
        shared.map_err(io::Error::from_raw_os_error)
    }

    /// Where the gateways of our link are, by which virtual addresses answer.
    pub fn set_gateways(&mut self, now: Instant, gateways: &[(IpAddr, MacAddress)]) {
        self.conductor.set_gateways(now, gateways);
    }

    /// What this worker has no connection for, to be brought to the next worker; see
    /// [`Conductor::set_other_workers`]. To be polled after each round.
    pub fn poll_stray(&mut self) -> Option<Stray> {
        self.conductor.poll_stray()
    }

    /// A stray of another worker arrived. To be called before a round, which goes on with it.
    pub fn handle_stray(&mut self, now: Instant, stray: Stray) {
        self.conductor.handle_stray(now, &mut self.arena, stray);
    }

    /// See [`Conductor::set_predecessor`].
    pub fn set_predecessor(&mut self, is_there: bool) {
        self.conductor.set_predecessor(is_there);
    }

    /// See [`Conductor::set_successor`].
    pub fn set_successor(&mut self, is_there: bool) {
        self.conductor.set_successor(is_there);
    }

    /// Whether frames reach the link from now on: see [`Link::set_receiving`].
    ///
    /// # Errors
    /// What the kernel said; the device has not given back all slots that it was lent.
    pub fn set_receiving(&mut self, is_receiving: bool) -> io::Result<()> {
        let set = self.link.set_receiving(is_receiving);
        set.map_err(|errno| match io::Error::from_raw_os_error(errno) {
            error if !is_receiving && error.kind() == io::ErrorKind::ResourceBusy => {
                let problem = "the network device has not sent all that it reads from slots";
                io::Error::other(format!("{problem} ({error}): reload again"))
            }
            error => error,
        })
    }

    /// The next packet for the other process of a take-over. To be polled after each round.
    pub fn poll_crossing(&mut self) -> Option<(Process, Stray)> {
        self.conductor.poll_crossing()
    }

    /// A message of the other process arrived. To be called before a round, which goes on with it.
    ///
    /// # Errors
    /// It means nothing here.
    pub fn handle_crossing(
        &mut self,
        now: Instant,
        from: Process,
        message: &[u8],
    ) -> Result<(), CrossingError> {
        (self.conductor).handle_crossing(now, &mut self.arena, from, message)
    }

    /// See [`Conductor::kept_since`].
    #[must_use]
    pub fn kept_since(&self) -> Option<Instant> {
        self.conductor.kept_since()
    }

    /// Open connections, half-open ones included.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.conductor.connection_count()
    }

    fn receive(&mut self, now: Instant) -> Result<usize, WorkerError> {
        let Self {
            link,
            conductor,
            arena,
            frame_watch,
            ..
        } = self;
        let mut sink = |Received { frame, checksum }: Received<'_>| {
            if let Some(watch) = frame_watch {
                frame_watch::show(&mut **watch, now, &[frame]);
            }
            conductor.handle_frame(now, arena, frame, checksum);
        };
        let count = link
            .receive(now, RECEIVE_FRAMES_MAX, &mut sink)
            .map_err(WorkerError::Link)?;
        self.conductor.end_batch(now, &mut self.arena);
        Ok(count)
    }

    /// Slots in use, but for those that are kept for bursts to come.
    fn in_use(&self) -> usize {
        let taken = self.arena.slot_count() - self.arena.free_count();
        taken.saturating_sub(self.conductor.kept_slots())
    }

    /// Slots on loan that the link's device has read.
    fn take_back_slots(&mut self, now: Instant) -> bool {
        let since = std::mem::replace(&mut self.lent_until, now);
        let Self {
            link, arena, slots, ..
        } = self;
        let lent = arena.lent_count();
        if lent == 0 {
            slots.adapt(now, false);
            return false;
        }
        let elapsed = now.since(since);
        self.lent_time_ns += elapsed.as_nanos() * lent as u128;
        link.give_back(now, &mut |slot| {
            arena.give_back(slot);
            slots.give_back(slot);
        });
        let is_any_back = arena.lent_count() < lent;
        slots.adapt(now, is_any_back);
        is_any_back
    }

    /// Look-ups that the store could not answer at once.
    fn take_answers(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        for _ in 0..LOOKUPS_MAX {
            let answer = self.objects.poll_answer(now, &mut self.disk);
            let Some((token, answer)) = answer else { break };
            self.conductor.handle_lookup(now, token, answer);
            is_any = true;
        }
        is_any
    }

    /// All are taken from the disk first: what the later ones need comes into the caches meanwhile.
    fn take_completions(&mut self, now: Instant) -> bool {
        let Self {
            disk,
            objects,
            conductor,
            arena,
            reading,
            completions,
            ..
        } = self;
        let mut sink = |_: &mut Arena, completion| completions.push_back(completion);
        let count = disk.consume_completions(now, arena, COMPLETIONS_MAX, &mut sink);
        while let Some(Completion { token, result }) = completions.pop_front() {
            conductor.prefetch_completions(|place| completions.get(place).map(|next| next.token));
            let mut failed = None;
            let result = result.map_err(|(slot, error)| {
                let read = reading.get(table_index(slot.index())).copied().flatten();
                let (object, file) = read.expect("invariant: reads are noted before they are made");
                failed = Some((object, file, error));
                (slot, read_error(error))
            });
            let is_reset = conductor.handle_completion(now, arena, token, result);
            if let Some((object, file, error)) = failed {
                objects.on_read_failed(object, file, error, is_reset);
            }
        }
        count > 0
    }

    /// Comes behind [`Worker::receive`]: the acknowledgment that a retransmission timer misses may
    /// have been waiting.
    fn fire_timers(&mut self, now: Instant) -> bool {
        let is_due = self.conductor.poll_timeout().is_some_and(|due| due <= now);
        if is_due {
            self.conductor.handle_timeouts(now, &mut self.arena);
        }
        is_due
    }

    /// Carries out the conductor's TLS plans: first the cheap ones, most of which complete
    /// handshakes whose costly part is done; then ClientHellos, as long as there is credit.
    /// `is_idle`: nothing else happened in this round, so a ClientHello delays nobody.
    ///
    /// A ClientHello left over does not wait for the worker to wake up: something happened in this
    /// round, so another round follows at once.
    fn drive_handshakes(&mut self, now: Instant, is_idle: bool) -> bool {
        self.credit.begin_round(now);
        let (mut is_any, mut records, mut keys) = (false, 0, 0);
        while records < RECORDS_MAX && keys < KEYS_MAX {
            let Some(plan) = self.conductor.poll_tls() else {
                break;
            };
            is_any = true;
            records += usize::from(matches!(plan, TlsPlan::Handshake { .. }));
            keys += usize::from(matches!(plan, TlsPlan::NextKey { .. }));
            self.carry_out(now, plan);
        }
        let mut is_free = is_idle && !is_any;
        while is_free || self.credit.is_left() {
            let Some(plan) = self.conductor.poll_hello() else {
                break;
            };
            (is_any, is_free) = (true, false);
            self.carry_out(now, plan);
        }
        is_any
    }

    /// Has a plan answered, and charges it.
    fn carry_out(&mut self, now: Instant, plan: TlsPlan) {
        let answer = match &mut self.tls {
            Some(tls) => {
                let before_us = tls.cost_us();
                let answer = tls.handle(plan);
                self.credit.charge(tls.cost_us() - before_us);
                answer
            }
            None => fail(&plan),
        };
        if let Some((token, answer)) = answer {
            let arena = &mut self.arena;
            self.conductor.handle_tls(now, arena, token, answer);
        }
    }

    /// Resets those who are still being sent an object that was replaced or removed long ago.
    fn end_outdated(&mut self, now: Instant) -> bool {
        if self.outdated_from.is_none() && self.objects.take_outdated(now) {
            self.outdated_from = Some(0);
        }
        let Some(from) = self.outdated_from else {
            return false;
        };
        let is_ended = |object| self.objects.is_ended(object);
        self.outdated_from = self.conductor.reset_users(from, PLACES_MAX, &is_ended);
        true
    }

    /// Looks up what waited for room in the store, then what was not there, then what is asked now.
    fn look_up(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        for _ in 0..LOOKUPS_MAX {
            let Some(question) = self.objects.poll_waiting(now) else {
                break;
            };
            if let Some((token, answer)) = self.objects.ask(now, &mut self.disk, question) {
                self.conductor.handle_lookup(now, token, answer);
            }
            is_any = true;
        }
        for _ in 0..LOOKUPS_MAX {
            let Some(answered) = self.objects.go_on_with_held(now, &mut self.disk) else {
                break;
            };
            if let Some((token, answer)) = answered {
                self.conductor.handle_lookup(now, token, answer);
            }
            is_any = true;
        }
        self.objects.close_unused(&mut self.disk);
        for _ in 0..LOOKUPS_MAX {
            let Some(plan) = self.conductor.poll_lookup() else {
                break;
            };
            if let Some((token, answer)) = self.objects.look_up(now, &mut self.disk, plan) {
                self.conductor.handle_lookup(now, token, answer);
            }
            is_any = true;
        }
        is_any
    }

    /// Turns credit into reads and submits all of them by one system call.
    fn fetch(&mut self, now: Instant) -> Result<bool, WorkerError> {
        let mut enqueued = 0;
        (self.conductor).set_busy(self.slots.is_busy(now));
        while enqueued < READS_MAX {
            if !self.slots.permit(self.in_use()) {
                if self.conductor.wants_read() {
                    self.slots.hold();
                    self.counters.server_held_rounds += 1;
                }
                break;
            }
            let Some(plan) = self.conductor.poll_read(now, &mut self.arena) else {
                break;
            };
            if let Err(plan) = self.enqueue(plan) {
                self.conductor.return_read(&mut self.arena, plan);
                break;
            }
            enqueued += 1;
        }
        self.disk.sqsync(now).map_err(WorkerError::Disk)?;
        Ok(enqueued > 0)
    }

    fn enqueue(&mut self, plan: ReadPlan) -> Result<(), ReadPlan> {
        let ReadPlan {
            object,
            offset_bytes,
            length_bytes,
            slot,
            token,
        } = plan;
        let file = self.objects.file_of(object);
        if let Some(place) = self.reading.get_mut(table_index(slot.index())) {
            *place = Some((object, file));
        }
        let read = Read {
            file,
            offset_bytes,
            length_bytes,
            slot,
            token,
        };
        self.disk.read(&mut self.arena, read).map_err(|read| {
            let Read {
                offset_bytes,
                length_bytes,
                slot,
                token,
                ..
            } = read;
            ReadPlan {
                object,
                offset_bytes,
                length_bytes,
                slot,
                token,
            }
        })
    }

    /// Sends frames, and more if they wait for slots that have come back meanwhile. Returns whether any was sent, and
    /// whether the link is full.
    fn transmit(&mut self, now: Instant) -> (bool, bool) {
        let (mut is_any, mut is_full) = self.offer_frames(now);
        while self.slots.is_blocked() && self.take_back_slots(now) {
            let more = self.offer_frames(now);
            (is_any, is_full) = (is_any | more.0, more.1);
        }
        (is_any, is_full)
    }

    fn offer_frames(&mut self, now: Instant) -> (bool, bool) {
        let Self {
            link,
            conductor,
            arena,
            warnings,
            slots,
            frame_watch,
            ..
        } = self;
        let (mut offered, mut is_full) = (0, false);
        let memory = arena.slot_memory();
        let mut sink = |frame: &wire::Outgoing<'_>| {
            // The round's limit, not the link's: the next round goes on at once.
            if offered == TRANSMIT_FRAMES_MAX {
                return Transmitted::Full;
            }
            let last = frame.payload.last();
            let is_for_loan = last.is_some_and(|part| {
                part.len() >= link::LENT_BYTES_MIN && memory.find(part).is_some()
            });
            if is_for_loan && !slots.permit_loan(now) {
                return Transmitted::Full;
            }
            let sent = link.transmit(now, frame);
            if let Some(watch) = frame_watch
                && sent.is_ok()
            {
                let mut parts = vec![frame.headers];
                parts.extend(frame.payload);
                frame_watch::show(&mut **watch, now, &parts);
            }
            match sent {
                Err(TransmitError::Full) => {
                    is_full = true;
                    Transmitted::Full
                }
                Ok(Sent::Copied) => {
                    offered += 1;
                    Transmitted::Taken
                }
                Ok(Sent::Lent(slot)) => {
                    slots.lend(now, slot);
                    offered += 1;
                    Transmitted::Lent
                }
                // TCP detects the loss; the link has counted it.
                Err(TransmitError::Lost(errno)) => {
                    warnings.note(now, Kind::FrameLost, 1, |text| push_errno(text, errno));
                    offered += 1;
                    Transmitted::Taken
                }
            }
        };
        let progress = conductor.transmit(now, arena, &mut sink);
        debug_assert!(
            progress == TransmitProgress::Full || !is_full,
            "the conductor has forgotten a frame that the link did not take"
        );
        (offered > 0, is_full)
    }

    /// Releases the objects that the conductor no longer uses, and closes those the store evicted.
    fn release_objects(&mut self) -> bool {
        let mut is_any = false;
        while let Some(object) = self.conductor.poll_released() {
            self.objects.release(object);
            is_any = true;
        }
        self.objects.close_unused(&mut self.disk) || is_any
    }

    fn next_look(&self, now: Instant, blocked_on_link: bool) -> Option<Instant> {
        // Nothing wakes us when a device has read a slot: look again when all are in use.
        let is_starved = self.arena.free_count() == 0 && self.arena.lent_count() > 0;
        let retry = (blocked_on_link || is_starved).then(|| now + link::FULL_RETRY_AFTER);
        let overdue = self.objects.poll_timeout();
        let completions = self.disk.next_poll(now);
        let held = self.slots.next_timeout();
        [overdue, retry, completions, held]
            .into_iter()
            .flatten()
            .min()
    }

    /// The next warning for the log.
    pub fn poll_warning(&mut self, now: Instant) -> Option<Warning> {
        self.warnings.poll(now)
    }

    /// See [`Conductor::shortest_rtt`].
    pub fn shortest_rtt(&mut self, now: Instant) -> Option<Duration> {
        self.conductor.shortest_rtt(now)
    }

    /// The link.
    #[must_use]
    pub const fn link(&self) -> &L {
        &self.link
    }

    /// The link, for who drives it.
    #[must_use]
    pub const fn link_mut(&mut self) -> &mut L {
        &mut self.link
    }

    /// The disk.
    #[must_use]
    pub const fn disk(&self) -> &D {
        &self.disk
    }

    /// The disk, for the simulator to drive.
    #[must_use]
    pub const fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &Store {
        self.objects.store()
    }

    /// The store, to have its directory opened again, or for the simulator to change what is in it.
    #[must_use]
    pub const fn store_mut(&mut self) -> &mut Store {
        self.objects.store_mut()
    }

    /// The conductor.
    #[must_use]
    pub const fn conductor(&self) -> &Conductor {
        &self.conductor
    }

    /// The arena. Quiet means that all its slots are free.
    #[must_use]
    pub const fn arena(&self) -> &Arena {
        &self.arena
    }

    /// How long things took so far.
    #[must_use]
    pub const fn histograms(&self) -> &Histograms {
        self.conductor.histograms()
    }

    /// What became of the requests of each site; see [`Conductor::site_counters`].
    #[must_use]
    pub const fn site_counters(&self) -> &[SiteCounters] {
        self.conductor.site_counters()
    }

    /// Every counter of every room, in a fixed order, each name once.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let own = Counters {
            server_lent_slots_us: u64::try_from(self.lent_time_ns / 1_000).unwrap_or(u64::MAX),
            server_open_connections: gauge(self.connection_count()),
            memory_free_slots: gauge(self.arena.free_count()),
            memory_lent_slots: gauge(self.arena.lent_count()),
            memory_kept_slots: gauge(self.conductor.kept_slots()),
            memory_limit_slots: gauge(self.slots.limit()),
            memory_all_slots: gauge(self.arena.slot_count()),
            ..self.counters
        };
        let mut pairs = own.as_pairs();
        pairs.extend(self.objects.counters().as_pairs());
        pairs.extend(self.link.counters().as_pairs());
        pairs.extend(self.disk.counters().as_pairs());
        pairs.extend(self.disk.own_counters());
        pairs.extend(self.objects.store().counters().as_pairs());
        pairs.extend(self.tls.iter().flat_map(Handshaker::counters));
        pairs.extend(self.conductor.counters().as_pairs());
        pairs
    }
}

/// A count as counters carry it.
fn gauge(count: usize) -> Gauge {
    Gauge(u64::try_from(count).unwrap_or(u64::MAX))
}

/// A slot's index as one of a table.
fn table_index(slot: u32) -> usize {
    usize::try_from(slot).expect("invariant: a usize has at least 32 bits")
}

/// The answer to a plan of TLS on a worker that has no handshaker.
fn fail(plan: &TlsPlan) -> Option<(TlsToken, TlsAnswer)> {
    match plan {
        TlsPlan::Handshake { token, .. } | TlsPlan::NextKey { token, .. } => {
            Some((*token, TlsAnswer::Failed))
        }
        TlsPlan::Forget { .. } => None,
    }
}

fn read_error(error: DiskError) -> ReadError {
    match error {
        DiskError::Changed => ReadError::Changed,
        _ => ReadError::Io,
    }
}

#[cfg(test)]
mod tests;
