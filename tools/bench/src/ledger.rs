//! Where a core's time goes while a server serves: `perf script`'s samples, by stop of the data path.
//!
//! A sample belongs to the first stop of [`STOPS`] that has its thread or a function of its stack; what
//! belongs to none is the worker's own code, or another process's. Samples of an idle core are left out,
//! interrupts that wake it are not.
//!
//! It refuses a text without samples of a busy core. Bounded by: the text, which is read line by line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

/// Options of the ledger.
#[derive(Args, Clone, Debug)]
pub struct LedgerOptions {
    /// What `perf script -C CORE -F comm,ip,sym` printed of a profile with call graphs
    #[arg(value_name = "FILE")]
    samples: PathBuf,
    /// What a GB cost meanwhile, core-seconds: shares become seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    cost: f64,
}

/// Where an idle core is found, natively and in a virtual machine.
const IDLE: [&str; 4] = [
    "pv_native_safe_halt",
    "native_safe_halt",
    "intel_idle",
    "acpi_safe_halt",
];

/// A stop of the data path: its name, the beginnings of names of threads, and of functions.
type Stop = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// In this order: the first that has the sample.
const STOPS: [Stop; 12] = [
    ("look-ups in threads", &["atlas-lookup"], &[]),
    (
        "sealing",
        &[],
        &[
            "aes_",
            "aesni_",
            "gcm_",
            "vaes_",
            "aws_lc",
            "chacha20",
            "ring_core",
        ],
    ),
    (
        "interrupts: acknowledgments, reads done",
        &["ksoftirqd", "swapper"],
        &[
            "sysvec_",
            "asm_sysvec_",
            "common_interrupt",
            "asm_common_interrupt",
        ],
    ),
    (
        "send: what stands for the NIC",
        &[],
        &["tun_net_xmit", "skb_copy_ubufs", "bpf_prog_"],
    ),
    ("send: the copy", &[], &["skb_copy_datagram_from_iter"]),
    ("send: pages for the copy", &[], &["alloc_skb_with_frags"]),
    ("send: the rest", &[], &["packet_sendmsg"]),
    ("reads: submission", &[], &["io_submit_sqes"]),
    (
        "reads: completions",
        &[],
        &["__do_sys_io_uring_enter", "tctx_task_work"],
    ),
    (
        "reads: fstat",
        &[],
        &["__do_sys_newfstatat", "__do_sys_newfstat"],
    ),
    (
        "names on the worker",
        &[],
        &[
            "__x64_sys_openat2",
            "__x64_sys_statx",
            "__do_sys_io_uring_register",
            "__x64_sys_futex",
            "__x64_sys_write",
        ],
    ),
    ("waiting", &[], &["__x64_sys_ppoll"]),
];

/// The worker's own code, and its way into the kernel and back.
const WORKER: &str = "worker: its own code, system calls' entry";
/// Other processes of the core.
const OTHERS: &str = "others";

/// Prints the ledger of a profile.
///
/// # Errors
/// The file cannot be read, or has no sample of a busy core.
pub(crate) fn run_command(options: &LedgerOptions) -> Result<()> {
    let path = options.samples.display();
    let file = File::open(&options.samples).with_context(|| format!("reading {path}"))?;
    let ledger = Ledger::read(BufReader::new(file))?;
    ensure!(
        ledger.samples > 0,
        "{path} has no sample of a busy core: was it made with perf record -g, and of the right core?"
    );
    print!("{}", ledger.text(options.cost));
    Ok(())
}

/// Samples of a busy core, by stop.
#[derive(Debug, Default)]
struct Ledger {
    stops: Vec<(&'static str, u32)>,
    samples: u32,
}

impl Ledger {
    fn read(text: impl BufRead) -> Result<Self> {
        let mut ledger = Self::default();
        let (mut thread, mut stack) = (String::new(), Vec::new());
        for line in text.lines() {
            let line = line?;
            if line.trim().is_empty() {
                ledger.count(&thread, &stack);
                thread.clear();
                stack.clear();
            } else if thread.is_empty() {
                thread = line.trim().to_owned();
            } else if let Some((_, function)) = line.trim().split_once(' ') {
                stack.push(function.to_owned());
            }
        }
        ledger.count(&thread, &stack);
        Ok(ledger)
    }

    /// Counts a sample; the first function of a stack is where it was taken.
    fn count(&mut self, thread: &str, stack: &[String]) {
        let Some(innermost) = stack.first() else {
            return;
        };
        if IDLE.iter().any(|idle| innermost.starts_with(idle)) {
            return;
        }
        let begins = |text: &str, with: &[&str]| with.iter().any(|it| text.starts_with(it));
        let has = |(_, threads, functions): &&Stop| {
            begins(thread, threads) || stack.iter().any(|it| begins(it, functions))
        };
        let rest = [OTHERS, WORKER][usize::from(thread.starts_with("atlas"))];
        let name = STOPS.iter().find(has).map_or(rest, |(name, ..)| name);
        self.samples += 1;
        match self.stops.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => self.stops.push((name, 1)),
        }
    }

    /// A line for each stop, the dearest first.
    fn text(&self, cost: f64) -> String {
        let mut stops = self.stops.clone();
        stops.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let line = |(name, count): (&str, u32)| {
            let share = f64::from(count) / f64::from(self.samples);
            format!("{name:<42} {:5.1} % {:7.3}\n", share * 100.0, share * cost)
        };
        stops.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Ledger;

    const SAMPLES: &str = "\
atlas
\tffffffff1 memcpy
\tffffffff2 skb_copy_datagram_from_iter
\tffffffff3 packet_sendmsg

atlas
\t55555 session::serve

atlas-lookup-1
\tffffffff4 xfs_lookup

swapper
\tffffffff5 pv_native_safe_halt

atlas
\tffffffff6 tpacket_rcv
\tffffffff7 sysvec_call_function_single
\tffffffff8 packet_sendmsg

swapper
\tffffffff9 __netif_receive_skb

perf
\tffffffffa read
";

    #[test]
    fn a_sample_counts_at_the_first_stop_that_has_it_and_idle_ones_nowhere() {
        let ledger = Ledger::read(SAMPLES.as_bytes()).unwrap();
        assert_eq!(ledger.samples, 6);
        let expected = "\
interrupts: acknowledgments, reads done     33.3 %   0.200
look-ups in threads                         16.7 %   0.100
others                                      16.7 %   0.100
send: the copy                              16.7 %   0.100
worker: its own code, system calls' entry   16.7 %   0.100
";
        assert_eq!(ledger.text(0.6), expected);
    }

    #[test]
    fn a_text_without_samples_has_none() {
        assert_eq!(Ledger::read("\n\n".as_bytes()).unwrap().samples, 0);
    }
}
