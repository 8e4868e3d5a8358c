//! What a look-up costs the worker: objects opened, objects open already that are asked for in a new turn
//! or in the same, objects replaced, objects missing; and what it costs all threads together when it goes
//! through the look-up threads.
//!
//! `cargo run --release -p atlas-store --example look_up_cost -- DIRECTORY`, which it fills with
//! files in a folder of its own and empties again.

#![expect(clippy::print_stdout, reason = "printing is what it is for")]

use std::path::Path;
use std::time::Instant as Clock;

use clock::{Duration, Instant};
use store::{Direct, LookUp, Store, StoreConfig};

const FILES: usize = 8192;
const ROUNDS: usize = 8;
/// From one turn of the worker to the next.
const TURN: Duration = Duration::from_micros(1);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = Path::new(&directory).join(format!("look_up_cost-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let paths: Vec<String> = (0..FILES)
        .map(|index| format!("/segment-{index}.m4s"))
        .collect();
    for path in &paths {
        std::fs::write(folder.join(path.trim_start_matches('/')), b"x")?;
    }
    // Half as many places as files, so that asking for each in turn always opens and evicts.
    let config = StoreConfig {
        objects_max: FILES / 2,
        direct: Direct::Preferred,
        ..StoreConfig::default()
    };
    let store = Store::open_directory(&folder, config)?;
    let now = Instant::ZERO;
    let mut turns = Turns { store, now };
    let open = FILES / 2;
    turns.measure("opened, evicting another", TURN, |round| {
        &paths[round % FILES]
    });
    // Open from here on.
    turns.measure("opened once", TURN, |round| &paths[round % open]);
    turns.measure("open already, one name", TURN, |_| &paths[0]);
    turns.measure("open already, names in turn", TURN, |round| {
        &paths[round % open]
    });
    turns.measure("open already, in one turn", Duration::ZERO, |_| &paths[0]);
    turns.measure("missing", TURN, |_| "/missing.m4s");
    turns.measure_replaced(&folder, &paths)?;
    println!("{:?}", turns.store.counters());
    for cached_lookups in [true, false] {
        let config = StoreConfig {
            cached_lookups,
            ..config
        };
        let store = Store::open_directory(&folder, config)?;
        measure_threads(store, &paths)?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// A store, and the turns of a worker that asks it.
struct Turns {
    store: Store,
    now: Instant,
}

impl Turns {
    /// Looks paths up, each a `step` after the one before.
    fn measure<'a>(&mut self, what: &str, step: Duration, path: impl Fn(usize) -> &'a str) {
        if matches!(self.store.look_up(self.now, 0, path(0)), LookUp::Pending) {
            // The kernel knows it once a thread has asked.
            while self.store.poll_answer(self.now).is_none() {
                std::thread::yield_now();
            }
        }
        let begun = Clock::now();
        for round in 0..FILES * ROUNDS {
            self.look_up(step, path(round));
        }
        let nanos = begun.elapsed().as_nanos() / (FILES * ROUNDS) as u128;
        println!("{what}: {nanos} ns");
    }

    /// Looks each path up after another file was renamed over its file.
    fn measure_replaced(&mut self, folder: &Path, paths: &[String]) -> std::io::Result<()> {
        let new = folder.join("new");
        let mut elapsed = Duration::ZERO;
        for path in paths {
            self.look_up(TURN, path);
            std::fs::write(&new, b"y")?;
            std::fs::rename(&new, folder.join(path.trim_start_matches('/')))?;
            let begun = Clock::now();
            self.look_up(TURN, path);
            elapsed += begun.elapsed();
        }
        let nanos = elapsed.as_nanos() / paths.len() as u128;
        println!("open already, replaced: {nanos} ns");
        Ok(())
    }

    fn look_up(&mut self, step: Duration, path: &str) {
        self.now += step;
        if let LookUp::Ready(found) = self.store.look_up(self.now, 0, path) {
            // Dropping `found.opened` closes the descriptor, which is part of the cost.
            self.store.release(found.handle);
        }
        while self.store.poll_closed().is_some() {}
        while self.store.poll_answer(self.now).is_some() {}
    }
}

/// Opens each path once, as many at a time as a device may have pending.
fn measure_threads(mut store: Store, paths: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let before = cpu_nanos()?;
    for batch in paths.chunks(32) {
        let mut pending = 0;
        for path in batch {
            match store.look_up(Instant::ZERO, 0, path) {
                LookUp::Ready(found) => store.release(found.handle),
                LookUp::Pending => pending += 1,
                LookUp::Refused(refusal) => return Err(refusal.into()),
            }
        }
        while pending > 0 {
            while let Some((_, answer)) = store.poll_answer(Instant::ZERO) {
                pending -= 1;
                store.release(answer?.handle);
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        while store.poll_closed().is_some() {}
    }
    let nanos = (cpu_nanos()? - before) / paths.len() as u64;
    let threaded = store.counters().store_threaded_lookups;
    println!("opened, {threaded} by threads: {nanos} ns of all threads");
    Ok(())
}

/// CPU time of all threads.
fn cpu_nanos() -> Result<u64, Box<dyn std::error::Error>> {
    let mut nanos = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next();
        nanos += first.ok_or("schedstat is empty")?.parse::<u64>()?;
    }
    Ok(nanos)
}
