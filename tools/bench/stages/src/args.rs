//! The command line.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::FETCH_BYTES;

/// Most slots of a stage: those of the server's default.
const SLOTS_MAX: i64 = 512;

/// Most reads in flight.
const WINDOW_MAX: i64 = 1024;

/// Largest range of a device, bytes.
const RANGE_BYTES_MAX: u64 = 1 << 40;

/// Most files read from: descriptors.
const DESCRIPTORS_MAX: i64 = 32_000;

/// Most connections of `session`: ports of 255 addresses.
const CONNECTIONS_MAX: i64 = 200_000;

const EXAMPLES: &str = "\
Examples:
  what the core this runs on can seal:
    taskset -c 0 atlas-bench stages seal
  what two cores do while files are read on one of them:
    taskset -c 0 atlas-bench stages read /srv/video --watch-core 0,1
  what frames to nobody cost, over the wire of `atlas-bench wire`:
    ip netns exec wire taskset -c 0 atlas-bench stages write wire0 --address 10.0.0.9 \
      --sink-core 1 --watch-core 0";

/// Measures one stage of the pipeline alone; the report is a JSON object.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StagesArgs {
    /// Which
    #[command(subcommand)]
    pub stage: Stage,
    /// Length of the window
    #[arg(long, value_name = "S", default_value_t = 1.0, global = true)]
    pub seconds: f64,
    /// Reports what these cores did meanwhile
    #[arg(long, value_name = "CORE", value_delimiter = ',', global = true)]
    pub watch_core: Vec<usize>,
}

/// The stages.
#[derive(Subcommand, Clone, Debug)]
pub enum Stage {
    /// Direct reads of whole files, a window of them at once
    Read(ReadArgs),
    /// Records of TLS 1.3, AES-128-GCM, sealed in place
    Seal(SealArgs),
    /// Large frames out of slots on loan, to a station that is not there
    Write(WriteArgs),
    /// The server between frames received and frames sent, without link, disk and kernel
    Session(SessionArgs),
}

/// `read`.
#[derive(Args, Clone, Debug)]
pub struct ReadArgs {
    /// The directory whose files are read, those below it included; or a block device or image, which is
    /// read in ranges, as a raw store is
    pub source: PathBuf,
    /// Most reads in flight
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub window: u32,
    /// Adjacent reads that are submitted one after another, as the server does
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=WINDOW_MAX))]
    pub reads_per_turn: u32,
    /// Bytes of a read, a multiple of the device's block; the last one of a file is shorter
    #[arg(long, value_name = "N", default_value_t = FETCH_BYTES,
        value_parser = clap::value_parser!(u32).range(4096..=i64::from(memory::SLOT_BYTES_MAX)))]
    pub read_bytes: u32,
    /// Most files or ranges read from
    #[arg(long, value_name = "N", default_value_t = 3_400,
        value_parser = clap::value_parser!(u32).range(1..=DESCRIPTORS_MAX))]
    pub files: u32,
    /// Bytes of a range
    #[arg(long, value_name = "N", default_value_t = 307_200,
        value_parser = clap::value_parser!(u64).range(1..=RANGE_BYTES_MAX))]
    pub range_bytes: u64,
}

/// `seal`.
#[derive(Args, Clone, Debug)]
pub struct SealArgs {
    /// Slots in turn: those that are in flight at a time
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=SLOTS_MAX))]
    pub slots: u32,
}

/// `write`.
#[derive(Args, Clone, Debug)]
pub struct WriteArgs {
    /// The interface, a TAP; made if it is not there
    pub interface: String,
    /// An address there that nobody has
    #[arg(long, value_name = "ADDRESS")]
    pub address: Ipv4Addr,
    /// Slots in turn: those that are in flight at a time
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=SLOTS_MAX))]
    pub slots: u32,
    /// The core that takes the frames, as shortened for clients of plain HTTP
    #[arg(long, value_name = "CORE")]
    pub sink_core: usize,
}

/// `session`.
#[derive(Args, Clone, Debug)]
pub struct SessionArgs {
    /// Connections, each of which asks for one object after another
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=CONNECTIONS_MAX))]
    pub connections: u32,
    /// Size of the objects
    #[arg(long, value_name = "BYTES", default_value_t = 300_000)]
    pub object_bytes: u64,
    /// Slots of the arena
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub slots: u32,
    /// Objects a connection has had, on average, before those rounds and the window
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub objects_before: u64,
    /// Rounds in the function that callgrind counts, before the window begins
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rounds: u32,
    /// Frames received, reads planned and completions taken in a round, at most each
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub batch: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: StagesArgs,
    }

    #[test]
    fn options_of_all_stages_may_follow_the_stage() {
        let words = ["stages", "read", "/srv", "--watch-core", "0,1"];
        let args = Cli::parse_from(words).args;
        assert_eq!(args.watch_core, [0, 1]);
        let Stage::Read(read) = args.stage else {
            panic!("read was typed");
        };
        assert_eq!(
            (read.window, read.read_bytes, read.range_bytes),
            (64, 61_440, 307_200)
        );
    }

    #[test]
    fn windows_and_slots_have_limits() {
        for (option, limits) in [
            ("--window", [1, 1024]),
            ("--reads-per-turn", [1, 1024]),
            ("--files", [1, 32_000]),
        ] {
            let typed = |value: i64| {
                Cli::try_parse_from(["stages", "read", "/", option, &value.to_string()])
            };
            assert!(limits.into_iter().all(|limit| typed(limit).is_ok()));
            assert!(typed(limits[0] - 1).is_err(), "{option}");
            assert!(typed(limits[1] + 1).is_err(), "{option}");
        }
        assert!(Cli::try_parse_from(["stages", "seal", "--slots", "512"]).is_ok());
        assert!(Cli::try_parse_from(["stages", "seal", "--slots", "513"]).is_err());
    }
}
