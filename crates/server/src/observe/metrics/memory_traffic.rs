//! What [`memory::traffic`] counts, as samples: opened with the rights of the start, and only if metrics are asked for.
//!
//! It refuses nothing. Bounds: that module's.

use std::fmt::Write as _;

use memory::traffic::{MemoryTraffic, Quantity};

/// The lines of OpenMetrics text.
pub(super) fn encode(found: &Result<MemoryTraffic, String>) -> String {
    let state = match found {
        Ok(_) => "counted",
        Err(reason) => reason,
    };
    let bytes = found.iter().flat_map(MemoryTraffic::bytes);
    encode_bytes(state, bytes)
}

fn encode_bytes(state: &str, bytes: impl Iterator<Item = (Quantity, u64)>) -> String {
    let mut text = String::from(
        "# TYPE atlas_memory_counters info\n\
         # HELP atlas_memory_counters Whether this machine counts accesses to memory, and if not why.\n",
    );
    let state = state.replace(['"', '\\', '\n'], " ");
    let _ = writeln!(text, "atlas_memory_counters_info{{state=\"{state}\"}} 1");
    let mut family = "";
    for (quantity, bytes) in bytes {
        let (name, help, labels) = sample(quantity);
        if name != family {
            let _ = writeln!(
                text,
                "# TYPE {name} counter\n# UNIT {name} bytes\n# HELP {name} {help}"
            );
            family = name;
        }
        let _ = writeln!(text, "{name}_total{{{labels}}} {bytes}");
    }
    text
}

const fn sample(quantity: Quantity) -> (&'static str, &'static str, &'static str) {
    let memory = "Bytes that the machine's memory controllers read and wrote.";
    let device = "Bytes that devices read and wrote, by whether the last-level cache had them.";
    match quantity {
        Quantity::MemoryRead => ("atlas_memory_bytes", memory, "access=\"read\""),
        Quantity::MemoryWritten => ("atlas_memory_bytes", memory, "access=\"write\""),
        Quantity::DeviceRead { hit: true } => (
            "atlas_device_bytes",
            device,
            "access=\"read\",cache=\"hit\"",
        ),
        Quantity::DeviceRead { hit: false } => (
            "atlas_device_bytes",
            device,
            "access=\"read\",cache=\"miss\"",
        ),
        Quantity::DeviceWrite { hit: true } => (
            "atlas_device_bytes",
            device,
            "access=\"write\",cache=\"hit\"",
        ),
        Quantity::DeviceWrite { hit: false } => (
            "atlas_device_bytes",
            device,
            "access=\"write\",cache=\"miss\"",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Quantity, encode, encode_bytes};

    #[test]
    fn counters_that_are_there_are_told_in_bytes() {
        let bytes = [
            (Quantity::MemoryRead, 192),
            (Quantity::DeviceWrite { hit: true }, 320),
        ];
        let text = encode_bytes("counted", bytes.into_iter());
        for part in [
            "state=\"counted\"} 1\n",
            "# UNIT atlas_memory_bytes bytes\n",
            "atlas_memory_bytes_total{access=\"read\"} 192\n",
            "atlas_device_bytes_total{access=\"write\",cache=\"hit\"} 320\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("miss"));
    }

    #[test]
    fn a_machine_without_counters_says_why() {
        let text = encode(&Err("none of \"them\"".to_owned()));
        assert!(text.contains("\natlas_memory_counters_info{state=\"none of  them \"} 1\n"));
        assert!(!text.contains("_total"));
    }
}
