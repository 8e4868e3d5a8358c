//! How much memory is read and written, and how often a device's access finds its line in the last-level cache: counters
//! of the memory controllers and of the cache's slices, which the kernel has as devices of `perf_event_open(2)`.
//!
//! They count for the whole machine, whoever opens them, from when they were opened. They are read when somebody asks;
//! nothing on the data path is touched.
//! It refuses what counts for cores only and so does not see devices (resctrl). Bound: `COUNTERS_MAX` descriptors.
//!
//! Reading first: `/sys/bus/event_source/devices`, Documentation/ABI/testing/sysfs-bus-event_source-devices-format in Linux.

#![allow(unsafe_code, reason = "UNSAFETY: perf_event_open(2) has no wrapper")]

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;

/// Most counters that are opened: two for each channel of memory, four for each slice of the cache.
const COUNTERS_MAX: usize = 2_048;
/// Where the kernel has its devices.
const DEVICES: &str = "sys/bus/event_source/devices";
/// Largest processor number that is looked at: what the kernel's sets of a program's can hold.
pub const PROCESSOR_MAX: usize = libc::CPU_SETSIZE as usize - 1;
/// What a column access of a memory controller, and an entry of a slice's table, moves.
const LINE_BYTES: u64 = 64;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantity {
    /// Memory controllers read it.
    MemoryRead,
    /// Memory controllers wrote it.
    MemoryWritten,
    /// Devices read it.
    DeviceRead {
        /// Whether the last-level cache had it.
        hit: bool,
    },
    /// Devices wrote it.
    DeviceWrite {
        /// Whether the last-level cache had it.
        hit: bool,
    },
}

/// Each, in the order in which they are told.
const QUANTITIES: [Quantity; 6] = [
    Quantity::MemoryRead,
    Quantity::MemoryWritten,
    Quantity::DeviceRead { hit: true },
    Quantity::DeviceRead { hit: false },
    Quantity::DeviceWrite { hit: true },
    Quantity::DeviceWrite { hit: false },
];

/// AMD's memory controllers: `umc_cas_cmd.rd` and `.wr` of perf's list for Zen 4 and later.
const AMD: [(Quantity, &str); 2] = [
    (Quantity::MemoryRead, "event=0x0a,rdwrmask=0x1"),
    (Quantity::MemoryWritten, "event=0x0a,rdwrmask=0x2"),
];

/// Slices of Intel's cache: `UNC_CHA_TOR_INSERTS.IO_HIT_PCIRDCUR`, `IO_MISS_PCIRDCUR`, `IO_HIT_ITOM` and
/// `IO_MISS_ITOM` of perf's lists from Ice Lake on. Before, the mask has no such bits, and the device is left out.
const INTEL_CACHE: [(Quantity, &str); 4] = [
    (
        Quantity::DeviceRead { hit: true },
        "event=0x35,umask=0xc8f3fd04",
    ),
    (
        Quantity::DeviceRead { hit: false },
        "event=0x35,umask=0xc8f3fe04",
    ),
    (
        Quantity::DeviceWrite { hit: true },
        "event=0x35,umask=0xcc43fd04",
    ),
    (
        Quantity::DeviceWrite { hit: false },
        "event=0x35,umask=0xcc43fe04",
    ),
];

/// A counter that may be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Event {
    quantity: Quantity,
    /// As `struct perf_event_attr` has them.
    kind: u32,
    config: u64,
    /// That counts for its socket.
    processor: usize,
}

/// The counters of a machine, open.
#[derive(Debug)]
pub struct MemoryTraffic(Vec<(Quantity, File)>);

impl MemoryTraffic {
    /// Opens them, which takes the rights of root or `CAP_PERFMON`. `root` is where the kernel's `sys` is: `/`.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub fn open(root: &Path) -> Result<Self, String> {
        let opened = events(&Tree(root))?.into_iter().map(|event| {
            let file = open(&event).map_err(|error| format!("perf_event_open: {error}"))?;
            Ok((event.quantity, file))
        });
        opened.collect::<Result<_, _>>().map(Self)
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.0.len()
    }

    /// The bytes since they were opened, of each quantity that is counted here.
    pub fn bytes(&self) -> impl Iterator<Item = (Quantity, u64)> {
        QUANTITIES.into_iter().filter_map(|quantity| {
            let of_it = self.0.iter().filter(|(it, _)| *it == quantity);
            let values: Vec<u64> = of_it.filter_map(|(_, file)| read(file).ok()).collect();
            let lines: u64 = values.iter().sum();
            (!values.is_empty()).then(|| (quantity, lines.saturating_mul(LINE_BYTES)))
        })
    }
}

/// A list of processors as the kernel writes it, such as `0-3,8`; empty if it is none. Processors above
/// [`PROCESSOR_MAX`] are left out.
#[must_use]
pub fn parse_processors(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse::<usize>().ok()?);
        Some(first..=last.min(PROCESSOR_MAX))
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    ranges.unwrap_or_default().into_iter().flatten().collect()
}

/// The kernel's files, under a root that tests choose.
struct Tree<'a>(&'a Path);

impl Tree<'_> {
    /// A file's text without the white space around it; `None` if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.0.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// All names in a directory, sorted; none if it cannot be read.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(path)).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names.map(|it| it.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// All counters that this machine has.
fn events(tree: &Tree<'_>) -> Result<Vec<Event>, String> {
    let devices = tree.names(DEVICES);
    let events: Vec<Event> = devices
        .iter()
        .flat_map(|device| events_of(tree, device))
        .collect();
    if events.is_empty() {
        let kinds = "uncore_imc, uncore_cha and amd_umc";
        return Err(format!(
            "none of {kinds} in /{DEVICES}: a virtual machine, or an old kernel"
        ));
    }
    if events.len() > COUNTERS_MAX {
        return Err(format!(
            "{} counters: more than {COUNTERS_MAX}",
            events.len()
        ));
    }
    Ok(events)
}

/// Those of a device, on one processor of each socket; none if it counts something else.
fn events_of(tree: &Tree<'_>, device: &str) -> Vec<Event> {
    let place = format!("{DEVICES}/{device}");
    let named = |quantity: Quantity, prefix: &str| {
        // Newer controllers have a pair for each of their channels. `.scale` and `.unit` stand beside them.
        let names = tree.names(&format!("{place}/events")).into_iter();
        let names = names.filter(|name| name.starts_with(prefix) && !name.contains('.'));
        let terms = names.filter_map(|name| tree.read(&format!("{place}/events/{name}")));
        terms.map(|terms| (quantity, terms)).collect::<Vec<_>>()
    };
    let owned = |terms: &[(Quantity, &str)]| {
        let terms = terms
            .iter()
            .map(|(quantity, terms)| (*quantity, (*terms).to_owned()));
        terms.collect()
    };
    let wanted: Vec<(Quantity, String)> = match device.rsplit_once('_') {
        Some(("uncore_imc", _)) => [
            named(Quantity::MemoryRead, "cas_count_read"),
            named(Quantity::MemoryWritten, "cas_count_write"),
        ]
        .concat(),
        Some(("uncore_cha", _)) => owned(&INTEL_CACHE),
        Some(("amd_umc", _)) => owned(&AMD),
        _ => return Vec::new(),
    };
    let kind = tree
        .read(&format!("{place}/type"))
        .and_then(|it| it.parse().ok());
    let Some(kind) = kind else {
        return Vec::new();
    };
    let processors = tree.read(&format!("{place}/cpumask")).unwrap_or_default();
    let processors = parse_processors(&processors);
    let configured = wanted.into_iter().filter_map(|(quantity, terms)| {
        let config = config_of(tree, &place, &terms)?;
        Some((quantity, config))
    });
    let events = configured.flat_map(|(quantity, config)| {
        processors.iter().map(move |&processor| Event {
            quantity,
            kind,
            config,
            processor,
        })
    });
    events.collect()
}

/// Terms like `event=0x04,umask=0x03`, put where the device's `format` says; `None`: it has no place for one.
fn config_of(tree: &Tree<'_>, place: &str, terms: &str) -> Option<u64> {
    let mut config = 0;
    for term in terms.split(',') {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        let format = tree.read(&format!("{place}/format/{name}"))?;
        config |= spread(&format, value.ok()?)?;
    }
    Some(config)
}

/// A value's bits in the ranges of a format like `config:8-15,32-55`, lowest first; `None` if it has more bits, or
/// they go to another word.
fn spread(format: &str, value: u64) -> Option<u64> {
    let (mut config, mut rest) = (0, value);
    for range in format.strip_prefix("config:")?.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        let bits = high.checked_sub(low)? + 1;
        let mask = u64::MAX.checked_shr(64_u32.checked_sub(bits)?)?;
        config |= (rest & mask).checked_shl(low)?;
        rest = rest.checked_shr(bits).unwrap_or(0);
    }
    (rest == 0).then_some(config)
}

/// `struct perf_event_attr` as it was first: what counters of devices need.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

/// `PERF_ATTR_SIZE_VER0`
const ATTRIBUTES_BYTES: u32 = 64;
/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: libc::c_ulong = 8;

fn open(event: &Event) -> io::Result<File> {
    let attributes = Attributes {
        kind: event.kind,
        bytes: ATTRIBUTES_BYTES,
        config: event.config,
        ..Attributes::default()
    };
    let processor = libc::c_int::try_from(event.processor).unwrap_or(libc::c_int::MAX);
    // No process, no group.
    let none: libc::c_int = -1;
    // SAFETY: the attributes are ours, and as long as they say; the kernel only reads them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            none,
            processor,
            none,
            CLOSE_ON_EXEC,
        )
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call made the descriptor, and nobody else has it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

fn read(mut file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{
        ATTRIBUTES_BYTES, Attributes, Event, MemoryTraffic, PROCESSOR_MAX, Quantity, Tree, events,
        parse_processors, spread,
    };

    fn device(root: &Path, name: &str, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = root
                .join("sys/bus/event_source/devices")
                .join(name)
                .join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn an_intel_machine_has_counters_of_channels_and_slices_for_each_socket() {
        let root = tempfile::tempdir().unwrap();
        let controller = [
            ("type", "14\n"),
            ("cpumask", "0,28\n"),
            ("format/event", "config:0-7\n"),
            ("format/umask", "config:8-15\n"),
            ("events/cas_count_read", "event=0x05,umask=0xcf\n"),
            ("events/cas_count_read.scale", "6.103515625e-5\n"),
            ("events/cas_count_write", "event=0x05,umask=0xf0\n"),
            ("events/clockticks", "event=0x01\n"),
        ];
        device(root.path(), "uncore_imc_0", &controller);
        device(root.path(), "uncore_imc_free_running_0", &controller);
        device(root.path(), "cpu", &controller);
        let slice = |mask| {
            let rest = [
                ("type", "30\n"),
                ("cpumask", "0\n"),
                ("format/event", "config:0-7\n"),
            ];
            [rest.as_slice(), &[("format/umask", mask)]].concat()
        };
        device(root.path(), "uncore_cha_0", &slice("config:8-15,32-55\n"));
        // An older one, whose mask has eight bits.
        device(root.path(), "uncore_cha_1", &slice("config:8-15\n"));
        let found = events(&Tree(root.path())).unwrap();
        assert_eq!(found.len(), 4 + 4);
        let read = |processor| Event {
            quantity: Quantity::MemoryRead,
            kind: 14,
            config: 0xcf05,
            processor,
        };
        assert!(found.contains(&read(0)) && found.contains(&read(28)));
        assert!(found.contains(&Event {
            quantity: Quantity::DeviceRead { hit: false },
            kind: 30,
            config: 0x00c8_f3fe_0000_0435,
            processor: 0,
        }));
    }

    #[test]
    fn an_amd_machine_has_counters_of_channels() {
        let root = tempfile::tempdir().unwrap();
        let controller = [
            ("type", "20\n"),
            ("cpumask", "0\n"),
            ("format/event", "config:0-7\n"),
            ("format/rdwrmask", "config:8-9\n"),
        ];
        device(root.path(), "amd_umc_0", &controller);
        device(root.path(), "amd_umc_11", &controller);
        let found = events(&Tree(root.path())).unwrap();
        let configs: Vec<_> = found.iter().map(|event| event.config).collect();
        assert_eq!(configs, [0x10a, 0x20a, 0x10a, 0x20a]);
    }

    #[test]
    fn a_machine_without_such_devices_says_so() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "software", &[("type", "1\n")]);
        let found = MemoryTraffic::open(root.path());
        assert!(found.unwrap_err().contains("a virtual machine"));
        // A type that no kernel has.
        let controller = [
            ("type", "4294967295\n"),
            ("cpumask", "0\n"),
            ("format/event", "config:0-7\n"),
            ("format/rdwrmask", "config:8-9\n"),
        ];
        device(root.path(), "amd_umc_0", &controller);
        let found = MemoryTraffic::open(root.path());
        assert!(found.unwrap_err().starts_with("perf_event_open: "));
    }

    #[test]
    fn bits_go_where_the_format_says_and_no_further() {
        assert_eq!(spread("config:0-7", 0xff), Some(0xff));
        assert_eq!(spread("config:0-7", 0x100), None);
        assert_eq!(spread("config:21", 1), Some(1 << 21));
        assert_eq!(spread("config:8-15,32-55", 0x1234), Some(0x12_0000_3400));
        assert_eq!(spread("config:0-63", u64::MAX), Some(u64::MAX));
        for bad in [
            "config1:0-7",
            "config:",
            "config:7-0",
            "config:0-64",
            "config:a",
            "0-7",
        ] {
            assert_eq!(spread(bad, 1), None, "{bad}");
        }
        assert_eq!(size_of::<Attributes>(), ATTRIBUTES_BYTES as usize);
    }

    #[test]
    fn counters_that_are_there_are_told_in_bytes() {
        let root = tempfile::tempdir().unwrap();
        let counter = |name: &str, value: u64| {
            let path = root.path().join(name);
            fs::write(&path, value.to_ne_bytes()).unwrap();
            fs::File::open(path).unwrap()
        };
        let found = MemoryTraffic(vec![
            (Quantity::MemoryRead, counter("a", 1)),
            (Quantity::DeviceWrite { hit: true }, counter("b", 5)),
            (Quantity::MemoryRead, counter("c", 2)),
        ]);
        let bytes: Vec<_> = found.bytes().collect();
        let expected = [
            (Quantity::MemoryRead, 192),
            (Quantity::DeviceWrite { hit: true }, 320),
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn lists_of_processors_are_read_and_bounded() {
        assert_eq!(parse_processors("0-2,8,10-11"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(parse_processors("5"), [5]);
        for bad in ["", "a", "1-", "1,,2", "-1"] {
            assert!(parse_processors(bad).is_empty(), "{bad:?}");
        }
        assert_eq!(
            parse_processors("0-4000000000").last(),
            Some(&PROCESSOR_MAX)
        );
        assert!(parse_processors("3-2").is_empty());
    }
}
