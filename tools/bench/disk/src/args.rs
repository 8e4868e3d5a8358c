//! The command line.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::fio::Engine;
use crate::plan::Series;

const EXAMPLES: &str = "\
Examples:
  both series over a file made for it, results for a program:
    atlas-bench disk --make /srv/test.bin --bytes 4G --json > disk.json
  throughput and latency against the window, on a whole disk (only read):
    atlas-bench disk --series window /dev/nvme0n1
  what a read costs by size, by NVMe commands and by a queue pair (atlas nvme bind nvme0):
    atlas-bench disk --series size /dev/ng0n1
    atlas-bench disk --series size nvme:0000:01:00.0
  what a read costs by size, beside fio's io_uring and its pread in threads:
    atlas-bench disk --series size --fio io_uring,psync /srv/test.bin

CPU seconds are those of this process, beside fio those of fio. Interrupts and the kernel's own
threads are not in them; \"busy\" is the time of all cores that were not idle, whoever kept them.";

/// Headings of the options of one series.
const WINDOW_SERIES: &str = "Window series";
const SIZE_SERIES: &str = "Size series";

/// Measures a disk: latency, throughput and CPU time by window and read size, fio beside.
///
/// Random reads past the page cache of one file, block device or namespace, which is never written to.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DiskArgs {
    /// What to read: a file or block device (io_uring), /dev/ng0n1 (NVMe commands through the kernel's driver), or
    /// nvme:ADDRESS (a queue pair of a controller that vfio-pci has)
    #[arg(
        value_name = "PATH",
        required_unless_present = "make",
        conflicts_with = "make"
    )]
    pub path: Option<PathBuf>,
    /// Make this file first, and read it; it stays. One made so before, of the same size, will do
    #[arg(long, value_name = "FILE")]
    pub make: Option<PathBuf>,
    /// Size of the file to make: bytes, or with K, M or G
    #[arg(long, value_name = "N", default_value = "1G", value_parser = parse_bytes)]
    pub bytes: u64,
    /// What to measure
    #[arg(
        long,
        value_name = "NAME,NAME",
        value_enum,
        value_delimiter = ',',
        default_value = "window,size"
    )]
    pub series: Vec<Series>,
    /// Reads in flight
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,512",
        help_heading = WINDOW_SERIES
    )]
    pub windows: Vec<u32>,
    /// Bytes of a read, or with K or M
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "16K,64K",
        value_parser = parse_bytes,
        help_heading = WINDOW_SERIES
    )]
    pub window_sizes: Vec<u64>,
    /// Bytes of a read, or with K or M
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "4K,8K,16K,32K,64K,128K,256K",
        value_parser = parse_bytes,
        help_heading = SIZE_SERIES
    )]
    pub sizes: Vec<u64>,
    /// Reads in flight
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "1,128",
        help_heading = SIZE_SERIES
    )]
    pub size_windows: Vec<u32>,
    /// Length of each measurement, seconds
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,
    /// How often each measurement is taken; the report has medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: u32,
    /// Compare every byte with what --make writes; costs CPU time, which the report then shows
    #[arg(long)]
    pub verify: bool,
    /// Run fio after each measurement, by these of its engines: the same reads
    #[arg(long, value_name = "NAME,NAME", value_enum, value_delimiter = ',')]
    pub fio: Vec<Engine>,
    /// Print the report as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Show progress on standard error even if that is no terminal
    #[arg(long)]
    pub progress: bool,
}

impl DiskArgs {
    /// What is to be read.
    pub(crate) fn target(&self) -> Result<&Path> {
        let path = self.make.as_deref().or(self.path.as_deref());
        path.context("name a file or block device to read, or make one with --make FILE")
    }
}

/// `4096`, `64K`, `16M`, `4G`: powers of two.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text}: not a number of bytes; write 65536, 64K, 16M or 4G"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text}: too large"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: DiskArgs,
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("64K"), Ok(65_536));
        assert_eq!(parse_bytes("1m"), Ok(1 << 20));
        assert_eq!(parse_bytes("4G"), Ok(4 << 30));
        for wrong in ["", "K", "-1", "1.5G", "64KB", "99999999999G", "é"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_defaults_are_the_papers_figures() {
        let args = Cli::parse_from(["disk", "/dev/null"]).args;
        assert_eq!(args.windows.len(), 10);
        assert_eq!(args.window_sizes, [16_384, 65_536]);
        assert_eq!((args.sizes[0], args.sizes[6]), (4096, 262_144));
        assert_eq!(args.size_windows, [1, 128]);
        assert_eq!(args.series.len(), 2);
        assert!(args.fio.is_empty(), "fio need not be there");
    }

    #[test]
    fn fio_runs_by_the_engines_that_are_named() {
        let parse = |engines| Cli::try_parse_from(["disk", "--fio", engines, "/dev/null"]);
        let all = [
            Engine::IoUring,
            Engine::IoUringFixed,
            Engine::Libaio,
            Engine::Psync,
        ];
        let names = all.map(Engine::name).join(",");
        assert_eq!(
            parse(&names)
                .unwrap_or_else(|error| panic!("{error}"))
                .args
                .fio,
            all
        );
        let twice = Cli::parse_from(["disk", "--fio", "libaio,psync,libaio", "/dev/null"]);
        let plan = Plan::new(&twice.args).unwrap();
        assert_eq!(plan.engines, [Engine::Libaio, Engine::Psync]);
        for wrong in ["", "aio", "diskmap"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_target_is_named_or_made_but_not_both() {
        assert!(Cli::try_parse_from(["disk"]).is_err());
        assert!(Cli::try_parse_from(["disk", "--make", "a", "b"]).is_err());
        let made = Cli::parse_from(["disk", "--make", "a"]).args;
        assert_eq!(made.target().unwrap(), Path::new("a"));
    }
}
