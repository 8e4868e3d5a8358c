//! Network namespaces and the veth pair between two of them.
//!
//! All traffic of tests and benches runs here: nothing reaches the host's own interfaces. Names
//! carry our process id, so two runs at once do not meet.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::find_program;
use crate::process::run;
use crate::undo::Undo;

/// A network namespace of our own, deleted when dropped. Processes in it must have ended before.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace with its loopback up. Its interfaces use their addresses at once: while the
    /// kernel looked for duplicates of a link-local address (RFC 4862 s5.4), up to two seconds, a
    /// router here could ask for no neighbour's.
    pub fn new(role: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("atlas-{role}-{}-{count}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Self { name };
        if Path::new("/proc/sys/net/ipv6").exists() {
            namespace.set("ipv6/conf/default/accept_dad", "0")?;
        }
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name under `/run/netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside. `ip netns exec` replaces itself, so the child's id is the
    /// program's.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// `ip -n NAME ...`, arguments split at spaces.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        run(Command::new("ip")
            .args(["-n", &self.name])
            .args(arguments.split_whitespace()))
    }

    /// Sets a network setting of the namespace (a path below `/proc/sys/net`); nothing to restore,
    /// it dies with it.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let file = format!("/proc/sys/net/{name}");
        // The kernel shows each thread the settings of the namespace it is in.
        self.enter(|| std::fs::write(&file, value).with_context(|| format!("writing {file}")))
    }

    /// Runs `work` on a thread that has moved inside: sockets it opens stay there.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = self.open()?;
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into(&file)?;
                    work()
                })
                .join()
                .map_err(|_| anyhow!("the thread inside {} panicked", self.name))?
        })
    }

    /// Gives an interface addresses, each with its prefix, and sets it up.
    pub fn bring_up(&self, interface: &str, addresses: &[&str]) -> Result<()> {
        for address in addresses {
            self.ip(&format!("addr add {address} dev {interface}"))?;
        }
        self.ip(&format!("link set {interface} up")).map(drop)
    }

    /// Makes it a router.
    pub fn forward(&self) -> Result<()> {
        self.set("ipv4/ip_forward", "1")?;
        self.set("ipv6/conf/all/forwarding", "1")
    }

    /// Drops packets of an interface at random in both directions, with this probability each, until
    /// the guard goes, which must be before the namespace does; `Err` says why not.
    pub fn lose_packets(
        &self,
        interface: &str,
        probability: &str,
    ) -> std::result::Result<Undo, String> {
        let mut undo = Undo::default();
        for program in ["iptables", "ip6tables"] {
            let Some(path) = find_program(program) else {
                return Err(format!("{program} is not installed"));
            };
            let program = path.to_string_lossy().into_owned();
            for (chain, side) in [("INPUT", "-i"), ("OUTPUT", "-o")] {
                let rule = format!(
                    "{chain} {side} {interface} -m statistic --mode random \
                     --probability {probability} -j DROP"
                );
                let change = |verb: &str| {
                    let mut command = self.command(&program);
                    command.args(["-w", verb]).args(rule.split_whitespace());
                    command
                };
                run(&mut change("-A")).map_err(|error| format!("{error:#}"))?;
                let mut remove = change("-D");
                undo.add(format!("remove {rule}"), move || run(&mut remove).map(drop));
            }
        }
        Ok(undo)
    }

    fn open(&self) -> Result<File> {
        let path = format!("/run/netns/{}", self.name);
        File::open(&path).with_context(|| format!("opening {path}"))
    }
}

/// Moves this thread into a network namespace.
fn move_into(namespace: &File) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("entering a network namespace")
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("ip").args(["netns", "del", &self.name])) {
            eprintln!("could not delete a namespace: {error:#}");
        }
    }
}

/// Two namespaces joined by a veth pair.
#[derive(Debug)]
pub struct VethPair {
    /// Where servers run; its interface is [`VethPair::SERVER_INTERFACE`].
    pub server: Namespace,
    /// Where clients run; its interface is [`VethPair::CLIENT_INTERFACE`].
    pub client: Namespace,
}

impl VethPair {
    /// The server's end.
    pub const SERVER_INTERFACE: &str = "wire0";
    /// The client's end.
    pub const CLIENT_INTERFACE: &str = "wire1";

    /// The server side's kernel: rivals listen here.
    pub const KERNEL_V4: &str = "10.77.0.1";
    /// Atlas on this link.
    pub const ATLAS_V4: &str = "10.77.0.2";
    /// Atlas on this link, IPv6.
    pub const ATLAS_V6: &str = "fd77::2";
    const CLIENT_V4: &str = "10.77.0.3";
    /// The kernel at the server's end, IPv6.
    pub const KERNEL_V6: &str = "fd77::1";
    const CLIENT_V6: &str = "fd77::3";

    /// Makes both namespaces and the veth pair, MTU 1500, addresses set, both ends up.
    pub fn new() -> Result<Self> {
        Self::with_queues(1)
    }

    /// The same with so many queues at each end: what one end sends from a queue, the other receives in
    /// the queue of that number.
    pub fn with_queues(count: u32) -> Result<Self> {
        let pair = Self {
            server: Namespace::new("s")?,
            client: Namespace::new("c")?,
        };
        let (near, far) = (Self::SERVER_INTERFACE, Self::CLIENT_INTERFACE);
        let end = format!("mtu 1500 numtxqueues {count} numrxqueues {count}");
        pair.server.ip(&format!(
            "link add {near} {end} type veth peer name {far} {end} netns {}",
            pair.client.name()
        ))?;
        for (namespace, interface, v4, v6) in [
            (&pair.server, near, Self::KERNEL_V4, Self::KERNEL_V6),
            (&pair.client, far, Self::CLIENT_V4, Self::CLIENT_V6),
        ] {
            namespace.bring_up(interface, &[&format!("{v4}/24"), &format!("{v6}/64")])?;
        }
        Ok(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_root;

    #[test]
    fn addresses_of_a_new_pair_can_be_used_at_once() {
        if !is_root() {
            eprintln!("SKIPPED: making a network namespace needs root");
            return;
        }
        let pair = VethPair::new().expect("a veth pair");
        for namespace in [&pair.server, &pair.client] {
            let tentative = namespace.ip("addr show tentative").expect("the addresses");
            assert!(!tentative.contains("inet6"), "{tentative}");
        }
    }
}
