//! Directories of the host. Files are opened at once if the kernel has the path in its caches and
//! the file system is local, else in a thread. All directories share the threads.
//!
//! The worker itself calls `openat2` with `RESOLVE_CACHED`, and `statx` on files of local file
//! systems: both answer from memory. `RESOLVE_CACHED` alone is not enough. It keeps the path walk
//! from blocking, but `open` and `statx` of a file on NFS or FUSE may block however well its path
//! is cached. So if any mount beneath the directory is not local, the worker resolves paths within
//! the directory's own mount only.
//!
//! While most names are cold, the worker leaves even that to the threads (see `coldness`): a cold name
//! is then opened by one `openat2` and one `statx`.
//!
//! It refuses to block. Bounded by the threads' queues (see `threads`).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use clock::Instant;

use crate::coldness::Coldness;
use crate::path::split_key;
use crate::path_watch::{PathAnswer, PathWatch};
use crate::probe::{self, Probed};
use crate::root::{Asked, CurrentRoot, OpenError, Resolve, Root, c_string, open_error_of};
use crate::threads::{LookUpRequest, Reply, Threads};
use crate::{DeviceId, Metadata, Notice, Opened, Opening, StoreConfig, StoreError};

/// The served directories. A key ([`crate::path::key_of`]) says in which one a name is looked up.
#[derive(Debug)]
pub(crate) struct Directories {
    /// By their index, at least one.
    served: Vec<Served>,
    threads: Threads,
    /// Whether to ask the kernel's caches first.
    cached_lookups: bool,
    coldness: Coldness,
    notice: Option<Notice>,
    /// What the worker does not need any more and a thread is to close, with its device.
    unneeded: Vec<(DeviceId, OwnedFd)>,
    /// Buffer for the name with its NUL.
    scratch: Vec<u8>,
}

/// One of them.
#[derive(Debug)]
struct Served {
    current: Arc<CurrentRoot>,
    /// The root when `version` was read.
    root: Arc<Root>,
    version: u64,
    probed: Probed,
    path_watch: PathWatch,
    /// The served path could not be followed when it was tried last.
    has_failed: bool,
}

impl Served {
    fn open(path: &Path, config: &StoreConfig) -> Result<Self, StoreError> {
        let root = Root::open(path, config.direct)?;
        let probed = probe::probe(&root, path)?;
        let current = Arc::new(CurrentRoot::new(path, root));
        Ok(Self {
            root: current.get(),
            version: current.version(),
            current,
            probed,
            path_watch: PathWatch::new(),
            has_failed: false,
        })
    }
}

impl Directories {
    pub(crate) fn open(paths: &[&Path], config: &StoreConfig) -> Result<Self, StoreError> {
        let served = paths.iter().map(|path| Served::open(path, config));
        let served = served.collect::<Result<Vec<_>, _>>()?;
        let first = served.first().expect("invariant: there is a directory");
        let cached_lookups = first.root.supports_cached_lookups()? && config.cached_lookups;
        let currents = served.iter().map(|served| Arc::clone(&served.current));
        let threads = Threads::start(&currents.collect(), config.threads, config.lookups_max)
            .map_err(StoreError::Threads)?;
        Ok(Self {
            served,
            threads,
            cached_lookups,
            coldness: Coldness::default(),
            notice: None,
            unneeded: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.served.len()
    }

    /// The device that a look-up of `key` depends on, if no symbolic link leads to another.
    pub(crate) fn device_of_key(&self, key: &str) -> DeviceId {
        let (index, name) = split_key(key);
        self.served[index].root.mounts().of(name.as_bytes()).device
    }

    /// The path of what a key is for.
    pub(crate) fn path_of(&self, key: &str) -> String {
        match split_key(key) {
            (0, name) => format!("/{name}"),
            (index, name) => {
                let directory = self.served[index].current.path();
                format!("{}/{name}", directory.display())
            }
        }
    }

    /// Opens what a key is for, unless it leads to the object that it led to before (`known`) and that is
    /// unchanged. Such a name is most certainly in the kernel's caches. Call [`Directories::poll_unneeded`]
    /// afterwards.
    pub(crate) fn open_object(
        &mut self,
        now: Instant,
        key: &str,
        known: Option<&Metadata>,
    ) -> Opening {
        let (index, name) = split_key(key);
        self.refresh(index);
        if self.wants_follow(index, now) {
            return Opening::WouldBlock(DeviceId::UNKNOWN, Resolve::Anew);
        }
        let mounts = self.served[index].root.mounts();
        let (mount, own) = (mounts.of(name.as_bytes()), mounts.root());
        let resolve = if mount.device == own.device {
            Resolve::OwnMount
        } else {
            Resolve::Beneath
        };
        let later = Opening::WouldBlock(mount.device, resolve);
        // The worker asks nothing of a directory that is not on a local file system.
        if !self.cached_lookups || !own.is_local || !mount.is_local {
            return later;
        }
        if known.is_none() && !self.coldness.wants_look() {
            return later;
        }
        let device = mount.device;
        let opened = self.ask_caches(index, name, known, device);
        let is_miss = |error: &io::Error| error.raw_os_error() == Some(libc::EAGAIN);
        match &opened {
            _ if known.is_some() => {}
            Err(error) if is_miss(error) => self.coldness.note_miss(),
            _ => self.coldness.note_hit(),
        }
        match opened {
            Ok(None) => Opening::Unchanged,
            Ok(Some(opened)) => Opening::Done(Ok(opened)),
            Err(error) if is_miss(&error) => later,
            Err(error) => match open_error_of(&error, Resolve::CachedOnly) {
                OpenError::Refused(refusal) => Opening::Done(Err(refusal)),
                OpenError::OutOfScope if resolve == Resolve::Beneath => later,
                OpenError::OutOfScope => Opening::WouldBlock(DeviceId::UNKNOWN, Resolve::AnyMount),
            },
        }
    }

    /// Opens a name of a file system with this device by the kernel's caches; `None` if it leads to the
    /// object that is known.
    fn ask_caches(
        &mut self,
        index: usize,
        name: &str,
        known: Option<&Metadata>,
        device: DeviceId,
    ) -> io::Result<Option<Opened>> {
        let name = c_string(&mut self.scratch, name.as_bytes());
        let root = &self.served[index].root;
        let mut unneeded = Vec::new();
        let opened = match known.map(|known| root.ask(name, known, &mut unneeded)) {
            Some(Ok(Asked::Same)) => return Ok(None),
            Some(Err(error)) => Err(error),
            Some(Ok(Asked::Other(pointer))) => {
                let resolve = Resolve::CachedOnly;
                let opened = root.open_object(name, resolve, &mut unneeded);
                let metadata = opened.as_ref().ok().map(|opened| &opened.metadata);
                unneeded.extend(pointer.into_unneeded(metadata));
                opened
            }
            None => root.open_object(name, Resolve::CachedOnly, &mut unneeded),
        };
        let of_device = |descriptor| (device, descriptor);
        self.unneeded.extend(unneeded.into_iter().map(of_device));
        opened.map(Some)
    }

    /// Whether the served path may lead to another directory, so that a thread is to follow it.
    fn wants_follow(&mut self, index: usize, now: Instant) -> bool {
        let mut path_watch = self.served[index].path_watch;
        let follows = path_watch.wants_follow(now, || self.ask_path(index));
        self.served[index].path_watch = path_watch;
        follows
    }

    fn may_ask_path(&self, index: usize) -> bool {
        self.cached_lookups && self.served[index].root.mounts().root().is_local
    }

    /// Asks the kernel's caches what the served path leads to.
    fn ask_path(&mut self, index: usize) -> PathAnswer {
        if !self.may_ask_path(index) {
            return PathAnswer::NotAsked;
        }
        let mut unneeded = Vec::new();
        let Served { current, root, .. } = &self.served[index];
        let answer = current.ask_path(root, &mut unneeded);
        let of_device = |descriptor| (DeviceId::UNKNOWN, descriptor);
        self.unneeded.extend(unneeded.into_iter().map(of_device));
        answer
    }

    /// Notes that a thread has followed the served path.
    fn note_followed(&mut self, now: Instant, index: usize, followed: &Result<bool, StoreError>) {
        let may_ask = self.may_ask_path(index);
        let served = &mut self.served[index];
        let is_new = followed.as_ref().ok().copied();
        served.path_watch.note_followed(now, is_new, may_ask);
        let had_failed = core::mem::replace(&mut served.has_failed, followed.is_err());
        match followed {
            Ok(true) => self.notice = Some(Notice::Switched(served.current.path().to_owned())),
            Ok(false) => {}
            Err(_) if had_failed => {}
            Err(error) => self.notice = Some(Notice::NotFollowed(error.to_string())),
        }
    }

    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }

    /// A descriptor for a thread to close, and its device. Ask after each call that may open a file
    /// or replace the root.
    pub(crate) fn poll_unneeded(&mut self) -> Option<(DeviceId, OwnedFd)> {
        self.unneeded.pop()
    }

    /// Has a thread resolve and open what the key is for.
    pub(crate) fn submit(&mut self, id: u64, key: String, device: DeviceId, resolve: Resolve) {
        let (index, _) = split_key(&key);
        let root = (resolve != Resolve::Anew).then(|| Arc::clone(&self.served[index].root));
        let request = LookUpRequest {
            id,
            key,
            resolve,
            root,
        };
        self.threads.ask(device, request);
    }

    pub(crate) fn withdraw(&mut self, id: u64, device: DeviceId) -> bool {
        let withdrawn = self.threads.withdraw(device, id);
        let is_withdrawn = withdrawn.is_some();
        if let Some(root) = withdrawn.and_then(|request| request.root) {
            self.release_root(root);
        }
        is_withdrawn
    }

    pub(crate) fn close(&mut self, device: DeviceId, descriptor: OwnedFd) {
        self.threads.close(device, descriptor);
    }

    pub(crate) fn open_roots(&mut self) {
        self.threads.open_roots();
    }

    pub(crate) fn poll_reply(&mut self, now: Instant) -> Option<Reply> {
        let reply = self.threads.poll_reply();
        // Now: an idle server has no look-up that would refresh it.
        match &reply {
            Some(Reply::Roots(_)) => (0..self.served.len()).for_each(|index| self.refresh(index)),
            Some(Reply::Followed(index, followed)) => {
                self.refresh(*index);
                self.note_followed(now, *index, followed);
            }
            _ => {}
        }
        reply
    }

    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.threads.poll_fd()
    }

    #[cfg(test)]
    pub(crate) fn signals_due(&self) -> i64 {
        self.threads.signals_due()
    }

    #[cfg(test)]
    pub(crate) fn queued(&self, device: DeviceId) -> usize {
        self.threads.queued(device)
    }

    /// Changes when a thread has replaced the first root or its mounts.
    #[cfg(test)]
    pub(crate) fn version(&self) -> u64 {
        self.served[0].current.version()
    }

    /// What was found out about `O_DIRECT` in each.
    pub(crate) fn probed(&self) -> impl Iterator<Item = &Probed> {
        self.served.iter().map(|served| &served.probed)
    }

    /// Takes over a root that a thread has replaced.
    fn refresh(&mut self, index: usize) {
        let served = &mut self.served[index];
        let version = served.current.version();
        if version != served.version
            && let Some(root) = served.current.try_get()
        {
            served.version = version;
            let old = core::mem::replace(&mut served.root, root);
            self.release_root(old);
        }
    }

    /// Gives up a root. Its last descriptor is for a thread to close: if the file system was unmounted
    /// lazily (`umount -l`), this ends the mount, which writes and waits.
    fn release_root(&mut self, root: Arc<Root>) {
        if let Some(root) = Arc::into_inner(root) {
            let device = root.mounts().root().device;
            let descriptor = root.into_descriptor();
            self.unneeded
                .extend(descriptor.map(|descriptor| (device, descriptor)));
        }
    }
}
