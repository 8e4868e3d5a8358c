//! The look-up threads: they resolve paths and close files, which may block, for the worker.
//!
//! Jobs wait in bounded queues, answers in a bounded channel, and an `eventfd` wakes the worker. The
//! worker waits for nothing but the queues' lock, which is held for a push or a take only. Threads
//! end when the worker drops its side; they are not joined, since one may be blocked in the kernel.
//!
//! Each [`DeviceId`] has a queue of its own and at most its share of the threads, so that a file
//! system that hangs blocks no more than that share. At most one thread per device closes files,
//! because the last close of a large deleted file frees its space, which takes long.
//!
//! Threads often share the worker's core, where switching to one and back costs more than opening a
//! file. So:
//!
//! - A thread is woken only if no other is waking, that is, woken but not yet at the queues. A blocked
//!   thread is not waking, so it does not keep another from being woken.
//! - A thread takes all jobs up to a limit, and does not preempt the worker (`SCHED_BATCH`, sched(7)).
//! - The idle thread that worked last is woken first: its stack is still in the cache. Waking sixteen
//!   threads in turn would evict the worker's data.
//!
//! It refuses to retry and to cancel: a job that was taken runs to its end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::lookups::device_share;
use crate::path::split_key;
use crate::root::{CurrentRoot, OpenError, Resolve, Root};
use crate::{DeviceId, Opened, StoreError, system};

/// Most look-ups a thread takes at once: four paths in sequence on a cold disk take less than a
/// millisecond.
const REQUESTS_TAKEN_MAX: usize = 4;
/// Most descriptors a thread takes at once: no client waits for them, and each batch wakes the worker.
const CLOSES_TAKEN_MAX: usize = 16;

/// A path to be resolved.
#[derive(Debug)]
pub(crate) struct LookUpRequest {
    pub(crate) id: u64,
    /// Which name in which directory ([`split_key`]).
    pub(crate) key: String,
    pub(crate) resolve: Resolve,
    /// `None`: the directory that the served path leads to by then.
    pub(crate) root: Option<Arc<Root>>,
}

/// A message from a thread.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The answer to a [`LookUpRequest`].
    LookUp {
        id: u64,
        key: String,
        result: Result<Opened, OpenError>,
    },
    /// This many descriptors of a device were closed.
    Closed(DeviceId, usize),
    /// The result of reopening the served directories; of several errors, the first.
    Roots(Result<(), StoreError>),
    /// Whether the path of the directory with this index led to another, which was opened.
    Followed(usize, Result<bool, StoreError>),
}

/// The queues of jobs, shared with the threads.
#[derive(Debug)]
struct Queues {
    state: Mutex<QueueState>,
    /// Most threads that work for one device.
    device_threads_max: usize,
}

#[derive(Debug)]
struct QueueState {
    /// Devices with jobs or threads, served round-robin.
    devices: VecDeque<DeviceQueue>,
    /// The directories are to be reopened.
    reopen_roots: bool,
    /// Threads without a job, the one that worked last at the end.
    idle: Vec<thread::Thread>,
    /// A thread was woken and has not taken the lock yet.
    is_waking: bool,
    /// The store is dropped: threads end.
    is_closed: bool,
}

#[derive(Debug)]
struct DeviceQueue {
    device: DeviceId,
    requests: VecDeque<LookUpRequest>,
    closes: VecDeque<OwnedFd>,
    /// Threads that work for it.
    threads: usize,
    /// One of them closes files.
    is_closing: bool,
}

/// The jobs that a thread takes at once.
#[derive(Debug)]
enum Batch {
    LookUps(DeviceId),
    Closes(DeviceId, Vec<OwnedFd>),
    Roots,
}

impl Queues {
    fn new(device_threads_max: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                devices: VecDeque::new(),
                reopen_roots: false,
                idle: Vec::new(),
                is_waking: false,
                is_closed: false,
            }),
            device_threads_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job.
    fn add(&self, add: impl FnOnce(&mut QueueState)) {
        let mut state = self.lock();
        add(&mut state);
        self.wake_if_due(&mut state);
    }

    /// Waits for jobs and takes some; `None` once the queues are closed.
    fn take(&self, requests: &mut Vec<LookUpRequest>) -> Option<Batch> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(batch) = state.take(requests, self.device_threads_max) {
                self.wake_if_due(&mut state);
                return Some(batch);
            }
            state.idle.push(thread::current());
            let me = thread::current().id();
            while state.idle.iter().any(|thread| thread.id() == me) {
                drop(state);
                // Returns at once if it was unparked in between, and may return spuriously.
                thread::park();
                state = self.lock();
            }
            state.is_waking = false;
        }
    }

    /// A thread has finished its batch.
    fn finish(&self, device: DeviceId, was_closing: bool) {
        let mut state = self.lock();
        let found = state
            .devices
            .iter_mut()
            .find(|queue| queue.device == device);
        let queue = found.expect("invariant: a device stays as long as a thread works for it");
        queue.threads -= 1;
        queue.is_closing &= !was_closing;
        state.devices.retain(|queue| !queue.is_idle());
    }

    /// Cancels a request that no thread has taken yet.
    fn withdraw(&self, device: DeviceId, id: u64) -> Option<LookUpRequest> {
        let mut state = self.lock();
        let queue = state
            .devices
            .iter_mut()
            .find(|queue| queue.device == device)?;
        let index = queue.requests.iter().position(|known| known.id == id);
        let found = index.and_then(|index| queue.requests.remove(index));
        state.devices.retain(|queue| !queue.is_idle());
        found
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.idle.drain(..).for_each(|thread| thread.unpark());
    }

    /// Wakes a thread if there is a job for one, one is idle, and none is waking.
    fn wake_if_due(&self, state: &mut QueueState) {
        if state.is_waking || !state.has_job(self.device_threads_max) {
            return;
        }
        if let Some(thread) = state.idle.pop() {
            state.is_waking = true;
            thread.unpark();
        }
    }
}

impl QueueState {
    fn device(&mut self, device: DeviceId) -> &mut DeviceQueue {
        let known = self.devices.iter().position(|queue| queue.device == device);
        let index = known.unwrap_or_else(|| {
            self.devices.push_back(DeviceQueue {
                device,
                requests: VecDeque::new(),
                closes: VecDeque::new(),
                threads: 0,
                is_closing: false,
            });
            self.devices.len() - 1
        });
        &mut self.devices[index]
    }

    fn has_job(&self, device_threads_max: usize) -> bool {
        self.reopen_roots
            || self
                .devices
                .iter()
                .any(|queue| queue.has_job(device_threads_max))
    }

    /// Devices are served round-robin; within one, look-ups come before files to be closed.
    fn take(
        &mut self,
        requests: &mut Vec<LookUpRequest>,
        device_threads_max: usize,
    ) -> Option<Batch> {
        if self.reopen_roots {
            self.reopen_roots = false;
            // Their paths may cross any mount.
            self.device(DeviceId::UNKNOWN).threads += 1;
            return Some(Batch::Roots);
        }
        let has_job = |queue: &DeviceQueue| queue.has_job(device_threads_max);
        let index = self.devices.iter().position(has_job)?;
        let mut queue = self.devices.remove(index)?;
        queue.threads += 1;
        let device = queue.device;
        let batch = if queue.requests.is_empty() {
            queue.is_closing = true;
            let count = queue.closes.len().min(CLOSES_TAKEN_MAX);
            Batch::Closes(device, queue.closes.drain(..count).collect())
        } else {
            let count = queue.requests.len().min(REQUESTS_TAKEN_MAX);
            requests.extend(queue.requests.drain(..count));
            Batch::LookUps(device)
        };
        self.devices.push_back(queue);
        Some(batch)
    }
}

impl DeviceQueue {
    fn has_job(&self, threads_max: usize) -> bool {
        let has_closes = !self.closes.is_empty() && !self.is_closing;
        self.threads < threads_max && (!self.requests.is_empty() || has_closes)
    }

    fn is_idle(&self) -> bool {
        self.threads == 0 && self.requests.is_empty() && self.closes.is_empty()
    }
}

#[derive(Debug)]
pub(crate) struct Threads {
    queues: Arc<Queues>,
    replies: Receiver<Reply>,
    /// An `eventfd`. A thread adds the number of replies of its batch after it has sent them.
    signal: Arc<File>,
    /// Replies received minus signals read. Above zero: a signal is readable or will be soon. Below
    /// zero: a reply waits.
    signals_due: i64,
    is_opening_roots: bool,
    /// Ends the thread that watches the mounts when it is dropped.
    _watch: MountWatch,
}

impl Threads {
    pub(crate) fn start(
        roots: &Arc<[Arc<CurrentRoot>]>,
        count: usize,
        pending_max: usize,
    ) -> io::Result<Self> {
        assert!(
            count > 0 && pending_max > 0,
            "{count} threads for {pending_max} look-ups"
        );
        let queues = Arc::new(Queues::new(device_share(count)));
        // Two replies for each look-up, and one of the other kinds for each thread.
        let (replies_in, replies) = sync_channel(2 * pending_max + count);
        let signal = Arc::new(File::from(system::event_counter()?));
        for index in 0..count {
            let thread = Thread {
                roots: Arc::clone(roots),
                queues: Arc::clone(&queues),
                replies: replies_in.clone(),
                signal: Arc::clone(&signal),
            };
            let name = format!("atlas-lookup-{index}");
            thread::Builder::new()
                .name(name)
                .spawn(move || thread.run())?;
        }
        Ok(Self {
            queues,
            replies,
            signal,
            signals_due: 0,
            is_opening_roots: false,
            _watch: MountWatch::start(roots)?,
        })
    }

    pub(crate) fn ask(&mut self, device: DeviceId, request: LookUpRequest) {
        self.queues
            .add(|state| state.device(device).requests.push_back(request));
    }

    /// Cancels a request and returns it; `None` if a thread has taken it.
    pub(crate) fn withdraw(&mut self, device: DeviceId, id: u64) -> Option<LookUpRequest> {
        self.queues.withdraw(device, id)
    }

    pub(crate) fn close(&mut self, device: DeviceId, descriptor: OwnedFd) {
        self.queues
            .add(|state| state.device(device).closes.push_back(descriptor));
    }

    /// Has a thread reopen the directories, unless one is doing so.
    pub(crate) fn open_roots(&mut self) {
        if !self.is_opening_roots {
            self.is_opening_roots = true;
            self.queues.add(|state| state.reopen_roots = true);
        }
    }

    /// The next reply. Makes no system call unless a reply was received since the last `None`.
    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        loop {
            if let Ok(reply) = self.replies.try_recv() {
                self.signals_due += 1;
                self.is_opening_roots &= !matches!(reply, Reply::Roots(_));
                return Some(reply);
            }
            if self.signals_due <= 0 {
                return None;
            }
            // Resets the counter, or it would wake the worker for replies already received. This may
            // read the signal of a reply that was sent in between: `signals_due` is then negative,
            // and the loop receives that reply, because replies are sent before their signal.
            self.signals_due -= self.read_signals();
            if self.signals_due >= 0 {
                return None;
            }
        }
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    #[cfg(test)]
    pub(crate) fn signals_due(&self) -> i64 {
        self.signals_due
    }

    #[cfg(test)]
    pub(crate) fn queued(&self, device: DeviceId) -> usize {
        self.queues.lock().device(device).requests.len()
    }

    fn read_signals(&self) -> i64 {
        let mut count = [0; 8];
        match (&*self.signal).read(&mut count) {
            Ok(8) => i64::from_ne_bytes(count),
            // Not signalled yet: the thread is between sending and signalling.
            _ => 0,
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.queues.close();
    }
}

struct Thread {
    roots: Arc<[Arc<CurrentRoot>]>,
    queues: Arc<Queues>,
    replies: SyncSender<Reply>,
    signal: Arc<File>,
}

impl Thread {
    fn run(self) {
        system::set_sched_batch();
        let mut scratch = Vec::new();
        let mut requests = Vec::with_capacity(REQUESTS_TAKEN_MAX);
        while let Some(batch) = self.queues.take(&mut requests) {
            let mut replied: u64 = 0;
            let mut reply = |reply| {
                replied += 1;
                self.replies.send(reply).is_ok()
            };
            let has_receiver = match batch {
                Batch::LookUps(device) => {
                    let has_receiver = requests.drain(..).all(|request| {
                        let LookUpRequest {
                            id, key, resolve, ..
                        } = request;
                        let (index, name) = split_key(&key);
                        let root = request.root.unwrap_or_else(|| {
                            let current = &self.roots[index];
                            reply(Reply::Followed(index, current.follow()));
                            current.get()
                        });
                        let result = root.open_object_blocking(&mut scratch, name, resolve);
                        reply(Reply::LookUp { id, key, result })
                    });
                    self.queues.finish(device, false);
                    has_receiver
                }
                Batch::Closes(device, descriptors) => {
                    let count = descriptors.len();
                    drop(descriptors);
                    self.queues.finish(device, true);
                    reply(Reply::Closed(device, count))
                }
                Batch::Roots => {
                    let mut opened = Ok(());
                    for current in self.roots.iter() {
                        opened = opened.and(current.reopen());
                    }
                    self.queues.finish(DeviceId::UNKNOWN, false);
                    reply(Reply::Roots(opened))
                }
            };
            if !has_receiver {
                return;
            }
            // It fails only if the counter is full, and then it is readable anyway.
            let _ = (&*self.signal).write(&replied.to_ne_bytes());
        }
    }
}

/// A thread that waits for mounts and unmounts and then has the roots read their mounts again.
#[derive(Debug)]
struct MountWatch {
    end: Arc<File>,
}

impl MountWatch {
    /// Starts no thread where the kernel shows no mount table.
    fn start(roots: &Arc<[Arc<CurrentRoot>]>) -> io::Result<Self> {
        let end = Arc::new(File::from(system::event_counter()?));
        if let Ok(table) = File::open(crate::mounts::MOUNT_TABLE) {
            let (roots, end) = (Arc::clone(roots), Arc::clone(&end));
            thread::Builder::new()
                .name("atlas-mounts".to_owned())
                .spawn(move || watch(&roots, &table, &end))?;
        }
        Ok(Self { end })
    }
}

impl Drop for MountWatch {
    fn drop(&mut self) {
        let _ = (&*self.end).write(&1u64.to_ne_bytes());
    }
}

fn watch(roots: &[Arc<CurrentRoot>], table: &File, end: &File) {
    loop {
        match system::wait_for_mount(table.as_fd(), end.as_fd()) {
            (_, true) => return,
            (true, false) => roots.iter().for_each(|root| root.read_mounts()),
            // A signal.
            (false, false) => {}
        }
    }
}
