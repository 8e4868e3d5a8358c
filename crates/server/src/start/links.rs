//! Opens the links of all workers: those that were named, or, for `auto:IFACE`, the best that the
//! interface offers.
//!
//! What is best follows the measurements of `docs/develop/decisions/0027-receive-by-xdp-send-by-packet.md`: large
//! frames should leave in one piece where the device segments TCP, which AF_XDP can't do; and receiving by
//! XDP is cheaper where the program runs in the driver. It refuses to
//! fall back to a link that could not do what was asked: shared addresses need XDP.

use std::net::{IpAddr, SocketAddr};

use link::{
    AddressUse, Checksums, Link, MacChoice, Packet, PacketConfig, Relay, RelayConfig, Tap,
    TapConfig, Xdp, XdpConfig, XdpPacket, ZeroCopy,
};
use memory::ArenaConfig;
use tracing::{info, warn};

use super::worker_link::WorkerLink;
use super::{host_ends, refuse_link, shared_ports};
use crate::doctor::tree::Tree;
use crate::failure::Failure;
use crate::settings::{LinkChoice, MacSetting, Settings};
use crate::take_over::predecessor::Predecessor;

/// The links of all workers.
pub(super) enum Links {
    Tap(Vec<Tap>),
    Packet(Vec<Packet>),
    Xdp(Vec<Xdp>),
    XdpPacket(Vec<XdpPacket>),
    Relay(Relay),
}

/// Opens the links, and says of which kind they are: never `Auto`. Nothing is received while there is a predecessor.
pub(super) fn open(
    settings: &Settings,
    predecessor: Option<&mut Predecessor>,
) -> Result<(Links, LinkChoice), Failure> {
    let choice = settings.link.clone();
    let is_first = predecessor.is_none();
    let links = match &choice {
        LinkChoice::Tap(name) => {
            let config = TapConfig {
                name: name.clone(),
                host_addresses: host_ends(&settings.addresses),
            };
            let opened = match predecessor {
                Some(predecessor) => Tap::of_shared(&config, predecessor.take_queues()),
                None => Tap::open_queues(&config, settings.workers_count()),
            };
            Links::Tap(opened.map_err(refuse_link)?)
        }
        LinkChoice::Packet(interface) => open_packet(settings, interface, is_first)?,
        LinkChoice::Xdp(interface) => open_xdp(settings, interface, predecessor)?,
        LinkChoice::XdpPacket(interface) => open_xdp_packet(settings, interface, predecessor)?,
        LinkChoice::Relay(address) => open_relay(settings, *address)?,
        LinkChoice::Auto(interface) => return open_best(settings, interface),
    };
    links.log_receiving();
    if let (false, Some(device)) = (settings.busy_poll.is_zero(), links.device())
        && let Some(advice) = deferral_advice(&Tree::of_this_machine(), device)
    {
        warn!("{advice}");
    }
    Ok((links, choice))
}

/// Opens the best that the interface offers, and logs why it is.
///
/// What a driver can do is known for sure only once the program is attached and a socket bound, so it is
/// tried.
fn open_best(settings: &Settings, interface: &str) -> Result<(Links, LinkChoice), Failure> {
    let offers = link::interface_offers(interface).map_err(refuse_link)?;
    let segments = offers.segments_tcp;
    let (opened, choice) = if segments {
        let choice = LinkChoice::XdpPacket(interface.to_owned());
        (open_xdp_packet(settings, interface, None), choice)
    } else {
        let choice = LinkChoice::Xdp(interface.to_owned());
        (open_xdp(settings, interface, None), choice)
    };
    let sends = if segments {
        "the device segments TCP, so large frames leave by a packet socket"
    } else {
        "the device does not segment TCP"
    };
    let why_not = match opened {
        Ok(links) if settings.is_address_shared => {
            log_choice(&choice, "the host's addresses are shared", sends);
            links.log_receiving();
            return Ok((links, choice));
        }
        Ok(links) if links.are_better_than_packet() => {
            log_choice(&choice, "the driver runs XDP programs", sends);
            links.log_receiving();
            return Ok((links, choice));
        }
        Ok(Links::XdpPacket(_)) => "the driver runs no XDP programs".to_owned(),
        Ok(_) => "the driver has no zero copy for AF_XDP".to_owned(),
        Err(failure) if settings.is_address_shared => return Err(failure),
        Err(failure) => failure.to_string(),
    };
    let choice = LinkChoice::Packet(interface.to_owned());
    let links = open_packet(settings, interface, true)?;
    log_choice(&choice, &format!("not XDP: {why_not}"), sends);
    Ok((links, choice))
}

fn log_choice(choice: &LinkChoice, receives: &str, sends: &str) {
    info!("--link auto: {choice}; {receives}; {sends}");
}

fn open_packet(settings: &Settings, interface: &str, is_receiving: bool) -> Result<Links, Failure> {
    let config = PacketConfig {
        mac: mac_choice(settings.mac),
        zero_copy: settings.zero_copy,
        virtual_addresses: settings.virtual_addresses.clone(),
        is_receiving,
        ..PacketConfig::new(interface, &settings.own_addresses())
    };
    let queues = Packet::open_queues(&config, settings.workers_count()).map_err(refuse_link)?;
    Ok(Links::Packet(queues))
}

fn open_relay(settings: &Settings, address: IpAddr) -> Result<Links, Failure> {
    let refuse = |problem: &str| {
        Failure::refused(
            format!("--link {}: {problem}", settings.link),
            "leave --address out, or name one whose subnet has two",
        )
    };
    let server = settings.addresses.first();
    let server = server.ok_or_else(|| refuse("no address"))?.address();
    let ends = host_ends(&settings.addresses);
    let host_end = ends
        .into_iter()
        .find(|end| end.address.is_ipv4() == server.is_ipv4())
        .ok_or_else(|| refuse("no address is left for clients"))?;
    let ports = shared_ports(settings).into_iter();
    let config = RelayConfig {
        listen: ports
            .map(|port| (SocketAddr::new(address, port), port))
            .collect(),
        server,
        host_end,
    };
    Ok(Links::Relay(Relay::open(&config).map_err(refuse_link)?))
}

fn open_xdp(
    settings: &Settings,
    interface: &str,
    predecessor: Option<&mut Predecessor>,
) -> Result<Links, Failure> {
    let config = xdp_config_with_loans(settings, interface);
    let queues = match predecessor {
        Some(it) => Xdp::of_shared(&config, &it.xdp_shapes(), it.take_queues()),
        None => Xdp::open_queues(&config),
    };
    let queues = queues.map_err(refuse_link)?;
    let device = queues.first().map_or(interface, Xdp::device);
    check_queue_count(settings, device, queues.len())?;
    Ok(Links::Xdp(queues))
}

fn open_xdp_packet(
    settings: &Settings,
    interface: &str,
    predecessor: Option<&mut Predecessor>,
) -> Result<Links, Failure> {
    let config = xdp_config(settings, interface);
    let queues = match predecessor {
        Some(it) => XdpPacket::of_shared(&config, &it.xdp_shapes(), it.take_queues()),
        None => XdpPacket::open_queues(&config),
    };
    let queues = queues.map_err(refuse_link)?;
    let device = queues.first().map(XdpPacket::receiver);
    let device = device.map_or(interface, Xdp::device);
    check_queue_count(settings, device, queues.len())?;
    Ok(Links::XdpPacket(queues))
}

/// Each receive queue needs a worker of its own, since the device chooses the queue.
pub(super) fn check_queue_count(
    settings: &Settings,
    device: &str,
    queues: usize,
) -> Result<(), Failure> {
    let workers = settings.workers_count();
    if queues == workers {
        return Ok(());
    }
    let counted = |count: usize, what: &str| {
        let ending = if count == 1 { "" } else { "s" };
        format!("{count} {what}{ending}")
    };
    Err(Failure::refused(
        format!(
            "--link {}: {} for {}",
            settings.link,
            counted(queues, "receive queue"),
            counted(workers, "worker")
        ),
        format!("use --workers {queues}, or ethtool -L {device} combined {workers}"),
    ))
}

fn xdp_config(settings: &Settings, interface: &str) -> XdpConfig {
    let addresses = settings.own_addresses();
    let config = if settings.is_address_shared {
        XdpConfig::shared(interface, &addresses, &shared_ports(settings))
    } else {
        let mac = mac_choice(settings.mac);
        XdpConfig {
            address_use: AddressUse::Own { mac },
            virtual_addresses: settings.virtual_addresses.clone(),
            ..XdpConfig::new(interface, &addresses)
        }
    };
    let micros = settings.busy_poll.as_nanos() / 1_000;
    XdpConfig {
        zero_copy: settings.zero_copy,
        busy_poll_us: u32::try_from(micros).unwrap_or(u32::MAX),
        ..config
    }
}

/// What the operator should do about the interface's interrupts, if its device is to be polled. `None` also
/// where the files cannot be read: those of another network namespace are elsewhere.
fn deferral_advice(tree: &Tree, interface: &str) -> Option<String> {
    let is_zero = |name: &str| {
        let text = tree.read(format!("sys/class/net/{interface}/{name}"));
        text.is_some_and(|text| text == "0")
    };
    (is_zero("napi_defer_hard_irqs") || is_zero("gro_flush_timeout")).then(|| {
        format!(
            "{interface} does not defer its interrupts, so busy polling competes with them: echo 2 > \
             /sys/class/net/{interface}/napi_defer_hard_irqs; echo 200000 > \
             /sys/class/net/{interface}/gro_flush_timeout"
        )
    })
}

/// The same for links that send through AF_XDP, too: from the slots, if they are lent.
fn xdp_config_with_loans(settings: &Settings, interface: &str) -> XdpConfig {
    let slots = settings.limits.share(settings.workers).slots;
    XdpConfig {
        // With `on`, slots are lent: by a kernel that copies, if the device does not access them itself.
        zero_copy: match settings.zero_copy {
            ZeroCopy::On => ZeroCopy::Auto,
            choice => choice,
        },
        loans: settings.zero_copy,
        slots_bytes: ArenaConfig::new(slots).slots_bytes(),
        ..xdp_config(settings, interface)
    }
}

const fn mac_choice(mac: MacSetting) -> MacChoice {
    match mac {
        MacSetting::Own => MacChoice::Own,
        MacSetting::Interface => MacChoice::Interface,
    }
}

impl Links {
    /// One for each worker.
    pub(super) fn for_workers(self) -> Vec<WorkerLink> {
        fn all<L>(links: Vec<L>, kind: fn(Box<L>) -> WorkerLink) -> Vec<WorkerLink> {
            links.into_iter().map(|link| kind(Box::new(link))).collect()
        }
        match self {
            Self::Tap(queues) => all(queues, WorkerLink::Tap),
            Self::Packet(queues) => all(queues, WorkerLink::Packet),
            Self::Xdp(queues) => all(queues, WorkerLink::Xdp),
            Self::XdpPacket(queues) => all(queues, WorkerLink::XdpPacket),
            Self::Relay(relay) => all(vec![relay], WorkerLink::Relay),
        }
    }

    /// Whether the device itself writes received frames to the cells of all AF_XDP sockets.
    fn is_zero_copy(&self) -> bool {
        match self {
            Self::Tap(_) | Self::Packet(_) | Self::Relay(_) => false,
            Self::Xdp(queues) => queues.iter().all(Xdp::is_zero_copy),
            Self::XdpPacket(queues) => queues.iter().all(|it| it.receiver().is_zero_copy()),
        }
    }

    /// Whether the checksums of frames that are sent are left to the device, or to the kernel in its place.
    fn leaves_checksums(&self) -> bool {
        match self {
            Self::Tap(_) | Self::Packet(_) | Self::XdpPacket(_) => true,
            Self::Relay(_) => false,
            Self::Xdp(queues) => {
                let checksums = |link: &Xdp| link.frame_path().checksums;
                queues.iter().all(|it| checksums(it) == Checksums::Device)
            }
        }
    }

    /// Whether XDP is worth its limits. Where each frame has to be cut and the kernel copies it, a packet
    /// socket sends for a tenth of the cost.
    fn are_better_than_packet(&self) -> bool {
        match self {
            Self::Tap(_) | Self::Packet(_) | Self::Relay(_) => false,
            Self::Xdp(_) => self.is_zero_copy(),
            Self::XdpPacket(queues) => queues.iter().all(|it| it.receiver().is_in_driver()),
        }
    }

    /// The AF_XDP socket of the first queue.
    fn first_receiver(&self) -> Option<&Xdp> {
        match self {
            Self::Tap(_) | Self::Packet(_) | Self::Relay(_) => None,
            Self::Xdp(queues) => queues.first(),
            Self::XdpPacket(queues) => queues.first().map(XdpPacket::receiver),
        }
    }

    /// The interface that an XDP program is attached to.
    fn device(&self) -> Option<&str> {
        self.first_receiver().map(Xdp::device)
    }

    fn log_receiving(&self) {
        if let Some(first) = self.first_receiver() {
            info!(
                in_driver = first.is_in_driver(),
                zero_copy = self.is_zero_copy(),
                checksums_by_device = self.leaves_checksums(),
                "frames are received through AF_XDP sockets"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use link::ZeroCopy;

    use super::{deferral_advice, xdp_config, xdp_config_with_loans};
    use crate::doctor::tree::Tree;
    use crate::settings::{CommonArgs, FileConfig, Settings};

    fn settings(zero_copy: &str) -> Settings {
        let common = CommonArgs {
            path: "/srv".into(),
            link: Some("xdp:eth0".into()),
            addresses: vec!["10.0.0.2/24".into()],
            zero_copy: Some(zero_copy.into()),
            ..CommonArgs::default()
        };
        Settings::merge(common, FileConfig::default()).unwrap()
    }

    #[test]
    fn zero_copy_of_xdp_is_about_frames_sent_from_slots_and_off_about_all() {
        // Whether the device accesses the memory; whether slots are lent, or opening fails.
        for (choice, device, loans) in [
            ("auto", ZeroCopy::Auto, ZeroCopy::Auto),
            ("on", ZeroCopy::Auto, ZeroCopy::On),
            ("off", ZeroCopy::Off, ZeroCopy::Off),
        ] {
            let config = xdp_config_with_loans(&settings(choice), "eth0");
            assert_eq!(
                (config.zero_copy, config.loans),
                (device, loans),
                "{choice}"
            );
            assert!(config.slots_bytes > 0);
        }
    }

    #[test]
    fn an_interface_that_is_polled_and_does_not_defer_interrupts_is_told_of() {
        let root = std::env::temp_dir().join(format!("atlas-defer-{}", std::process::id()));
        let directory = root.join("sys/class/net/eth0");
        std::fs::create_dir_all(&directory).unwrap();
        let tree = Tree::under(&root);
        assert_eq!(deferral_advice(&tree, "eth0"), None, "nothing to read");
        for (irqs, timeout, is_advised) in [
            ("0", "0", true),
            ("2", "0", true),
            ("0", "200000", true),
            ("2", "200000", false),
        ] {
            std::fs::write(directory.join("napi_defer_hard_irqs"), irqs).unwrap();
            std::fs::write(directory.join("gro_flush_timeout"), timeout).unwrap();
            let advice = deferral_advice(&tree, "eth0");
            assert_eq!(advice.is_some(), is_advised, "{irqs} {timeout}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn beside_a_packet_socket_zero_copy_is_about_what_that_sends() {
        for (choice, expected) in [
            ("auto", ZeroCopy::Auto),
            ("on", ZeroCopy::On),
            ("off", ZeroCopy::Off),
        ] {
            let config = xdp_config(&settings(choice), "eth0");
            assert_eq!(config.zero_copy, expected);
            assert_eq!(config.slots_bytes, 0, "they are lent to the packet socket");
        }
    }
}
