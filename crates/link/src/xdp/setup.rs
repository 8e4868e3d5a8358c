//! Opens the links of an interface: checks, the program and its attachment, a socket for each queue.
//!
//! In this order: program and map, attachment, sockets, map entries. Until a socket is in the map, the
//! program passes every frame, so the kernel's own traffic does not notice, but for what attaching does
//! to the device (most drivers reset their queues). Of sockets of another process, which takes over, the
//! attachment is there (`sharing`). Whatever fails, the descriptors opened so far are
//! closed, and with them the attachment is gone.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clock::Instant;
use wire::MacAddress;

use super::address_table::AddressTable;
use super::bpf::{self, Place};
use super::program::{self, Addresses, Rules, Take};
use super::queue::{CELL_BYTES, DESCRIPTORS_MAX, Queue, QueueStep, Shape};
use super::request_ring::{self, RequestRing};
use super::sharing::{SharedSockets, XdpShape, take_queue};
use super::socket::{self, Copying, XdpStatistics};
use super::vlan::{Device, VlanDevice};
use super::{
    AddressUse, AttachMode, CELLS_MAX, CELLS_MIN, ChecksumOffload, PORTS_MAX, Polling, QUEUES_MAX,
    SEND_BUFFER_BYTES, Xdp, XdpConfig, mtu_bytes_max, segmentation_bytes_max,
};
use crate::Capabilities;
use crate::counters::LinkCounters;
use crate::error::{CopyReason, SetupError};
use crate::interface::{InterfaceName, clamp_mtu, describe};
use crate::netdev::{self, ZeroCopyOffer};
use crate::netlink::InterfaceDescription;
use crate::packet::{self, ADDRESSES_MAX, MacChoice, SendConfig, Sender, ZeroCopy, answered};
use crate::refusal::RefusalPeriod;
use crate::sys;

const CAPABILITY: &str = "cap_net_raw,cap_net_admin,cap_bpf";

/// How often a queue is tried that another socket has, and how long apart, together half a second: a work
/// queue of the kernel's frees it. `[guess]`
const BIND_TRIES: u32 = 50;
/// See [`BIND_TRIES`].
const BIND_TRY_INTERVAL: Duration = Duration::from_millis(10);

/// Frames of this MTU are in one buffer with all drivers.
const USUAL_MTU_BYTES: u32 = 1_500;

/// What all links of an interface hold together: dropped with the last of them, the program is off the
/// interface.
#[derive(Debug)]
pub(super) struct Attachment {
    /// The BPF link.
    pub(super) link: OwnedFd,
    /// Our program, which may wait to be attached.
    pub(super) program: OwnedFd,
    /// Lets frames to our MAC and groups through the device's filter; the kernel does for a shared
    /// address. Held, and not used.
    _membership: Option<OwnedFd>,
    /// The sockets, by queue.
    pub(super) map: OwnedFd,
    /// Our program's rings for requests, by queue.
    rings: OwnedFd,
    /// The addresses that are shared with the host, where they are.
    pub(super) address_map: Option<OwnedFd>,
    pub(super) place: Place,
    /// What the program is attached to.
    pub(super) device: Device,
    /// The VLAN device above it, if that was named.
    pub(super) vlan_device: Option<VlanDevice>,
}

/// What is opened.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Whether a packet socket sends once another process uses the rings.
    pub(super) has_sender: bool,
    /// Sockets of another process, which stay what they are.
    pub(super) shared: Option<SharedSockets>,
}

/// Opens one link for each receive queue. With sockets of another process nothing is received yet.
pub(super) fn open_queues(config: &XdpConfig, plan: Plan) -> Result<Vec<Xdp>, SetupError> {
    let name = InterfaceName::parse(&config.interface)?;
    check(config)?;
    let found = describe(name)?;
    let interface_mac = found.ethernet_mac(name)?;
    let mac = choose_mac(config, name, interface_mac);
    let device = Device::find(name, &found, config.vlan)?;
    let Plan {
        has_sender,
        mut shared,
    } = plan;
    let told_queues = socket::receive_queues(device.name);
    let queues = told_queues.unwrap_or(QUEUES_MAX);
    if queues > QUEUES_MAX {
        return Err(SetupError::ReceiveQueueCount {
            name: device.name.as_str().to_owned(),
            queues,
            max: QUEUES_MAX,
        });
    }
    let macs = (mac, interface_mac);
    let attachment = attach(config, (name, &found), device, macs, shared.as_ref())?;
    check_polling(config, &attachment)?;
    let opening = Opening {
        config,
        name,
        found: &found,
        mac,
        attachment: &Arc::new(attachment),
        has_sender,
        // Beside another process, frames would wait for this one.
        is_using: shared.is_none(),
    };
    let device = &opening.attachment.device;
    let offer = zero_copy_offer(config, device);
    let mut links = Vec::new();
    for queue in 0..queues {
        let others = shared.as_mut().and_then(|it| it.queues.pop_front());
        let shape = others.as_ref().map(|(shape, _)| *shape);
        let opened = match others {
            Some(others) => Some(take_queue(device, others)?),
            None => open_queue(config, opening.attachment, offer, (found.mtu_bytes, queue))?,
        };
        // A driver that does not tell how many queues it has refuses the first that it has not. Other
        // drivers say so, too, of what they cannot do in zero copy: virtio-net of a device that takes
        // no addresses of the bus.
        let Some(opened) = opened else {
            if queue > 0 && told_queues.is_none() {
                break;
            }
            return Err(match config.zero_copy {
                ZeroCopy::On => SetupError::NoZeroCopy {
                    name: device.name.as_str().to_owned(),
                    queue,
                    errno: libc::EINVAL,
                },
                _ => kernel(device.name, "binding an AF_XDP socket", libc::EINVAL),
            });
        };
        links.push(opening.link(queue, opened, shape)?);
    }
    Ok(links)
}

/// What the links of an interface are made from.
#[derive(Clone, Copy)]
struct Opening<'a> {
    config: &'a XdpConfig,
    name: InterfaceName,
    found: &'a InterfaceDescription,
    mac: MacAddress,
    attachment: &'a Arc<Attachment>,
    has_sender: bool,
    /// Whether the links receive at once.
    is_using: bool,
}

impl Opening<'_> {
    /// The link of a queue. `shape`: of the socket of another process that it is.
    fn link(self, index: u32, queue: Queue, shape: Option<XdpShape>) -> Result<Xdp, SetupError> {
        let (config, attachment) = (self.config, self.attachment);
        let device = &attachment.device;
        if self.is_using {
            bpf::set_queue(&attachment.map, index, queue.socket()).map_err(|errno| {
                kernel(device.name, "steering frames to an AF_XDP socket", errno)
            })?;
        }
        let requests = RequestRing::new().and_then(|ring| {
            bpf::set_queue(&attachment.rings, index, ring.map())?;
            Ok(ring)
        });
        let requests =
            requests.map_err(|errno| kernel(device.name, "making a ring for requests", errno))?;
        let sender = self.has_sender.then(|| self.sender()).transpose()?;
        let copy_reason = match (queue.has_slots(), config.loans) {
            (true, _) => None,
            (false, ZeroCopy::Off) => Some(CopyReason::Off),
            (false, _) if config.slots_bytes == 0 => Some(CopyReason::Unsupported),
            (false, _) if shape.is_some_and(|it| it.slots_bytes > 0) => {
                Some(CopyReason::OtherProcess)
            }
            (false, _) => Some(CopyReason::OneBuffer),
        };
        let has_lent_cells = queue.has_slots() && queue.has_metadata();
        let transmit_cells = u32::try_from(queue.cell_count()).unwrap_or(u32::MAX);
        let cut_bytes_max = segmentation_bytes_max(transmit_cells, has_lent_cells);
        let sent_bytes_max = sender.as_ref().map(Sender::segmentation_bytes_max);
        let capabilities = Capabilities {
            mac: self.mac,
            mtu_bytes: clamp_mtu(self.found.mtu_bytes).min(queue.mtu_bytes_max()),
            segmentation_bytes_max: sent_bytes_max
                .map_or(cut_bytes_max, |it| it.min(cut_bytes_max)),
            checksum_offload: true,
        };
        Ok(Xdp {
            queue,
            requests,
            sender,
            is_using: self.is_using,
            is_in_map: self.is_using || shape.is_some(),
            cut_bytes_max,
            statistics_before: XdpStatistics::default(),
            statistics_kept: XdpStatistics::default(),
            queue_index: index,
            attachment: Arc::clone(attachment),
            name: self.name,
            capabilities,
            counters: LinkCounters::default(),
            refusals: RefusalPeriod::default(),
            check_at: Instant::ZERO,
            is_down: false,
            gone: None,
            // Behind the driver, what GRO has merged has such checksums, too.
            has_unfinished_checksums: device.is_virtual || attachment.place == Place::Generic,
            copy_reason,
            shared_addresses: table_of(&config.addresses),
            polling: if config.busy_poll_us > 0 {
                Polling::Untried
            } else {
                Polling::Off
            },
        })
    }

    /// What sends while another process uses the rings.
    fn sender(self) -> Result<Sender, SetupError> {
        let send = SendConfig {
            zero_copy: ZeroCopy::Off,
            ..SendConfig::default()
        };
        Sender::open(self.name, self.found, &send)
            .map_err(|errno| kernel(self.name, "opening a packet socket", errno))
    }
}

/// The kernel knows the NAPI context of a frame only from a program in the driver: behind it, polling would
/// be switched on and never happen.
fn check_polling(config: &XdpConfig, attachment: &Attachment) -> Result<(), SetupError> {
    if config.busy_poll_us > 0 && attachment.place == Place::Generic {
        return Err(no_busy_poll(
            attachment.device.name,
            "its driver runs no XDP program",
        ));
    }
    Ok(())
}

fn no_busy_poll(name: InterfaceName, reason: &'static str) -> SetupError {
    SetupError::NoBusyPoll {
        name: name.as_str().to_owned(),
        reason,
    }
}

/// Checks what needs no interface.
fn check(config: &XdpConfig) -> Result<(), SetupError> {
    let count = config.addresses.len();
    if !(1..=ADDRESSES_MAX).contains(&count) {
        return Err(SetupError::AddressCount {
            count,
            max: ADDRESSES_MAX,
        });
    }
    if let AddressUse::Shared { ports } = &config.address_use
        && !(1..=PORTS_MAX).contains(&ports.len())
    {
        return Err(SetupError::PortCount {
            count: ports.len(),
            max: PORTS_MAX,
        });
    }
    for cells in [config.receive_cells, config.transmit_cells] {
        if !cells.is_power_of_two() || !(CELLS_MIN..=CELLS_MAX).contains(&cells) {
            return Err(SetupError::CellCount {
                cells,
                min: CELLS_MIN,
                max: CELLS_MAX,
            });
        }
    }
    Ok(())
}

fn choose_mac(config: &XdpConfig, name: InterfaceName, interface_mac: MacAddress) -> MacAddress {
    match config.address_use {
        AddressUse::Own { mac } => match mac {
            MacChoice::Own => packet::own_mac(name, interface_mac, &config.addresses),
            MacChoice::Interface => interface_mac,
            MacChoice::Given(mac) => mac,
        },
        AddressUse::Shared { .. } => interface_mac,
    }
}

/// Loads the program and attaches it to the device, if another process has not attached one. `name` is the interface
/// that was named.
fn attach(
    config: &XdpConfig,
    (name, found): (InterfaceName, &InterfaceDescription),
    device: Device,
    (mac, interface_mac): (MacAddress, MacAddress),
    shared: Option<&SharedSockets>,
) -> Result<Attachment, SetupError> {
    let failed = |errno| match errno {
        // What the kernel answers without BPF, and without maps of AF_XDP sockets.
        libc::ENOSYS | libc::EINVAL => SetupError::NoXdp,
        errno => kernel(name, "loading the XDP program", errno),
    };
    let map = match shared {
        Some(shared) => copy_of(name, &shared.map)?,
        None => bpf::create_socket_map(QUEUES_MAX).map_err(failed)?,
    };
    let rings = request_ring::map_of_rings(QUEUES_MAX).map_err(failed)?;
    let address_map = make_address_map(config).map_err(failed)?;
    let answered = answered(&config.addresses, &config.virtual_addresses);
    let addresses = match (&config.address_use, &address_map) {
        (AddressUse::Shared { ports }, Some(map)) => Addresses::Shared {
            map: map.as_raw_fd(),
            ports,
        },
        _ => Addresses::Own {
            all: &config.addresses,
            answered: &answered,
        },
    };
    let rules = Rules {
        mac,
        addresses,
        vlan: device.tag,
    };
    let take = Take::Redirect {
        sockets: map.as_raw_fd(),
        rings: rings.as_raw_fd(),
    };
    let code = program::assemble(&rules, take);
    // A driver that puts large frames into several buffers takes only such a program. Linux has them since
    // 5.18; before, behind the driver frames are in one buffer.
    let has_frags = device.mtu_bytes > USUAL_MTU_BYTES;
    let loaded = match bpf::load_program(&code, has_frags) {
        Err(libc::EINVAL) if has_frags => bpf::load_program(&code, false),
        result => result,
    };
    let loaded = loaded.map_err(|errno| kernel(name, "loading the XDP program", errno))?;
    let join = || {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let fd = socket.as_fd();
        packet::join(fd, found.index, mac, interface_mac, &answered)?;
        Ok(socket)
    };
    let membership = address_map.is_none().then(join).transpose();
    let membership =
        membership.map_err(|errno| kernel(name, "letting frames to us through", errno))?;
    let watch = || VlanDevice::open(found.index);
    let vlan_device = found.vlan.is_some().then(watch).transpose();
    let vlan_device =
        vlan_device.map_err(|errno| kernel(name, "watching the VLAN device", errno))?;
    let (link, place) = match shared {
        Some(shared) => (copy_of(name, &shared.link)?, shared.place()),
        None => attach_program(config.attach, device.name, device.index, &loaded)?,
    };
    Ok(Attachment {
        link,
        program: loaded,
        _membership: membership,
        map,
        rings,
        address_map,
        place,
        device,
        vlan_device,
    })
}

fn copy_of(name: InterfaceName, descriptor: &OwnedFd) -> Result<OwnedFd, SetupError> {
    let copied = descriptor.try_clone();
    copied.map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EMFILE);
        kernel(name, "sharing the XDP program", errno)
    })
}

/// The map of the addresses, if they are shared with the host.
fn make_address_map(config: &XdpConfig) -> Result<Option<OwnedFd>, i32> {
    if matches!(config.address_use, AddressUse::Own { .. }) {
        return Ok(None);
    }
    let map = bpf::create_address_map()?;
    bpf::set_addresses(&map, &table_of(&config.addresses))?;
    Ok(Some(map))
}

fn table_of(addresses: &[IpAddr]) -> AddressTable {
    let mut table = AddressTable::new();
    table.add(addresses);
    table
}

/// Attaches the program where it was chosen: in the driver first, if that is left to us.
fn attach_program(
    mode: AttachMode,
    name: InterfaceName,
    interface_index: i32,
    loaded: &OwnedFd,
) -> Result<(OwnedFd, Place), SetupError> {
    let attach = |place| bpf::attach(loaded, interface_index, place).map(|link| (link, place));
    let failed = |errno| match errno {
        libc::EBUSY | libc::EEXIST => SetupError::ProgramAttached {
            name: name.as_str().to_owned(),
        },
        errno => kernel(name, "attaching the XDP program", errno),
    };
    let refusal = match mode {
        AttachMode::Generic => return attach(Place::Generic).map_err(failed),
        AttachMode::Auto | AttachMode::Driver => match attach(Place::Driver) {
            Ok(attached) => return Ok(attached),
            Err(errno) => errno,
        },
    };
    match (mode, refusal) {
        (_, libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV) => {
            Err(failed(refusal))
        }
        (AttachMode::Driver, errno) => Err(SetupError::NoDriverMode {
            name: name.as_str().to_owned(),
            errno,
        }),
        _ => attach(Place::Generic).map_err(failed),
    }
}

/// What the driver offers in zero copy; nothing, if the kernel does not tell or it is not to be used.
fn zero_copy_offer(config: &XdpConfig, device: &Device) -> ZeroCopyOffer {
    if config.checksum_offload == ChecksumOffload::Off {
        return ZeroCopyOffer::default();
    }
    netdev::zero_copy_offer(device.index).unwrap_or_default()
}

/// How a socket may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    slots_bytes: usize,
    has_pieces: bool,
    copying: Copying,
}

impl Attempt {
    /// Whether checksums may be left to the kernel or the device, according to which of them then has
    /// the frames.
    fn leaves_checksums(
        self,
        choice: ChecksumOffload,
        offer: ZeroCopyOffer,
        is_zero_copy: bool,
    ) -> bool {
        // With metadata, frames from slots have more descriptors.
        let has_descriptors = self.slots_bytes == 0 || offer.descriptors_max >= DESCRIPTORS_MAX;
        match choice {
            ChecksumOffload::Off => false,
            _ if is_zero_copy => offer.finishes_checksums && has_descriptors,
            // A copy reads the bytes anyway.
            ChecksumOffload::Auto => false,
            ChecksumOffload::On => true,
        }
    }

    /// Whether the memory is registered for metadata: who will have the frames is not known before the
    /// socket is bound.
    fn wants_metadata(self, choice: ChecksumOffload, offer: ZeroCopyOffer) -> bool {
        let leaves = |is_zero_copy| self.leaves_checksums(choice, offer, is_zero_copy);
        match self.copying {
            Copying::IfNeeded => leaves(true) || leaves(false),
            Copying::Never => leaves(true),
            Copying::Always => leaves(false),
        }
    }
}

/// Opens and binds the socket of one queue: with slots, and with frames of several cells, if it can be and
/// is of use; `None` if the device has no such queue.
fn open_queue(
    config: &XdpConfig,
    attachment: &Attachment,
    offer: ZeroCopyOffer,
    (mtu_bytes, queue): (u32, u32),
) -> Result<Option<Queue>, SetupError> {
    let device = &attachment.device;
    let is_large = mtu_bytes > mtu_bytes_max(device.tag.is_some()).into();
    // Behind the driver, GRO has merged frames.
    let wants_pieces = is_large || attachment.place == Place::Generic;
    let attempts = attempts(config, wants_pieces);
    let open = |attempt: Attempt| {
        let has_metadata = attempt.wants_metadata(config.checksum_offload, offer);
        let mut opened = open_socket(config, device, queue, attempt, has_metadata)?;
        if let Some(queue) = &mut opened
            && queue.has_metadata()
            && attempt.leaves_checksums(config.checksum_offload, offer, queue.is_zero_copy())
        {
            queue.leave_checksums();
        }
        Ok(opened)
    };
    open_first(&attempts, (device.name, queue), open)
}

/// Opens in the first way that the kernel takes; the last one's refusal is the answer.
fn open_first<T>(
    attempts: &[Attempt],
    (name, queue): (InterfaceName, u32),
    mut open: impl FnMut(Attempt) -> Result<Option<T>, SetupError>,
) -> Result<Option<T>, SetupError> {
    let (last, others) = attempts
        .split_last()
        .expect("invariant: something is tried");
    for attempt in others {
        match open(*attempt) {
            // No zero copy, or none with several buffers; or a kernel before 6.6.
            Ok(None) | Err(SetupError::NoZeroCopy { .. }) => {}
            result => return result,
        }
    }
    match open(*last)? {
        // The first queue is there: before Linux 6.6, frames of several buffers are not.
        None if last.slots_bytes > 0 && queue == 0 => Err(SetupError::NoLoans {
            name: name.as_str().to_owned(),
            queue,
            errno: libc::EINVAL,
        }),
        opened => Ok(opened),
    }
}

/// What is tried in turn.
fn attempts(config: &XdpConfig, wants_pieces: bool) -> Vec<Attempt> {
    let copying = match config.zero_copy {
        ZeroCopy::Auto => Copying::IfNeeded,
        ZeroCopy::On => Copying::Never,
        ZeroCopy::Off => Copying::Always,
    };
    let lending = |copying| Attempt {
        slots_bytes: config.slots_bytes,
        has_pieces: true,
        copying,
    };
    let copied = |has_pieces| Attempt {
        slots_bytes: 0,
        has_pieces,
        copying,
    };
    let mut attempts = Vec::new();
    if config.slots_bytes > 0 && config.loans != ZeroCopy::Off {
        if copying != Copying::Always {
            attempts.push(lending(Copying::Never));
        }
        if config.loans == ZeroCopy::On {
            attempts.push(lending(Copying::Always));
            return attempts;
        }
    }
    if wants_pieces {
        attempts.push(copied(true));
    }
    attempts.push(copied(false));
    attempts
}

/// See [`XdpConfig::busy_poll_us`].
fn prefer_busy_poll(
    name: InterfaceName,
    fd: BorrowedFd<'_>,
    microseconds: u32,
) -> Result<(), SetupError> {
    socket::prefer_busy_poll(fd, microseconds).map_err(|errno| match errno {
        libc::ENOPROTOOPT => no_busy_poll(
            name,
            "the kernel has no busy polling (CONFIG_NET_RX_BUSY_POLL)",
        ),
        errno => kernel(name, "switching busy polling on", errno),
    })
}

/// Opens and binds one socket; `None` if the kernel says `EINVAL`.
fn open_socket(
    config: &XdpConfig,
    device: &Device,
    queue: u32,
    attempt: Attempt,
    has_metadata: bool,
) -> Result<Option<Queue>, SetupError> {
    let Attempt {
        slots_bytes,
        copying,
        ..
    } = attempt;
    let name = device.name;
    let cells = config.receive_cells + config.transmit_cells;
    let failed = |(step, errno)| match (step, errno) {
        (QueueStep::Socket, libc::EAFNOSUPPORT) => SetupError::NoXdp,
        // The kernel says so if RLIMIT_MEMLOCK is too low.
        (QueueStep::Memory, libc::ENOBUFS) => SetupError::LockedMemory {
            bytes: u64::from(cells) * u64::from(CELL_BYTES) + slots_bytes as u64,
        },
        (QueueStep::Socket, errno) => kernel(name, "opening an AF_XDP socket", errno),
        (QueueStep::Memory, errno) => kernel(name, "registering memory for frames", errno),
        (QueueStep::Rings, errno) => kernel(name, "making an AF_XDP socket's rings", errno),
    };
    let shape = Shape {
        receive_cells: config.receive_cells,
        transmit_cells: config.transmit_cells,
        slots_bytes,
        has_pieces: attempt.has_pieces,
        tag: device.tag_bytes(),
        has_metadata,
    };
    let mut opened = Queue::open(shape).map_err(failed)?;
    let fd = opened.fd();
    packet::set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)
        .map_err(|errno| kernel(name, "opening an AF_XDP socket", errno))?;
    if config.busy_poll_us > 0 {
        prefer_busy_poll(name, fd, config.busy_poll_us)?;
    }
    let interface = || name.as_str().to_owned();
    match bind(&mut opened, device.index, queue, copying) {
        Ok(()) => Ok(Some(opened)),
        Err(libc::EINVAL) => Ok(None),
        Err(libc::EBUSY) => Err(SetupError::QueueBusy {
            name: interface(),
            queue,
        }),
        Err(errno) if copying == Copying::Never && errno != libc::EPERM => {
            Err(SetupError::NoZeroCopy {
                name: interface(),
                queue,
                errno,
            })
        }
        Err(errno) => Err(kernel(name, "binding an AF_XDP socket", errno)),
    }
}

/// Binds the socket of a queue. The kernel frees a queue a little after the socket that had it is closed,
/// also if its process was killed: a server that is started again need not fail for that.
fn bind(opened: &mut Queue, interface_index: i32, queue: u32, copying: Copying) -> Result<(), i32> {
    for _ in 1..BIND_TRIES {
        match opened.bind(interface_index, queue, copying) {
            Err(libc::EBUSY) => thread::sleep(BIND_TRY_INTERVAL),
            result => return result,
        }
    }
    opened.bind(interface_index, queue, copying)
}

/// The error of a call with the remedies that are known. `EACCES` is the verifier's: a bug of ours, and
/// no missing capability.
pub(super) fn kernel(name: InterfaceName, operation: &'static str, errno: i32) -> SetupError {
    match errno {
        libc::EACCES | libc::EBUSY => SetupError::Kernel {
            operation,
            name: name.as_str().to_owned(),
            errno,
        },
        errno => name.error(operation, CAPABILITY, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Attempt, ChecksumOffload, Copying, DESCRIPTORS_MAX, ZeroCopyOffer, attempts, open_first,
    };
    use crate::error::SetupError;
    use crate::interface::InterfaceName;
    use crate::packet::ZeroCopy;
    use crate::xdp::XdpConfig;

    const SLOTS_BYTES: usize = 1 << 20;

    /// What a kernel and a driver can do.
    #[derive(Clone, Copy, Default)]
    struct Host {
        has_pieces: bool,
        has_zero_copy: bool,
        has_zero_copy_pieces: bool,
    }

    impl Host {
        /// What the kernel answers to a bind; whether the device accesses the memory.
        fn open(self, attempt: Attempt) -> Result<Option<(Attempt, bool)>, SetupError> {
            if attempt.has_pieces && !self.has_pieces {
                return Ok(None);
            }
            let is_possible = if attempt.has_pieces {
                self.has_zero_copy_pieces
            } else {
                self.has_zero_copy
            };
            match attempt.copying {
                Copying::Always => Ok(Some((attempt, false))),
                Copying::IfNeeded => Ok(Some((attempt, is_possible))),
                Copying::Never if is_possible => Ok(Some((attempt, true))),
                Copying::Never => Err(SetupError::NoZeroCopy {
                    name: "eth0".to_owned(),
                    queue: 0,
                    errno: libc::EOPNOTSUPP,
                }),
            }
        }
    }

    /// What is opened: slots on loan, frames in several cells, and access by the device.
    fn opened(
        host: Host,
        (zero_copy, loans): (ZeroCopy, ZeroCopy),
        wants_pieces: bool,
    ) -> Result<Option<(bool, bool, bool)>, SetupError> {
        let config = XdpConfig {
            zero_copy,
            loans,
            slots_bytes: SLOTS_BYTES,
            ..XdpConfig::new("eth0", &["10.0.0.1".parse().unwrap()])
        };
        let name = InterfaceName::parse("eth0").unwrap();
        let attempts = attempts(&config, wants_pieces);
        let opened = open_first(&attempts, (name, 0), |attempt| host.open(attempt))?;
        Ok(opened.map(|(attempt, is_zero_copy)| {
            (attempt.slots_bytes > 0, attempt.has_pieces, is_zero_copy)
        }))
    }

    const OLD: Host = Host {
        has_pieces: false,
        has_zero_copy: false,
        has_zero_copy_pieces: false,
    };
    const COPYING: Host = Host {
        has_pieces: true,
        ..OLD
    };
    const ONE_BUFFER: Host = Host {
        has_zero_copy: true,
        ..COPYING
    };
    const FULL: Host = Host {
        has_zero_copy_pieces: true,
        ..ONE_BUFFER
    };

    #[test]
    fn loans_that_were_insisted_on_and_cannot_be_are_refused() {
        for zero_copy in [ZeroCopy::Auto, ZeroCopy::Off] {
            let refused = opened(OLD, (zero_copy, ZeroCopy::On), false).unwrap_err();
            let expected = SetupError::NoLoans {
                name: "eth0".to_owned(),
                queue: 0,
                errno: libc::EINVAL,
            };
            assert_eq!(refused, expected);
            assert!(refused.to_string().contains("zero copy auto or off"));
        }
        let choice = (ZeroCopy::Auto, ZeroCopy::On);
        for (host, is_zero_copy) in [(COPYING, false), (ONE_BUFFER, false), (FULL, true)] {
            let lent = Ok(Some((true, true, is_zero_copy)));
            assert_eq!(opened(host, choice, false), lent);
        }
        // A queue that the device has not, behind the first.
        let name = InterfaceName::parse("eth0").unwrap();
        let config = XdpConfig {
            loans: ZeroCopy::On,
            slots_bytes: SLOTS_BYTES,
            ..XdpConfig::new("eth0", &[])
        };
        let none = open_first(&attempts(&config, false), (name, 1), |_| Ok(None::<()>));
        assert_eq!(none, Ok(None));
    }

    #[test]
    fn by_default_slots_are_lent_where_the_device_reads_pieces_itself() {
        let choice = (ZeroCopy::Auto, ZeroCopy::Auto);
        for (host, expected) in [
            (OLD, (false, false, false)),
            (COPYING, (false, false, false)),
            (ONE_BUFFER, (false, false, true)),
            (FULL, (true, true, true)),
        ] {
            assert_eq!(opened(host, choice, false), Ok(Some(expected)));
        }
    }

    #[test]
    fn switched_off_the_kernel_copies_everything() {
        for host in [OLD, COPYING, ONE_BUFFER, FULL] {
            let choice = (ZeroCopy::Off, ZeroCopy::Off);
            let copied = Ok(Some((false, false, false)));
            assert_eq!(opened(host, choice, false), copied);
        }
    }

    #[test]
    fn access_by_the_device_that_was_insisted_on_and_cannot_be_is_refused() {
        let choice = (ZeroCopy::On, ZeroCopy::Off);
        for host in [OLD, COPYING] {
            let refused = opened(host, choice, false).unwrap_err();
            assert!(matches!(refused, SetupError::NoZeroCopy { .. }));
        }
        for host in [ONE_BUFFER, FULL] {
            assert_eq!(opened(host, choice, false), Ok(Some((false, false, true))));
        }
    }

    /// Whether checksums are left to the device in zero copy, and to the kernel where it copies; and whether
    /// the memory is registered for metadata with each way of binding.
    fn checksums(
        choice: ChecksumOffload,
        finishes_checksums: bool,
        (slots_bytes, descriptors_max): (usize, u32),
    ) -> ([bool; 2], [bool; 3]) {
        let offer = ZeroCopyOffer {
            descriptors_max,
            finishes_checksums,
        };
        let attempt = |copying| Attempt {
            slots_bytes,
            has_pieces: true,
            copying,
        };
        let leaves =
            |is_zero_copy| attempt(Copying::IfNeeded).leaves_checksums(choice, offer, is_zero_copy);
        let wants = |copying| attempt(copying).wants_metadata(choice, offer);
        (
            [leaves(true), leaves(false)],
            [Copying::Never, Copying::Always, Copying::IfNeeded].map(wants),
        )
    }

    #[test]
    fn checksums_are_left_only_to_who_makes_them() {
        let eight = (0, DESCRIPTORS_MAX);
        for (choice, offered, leaves, wants) in [
            (
                ChecksumOffload::Auto,
                true,
                [true, false],
                [true, false, true],
            ),
            (
                ChecksumOffload::Auto,
                false,
                [false, false],
                [false, false, false],
            ),
            (ChecksumOffload::On, true, [true, true], [true, true, true]),
            // A device that ignores the metadata would send them unfinished.
            (
                ChecksumOffload::On,
                false,
                [false, true],
                [false, true, true],
            ),
            (
                ChecksumOffload::Off,
                true,
                [false, false],
                [false, false, false],
            ),
        ] {
            let made = checksums(choice, offered, eight);
            assert_eq!(made, (leaves, wants), "{choice:?}, offered: {offered}");
        }
    }

    #[test]
    fn slots_and_checksums_need_a_device_that_takes_all_their_descriptors() {
        let auto = ChecksumOffload::Auto;
        for (slots_bytes, descriptors_max, expected) in [
            (SLOTS_BYTES, DESCRIPTORS_MAX, true),
            (SLOTS_BYTES, DESCRIPTORS_MAX - 1, false),
            // A frame that is copied has three at most.
            (0, DESCRIPTORS_MAX - 1, true),
        ] {
            let ([leaves, _], [wants, ..]) = checksums(auto, true, (slots_bytes, descriptors_max));
            assert_eq!((leaves, wants), (expected, expected), "{descriptors_max}");
        }
    }

    #[test]
    fn large_frames_are_in_pieces_where_the_kernel_has_them() {
        for (choice, host, expected) in [
            (ZeroCopy::Auto, OLD, (false, false, false)),
            (ZeroCopy::Auto, COPYING, (false, true, false)),
            (ZeroCopy::Auto, ONE_BUFFER, (false, true, false)),
            (ZeroCopy::Auto, FULL, (false, true, true)),
            (ZeroCopy::Off, FULL, (false, true, false)),
            // Insisted on: rather smaller frames than a copy.
            (ZeroCopy::On, ONE_BUFFER, (false, false, true)),
            (ZeroCopy::On, FULL, (false, true, true)),
        ] {
            let loans = ZeroCopy::Off;
            assert_eq!(opened(host, (choice, loans), true), Ok(Some(expected)));
        }
    }
}
