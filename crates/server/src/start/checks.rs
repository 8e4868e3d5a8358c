//! `--check`: looks at what a start would look at, and changes nothing.
//!
//! It refuses to take anything from a server that runs, which may be the one that is to be restarted: not
//! its controllers, and where a server with the same addresses runs, its interface and its port count as
//! ours. What only the network can tell is not asked: whether another host has an address. Bounds: those of
//! a start; [`SLOTS`] slots.

use std::io::{self, Write as _};

use diskmap::uring::Uring;
use link::{SetupError, Tap, interface_offers};
use memory::{Arena, ArenaConfig, PageKind};
use rustix::thread::{CapabilitySet, capabilities};

use super::content::Content;
use super::storage::{self, open_store, raise_descriptor_limit, uring_config};
use super::{
    check_addresses, links, open_files, random_seed, refuse_link, with_host_addresses,
    written_later,
};
use crate::failure::Failure;
use crate::observe::monitoring::MonitoringSetup;
use crate::settings::{LinkChoice, Settings};
use crate::start::claim;
use crate::start::files;
use crate::start::memory_need;
use crate::start::privileges::Identity;

/// Slots that a ring is tried with.
const SLOTS: u32 = 16;

/// Looks whether a server could start, and prints the result on stdout.
///
/// # Errors
/// Why it could not.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    let settings = &with_host_addresses(settings)?;
    let content = Content::check(settings)?;
    let identity = Identity::resolve(settings.user.as_ref())?;
    // Dropped at once: the process that reads files has ended when this does.
    open_files(settings, &identity)?.load_first()?;
    check_addresses(settings)?;
    let is_running = claim::is_locked(settings, &identity);
    MonitoringSetup::check(settings, is_running)?;
    check_link(settings, is_running)?;
    let descriptors = storage::descriptors_beside_roots(settings, raise_descriptor_limit()?);
    let objects_max =
        storage::objects_max(settings.limits.objects_max, descriptors, settings.workers)?;
    memory_need::warn_of_limit(memory_need::of_settings(settings));
    check_ring(settings)?;
    random_seed()?;
    let mut later = written_later(settings);
    if identity.new_owner().is_some() {
        // Those are made before the user changes.
        later.retain(|(_, path)| path.exists() || files::check_writable(path).is_err());
    }
    identity.assume()?;
    for (flag, path) in &later {
        files::check_writable(path).map_err(|error| files::refuse(flag, path, &error))?;
    }
    let mut notes = Vec::new();
    match content {
        Some(content) => {
            content.check_as(&identity)?;
            if content.has_descriptors() {
                open_store(&content.start()?, settings, objects_max, true)?;
            }
        }
        None => notes.push("not checked: the store, since the NVMe controllers were left alone"),
    }
    if is_running {
        notes.push("a server with these addresses is running");
    }
    let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
    // If stdout is closed, the exit code still tells.
    let _ = writeln!(
        io::stdout(),
        "ok: could serve {} as {identity}{notes}",
        settings.urls()
    );
    Ok(())
}

/// Whether this process may open the link.
pub(crate) fn permits(settings: &Settings) -> bool {
    check_link(settings, false).is_ok()
}

/// Whether the link could be opened, by what is there and by the capabilities of this process.
fn check_link(settings: &Settings, is_running: bool) -> Result<(), Failure> {
    let interface = settings.link.interface();
    let found = match &settings.link {
        LinkChoice::Tap(name) => Tap::check(name, settings.workers_count()),
        // Its ports may be those of a server that runs.
        LinkChoice::Relay(_) => Ok(()),
        _ => interface_offers(interface).map(drop),
    };
    match found {
        // Of a tap that the server makes: that has it.
        Err(SetupError::Busy { .. }) if is_running => {}
        found => found.map_err(refuse_link)?,
    }
    if matches!(settings.link, LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_))
        && let Ok(offers) = interface_offers(interface)
        && let Some(queues) = offers.receive_queues
    {
        let queues = usize::try_from(queues).unwrap_or(usize::MAX);
        links::check_queue_count(settings, interface, queues)?;
    }
    check_capabilities(&settings.link).map_err(refuse_link)
}

/// Whether this process has the capabilities that the link takes.
fn check_capabilities(link: &LinkChoice) -> Result<(), SetupError> {
    let needed: &[(CapabilitySet, &str)] = &[
        (CapabilitySet::NET_ADMIN, "cap_net_admin"),
        (CapabilitySet::NET_RAW, "cap_net_raw"),
        (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, "cap_bpf"),
    ];
    let count = match link {
        // One that is there may be this user's.
        LinkChoice::Tap(name) if link::interface_exists(name)? => 0,
        LinkChoice::Relay(_) => 0,
        LinkChoice::Tap(_) => 1,
        LinkChoice::Packet(_) => 2,
        LinkChoice::Auto(_) | LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_) => 3,
    };
    let had = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let missing = needed
        .iter()
        .take(count)
        .find(|(any, _)| !had.intersects(*any));
    match missing {
        None => Ok(()),
        Some((_, capability)) => Err(SetupError::NotPermitted {
            operation: "opening the link",
            name: link.interface().to_owned(),
            capability,
        }),
    }
}

/// Whether the kernel sets up a ring like a worker's.
fn check_ring(settings: &Settings) -> Result<(), Failure> {
    let slots = ArenaConfig {
        pages: PageKind::Ordinary,
        ..ArenaConfig::new(SLOTS)
    };
    let arena = Arena::new(slots).map_err(|error| Failure::Refused(error.to_string()))?;
    let limits = settings.limits.share(settings.workers);
    let config = uring_config(limits.disk_queue_depth, 1);
    let ring = Uring::new_disabled(config, &arena);
    ring.map_err(|error| Failure::Refused(error.to_string()))?;
    Ok(())
}
