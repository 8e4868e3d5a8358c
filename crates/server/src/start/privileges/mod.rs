//! Dropping privileges: the user the server becomes, its capabilities, core dumps.
//!
//! Making a TAP or a packet socket needs `CAP_NET_ADMIN` and `CAP_NET_RAW`; serving needs nothing.
//! So everything that needs a privilege is opened at start, and then the process becomes an
//! ordinary user without any capability, before it parses the first frame from the network
//! (decision 9). A separate process reads files that need more rights later: see
//! [`crate::reload::reader`].
//!
//! It refuses to drop privileges in part: the result is read back from the kernel, and a process with
//! a second thread is refused, because user and capabilities belong to a thread. Bounds: a fixed list
//! of capability sets.

mod accounts;

use std::fmt;
use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, geteuid, set_dumpable_behavior, setrlimit,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, no_new_privs, remove_capability_from_bounding_set,
    set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use tracing::debug;

use crate::failure::Failure;
use crate::settings::{Origin, UserName};

pub(crate) use accounts::Account;

/// Users looked for when none is named, the first that exists is taken.
const USERS_DEFAULT: [&str; 2] = ["atlas", "nobody"];
/// What user and group are called that own nothing, on a host without a list of users.
const OVERFLOW_ID: u32 = 65_534;
/// Bits of the kernel's capability sets.
const CAPABILITIES_MAX: u32 = 64;

/// Who the process is to be while it serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Identity {
    /// The user it was started as, without capabilities.
    Same,
    /// Root with everything root may do: the operator's word.
    Root,
    /// Another user, without capabilities.
    Other(Account),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the user it was started as"),
            Self::Root => f.write_str("root"),
            Self::Other(account) => write!(f, "user {}", account.name),
        }
    }
}

impl Identity {
    /// The user that serves, by what the settings name and the user that started the process.
    ///
    /// # Errors
    /// The user does not exist, or only root could become it.
    pub(crate) fn resolve(user: Option<&(UserName, Origin)>) -> Result<Self, Failure> {
        let is_root = geteuid().is_root();
        let Some((name, origin)) = user else {
            return if is_root {
                default_account().map(Self::Other)
            } else {
                Ok(Self::Same)
            };
        };
        let account = accounts::find(name).map_err(|error| {
            Failure::refused(format!("{origin} {name}: {error}"), error.remedy())
        })?;
        match (is_root, account.uid) {
            (true, 0) => Ok(Self::Root),
            (true, _) => Ok(Self::Other(account)),
            (false, uid) if uid == geteuid().as_raw() => Ok(Self::Same),
            (false, _) => Err(Failure::refused(
                format!("{origin} {name}: only root can become another user"),
                format!("start as root, or leave {origin} out"),
            )),
        }
    }

    /// As the log names it.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Same => "unchanged",
            Self::Root => "root",
            Self::Other(account) => &account.name,
        }
    }

    /// The user and group to give files that are made before [`Identity::assume`]; `None`: they have the
    /// right owner.
    #[must_use]
    pub(crate) const fn new_owner(&self) -> Option<(u32, u32)> {
        match self {
            Self::Other(account) => Some((account.uid, account.gid)),
            Self::Same | Self::Root => None,
        }
    }

    /// Whether files that can be read now may be out of reach after [`Identity::assume`].
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn loses_files(&self) -> io::Result<bool> {
        let passes_modes = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
        Ok(match self {
            Self::Root => false,
            Self::Other(_) => true,
            Self::Same => capabilities(None)?.effective.intersects(passes_modes),
        })
    }

    /// Becomes this user, for good. Only while there is no second thread.
    ///
    /// # Errors
    /// What the kernel refuses, with the remedy. Privileges may have been dropped in part by then, so
    /// the process must end.
    pub(crate) fn assume(&self) -> Result<(), Failure> {
        self.assume_keeping(CapabilitySet::empty())
    }

    /// The same, but for the capabilities in `kept`, as far as the process has them.
    ///
    /// # Errors
    /// As for [`Identity::assume`].
    pub(crate) fn assume_keeping(&self, kept: CapabilitySet) -> Result<(), Failure> {
        assert_eq!(
            thread_count(),
            1,
            "invariant: privileges are dropped before threads are started"
        );
        let failed = |what: &str, error: io::Error| {
            Failure::of_error(
                &error,
                format!("giving privileges up ({self}): {what}: {error}"),
                "allow CAP_SETUID and CAP_SETGID and map the user, or --user root to go on as root",
            )
        };
        let note = |what| move |error: rustix::io::Errno| failed(what, error.into());
        if matches!(self, Self::Root) {
            return set_no_new_privs(true).map_err(note("no_new_privs"));
        }
        let kept = kept & capabilities(None).map_err(note("capget"))?.permitted;
        empty_bounding_set(kept);
        if let Self::Other(account) = self {
            // Else changing the user would drop what is kept, too.
            set_keep_capabilities(!kept.is_empty()).map_err(note("PR_SET_KEEPCAPS"))?;
            become_account(account).map_err(|(what, errno)| failed(what, errno.into()))?;
            set_keep_capabilities(false).map_err(note("PR_SET_KEEPCAPS"))?;
        }
        // Before Linux 4.3 there is none to be cleared.
        let _ = clear_ambient_capability_set();
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).map_err(note("capset"))?;
        set_no_new_privs(true).map_err(note("no_new_privs"))?;
        self.check(sets).map_err(|what| {
            Failure::refused(
                format!("giving privileges up ({self}): {what}"),
                "report this as a bug, with the kernel's version",
            )
        })
    }

    /// Asks the kernel whether all is as it was to be.
    fn check(&self, sets: CapabilitySets) -> Result<(), &'static str> {
        if let Self::Other(account) = self {
            let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
            let is_gone = geteuid() == uid
                && rustix::process::getuid() == uid
                && rustix::process::getegid() == gid
                && rustix::process::getgid() == gid
                && set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_err();
            if !is_gone {
                return Err("the user did not change");
            }
        }
        match (capabilities(None), no_new_privs()) {
            (Ok(now), Ok(true)) if now == sets => Ok(()),
            _ => Err("capabilities are left"),
        }
    }
}

/// Does `work`, which starts a program, so that the program has this process's capabilities: for an ordinary
/// user the kernel passes only ambient ones on. Afterwards none is left ambient here.
///
/// # Errors
/// Those of `work`, or the kernel's.
pub(crate) fn passing_capabilities_on<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let sets = capabilities(None)?;
    let inheritable = sets.permitted;
    set_capabilities(
        None,
        CapabilitySets {
            inheritable,
            ..sets
        },
    )?;
    let raised = (inheritable.iter())
        .try_for_each(|capability| configure_capability_in_ambient_set(capability, true));
    let outcome = raised.map_err(io::Error::from).and_then(|()| work());
    clear_ambient_capability_set()?;
    set_capabilities(None, sets)?;
    outcome
}

/// Allows or forbids that memory, which has keys in it, is written to core dumps or read by a
/// process of the same user (ptrace). Comes behind [`Identity::assume`], which forbids it by itself.
///
/// # Errors
/// What the kernel said.
pub(crate) fn set_core_dumps(are_allowed: bool) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| {
        let error = io::Error::from(error);
        Failure::of_error(
            &error,
            format!("core dumps cannot be switched: {error}"),
            "allow prctl and setrlimit in the seccomp profile",
        )
    };
    if are_allowed {
        return set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(failed);
    }
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).map_err(failed)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)
}

fn default_account() -> Result<Account, Failure> {
    for user in USERS_DEFAULT {
        let name = UserName::of_user(user);
        match accounts::find(&name) {
            Ok(account) => return Ok(account),
            Err(error) if error.is_missing() => {}
            Err(error) => {
                return Err(Failure::refused(
                    format!("looking for the user {user}: {error}"),
                    "name one with --user UID:GID",
                ));
            }
        }
    }
    Ok(Account {
        name: OVERFLOW_ID.to_string(),
        uid: OVERFLOW_ID,
        gid: OVERFLOW_ID,
    })
}

/// What a program that is executed could have at most. Without `CAP_SETPCAP` it stays as it is:
/// then no_new_privs alone keeps capabilities from coming back.
fn empty_bounding_set(kept: CapabilitySet) {
    for bit in 0..CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(capability) {
            continue;
        }
        if let Err(error) = remove_capability_from_bounding_set(capability) {
            // EINVAL: the last one that this kernel knows was the one before.
            if error != rustix::io::Errno::INVAL {
                debug!(
                    "the bounding set of capabilities stays: {}",
                    io::Error::from(error)
                );
            }
            return;
        }
    }
}

/// Groups before user: the user may not change them.
fn become_account(account: &Account) -> Result<(), (&'static str, rustix::io::Errno)> {
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    set_thread_groups(&[]).map_err(|errno| ("setgroups", errno))?;
    set_thread_res_gid(gid, gid, gid).map_err(|errno| ("setresgid", errno))?;
    set_thread_res_uid(uid, uid, uid).map_err(|errno| ("setresuid", errno))
}

fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
