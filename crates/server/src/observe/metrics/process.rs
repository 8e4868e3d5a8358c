//! What the kernel says of the process, by the names that Prometheus's clients have for it: `process_…`.
//!
//! It refuses to guess: what the kernel does not say is left out. Bound: a directory of as many entries as the process has
//! descriptors.

use std::fs;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

use super::text::{Seconds, Text};
use crate::start::host::{self, CpuTimes};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessFacts {
    pub(super) cpu: Option<CpuTimes>,
    memory: Option<Memory>,
    open_descriptors: Option<u64>,
    /// `None`: no limit.
    descriptors_max: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Memory {
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl ProcessFacts {
    /// Asks the kernel.
    #[must_use]
    pub(crate) fn read() -> Self {
        let pages = fs::read_to_string("/proc/self/statm");
        // The directory that is read is open, too.
        let open = fs::read_dir("/proc/self/fd").map(|entries| entries.count().saturating_sub(1));
        Self {
            cpu: host::cpu_times().ok(),
            memory: pages.ok().and_then(|text| Memory::parse(&text)),
            open_descriptors: open.ok().and_then(|count| u64::try_from(count).ok()),
            descriptors_max: getrlimit(Resource::Nofile).current,
        }
    }

    /// Only processor time is known.
    #[cfg(test)]
    pub(super) fn of_cpu(cpu: Option<CpuTimes>) -> Self {
        Self {
            cpu,
            ..Self::default()
        }
    }

    /// Appends it.
    pub(super) fn encode(&self, start_unix_seconds: u64, text: &mut Text) {
        if let Some(CpuTimes { user_us, system_us }) = self.cpu {
            let help = "Processor time used, by user and kernel together.";
            text.family("process_cpu_seconds", "counter", help);
            text.sample(
                "process_cpu_seconds_total",
                "",
                Seconds(user_us + system_us),
            );
        }
        let memory = self.memory;
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Memory of the process that is in RAM.",
                memory.map(|memory| memory.resident_bytes),
            ),
            (
                "process_virtual_memory_bytes",
                "Address space of the process.",
                memory.map(|memory| memory.virtual_bytes),
            ),
            (
                "process_open_fds",
                "Open descriptors.",
                self.open_descriptors,
            ),
            (
                "process_max_fds",
                "Most open descriptors that the kernel allows.",
                self.descriptors_max,
            ),
            (
                "process_start_time_seconds",
                "Unix time of the process's start.",
                Some(start_unix_seconds),
            ),
        ] {
            if let Some(value) = value {
                text.family(name, "gauge", help);
                text.sample(name, "", value);
            }
        }
    }
}

impl Memory {
    /// Of `/proc/PID/statm` (proc_pid_statm(5)): pages.
    fn parse(text: &str) -> Option<Self> {
        let mut pages = text.split(' ').map(str::parse::<u64>);
        let mut bytes = || {
            let pages = pages.next()?.ok()?;
            pages.checked_mul(u64::try_from(page_size()).ok()?)
        };
        Some(Self {
            virtual_bytes: bytes()?,
            resident_bytes: bytes()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Memory, ProcessFacts, Text};

    #[test]
    fn this_process_has_memory_descriptors_and_a_limit_of_them() {
        let read = ProcessFacts::read;
        let facts = read();
        let memory = facts.memory.unwrap();
        assert!(memory.resident_bytes > 100_000 && memory.virtual_bytes >= memory.resident_bytes);
        let open = facts.open_descriptors.unwrap();
        assert!(open >= 3 && facts.descriptors_max.is_none_or(|most| most >= open));
        let mut text = Text::default();
        facts.encode(7, &mut text);
        let text = text.0;
        for part in [
            "# TYPE process_cpu_seconds counter\n# UNIT process_cpu_seconds seconds\n",
            "\nprocess_cpu_seconds_total ",
            "# TYPE process_resident_memory_bytes gauge\n# UNIT process_resident_memory_bytes bytes\n",
            "\nprocess_virtual_memory_bytes ",
            "\nprocess_open_fds ",
            "\nprocess_max_fds ",
            "\nprocess_start_time_seconds 7\n",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_say_is_left_out() {
        let mut text = Text::default();
        ProcessFacts::default().encode(7, &mut text);
        assert_eq!(text.0.matches("# TYPE").count(), 1, "{}", text.0);
        for wrong in ["", "5", "5 x", "-1 2", "18446744073709551615 1"] {
            assert_eq!(Memory::parse(wrong), None, "{wrong}");
        }
    }
}
