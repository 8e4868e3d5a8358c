//! What controllers are reached by, and time: VFIO, or in tests controllers that are emulated.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant as RealInstant};

use clock::Instant;
use diskmap::nvme::{Controller, DmaMemory, DmaSlots, Nvme, NvmeConfig, QueuePairs, Registers};
use diskmap::vfio::{
    PciAddress, Vfio, VfioController, VfioError, VfioMemory, VfioQueuePair, VfioRegisters,
    VfioSlots,
};
use memory::Arena;

use crate::run::now_since;

/// Between looks at a controller that is on its way.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// A controller that was started, as its users hold it.
pub(super) type ControllerOf<P> = Controller<<P as Platform>::Registers, <P as Platform>::Memory>;
/// A queue pair at one controller.
pub(super) type QueuePairOf<P> =
    Nvme<<P as Platform>::Registers, <P as Platform>::Memory, <P as Platform>::Slots>;
/// A queue pair at each of several controllers: the disk of a worker.
pub(in crate::start) type QueuePairsOf<P> =
    QueuePairs<<P as Platform>::Registers, <P as Platform>::Memory, <P as Platform>::Slots>;

/// See the module.
pub(in crate::start) trait Platform: fmt::Debug {
    /// A controller that this process has; dropped, it is reset and given back.
    type Device: fmt::Debug;
    /// Its registers.
    type Registers: Registers;
    /// Memory for queues.
    type Memory: DmaMemory;
    /// The slots of an arena.
    type Slots: DmaSlots;

    /// Takes a controller.
    fn open(&self, address: PciAddress) -> Result<Self::Device, VfioError>;

    /// Starts it for this many queue pairs, and waits until it is ready.
    fn start(
        &self,
        device: &Self::Device,
        queue_pairs: u16,
    ) -> Result<ControllerOf<Self>, VfioError>;

    /// Makes a queue pair for the slots of an arena.
    fn queue_pair(
        &self,
        device: &Self::Device,
        controller: &ControllerOf<Self>,
        queue_id: u16,
        arena: &Arena,
        config: NvmeConfig,
    ) -> Result<QueuePairOf<Self>, VfioError>;

    /// The worker's clock.
    fn now(&self) -> Instant;

    /// Lets time pass.
    fn wait(&self, time: Duration);
}

/// VFIO.
#[derive(Clone, Copy, Debug)]
pub(in crate::start) struct OverVfio {
    /// Of the worker's clock.
    pub(in crate::start) epoch: RealInstant,
}

impl Platform for OverVfio {
    type Device = Vfio;
    type Registers = VfioRegisters;
    type Memory = VfioMemory;
    type Slots = VfioSlots;

    fn open(&self, address: PciAddress) -> Result<Vfio, VfioError> {
        Vfio::open(address)
    }

    fn start(&self, device: &Vfio, queue_pairs: u16) -> Result<VfioController, VfioError> {
        device.start(queue_pairs, &mut || {
            self.wait(LOOK_PAUSE);
            self.now()
        })
    }

    fn queue_pair(
        &self,
        device: &Vfio,
        controller: &VfioController,
        queue_id: u16,
        arena: &Arena,
        config: NvmeConfig,
    ) -> Result<VfioQueuePair, VfioError> {
        device.queue_pair(controller, queue_id, arena, config)
    }

    fn now(&self) -> Instant {
        now_since(self.epoch)
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }
}
