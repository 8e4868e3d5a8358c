//! What a report says of how it was measured: the rules, and the Linux settings that matter to the
//! servers, read where they apply.
//!
//! What cannot be read is said to be unknown. Bounded by: the settings named here.

use std::fs;
use std::process::Command;

use anyhow::Result;

use crate::bench::lab::Lab;
use crate::bench::tls::is_kernel_tls_available;
use testbed::namespace::{Namespace, VethPair as Cable};
use testbed::process::run;

/// Settings of the server's namespace that rivals' TCP goes by, below `/proc/sys/net`.
const TCP: [&str; 6] = [
    "ipv4/tcp_congestion_control",
    "core/default_qdisc",
    "ipv4/tcp_wmem",
    "ipv4/tcp_mem",
    "ipv4/tcp_slow_start_after_idle",
    "ipv4/tcp_notsent_lowat",
];

/// Offloads of a veth that decide how large its packets are, as `ethtool -k` names them.
const OFFLOADS: [&str; 7] = [
    "tx-checksumming",
    "scatter-gather",
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "rx-gro-list",
    "large-receive-offload",
];

/// `(name, value)` of all of it.
pub(super) fn settings(lab: &Lab, descriptors: u64) -> Result<Vec<(String, String)>> {
    let kernel_tls = if is_kernel_tls_available() {
        "available: nginx is told to use it"
    } else {
        "not in this kernel: rivals read, copy and seal in user space"
    };
    let (server, client) = (&lab.cable.server, &lab.cable.client);
    let ends = [
        (server, Cable::SERVER_INTERFACE),
        (client, Cable::CLIENT_INTERFACE),
    ];
    let mut settings = vec![
        (
            "rounds",
            "each through all cells, in which servers take turns; ratios are taken within a round"
                .to_owned(),
        ),
        (
            "descriptors",
            format!("{descriptors} at most; a rival needs two for each connection"),
        ),
        (
            "steering",
            "the server's host's packets on the server's core, for every server".to_owned(),
        ),
        (
            "distance",
            "from 1,000 connections on: what clients send is held 10 to 40 ms, by flow".to_owned(),
        ),
        ("TLS", "1.3, AES-128-GCM, ECDSA P-256".to_owned()),
        ("kernel TLS", kernel_tls.to_owned()),
        (
            "cold",
            "0 % BC: the page cache, where it is used, forgets four times while all objects are \
             read, none is asked for again before all others; what the disk read is checked"
                .to_owned(),
        ),
        (
            "warm",
            "100 % BC: all objects in the page cache; Atlas has none and reads the disk".to_owned(),
        ),
        (
            "same work",
            "every reply's status and length; 64 objects byte by byte after each run".to_owned(),
        ),
        ("machine", machine()?),
        ("TCP", tcp(server)),
    ];
    for (namespace, interface) in ends {
        settings.push((interface, offloads(namespace, interface)));
    }
    let owned = settings.into_iter();
    Ok(owned
        .map(|(name, value)| (name.to_owned(), value))
        .collect())
}

/// Processors, memory, and the sizes of its pages.
fn machine() -> Result<String> {
    let processors = std::thread::available_parallelism()?;
    let memory = first_line(fs::read_to_string("/proc/meminfo").ok());
    let memory = memory.trim_start_matches("MemTotal:").trim().to_owned();
    let huge = first_line(fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok());
    Ok(format!(
        "{processors} processors, {memory}, pages of {} bytes, transparent huge pages {huge}",
        first_line(run(Command::new("getconf").arg("PAGESIZE")).ok())
    ))
}

fn first_line(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

/// The kernel's TCP as the rivals find it.
fn tcp(namespace: &Namespace) -> String {
    let setting = |path: &str| {
        let file = format!("/proc/sys/net/{path}");
        let value = namespace.enter(|| Ok(fs::read_to_string(&file)?));
        // Some are the whole machine's, and cannot be seen from inside.
        let value = value.or_else(|_| fs::read_to_string(&file));
        let value = first_line(value.ok());
        let name = path.rsplit('/').next().unwrap_or(path);
        format!(
            "{name} {}",
            value.split_whitespace().collect::<Vec<_>>().join(" ")
        )
    };
    TCP.map(setting).join(", ")
}

/// How an end of the cable steers, queues and cuts.
fn offloads(namespace: &Namespace, interface: &str) -> String {
    let said = |command: &mut Command| {
        let output = command.output().ok().filter(|it| it.status.success());
        output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned())
    };
    let queue = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
    let steering = first_line(said(namespace.command("cat").arg(queue)));
    let sizes = said(
        namespace
            .command("ip")
            .args(["-details", "link", "show", interface]),
    );
    let features = said(namespace.command("ethtool").args(["-k", interface]));
    format!(
        "RPS mask {steering}, {}; {}",
        sizes.as_deref().map_or_else(unknown, pick_sizes),
        features.as_deref().map_or_else(unknown, pick_offloads)
    )
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// The queueing discipline and the largest packets, out of `ip -details link`.
fn pick_sizes(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let after = |name: &&str| {
        let at = words.iter().position(|word| word == name)?;
        Some(format!("{name} {}", words.get(at + 1)?))
    };
    let names = [
        "mtu",
        "qdisc",
        "numrxqueues",
        "gso_max_size",
        "gro_max_size",
    ];
    names
        .iter()
        .filter_map(after)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The offloads that matter, out of `ethtool -k`.
fn pick_offloads(text: &str) -> String {
    let value = |name: &&str| {
        let line = text.lines().find_map(|line| {
            let (found, value) = line.trim().split_once(':')?;
            (found == *name).then(|| value.trim())
        })?;
        Some(format!("{name} {line}"))
    };
    OFFLOADS
        .iter()
        .filter_map(value)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ip_and_ethtool_say_is_picked_and_what_they_do_not_is_left_out() {
        let ip = "2: wire0@if3: <UP> mtu 1500 qdisc noqueue state UP\n  numtxqueues 2 numrxqueues 2 \
                  gso_max_size 65536 gso_max_segs 65535";
        assert_eq!(
            pick_sizes(ip),
            "mtu 1500, qdisc noqueue, numrxqueues 2, gso_max_size 65536"
        );
        let ethtool = "Features for wire0:\nrx-checksumming: on\ntx-checksumming: on\n\
                       \ttx-checksum-ipv4: off [fixed]\ntcp-segmentation-offload: on\n\
                       generic-receive-offload: off\nlarge-receive-offload: off [fixed]\n";
        assert_eq!(
            pick_offloads(ethtool),
            "tx-checksumming on, tcp-segmentation-offload on, generic-receive-offload off, \
             large-receive-offload off [fixed]"
        );
    }
}
