//! A directory of the host: opens beneath it, at once if the kernel has the path in its caches and
//! its file system is local, else in a thread.
//!
//! What is asked on the worker itself: `openat2` with `RESOLVE_CACHED` and `statx` of a file of a
//! local file system, which both answer from memory. `RESOLVE_CACHED` alone would not do: it bounds
//! the walk along the path, but the open and the status of a file on NFS or FUSE wait for somebody
//! else however well its path is cached. So where any mount beneath the directory is not local,
//! the worker's walk stays within the directory's own mount.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::root::{CurrentRoot, Miss, Root, Way, c_string, miss_of};
use crate::threads::{Question, Reply, Threads};
use crate::{DirectSupport, Lane, Opening, StoreConfig, StoreError};

#[derive(Debug)]
pub(crate) struct Directory {
    current: Arc<CurrentRoot>,
    /// As it was when `version` was read.
    root: Arc<Root>,
    version: u64,
    threads: Threads,
    /// Whether to ask the kernel's caches first.
    cached_lookups: bool,
    direct_support: DirectSupport,
    /// The name with its NUL, built anew for each open.
    scratch: Vec<u8>,
}

impl Directory {
    pub(crate) fn open(path: &Path, config: &StoreConfig) -> Result<Self, StoreError> {
        let root = Root::open(path, config.direct)?;
        let cached_lookups = root.kernel_knows_cached_lookups()? && config.cached_lookups;
        let direct_support = root.probe_direct(path)?;
        let current = Arc::new(CurrentRoot::new(path, root));
        let threads = Threads::start(&current, config.threads, config.lookups_max)
            .map_err(StoreError::Threads)?;
        Ok(Self {
            root: current.get(),
            version: current.version(),
            current,
            threads,
            cached_lookups,
            direct_support,
            scratch: Vec::new(),
        })
    }

    /// Whom a look-up of `name` asks, if no symbolic link leads to somebody else.
    pub(crate) fn lane_of(&self, name: &str) -> Lane {
        self.root.mounts().of(name.as_bytes()).lane
    }

    pub(crate) fn open_object(&mut self, name: &str) -> Opening {
        self.refresh();
        let mounts = self.root.mounts();
        let (mount, own) = (mounts.of(name.as_bytes()), mounts.root());
        let way = if mount.lane == own.lane {
            Way::OwnMount
        } else {
            Way::Beneath
        };
        let later = Opening::Waits(mount.lane, way);
        // From a directory that is not local, not even its own mount is asked.
        if !self.cached_lookups || !own.is_local || !mount.is_local {
            return later;
        }
        let name = c_string(&mut self.scratch, name.as_bytes());
        match self.root.open_object(name, Way::Cached) {
            Ok(opened) => Opening::Done(Ok(opened)),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => later,
            Err(error) => match miss_of(&error, Way::Cached) {
                Miss::Refused(refusal) => Opening::Done(Err(refusal)),
                Miss::Elsewhere if way == Way::Beneath => later,
                Miss::Elsewhere => Opening::Waits(Lane::ELSEWHERE, Way::Links),
            },
        }
    }

    /// Has a thread go that way.
    pub(crate) fn submit(&mut self, id: u64, name: String, lane: Lane, way: Way) {
        let root = Arc::clone(&self.root);
        let question = Question {
            id,
            name,
            way,
            root,
        };
        self.threads.ask(lane, question);
    }

    pub(crate) fn withdraw(&mut self, id: u64, lane: Lane) -> bool {
        self.threads.withdraw(lane, id)
    }

    pub(crate) fn close(&mut self, lane: Lane, descriptor: OwnedFd) {
        self.threads.close(lane, descriptor);
    }

    pub(crate) fn open_root(&mut self) {
        self.threads.open_root();
    }

    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        let reply = self.threads.poll_reply();
        if let Some(Reply::Root(_)) = reply {
            // Now, or an idle server would keep the old directory.
            self.refresh();
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
    pub(crate) fn queued(&self, lane: Lane) -> usize {
        self.threads.queued(lane)
    }

    /// Changes when a thread has found something out about the root.
    #[cfg(test)]
    pub(crate) fn version(&self) -> u64 {
        self.current.version()
    }

    pub(crate) fn direct_support(&self) -> DirectSupport {
        self.direct_support
    }

    /// Takes over what threads found out about the root.
    fn refresh(&mut self) {
        let version = self.current.version();
        if version != self.version
            && let Some(root) = self.current.try_get()
        {
            (self.version, self.root) = (version, root);
        }
    }
}
