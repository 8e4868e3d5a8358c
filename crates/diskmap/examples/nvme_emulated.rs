//! The five verbs on an NVMe queue pair, from bring-up to shutdown, with an emulated controller.
//!
//! `cargo run -p atlas-diskmap --example nvme_emulated`
//!
//! On hardware only what makes `registers`, `map_memory` and `map_slots` differs, and time passes by
//! itself.

#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use std::error::Error;

use clock::{Duration, Instant};
use diskmap::nvme::emulated::{Emulated, EmulatedConfig};
use diskmap::nvme::{
    ADMIN_MEMORY_BYTES, Controller, ControllerState, NamespaceRange, Nvme, NvmeConfig, memory_bytes,
};
use diskmap::{Disk as _, FileSource, Read};
use memory::{Arena, ArenaConfig};

const MILLISECOND: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut now = Instant::ZERO;
    let emulated = Emulated::new(EmulatedConfig::new(1, 12));

    // Bring-up: poll until the controller is ready.
    let memory = emulated.map_memory(ADMIN_MEMORY_BYTES);
    let controller = Controller::new(emulated.registers(), memory, 1, now)?;
    while controller.poll(now) == ControllerState::Pending {
        now += MILLISECOND;
        emulated.advance(now);
    }
    println!("{:?}, {:?}", controller.poll(now), controller.identity());
    println!("{:?}", controller.namespaces());

    // A queue pair for one worker.
    let mut arena = Arena::new(ArenaConfig::new(16))?;
    let config = NvmeConfig::default();
    let memory = emulated.map_memory(memory_bytes(config.queue_depth, &arena));
    let slots = emulated.map_slots(&arena);
    let mut disk = Nvme::new(&controller, 1, memory, slots, &arena, config)?;

    // Open, read, sqsync, consume completions, close.
    let (file, limits) = disk.open(FileSource::Namespace(NamespaceRange {
        controller: 0,
        namespace_id: 1,
        start_bytes: 1 << 20,
        length_bytes: 100_000,
    }))?;
    println!("{limits:?}");
    for token in 0..2 {
        let read = Read {
            file,
            offset_bytes: token * u64::from(limits.read_bytes_max),
            length_bytes: limits.read_bytes_max,
            slot: arena.reserve().ok_or("no free slot")?,
            token,
        };
        disk.read(&mut arena, read)
            .map_err(|_| "the queue is full")?;
    }
    disk.sqsync(now)?;
    while disk.in_flight() > 0 {
        now += MILLISECOND;
        emulated.advance(now);
        disk.consume_completions(now, &mut arena, 64, &mut |arena, completion| {
            let slot = match completion.result {
                Ok(slot) => {
                    println!("read {}: {} bytes", completion.token, slot.filled_bytes());
                    slot.into_free()
                }
                Err((slot, error)) => {
                    println!("read {}: {error}", completion.token);
                    slot
                }
            };
            arena.release(slot);
        });
    }
    disk.close(file);

    controller.begin_shutdown(now);
    while controller.poll(now) == ControllerState::Pending {
        now += MILLISECOND;
        emulated.advance(now);
    }
    println!("{:?}, {:?}", controller.poll(now), emulated.counters());
    Ok(())
}
