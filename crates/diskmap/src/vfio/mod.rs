//! NVMe controllers in user space, by VFIO: the platform of [`crate::nvme`] on Linux.
//!
//! **The controller reaches the memory that was mapped for it, and nothing else**: an IOMMU stands
//! between it and the machine's memory. [`Vfio::open`] takes a controller that `vfio-pci` has; its
//! clones, and all that it makes, hold it open. A server opens one, starts the controller once
//! ([`Vfio::start`]), and makes a queue pair for each worker ([`Vfio::queue_pair`]), which may go to
//! another thread. Nothing after that needs a privilege.
//!
//! The end, whatever the order in which things are dropped:
//!
//! 1. A queue pair that is dropped while the controller has commands of it resets the function first
//!    ([`Nvme`]). When no memory is mapped any more, bus mastering is switched off.
//! 2. Memory is unmapped from the IOMMU before it is freed. The kernel pins its pages until then, so
//!    that they never get another use while the controller may access them.
//! 3. With the last handle the function is reset, and its files are closed. The kernel does the same
//!    for a process that dies.
//!
//! Whoever may write to the function's configuration space (root) could disable its memory space: then an
//! access to a register ends the process (SIGBUS).
//!
//! It refuses to work without an IOMMU (`noiommu`) or without remapping of interrupts, and groups of
//! which other devices are in use; interrupts (the driver polls); other processors than x86-64, whose
//! order of memory accesses towards devices is another. Bounded by the memory that is asked for.
//!
//! Reading first: Documentation/driver-api/vfio.rst; linux/vfio.h.

#![allow(unsafe_code, reason = "UNSAFETY: lets a device access memory")]

mod addresses;
mod error;
mod info;
mod mapping;
mod pci;
mod sys;

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::Instant;
use memory::Arena;

use crate::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, DmaMemory, DmaSlots, Nvme, NvmeConfig,
    Registers, memory_bytes,
};
use addresses::Addresses;
pub use error::VfioError;
use info::{DeviceInfo, IommuInfo, RegionInfo};
use mapping::Mapping;
pub use pci::PciAddress;
use pci::{Group, Host};

/// Region of BAR 0 (`VFIO_PCI_BAR0_REGION_INDEX`).
const BAR_REGION: u32 = 0;
/// Region of the configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`).
const CONFIG_REGION: u32 = 7;
/// The Command register in the configuration space (PCI Local Bus Specification 3.0, section 6.2.2).
const COMMAND: u64 = 4;
/// Bus Master in it: the function may access memory.
const BUS_MASTER: u16 = 1 << 2;
/// `VFIO_GROUP_FLAGS_VIABLE`.
const GROUP_VIABLE: u32 = 1;
/// Pages that the driver and its memory are made of, a bit in the IOMMU's sizes.
const PAGE_BYTES: u64 = 4096;
/// Most bytes of BAR 0 that are mapped: registers, and doorbells of the largest stride.
const BAR_BYTES_MAX: u64 = 1 << 24;
/// How often a reset is tried that the kernel has no time for (`EAGAIN`).
const RESET_ATTEMPTS_MAX: u32 = 8;

/// A controller over VFIO; clones share it.
pub type VfioController = Controller<VfioRegisters, VfioMemory>;
/// A queue pair of it, for one worker.
pub type VfioQueuePair = Nvme<VfioRegisters, VfioMemory, VfioSlots>;

/// A PCI function that VFIO has; clones are the same one.
#[derive(Clone, Debug)]
pub struct Vfio {
    device: Arc<Device>,
}

impl Vfio {
    /// Takes the controller at `address`, which the kernel resets. Needs the rights to
    /// `/dev/vfio/GROUP`.
    ///
    /// # Errors
    /// It is not there, not bound to `vfio-pci`, in use, or no IOMMU protects the host from it.
    pub fn open(address: PciAddress) -> Result<Self, VfioError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(VfioError::Architecture);
        }
        let group = Host::this().find_group(address)?;
        let (container, group) = open_group(address, &group)?;
        Device::new(address, group, container).map(|device| Self {
            device: Arc::new(device),
        })
    }

    /// Checks what can be found out without taking the controller: that it is there, that `vfio-pci` has it,
    /// that an IOMMU is there, and that this process may open it. Whether another process has it is not
    /// looked at.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(address: PciAddress) -> Result<(), VfioError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(VfioError::Architecture);
        }
        Host::this().find_group(address)?.check_rights()
    }

    /// Which one it is.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.device.address
    }

    /// Its registers.
    #[must_use]
    pub fn registers(&self) -> VfioRegisters {
        VfioRegisters {
            device: Arc::clone(&self.device),
        }
    }

    /// Maps zeroes that we and the controller access.
    ///
    /// # Errors
    /// There is no memory, or not so much may be locked.
    pub fn map_memory(&self, length_bytes: usize) -> Result<VfioMemory, VfioError> {
        let memory = Mapping::memory(length_bytes);
        let memory = memory.map_err(|errno| VfioError::System {
            what: "mapping memory for queues",
            errno,
        })?;
        let length_bytes = memory.length_bytes() as u64;
        // SAFETY: `Mapping` yields no references to it.
        let bus = unsafe { BusMapping::new(&self.device, memory.address(), length_bytes)? };
        Ok(VfioMemory { bus, memory })
    }

    /// Maps all slots of an arena for the controller, in one piece.
    ///
    /// # Errors
    /// Not so much memory may be locked.
    pub fn map_slots(&self, arena: &Arena) -> Result<VfioSlots, VfioError> {
        let slots = arena.slot_memory();
        let length_bytes = slots.stride_bytes() as u64 * u64::from(slots.slot_count());
        // SAFETY: the driver gives the controller addresses of payloads whose tokens it keeps until the
        // controller is done with them: of a `ReadingSlot` there are no references, and of a `FilledSlot`
        // the controller reads only. Like any PCI device it is trusted to write where it was told to.
        let bus = unsafe { BusMapping::new(&self.device, slots.address(), length_bytes)? };
        Ok(VfioSlots { bus })
    }

    /// Starts the controller, for `queue_pairs` workers at most, and waits until it is ready.
    /// `wait` sleeps for a millisecond or so and tells the time.
    ///
    /// # Errors
    /// It does not become ready, or cannot be used with this driver.
    pub fn start(
        &self,
        queue_pairs: u16,
        wait: &mut dyn FnMut() -> Instant,
    ) -> Result<VfioController, VfioError> {
        let memory = self.map_memory(ADMIN_MEMORY_BYTES)?;
        let controller = Controller::new(self.registers(), memory, queue_pairs, wait())?;
        // Each step of it has a timeout.
        loop {
            match controller.poll(wait()) {
                ControllerState::Pending => {}
                ControllerState::Failed(error) => return Err(error.into()),
                ControllerState::Ready | ControllerState::ShutDown => return Ok(controller),
            }
        }
    }

    /// Makes the queue pair `queue_id` (1..=[`Controller::queue_pairs`], one user each) of a controller
    /// that [`Vfio::start`] returned, for the slots of `arena`. The controller hears of it when it is
    /// first used, by whichever thread that is.
    ///
    /// # Errors
    /// A size is out of range, or not so much memory may be locked.
    pub fn queue_pair(
        &self,
        controller: &VfioController,
        queue_id: u16,
        arena: &Arena,
        config: NvmeConfig,
    ) -> Result<VfioQueuePair, VfioError> {
        let memory = self.map_memory(memory_bytes(config.queue_depth, arena))?;
        let slots = self.map_slots(arena)?;
        Ok(Nvme::new(
            controller, queue_id, memory, slots, arena, config,
        )?)
    }
}

/// Opens container and group, and joins them.
fn open_group(address: PciAddress, group: &Group) -> Result<(File, File), VfioError> {
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let container = open(&group.container).map_err(|_| VfioError::NoVfio)?;
    let version = sys::api_version(container.as_fd());
    let has_type = sys::has_extension(container.as_fd(), sys::TYPE1_V2);
    if version != Ok(sys::API_VERSION) || has_type != Ok(true) {
        return Err(VfioError::NoVfio);
    }
    let number = group.number;
    let file = open(&group.file).map_err(|error| VfioError::GroupFile {
        group: number,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })?;
    let flags = sys::group_flags(file.as_fd()).map_err(system("asking for the group"))?;
    if flags & GROUP_VIABLE == 0 {
        return Err(VfioError::NotViable {
            address,
            group: number,
            neighbours: group.neighbours(address),
        });
    }
    sys::set_container(file.as_fd(), container.as_fd()).map_err(system("joining the group"))?;
    sys::set_iommu(container.as_fd(), sys::TYPE1_V2).map_err(error::of_set_iommu)?;
    Ok((container, file))
}

fn system(what: &'static str) -> impl Fn(i32) -> VfioError {
    move |errno| VfioError::System { what, errno }
}

/// What all handles share. Its files are closed in this order.
#[derive(Debug)]
struct Device {
    address: PciAddress,
    registers: Mapping,
    can_reset: bool,
    /// Where the Command register is in the file.
    command_offset: u64,
    file: File,
    _group: File,
    container: File,
    /// Also held while bus mastering changes.
    addresses: Mutex<Addresses>,
}

impl Device {
    fn new(address: PciAddress, group: File, container: File) -> Result<Self, VfioError> {
        let unsupported = |what| VfioError::Unsupported { address, what };
        let name = CString::new(address.to_string()).expect("invariant: hexadecimal digits");
        let file = sys::device(group.as_fd(), &name).map_err(system("opening the device"))?;
        let file = File::from(file);
        let ask = system("asking for the device");
        let info = DeviceInfo::parse(&sys::device_info(file.as_fd()).map_err(&ask)?.bytes());
        if !info.is_pci {
            return Err(unsupported("not a PCI device of vfio-pci"));
        }
        let region = |index| {
            let info = sys::region_info(file.as_fd(), index).map_err(&ask)?;
            Ok::<_, VfioError>(RegionInfo::parse(&info.bytes()))
        };
        let (bar, config) = (region(BAR_REGION)?, region(CONFIG_REGION)?);
        let length_bytes = bar.mappable_bytes.min(BAR_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
        if length_bytes == 0 {
            return Err(unsupported("its registers (BAR 0) cannot be mapped"));
        }
        let length_bytes = usize::try_from(length_bytes).expect("invariant: at most 16 MiB");
        let registers = Mapping::registers(&file, bar.offset_bytes, length_bytes);
        let registers = registers.map_err(system("mapping the registers"))?;
        let iommu = sys::iommu_info(container.as_fd()).map_err(system("asking for the IOMMU"))?;
        let iommu = IommuInfo::parse(&iommu.bytes());
        if iommu
            .page_sizes
            .is_some_and(|sizes| sizes & (2 * PAGE_BYTES - 1) == 0)
        {
            return Err(unsupported("its IOMMU maps no pages of 4 KiB"));
        }
        Ok(Self {
            address,
            registers,
            can_reset: info.can_reset,
            command_offset: config.offset_bytes + COMMAND,
            file,
            _group: group,
            container,
            addresses: Mutex::new(Addresses::new(iommu.ranges)),
        })
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        let locked = self.addresses.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the function access memory, or not.
    fn set_bus_master(&self, is_on: bool) -> io::Result<()> {
        let mut command = [0; 2];
        self.file.read_exact_at(&mut command, self.command_offset)?;
        let command = u16::from_le_bytes(command);
        let command = if is_on {
            command | BUS_MASTER
        } else {
            command & !BUS_MASTER
        };
        self.file
            .write_all_at(&command.to_le_bytes(), self.command_offset)
    }

    /// Resets the function; false if it still is as it was. It may access memory again afterwards if
    /// some is mapped.
    fn reset(&self) -> bool {
        let addresses = self.addresses();
        // Nothing of it is on its way when the reset comes. A function that does not answer is reset too.
        let _ = self.set_bus_master(false);
        let mut outcome = Err(libc::ENOTTY);
        if self.can_reset {
            for _ in 0..RESET_ATTEMPTS_MAX {
                outcome = sys::reset(self.file.as_fd());
                if outcome != Err(libc::EAGAIN) {
                    break;
                }
            }
        }
        // The reset restored what the Command register was before.
        outcome.is_ok() && (addresses.count() == 0 || self.set_bus_master(true).is_ok())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Memory that the function may access, at a bus address. Its access ends when this is dropped.
#[derive(Debug)]
struct BusMapping {
    device: Arc<Device>,
    address: u64,
    length_bytes: u64,
}

impl BusMapping {
    /// Maps memory, and lets the function access memory at all if it is the first.
    ///
    /// # Safety
    /// As that of [`sys::map`]: of what the controller is told to write there are no references.
    unsafe fn new(
        device: &Arc<Device>,
        memory: *mut u8,
        length_bytes: u64,
    ) -> Result<Self, VfioError> {
        let mut addresses = device.addresses();
        let address = addresses
            .take(length_bytes)
            .ok_or(VfioError::Addresses { length_bytes })?;
        // SAFETY: the caller's promise.
        let mapped = unsafe { sys::map(device.container.as_fd(), memory, address, length_bytes) };
        if let Err(errno) = mapped {
            addresses.give_back(address);
            return Err(error::of_map(errno, length_bytes));
        }
        let is_first = addresses.count() == 1;
        let mastering = if is_first {
            device.set_bus_master(true)
        } else {
            Ok(())
        };
        drop(addresses);
        let mapping = Self {
            device: Arc::clone(device),
            address,
            length_bytes,
        };
        mastering.map_err(|error| VfioError::System {
            what: "switching bus mastering on",
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })?;
        Ok(mapping)
    }
}

impl Drop for BusMapping {
    fn drop(&mut self) {
        let mut addresses = self.device.addresses();
        if addresses.count() == 1 {
            // A function that is gone accesses no memory either.
            let _ = self.device.set_bus_master(false);
        }
        let container = self.device.container.as_fd();
        let unmapped = sys::unmap(container, self.address, self.length_bytes);
        // Else the pages stay pinned and mapped until the container is closed, and their addresses taken.
        if unmapped == Ok(self.length_bytes) {
            addresses.give_back(self.address);
        }
    }
}

/// The registers of a controller.
#[derive(Clone, Debug)]
pub struct VfioRegisters {
    device: Arc<Device>,
}

/// Offsets come from the driver, which asked for the BAR's length.
fn place(offset_bytes: u64) -> usize {
    usize::try_from(offset_bytes).expect("invariant: within the BAR")
}

impl Registers for VfioRegisters {
    fn length_bytes(&self) -> u64 {
        self.device.registers.length_bytes() as u64
    }

    fn read_u32(&self, offset_bytes: u64) -> u32 {
        u32::from_le(self.device.registers.load_u32(place(offset_bytes)))
    }

    /// Two times 32 bits: not all controllers take 64 at once.
    fn read_u64(&self, offset_bytes: u64) -> u64 {
        let low = self.read_u32(offset_bytes);
        let high = self.read_u32(offset_bytes + 4);
        u64::from(high) << 32 | u64::from(low)
    }

    fn write_u32(&self, offset_bytes: u64, value: u32) {
        let registers = &self.device.registers;
        registers.store_u32(place(offset_bytes), value.to_le());
    }

    fn write_u64(&self, offset_bytes: u64, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.write_u32(offset_bytes, u32::from_le_bytes([a, b, c, d]));
        self.write_u32(offset_bytes + 4, u32::from_le_bytes([e, f, g, h]));
    }

    fn reset_function(&self) -> bool {
        self.device.reset()
    }
}

/// Memory for queues and lists. The controller's access ends first.
#[derive(Debug)]
pub struct VfioMemory {
    bus: BusMapping,
    memory: Mapping,
}

impl DmaMemory for VfioMemory {
    fn length_bytes(&self) -> usize {
        self.memory.length_bytes()
    }

    fn bus_address(&self) -> u64 {
        self.bus.address
    }

    fn load_u32(&self, offset_bytes: usize) -> u32 {
        let value = u32::from_le(self.memory.load_u32(offset_bytes));
        // On x86-64 the processor keeps the order of loads; the compiler has to.
        fence(Ordering::Acquire);
        value
    }

    fn read(&self, offset_bytes: usize, bytes: &mut [u8]) {
        self.memory.copy_out(offset_bytes, bytes);
    }

    fn write(&mut self, offset_bytes: usize, bytes: &[u8]) {
        self.memory.copy_in(offset_bytes, bytes);
    }

    fn release(&self) {
        // On x86-64 a store to a register, which is mapped uncached, comes behind all earlier stores;
        // the compiler has to keep the order, too.
        fence(Ordering::Release);
    }
}

/// The slots of an arena on the bus. Caches of x86-64 are coherent with devices, so there is nothing to
/// be made visible.
#[derive(Debug)]
pub struct VfioSlots {
    bus: BusMapping,
}

impl DmaSlots for VfioSlots {
    fn bus_address(&self) -> u64 {
        self.bus.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker needs may go to its thread.
    #[test]
    fn queue_pairs_may_go_to_other_threads() {
        fn check<T: Send>() {}
        check::<VfioQueuePair>();
        check::<VfioController>();
        check::<Vfio>();
    }

    #[test]
    fn a_machine_without_that_controller_says_so() {
        let address: PciAddress = "fffe:ff:1f.7".parse().expect("a PCI address");
        let error = Vfio::open(address).expect_err("no machine has it");
        assert_eq!(error, VfioError::NoDevice { address });
    }
}
