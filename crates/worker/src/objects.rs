//! Objects on their way from the store to the disk and the conductor.
//!
//! The store finds a file and returns a handle; the disk opens it and returns its limits; the
//! conductor gets both as one [`Object`] with the same handle. This module maps handles to files of
//! the disk, and late answers to look-ups. A look-up that the store has no room for waits here,
//! because a client that is told to retry would find the same full store. Look-ups wait in one queue
//! per [`DeviceId`], so that a file system that hangs delays no other.
//!
//! It refuses (503) a look-up that has waited for [`LOOKUP_WAIT_MAX`], one more than there may be
//! connections, and one whose file system did not answer in time.
//!
//! Descriptors that the disk has closed go back to the store, whose threads drop them: the last
//! close of a deleted file frees its space.
//!
//! Bounds: [`Store::handles_max`] handles, allocated at start; one waiting look-up for each
//! connection and one pending answer for each look-up of the store, both allocated when first
//! needed; [`FAULTS_MAX`] faults; [`DEVICES_MAX`] devices.

use std::collections::VecDeque;

use clock::{Duration, Instant, UnixTime};
use counters::{Gauge, counters};
use diskmap::nvme::NamespaceRange;
use diskmap::{
    DeviceRange, Disk, DiskError, FileIndex, FileLimits, FileSource, FileStatus, PathEnd,
};
use session::{
    DEVICES_MAX, DeviceIndex, LookupError, LookupPlan, LookupPurpose, LookupToken, Object,
    ObjectHandle,
};
use store::{
    Attributes, DeviceId, Found, LookUp, Metadata, NamespaceId, Source, Store, StoreRefusal,
    Symlinks,
};

use crate::requests::{Counted, CountedObjects, Due, HeldLookups, Missed, MissedNames, NotHeld};

/// Longest wait for room in the store. Players time a request out after 10 s or more `[guess]`. A
/// shorter wait would refuse requests that could still be served; the answer to a longer one would
/// come after the timeout.
pub(super) const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(10);

/// What the log calls an object that is gone.
const NO_PATH: &str = "(a file that is closed)";

/// Most times that a file which changes between its look-up and its open is opened for one request: it takes 10 us,
/// and recorders write a hundred times a second.
pub(super) const OPENS_MAX: u8 = 4;

/// Most objects whose uses are ended together.
const OUTDATED_MAX: usize = 64;

/// Most faults kept until they are asked for; of more, the last.
pub(super) const FAULTS_MAX: usize = 64;

/// What went wrong with an object, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObjectFault {
    /// The path it was asked for by.
    pub(super) path: String,
    /// What failed, and why.
    pub(super) what: FaultKind,
}

/// What failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultKind {
    /// The look-up, for another reason than a missing file or a lack of room.
    LookUp(StoreRefusal),
    /// The store had no room for too long, or too many look-ups waited.
    NoRoom,
    /// The disk's open.
    Open(DiskError),
    /// A read: its connection was reset.
    Read(DiskError),
    /// It is still in use long after its name led elsewhere: its connections are reset.
    Outdated,
}

/// An answer to a look-up, as the conductor takes it.
pub(super) type LookupAnswer = Result<Object, LookupError>;

/// The store, and what was opened from it.
#[derive(Debug)]
pub(super) struct Objects {
    store: Store,
    /// By handle.
    opened: Vec<Option<Opened>>,
    /// Look-ups pending in the store, by their token.
    pending: Vec<Option<LookupRequest>>,
    /// Empty indexes of `pending`.
    vacant: Vec<usize>,
    /// Look-ups that the store had no room for. A device whose queue is empty may be missing.
    waiting: Vec<WaitQueue>,
    waiting_count: usize,
    waiting_max: usize,
    /// File systems that objects were found on, by [`DeviceIndex`]; see [`Metadata::device`].
    devices: Vec<u64>,
    /// What went wrong, the oldest first.
    faults: VecDeque<ObjectFault>,
    /// The wall clock, read before this round.
    unix_time: UnixTime,
    /// Look-ups that wait until their name is there.
    held: HeldLookups,
    /// Whether the following two are kept.
    keeps_names: bool,
    missed: MissedNames,
    counted: CountedObjects,
    counters: LookupCounters,
}

/// Look-ups that wait for room for the same device, the oldest first.
#[derive(Debug)]
struct WaitQueue {
    device: DeviceId,
    requests: VecDeque<LookupRequest>,
}

/// A look-up without an answer yet.
#[derive(Debug)]
pub(super) struct LookupRequest {
    plan: LookupPlan,
    requested_at: Instant,
    /// When the store was asked last.
    asked_at: UnixTime,
    /// How often its file has failed to be opened.
    opens: u8,
    /// Its name was not there, and is waited for up to this time.
    held_until: Option<Instant>,
}

counters! {
    /// Look-ups that waited or were refused, since start.
    #[derive(Clone, Copy, Debug)]
    pub struct LookupCounters {
        /// Look-ups that waited for room in the store. One may wait more than once.
        pub(super) server_waiting_lookups: u64,
        /// Look-ups refused because they waited too long for room, or too many waited.
        pub(super) server_overdue_lookups: u64,
        /// Look-ups that waited because their name was not there (`on_miss`, `hold`).
        pub(super) server_held_lookups: u64,
        /// Look-ups of `server_held_lookups` whose name came in time.
        pub(super) server_held_found_lookups: u64,
        /// Look-ups whose name was not there and that did not wait, since too many waited.
        pub(super) server_hold_refused_lookups: u64,
        /// Look-ups that wait so now.
        pub(super) server_holding_lookups: Gauge,
        /// Names that were not there and were forgotten before anybody asked for them (`/misses`).
        pub(super) server_forgotten_misses: u64,
    }
}

/// A file of the disk.
#[derive(Clone, Copy, Debug)]
struct Opened {
    file: FileIndex,
    limits: FileLimits,
    /// A read of it failed: the next look-up of its path opens the file anew.
    needs_reopen: bool,
    /// Its uses are to be ended.
    is_ended: bool,
}

impl Objects {
    /// At most `waiting_max` look-ups wait for room.
    pub(super) fn new(store: Store, waiting_max: usize) -> Self {
        let opened = vec![None; store.handles_max()];
        Self {
            store,
            opened,
            pending: Vec::new(),
            vacant: Vec::new(),
            waiting: Vec::new(),
            waiting_count: 0,
            waiting_max,
            devices: Vec::with_capacity(DEVICES_MAX),
            faults: VecDeque::with_capacity(FAULTS_MAX),
            unix_time: UnixTime::default(),
            held: HeldLookups::new(waiting_max),
            keeps_names: false,
            missed: MissedNames::default(),
            counted: CountedObjects::default(),
            counters: LookupCounters::default(),
        }
    }

    pub(super) fn counters(&self) -> LookupCounters {
        LookupCounters {
            server_holding_lookups: Gauge(self.held.count() as u64),
            server_forgotten_misses: self.missed.forgotten_count(),
            ..self.counters
        }
    }

    pub(super) const fn keep_names(&mut self, is_kept: bool) {
        self.keeps_names = is_kept;
    }

    pub(super) fn take_missed(&mut self) -> Vec<Missed> {
        self.missed.take()
    }

    /// Keeps names that [`Objects::take_missed`] has returned, and that nobody was told.
    pub(super) fn put_back_missed(&mut self, names: Vec<Missed>) {
        self.missed.put_back(names);
    }

    pub(super) fn counted(&self, from: usize, most: usize) -> (Vec<Counted>, Option<usize>) {
        self.counted.page(from, most)
    }

    /// Tells the wall clock's time, from which the age of a file is reckoned that is looked at later.
    pub(super) const fn set_unix_time(&mut self, unix_time: UnixTime) {
        self.unix_time = unix_time;
    }

    pub(super) const fn store(&self) -> &Store {
        &self.store
    }

    pub(super) const fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }

    /// Starts a look-up; `None` if [`Objects::poll_answer`] will return its answer, perhaps after
    /// [`Objects::poll_waiting`] returned it to be tried again.
    pub(super) fn look_up<D: Disk>(
        &mut self,
        now: Instant,
        disk: &mut D,
        plan: LookupPlan,
    ) -> Option<(LookupToken, LookupAnswer)> {
        let request = LookupRequest {
            plan,
            requested_at: now,
            asked_at: self.unix_time,
            opens: 0,
            held_until: None,
        };
        self.ask(now, disk, request)
    }

    /// Goes on with a look-up that was held: its answer, or `None` if that comes later. `None`: nothing is to be done with any.
    pub(super) fn go_on_with_held<D: Disk>(
        &mut self,
        now: Instant,
        disk: &mut D,
    ) -> Option<Option<(LookupToken, LookupAnswer)>> {
        Some(match self.held.poll(now)? {
            Due::GiveUp(token) => Some((token, Err(LookupError::NotFound))),
            Due::LookUp(plan, until) => {
                let request = LookupRequest {
                    plan,
                    requested_at: now,
                    asked_at: self.unix_time,
                    opens: 0,
                    held_until: Some(until),
                };
                self.ask(now, disk, request)
            }
        })
    }

    /// The oldest waiting look-up whose device has room or whose deadline has passed, to be tried
    /// again.
    pub(super) fn poll_waiting(&mut self, now: Instant) -> Option<LookupRequest> {
        let store = &self.store;
        let is_due = |queue: &&mut WaitQueue| {
            let first = queue.requests.front();
            first.is_some_and(|first| first.is_overdue(now)) || store.has_room(queue.device)
        };
        let due = self.waiting.iter_mut().filter(is_due);
        let queue =
            due.min_by_key(|queue| queue.requests.front().map(|first| first.requested_at))?;
        let request = queue.requests.pop_front();
        if queue.requests.is_empty() {
            self.waiting.retain(|queue| !queue.requests.is_empty());
        }
        self.waiting_count -= usize::from(request.is_some());
        request
    }

    /// The next deadline.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let queues = self.waiting.iter();
        let waiting = queues.filter_map(|queue| Some(queue.requests.front()?.deadline()));
        let others = [self.store.poll_timeout(), self.held.poll_timeout()];
        waiting.chain(others.into_iter().flatten()).min()
    }

    /// The oldest fault that was not returned yet.
    pub(super) fn poll_fault(&mut self) -> Option<ObjectFault> {
        self.faults.pop_front()
    }

    /// Looks the path up in the store, or refuses a look-up past its deadline.
    pub(super) fn ask<D: Disk>(
        &mut self,
        now: Instant,
        disk: &mut D,
        mut request: LookupRequest,
    ) -> Option<(LookupToken, LookupAnswer)> {
        if request.is_overdue(now) {
            return Some(self.refuse_for_want_of_room(request));
        }
        request.asked_at = self.unix_time;
        let LookupRequest { plan, .. } = &request;
        let index = self.vacant.last().copied().unwrap_or(self.pending.len());
        let (directory, token) = (plan.directory, token_of(index));
        let mut answer = (self.store).look_up_in(now, token, directory, &plan.path);
        if let LookUp::Ready(found) = &answer
            && self.needs_reopen(found)
        {
            self.retire_and_release(found.handle);
            answer = (self.store).look_up_in(now, token, directory, &plan.path);
        }
        match answer {
            LookUp::Ready(found) => self.admit_or_ask_again(now, disk, request, found),
            LookUp::Refused(StoreRefusal::Full(device)) => self.wait_for_room(device, request),
            LookUp::Refused(refusal) => self.refuse(now, request, refusal),
            LookUp::Pending => {
                self.add_pending(index, request);
                None
            }
        }
    }

    /// Answers with a found object. One that is being written, so that it has changed since it was looked up, is
    /// looked up again, [`OPENS_MAX`] times in all.
    fn admit_or_ask_again<D: Disk>(
        &mut self,
        now: Instant,
        disk: &mut D,
        mut request: LookupRequest,
        found: Found,
    ) -> Option<(LookupToken, LookupAnswer)> {
        let error = match self.admit(disk, found, request.asked_at) {
            Ok(object) => {
                self.note_found(now, &request);
                return Some((request.plan.token, Ok(object)));
            }
            Err(error) => error,
        };
        request.opens += 1;
        if error == DiskError::Changed && request.opens < OPENS_MAX {
            return self.ask(now, disk, request);
        }
        self.end_look(&request);
        let LookupPlan { token, path, .. } = request.plan;
        self.note_fault(path, FaultKind::Open(error));
        let answer = match error {
            DiskError::TableFull | DiskError::Changed => LookupError::Busy,
            _ => LookupError::Failed,
        };
        Some((token, Err(answer)))
    }

    /// Queues a look-up until there is room, in the order of arrival.
    fn wait_for_room(
        &mut self,
        device: DeviceId,
        request: LookupRequest,
    ) -> Option<(LookupToken, LookupAnswer)> {
        if self.waiting_count == self.waiting_max {
            return Some(self.refuse_for_want_of_room(request));
        }
        self.counters.server_waiting_lookups += 1;
        self.waiting_count += 1;
        let known = self.waiting.iter().position(|queue| queue.device == device);
        let index = known.unwrap_or_else(|| {
            let requests = VecDeque::new();
            self.waiting.push(WaitQueue { device, requests });
            self.waiting.len() - 1
        });
        let queue = &mut self.waiting[index].requests;
        let first = queue.front();
        if first.is_some_and(|first| request.requested_at < first.requested_at) {
            queue.push_front(request);
        } else {
            queue.push_back(request);
        }
        None
    }

    fn refuse_for_want_of_room(&mut self, request: LookupRequest) -> (LookupToken, LookupAnswer) {
        self.counters.server_overdue_lookups += 1;
        self.end_look(&request);
        let LookupPlan { token, path, .. } = request.plan;
        self.note_fault(path, FaultKind::NoRoom);
        (token, Err(LookupError::Busy))
    }

    /// What a look-up found.
    fn note_found(&mut self, now: Instant, request: &LookupRequest) {
        let LookupRequest {
            plan, held_until, ..
        } = request;
        if self.held.count() > 0 {
            self.held.on_found(now, plan.directory, &plan.path);
        }
        self.end_look(request);
        self.counters.server_held_found_lookups += u64::from(held_until.is_some());
        if self.keeps_names && plan.purpose != LookupPurpose::ErrorPage {
            let seconds = self.unix_time.whole_seconds();
            (self.counted).count(plan.site, plan.directory, &plan.path, seconds);
        }
    }

    /// The look-up of a request that was held has an answer: another one of its name may be looked up.
    fn end_look(&mut self, request: &LookupRequest) {
        if request.held_until.is_some() {
            let LookupPlan {
                directory, path, ..
            } = &request.plan;
            self.held.on_answered(*directory, path);
        }
    }

    /// What a client asked for is not there: it waits, or is told so.
    fn miss(
        &mut self,
        now: Instant,
        request: LookupRequest,
        hold: Duration,
    ) -> Option<(LookupToken, LookupAnswer)> {
        self.end_look(&request);
        let LookupRequest {
            plan, held_until, ..
        } = request;
        let is_first = held_until.is_none();
        if is_first && self.keeps_names {
            let seconds = self.unix_time.whole_seconds();
            (self.missed).note(plan.site, plan.directory, &plan.path, seconds);
        }
        let (token, until) = (plan.token, held_until.unwrap_or(now + hold));
        match self.held.hold(now, plan, until) {
            Ok(()) => {
                self.counters.server_held_lookups += u64::from(is_first);
                return None;
            }
            Err(NotHeld::TooMany) => self.counters.server_hold_refused_lookups += 1,
            Err(NotHeld::TimeOver) => {}
        }
        Some((token, Err(LookupError::NotFound)))
    }

    /// Refuses a look-up. A missing file or a directory is no fault.
    fn refuse(
        &mut self,
        now: Instant,
        request: LookupRequest,
        refusal: StoreRefusal,
    ) -> Option<(LookupToken, LookupAnswer)> {
        if let (StoreRefusal::NotFound, LookupPurpose::Object { hold }) =
            (&refusal, request.plan.purpose)
        {
            return self.miss(now, request, hold);
        }
        self.end_look(&request);
        let LookupPlan { token, path, .. } = request.plan;
        if !matches!(refusal, StoreRefusal::NotFound | StoreRefusal::Directory) {
            self.note_fault(path, FaultKind::LookUp(refusal));
        }
        Some((token, Err(lookup_error(refusal))))
    }

    /// The next late answer, with its token.
    pub(super) fn poll_answer<D: Disk>(
        &mut self,
        now: Instant,
        disk: &mut D,
    ) -> Option<(LookupToken, LookupAnswer)> {
        // Terminates: each iteration takes one answer from the store, and a look-up tried again
        // opens the file anew.
        loop {
            let (name, result) = self.store.poll_answer(now)?;
            let request = self.take_pending(name);
            let answer = match result {
                Ok(found) if self.needs_reopen(&found) => {
                    self.retire_and_release(found.handle);
                    self.ask(now, disk, request)
                }
                Ok(found) => self.admit_or_ask_again(now, disk, request, found),
                Err(StoreRefusal::Full(device)) => self.wait_for_room(device, request),
                Err(refusal) => self.refuse(now, request, refusal),
            };
            if answer.is_some() {
                return answer;
            }
        }
    }

    /// The disk's file of an object in use.
    pub(super) fn file_of(&self, object: ObjectHandle) -> FileIndex {
        self.opened(object.0)
            .expect("invariant: the conductor reads open objects only")
            .file
    }

    /// The path of an object, for the log.
    pub(super) fn path_of(&self, object: ObjectHandle) -> String {
        match self.opened(object.0) {
            Some(_) => self.store.path_of(object.0),
            None => NO_PATH.into(),
        }
    }

    /// A read of `file` for `object` failed: the device failed, or the file has changed. `is_reset`: a client
    /// was reset for that, which is told. New look-ups have the file opened anew, even if its status is what
    /// it was.
    pub(super) fn on_read_failed(
        &mut self,
        object: ObjectHandle,
        file: FileIndex,
        error: DiskError,
        is_reset: bool,
    ) {
        // The object may have been closed before the read completed, and its handle reused.
        if let Some(opened) = self.opened_mut(object.0)
            && opened.file == file
        {
            opened.needs_reopen = true;
            if is_reset {
                let path = self.store.path_of(object.0);
                self.note_fault(path, FaultKind::Read(error));
            }
        }
    }

    fn note_fault(&mut self, path: String, what: FaultKind) {
        if self.faults.len() == FAULTS_MAX {
            self.faults.pop_front();
        }
        self.faults.push_back(ObjectFault { path, what });
    }

    /// Ends one use of an object.
    pub(super) fn release(&mut self, object: ObjectHandle) {
        self.store.release(object.0);
    }

    /// Retires objects that were unused for long.
    pub(super) fn expire_unused(&mut self, now: Instant) {
        self.store.expire_unused(now);
    }

    /// Takes objects whose uses are to be ended, since their names have led elsewhere for long; whether there
    /// are any. [`Objects::is_ended`] says which.
    pub(super) fn take_outdated(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        for _ in 0..OUTDATED_MAX {
            let Some(handle) = self.store.poll_outdated(now) else {
                break;
            };
            if let Some(opened) = self.opened_mut(handle) {
                opened.is_ended = true;
                is_any = true;
                let path = self.store.path_of(handle);
                self.note_fault(path, FaultKind::Outdated);
            }
        }
        is_any
    }

    /// Whether nobody is to be sent this object any more.
    pub(super) fn is_ended(&self, object: ObjectHandle) -> bool {
        self.opened(object.0).is_some_and(|opened| opened.is_ended)
    }

    /// Closes the objects that the store has retired; whether there were any.
    pub(super) fn close_unused<D: Disk>(&mut self, disk: &mut D) -> bool {
        let mut is_any = false;
        while let Some(handle) = self.store.poll_closed() {
            is_any = true;
            if let Some(opened) = self.opened_mut(handle).take() {
                disk.close(opened.file);
            }
        }
        while let Some(closed) = disk.poll_closed() {
            let (major, minor) = closed.device;
            let device = u64::from(major) << 32 | u64::from(minor);
            self.store.close_descriptor(device, closed.descriptor);
        }
        is_any
    }

    /// Opens a found object in the disk, unless it is open, and describes it as it was `seen`.
    fn admit<D: Disk>(
        &mut self,
        disk: &mut D,
        found: Found,
        seen: UnixTime,
    ) -> Result<Object, DiskError> {
        let Found {
            handle,
            opened,
            metadata,
        } = found;
        if let Some(source) = opened {
            let path = self.store.path_beneath(handle);
            match open(disk, source, &metadata, &path) {
                Ok(opened) => *self.opened_mut(handle) = Some(opened),
                Err(error) => {
                    self.retire_and_release(handle);
                    return Err(error);
                }
            }
        }
        let limits = self
            .opened(handle)
            .expect("invariant: a shared object is open")
            .limits;
        Ok(Object {
            handle: ObjectHandle(handle),
            meta: http::ObjectMeta {
                size_bytes: metadata.size_bytes,
                modified: UnixTime {
                    seconds: metadata.modified.seconds,
                    nanos: metadata.modified.nanos,
                },
                seen,
                content_hash: metadata.content,
                content_type: self.store.content_type(handle).map(Into::into),
            },
            block_bytes: limits.block_bytes,
            read_bytes_max: limits.read_bytes_max,
            device: self.device_of(metadata.device),
        })
    }

    /// The index of a device; devices are numbered in the order in which they are found, up to
    /// [`DEVICES_MAX`].
    fn device_of(&mut self, device: u64) -> DeviceIndex {
        let known = self.devices.iter().position(|&known| known == device);
        let index = known.unwrap_or(self.devices.len());
        if known.is_none() && index < DEVICES_MAX {
            self.devices.push(device);
        }
        DeviceIndex::new(index)
    }

    /// Whether the object was opened by an earlier look-up and must be opened anew.
    fn needs_reopen(&self, found: &Found) -> bool {
        found.opened.is_none()
            && self
                .opened(found.handle)
                .is_some_and(|opened| opened.needs_reopen)
    }

    /// Retires an object and ends our use of it.
    fn retire_and_release(&mut self, handle: u32) {
        self.store.retire(handle);
        self.store.release(handle);
    }

    fn opened(&self, handle: u32) -> Option<Opened> {
        self.opened.get(index_of(handle)).copied().flatten()
    }

    fn opened_mut(&mut self, handle: u32) -> &mut Option<Opened> {
        self.opened
            .get_mut(index_of(handle))
            .expect("invariant: handles are below the store's handles_max")
    }

    fn add_pending(&mut self, index: usize, request: LookupRequest) {
        if self.vacant.pop().is_none() {
            self.pending.push(None);
        }
        debug_assert!(
            self.pending[index].is_none(),
            "look-up {index} is under way already"
        );
        self.pending[index] = Some(request);
    }

    fn take_pending(&mut self, name: u64) -> LookupRequest {
        let index = usize::try_from(name).expect("invariant: we made the name from a usize");
        let request = self.pending.get_mut(index).and_then(Option::take);
        self.vacant.push(index);
        request.expect("invariant: the store answers each look-up once")
    }
}

impl LookupRequest {
    fn deadline(&self) -> Instant {
        self.requested_at + LOOKUP_WAIT_MAX
    }

    fn is_overdue(&self, now: Instant) -> bool {
        self.deadline() <= now
    }
}

/// The store's token for an index of `pending`.
fn token_of(index: usize) -> u64 {
    u64::try_from(index).expect("invariant: a usize has at most 64 bits")
}

fn index_of(handle: u32) -> usize {
    usize::try_from(handle).expect("invariant: a usize has at least 32 bits")
}

fn open<D: Disk>(
    disk: &mut D,
    source: Source,
    metadata: &Metadata,
    path: &str,
) -> Result<Opened, DiskError> {
    let source = match source {
        Source::File {
            descriptor,
            attributes,
            symlinks,
            is_fixed,
            is_local,
            notes_reads,
        } => FileSource::File {
            descriptor,
            status: FileStatus {
                path_end: (symlinks == Symlinks::Refused).then(|| PathEnd::of(path.as_bytes())),
                is_fixed,
                is_local,
                notes_reads,
                ..status_of(metadata, attributes)
            },
        },
        Source::Range {
            device,
            start_bytes,
        } => FileSource::Range(DeviceRange {
            device,
            start_bytes,
            length_bytes: metadata.size_bytes,
        }),
        Source::Namespace {
            namespace: NamespaceId { controller, id },
            start_bytes,
        } => FileSource::Namespace(NamespaceRange {
            controller,
            namespace_id: id,
            start_bytes,
            length_bytes: metadata.size_bytes,
        }),
        Source::Simulated(number) => FileSource::Simulated(number),
    };
    let (file, limits) = disk.open(source)?;
    if limits.size_bytes != metadata.size_bytes {
        // It grew or shrank between the store's `statx` and the disk's open: it is being written.
        disk.close(file);
        return Err(DiskError::Changed);
    }
    Ok(Opened {
        file,
        limits,
        needs_reopen: false,
        is_ended: false,
    })
}

/// The status for the disk's change detection, as the store read it: so a change between the store's
/// open and the disk's is detected.
fn status_of(metadata: &Metadata, attributes: Attributes) -> FileStatus {
    let half = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0);
    let Attributes {
        links,
        mode,
        user,
        group,
    } = attributes;
    FileStatus {
        size_bytes: metadata.size_bytes,
        modified: (metadata.modified.seconds, metadata.modified.nanos),
        changed: (metadata.changed.seconds, metadata.changed.nanos),
        links,
        mode,
        user,
        group,
        device: (half(metadata.device >> 32), half(metadata.device)),
        direct: metadata.direct,
        direct_offset_align_bytes: metadata.direct_offset_align_bytes,
        direct_memory_align_bytes: metadata.direct_memory_align_bytes,
        path_end: None,
        is_fixed: false,
        is_local: false,
        notes_reads: false,
    }
}

fn lookup_error(refusal: StoreRefusal) -> LookupError {
    match refusal {
        StoreRefusal::NotFound => LookupError::NotFound,
        StoreRefusal::Directory => LookupError::Directory,
        StoreRefusal::Forbidden => LookupError::Forbidden,
        StoreRefusal::Full(_) | StoreRefusal::Busy | StoreRefusal::TimedOut => LookupError::Busy,
        _ => LookupError::Failed,
    }
}
