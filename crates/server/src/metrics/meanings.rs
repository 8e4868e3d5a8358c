//! What each counter means, for `docs/run/metrics.md` and for those who read metrics.
//!
//! `cargo xtask tidy` compares the table in the page with this one, and a test finds counters that are
//! missing here. The session has the meanings of its own counters. It refuses computed texts. Bound:
//! fixed tables.

use std::fmt::Write as _;

use session::Counters;

use super::text::family_of;

/// Whether a value only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, from 0 at start.
    Counter,
    /// It rises and falls.
    Gauge,
}

/// What a counter means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meaning {
    /// Whether it only grows.
    pub kind: Kind,
    /// In a sentence.
    pub help: &'static str,
}

const GAUGES: [(&str, &str); 6] = [
    (
        "server_open_connections",
        "Open connections, half-open ones included.",
    ),
    ("memory_free_slots", "Read buffers that are free."),
    (
        "memory_lent_slots",
        "Read buffers that the network device has not read yet, of frames sent without a copy.",
    ),
    ("memory_all_slots", "Read buffers in all."),
    ("tls_handshakes_in_progress", "TLS handshakes in progress."),
    (
        "tls_certificate_end_unix_seconds",
        "Unix time at which the first certificate in use ends; 0 without one.",
    ),
];

const COUNTERS: [(&str, &str); 64] = [
    ("server_step_rounds", "Rounds of the worker."),
    ("server_empty_rounds", "Rounds without progress."),
    (
        "server_held_rounds",
        "Rounds that began fewer reads than clients wanted, because of the limit of reads in flight.",
    ),
    (
        "server_blocked_rounds",
        "Rounds that ended with the link full.",
    ),
    (
        "server_lent_slots_us",
        "Microseconds that read buffers were lent to the network device, added up: divided by `link_lent_frames`, how long one is.",
    ),
    (
        "server_pause_events",
        "Times the worker slept for a set time, to handle what comes together (`coalesce_us`).",
    ),
    (
        "server_busy_poll_rounds",
        "Rounds without progress after which the worker polled the network device again instead of sleeping (`busy_poll_us`).",
    ),
    (
        "server_sleep_events",
        "Times the worker slept until there was something to do.",
    ),
    (
        "server_lost_strays",
        "Segments for another worker that were lost because too many waited for it.",
    ),
    (
        "server_waiting_lookups",
        "Look-ups that waited for room in the store. One may wait more than once.",
    ),
    (
        "server_overdue_lookups",
        "Look-ups refused because they waited too long for room, or too many waited.",
    ),
    (
        "access_log_dropped_count",
        "Lines of the access log dropped because the queue was full or writing failed.",
    ),
    (
        "trace_dropped_count",
        "Pieces of the trace dropped because the queue or the file was full or writing failed.",
    ),
    (
        "log_dropped_count",
        "Lines of the log on stderr dropped because the queue was full or writing failed.",
    ),
    ("link_received_frames", "Frames received."),
    ("link_received_bytes", "Bytes of frames received."),
    (
        "link_transmitted_frames",
        "Frames sent; a large one counts once.",
    ),
    (
        "link_transmitted_bytes",
        "Bytes of frames sent, before they are cut into packets.",
    ),
    (
        "link_lent_frames",
        "Those of the frames sent that the device read where the disk had put them: nothing was copied.",
    ),
    (
        "link_full_frames",
        "Frames the link had no room for; each attempt counts.",
    ),
    (
        "link_lost_frames",
        "Frames the kernel refused; TCP retransmits their bytes.",
    ),
    (
        "link_refused_frames",
        "Frames lost because the device refused every frame for 20 ms.",
    ),
    (
        "link_bypass_end_events",
        "Times the bypass of the interface's queueing discipline ended for good.",
    ),
    (
        "link_truncated_frames",
        "Received frames larger than their buffer, dropped.",
    ),
    (
        "link_overflow_frames",
        "Frames the kernel dropped because they were not received in time.",
    ),
    (
        "link_down_events",
        "Times receiving or sending found the interface down.",
    ),
    (
        "link_receive_errors",
        "Times receiving failed for another reason and went on.",
    ),
    (
        "link_queued_descriptors",
        "Descriptors put into the transmit ring of an AF_XDP socket: one for each packet, or for each piece of one.",
    ),
    (
        "link_offered_cells",
        "Pages offered to the kernel to receive into, by AF_XDP sockets: `link_received_cells`, and as many as there are.",
    ),
    (
        "link_accepted_cells",
        "Those of them that the kernel took, for the device to fill.",
    ),
    (
        "link_received_cells",
        "Those of them that came back with a packet, or a part of one.",
    ),
    (
        "link_completed_descriptors",
        "Those of them that came back: their memory is free again.",
    ),
    ("disk_read_commands", "Reads accepted."),
    ("disk_read_bytes", "Bytes read."),
    (
        "disk_write_commands",
        "Writes accepted; the server makes none.",
    ),
    ("disk_write_bytes", "Bytes written; the server writes none."),
    (
        "disk_queue_full_commands",
        "Reads returned because the disk's queue was full.",
    ),
    (
        "disk_reissued_commands",
        "Reads issued again: for the rest of a partial one, when interrupted, or when one merged with others failed or was cut short.",
    ),
    (
        "disk_merged_commands",
        "Reads that went to the kernel in one entry with the read before them.",
    ),
    (
        "disk_failed_commands",
        "Reads the device or the kernel failed.",
    ),
    (
        "disk_changed_commands",
        "Reads refused because the file had changed since it was opened.",
    ),
    (
        "disk_stale_completions",
        "Completions with unknown or stale user data; ignored.",
    ),
    (
        "disk_enter_calls",
        "System calls made to submit and to reap reads.",
    ),
    (
        "disk_check_calls",
        "System calls made to check whether a file changed.",
    ),
    (
        "disk_touched_files",
        "Files whose links, name, mode or owner changed while their content stayed.",
    ),
    (
        "disk_registered_files",
        "Files registered with the kernel because they are read often, and devices of a raw store.",
    ),
    (
        "disk_unregistered_files",
        "Files the kernel refused to register: each of their reads costs a little more.",
    ),
    (
        "disk_kept_registrations",
        "Times the kernel refused to unregister a file; tried again later.",
    ),
    (
        "store_shared_lookups",
        "Look-ups answered by a file already open.",
    ),
    (
        "store_inline_lookups",
        "Look-ups answered at once by the kernel's caches.",
    ),
    (
        "store_threaded_lookups",
        "Look-ups submitted to the threads.",
    ),
    (
        "store_refused_lookups",
        "Look-ups refused for any reason but a lack of room.",
    ),
    ("store_full_lookups", "Look-ups refused for lack of room."),
    ("store_opened_objects", "Files opened."),
    ("store_closed_objects", "Files closed."),
    (
        "store_replaced_objects",
        "Files whose path was found to name another file, or none.",
    ),
    (
        "store_expired_objects",
        "Files closed because they were unused for long.",
    ),
    (
        "store_overdue_lookups",
        "Look-ups refused because their file system did not answer in time.",
    ),
    (
        "store_late_lookups",
        "Look-ups that the threads answered after they were refused.",
    ),
    (
        "store_threaded_closes",
        "Files handed to the threads to be closed.",
    ),
    ("store_finished_closes", "Files the threads have closed."),
    (
        "store_reopened_roots",
        "Times the served directory was opened again.",
    ),
    (
        "store_outdated_objects",
        "Files or objects whose clients were reset, `replaced_timeout_seconds` after they were replaced or removed.",
    ),
    (
        "store_failed_catalogues",
        "Times the devices of a raw store, or its newest catalogue, could not be read.",
    ),
];

const TLS_COUNTERS: [(&str, &str); 3] = [
    ("tls_handshake_records", "Records of TLS handshakes taken."),
    (
        "tls_handshake_cost_us",
        "Estimated processor time of TLS handshakes, in microseconds.",
    ),
    ("tls_reload_count", "Times new certificates came into use."),
];

/// Of queue pairs of NVMe controllers: only with `nvme:ADDRESS`.
const NVME_COUNTERS: [(&str, &str); 5] = [
    (
        "nvme_doorbell_count",
        "Times the doorbell of a submission queue was rung (with `nvme:`).",
    ),
    (
        "nvme_aborted_commands",
        "Commands that took too long, which the NVMe controller was asked to abort (with `nvme:`).",
    ),
    (
        "nvme_taken_back_commands",
        "Commands taken back when the NVMe controller was stopped, and issued again (with `nvme:`).",
    ),
    (
        "nvme_reset_count",
        "Times an NVMe controller was stopped because something failed; the log says why (with `nvme:`).",
    ),
    (
        "nvme_function_reset_count",
        "Times the PCI function of an NVMe controller was reset (with `nvme:`).",
    ),
];

/// What a counter means; `None` if it is not in the tables.
#[must_use]
pub fn meaning_of(counter: &str) -> Option<Meaning> {
    all().find_map(|(name, meaning)| (name == counter).then_some(meaning))
}

/// Every counter that has a meaning.
fn all() -> impl Iterator<Item = (&'static str, Meaning)> {
    let of = |kind| {
        move |&(name, help): &(&'static str, &'static str)| {
            (
                name,
                Meaning {
                    kind,
                    help: help.trim_ascii(),
                },
            )
        }
    };
    GAUGES
        .iter()
        .map(of(Kind::Gauge))
        .chain(COUNTERS.iter().map(of(Kind::Counter)))
        .chain(TLS_COUNTERS.iter().map(of(Kind::Counter)))
        .chain(NVME_COUNTERS.iter().map(of(Kind::Counter)))
        .chain(Counters::MEANINGS.iter().map(of(Kind::Counter)))
}

/// The table of `docs/run/metrics.md`: a row for each counter.
#[must_use]
pub fn documentation() -> String {
    let mut text =
        String::from("| On stderr | At `/metrics` | Kind | Meaning |\n|---|---|---|---|\n");
    for (name, Meaning { kind, help }) in all() {
        let family = family_of(name);
        let (sample, kind) = match kind {
            Kind::Counter => (format!("{family}_total"), "counter"),
            Kind::Gauge => (family, "gauge"),
        };
        let _ = writeln!(text, "| `{name}` | `{sample}` | {kind} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{all, family_of, meaning_of};

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let names: BTreeSet<_> = all().map(|(name, _)| name).collect();
        assert_eq!(names.len(), all().count());
        let families: BTreeSet<_> = names.iter().map(|name| family_of(name)).collect();
        assert_eq!(families.len(), names.len(), "two counters are one metric");
        for (name, meaning) in all() {
            let help = meaning.help;
            assert!(
                help.ends_with('.') && !help.contains(['\\', '"', '\n', '|']),
                "{name}: {help}"
            );
        }
        assert!(meaning_of("no_such_count").is_none());
    }
}
