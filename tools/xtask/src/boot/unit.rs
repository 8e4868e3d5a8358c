//! The unit, its drop-in for XDP and its configuration as they are shipped: installed by the commands in their
//! heads, started, reloaded, rotated, stopped, and met with what a network does.

use std::fs;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use super::machine::Machine;
use super::{CHECKOUT, ETH0_URL, MAKE_ETH0, documents, fetch};
use testbed::certificate::Identity;
use testbed::suite::{Outcome, Suite};
use testbed::workspace_root;

/// How long systemd may take until the server serves again: several of its restarts.
const RESTART_LIMIT: Duration = Duration::from_secs(60);

/// At which the tap of the shipped configuration serves.
pub(super) const TAP_URL: &str = "http://10.77.0.2/film.mp4";

/// What the shipped configuration becomes for a link on eth0.
const ON_ETH0: [(&str, &str); 2] = [
    ("link = \"tap:atlas0\"", "link = \"packet:eth0\""),
    ("\"10.77.0.2/24\"", "\"192.0.2.10/24\""),
];

/// Whether systemd has started the server again since [`STOP`].
const WAS_RESTARTED: &str = "test $(systemctl show atlas --property NRestarts --value) -gt 0";

/// Has systemd forget what was.
const STOP: &str = "systemctl stop atlas; systemctl reset-failed atlas || true";

pub(super) fn run(suite: &mut Suite, machine: &Machine) {
    let trial = Trial { machine };
    for (name, check) in CHECKS {
        suite.run(&format!("unit: {name}"), || {
            let checked = check(&trial);
            checked.map_err(|error| anyhow!("{error:#}\n{}", trial.journal()))?;
            Ok(Outcome::Passed)
        });
    }
}

type Check = fn(&Trial<'_>) -> Result<()>;

/// In this order: each leaves what the next begins with.
const CHECKS: [(&str, Check); 10] = [
    ("its own commands install and start it", |it| it.install()),
    ("it reads a renewed certificate", |it| it.reload()),
    ("its access log is rotated", |it| it.rotate()),
    ("it stops, and leaves nothing", |it| it.stop()),
    ("wrong settings are tried once", |it| it.refuse_settings()),
    ("its journal has priorities", |it| it.prioritize()),
    ("it waits for its interface", |it| it.await_interface()),
    ("its interface goes and comes back", |it| {
        it.lose_interface()
    }),
    ("its address is free later", |it| it.await_address()),
    ("it serves through XDP by its drop-in", |it| {
        it.serve_by_xdp()
    }),
];

/// A machine on which the unit is tried.
#[derive(Debug)]
struct Trial<'a> {
    machine: &'a Machine,
}

impl Trial<'_> {
    fn install(&self) -> Result<()> {
        for command in documents::commands_in_head("dist/atlas.service")? {
            self.machine.shell(&format!("cd /{CHECKOUT}; {command}"))?;
        }
        self.machine.shell(&fetch(false, TAP_URL))?;
        Ok(())
    }

    fn reload(&self) -> Result<()> {
        let https =
            "https = 443\n[[certificate]]\ncert = \"/etc/atlas/a.pem\"\nkey = \"/etc/atlas/a.key\"";
        let folder = self.machine.path("etc/atlas");
        let renew = || Identity::self_signed(&["10.77.0.2"])?.write(&folder, "a");
        // Only the certificate that is trusted may be the one that is served.
        let trusting = "curl --silent --show-error --fail --output /dev/null \
                        --cacert /root/trusted.pem https://10.77.0.2/film.mp4";
        let trust = "cp /etc/atlas/a.pem /root/trusted.pem";
        renew()?;
        self.configure(&[], https)?;
        self.machine
            .shell(&format!("systemctl restart atlas; {trust}; {trusting}"))?;
        renew()?;
        self.machine
            .shell(&format!("systemctl reload atlas; {trust}"))?;
        self.machine.await_success(trusting, RESTART_LIMIT)?;
        // What cannot be served with is said to whoever asks for it, and what was served stays.
        fs::write(folder.join("a.pem"), "junk")?;
        self.machine
            .shell(&format!("! systemctl reload atlas; {trusting}"))?;
        renew()?;
        Ok(())
    }

    fn rotate(&self) -> Result<()> {
        let log = "/var/log/atlas/access.log";
        self.configure(&[], &format!("access_log = \"{log}\""))?;
        let logged = format!("grep --quiet 'GET /film.mp4' {log}");
        self.machine.shell("systemctl restart atlas")?;
        for _ in 0..2 {
            self.machine.shell(&fetch(false, TAP_URL))?;
            self.machine.await_success(&logged, RESTART_LIMIT)?;
            let rotation = documents::log_rotation()?;
            self.machine
                .shell(&format!("mv {log} {log}.1; {rotation}"))?;
            self.machine
                .await_success(&format!("test -f {log}"), RESTART_LIMIT)?;
        }
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        self.machine.shell("systemctl stop atlas")?;
        self.expect("Result", "success")?;
        self.expect("ExecMainStatus", "0")?;
        let left =
            "! ip link show atlas0 && ! journalctl --unit atlas | grep --ignore-case left-over";
        self.machine.shell(left)?;
        Ok(())
    }

    fn refuse_settings(&self) -> Result<()> {
        // What the start finds in the file, and what it finds on the machine.
        for wrong in [
            ("slots = 1024", "slots = \"many\""),
            ("link = \"tap:atlas0\"", "link = \"packet:lo\""),
        ] {
            self.configure(&[wrong], "")?;
            self.machine
                .shell(&format!("{STOP}; ! systemctl start atlas"))?;
            self.expect("SubState", "failed")?;
            self.expect("NRestarts", "0")?;
        }
        Ok(())
    }

    fn prioritize(&self) -> Result<()> {
        let has = |priority: &str, text: &str| {
            format!(
                "journalctl --unit atlas --priority {priority} --output cat | grep --quiet '{text}'"
            )
        };
        // Of the check before.
        self.machine.shell(&has("err", "expected a whole number"))?;
        self.configure(&[], "")?;
        self.machine.shell(&format!(
            "{STOP}; chmod 000 /srv/video/film.mp4; systemctl start atlas"
        ))?;
        self.machine.shell("chmod 644 /srv/video/film.mp4")?;
        self.machine
            .shell(&has("warning", "requests for them get 403"))?;
        let info = "serving /srv/video";
        self.machine.shell(&format!(
            "{} && ! {}",
            has("info", info),
            has("notice", info)
        ))?;
        Ok(())
    }

    fn await_interface(&self) -> Result<()> {
        self.configure(&ON_ETH0, "")?;
        self.machine
            .shell(&format!("{STOP}; systemctl start --no-block atlas"))?;
        self.machine.await_success(WAS_RESTARTED, RESTART_LIMIT)?;
        self.machine.shell(MAKE_ETH0)?;
        self.await_service()
    }

    fn lose_interface(&self) -> Result<()> {
        self.machine
            .shell(&format!("{STOP}; {MAKE_ETH0}; systemctl start atlas"))?;
        self.machine.shell("ip link del eth0")?;
        self.machine.await_success(WAS_RESTARTED, RESTART_LIMIT)?;
        self.machine.shell(MAKE_ETH0)?;
        self.await_service()
    }

    fn await_address(&self) -> Result<()> {
        let other = "192.0.2.10/32 dev client0";
        self.machine.shell(&format!(
            "{STOP}; {MAKE_ETH0}; ip -n client addr add {other}"
        ))?;
        self.machine.shell("systemctl start --no-block atlas")?;
        self.machine.await_success(WAS_RESTARTED, RESTART_LIMIT)?;
        self.machine
            .shell(&format!("ip -n client addr del {other}"))?;
        self.await_service()
    }

    fn serve_by_xdp(&self) -> Result<()> {
        let xdp = (ON_ETH0[0].0, "link = \"xdp:eth0\"");
        self.configure(&[xdp, ON_ETH0[1]], "")?;
        self.machine.shell(&format!("{STOP}; {MAKE_ETH0}"))?;
        self.allow_locked_memory()?;
        for command in documents::commands_in_head("dist/atlas-xdp.conf")? {
            self.machine.shell(&format!("cd /{CHECKOUT}; {command}"))?;
        }
        self.machine.shell(&fetch(true, ETH0_URL))?;
        self.machine
            .shell("ip -details link show eth0 | grep --quiet xdp")?;
        self.machine
            .shell("systemctl stop atlas; ip link del eth0")?;
        Ok(())
    }

    /// Where the host lets nobody lock memory without limit, systemd cannot either: then by the other way that
    /// docs/run/deploy.md names.
    fn allow_locked_memory(&self) -> Result<()> {
        let limits = fs::read_to_string("/proc/self/limits")?;
        let mut lines = limits
            .lines()
            .filter(|it| it.starts_with("Max locked memory"));
        if lines.any(|it| it.matches("unlimited").count() == 2) {
            return Ok(());
        }
        let folder = self.machine.path("etc/systemd/system/atlas.service.d");
        fs::create_dir_all(&folder)?;
        let right =
            "[Service]\nAmbientCapabilities=CAP_IPC_LOCK\nCapabilityBoundingSet=CAP_IPC_LOCK\n";
        Ok(fs::write(folder.join("memory.conf"), right)?)
    }

    /// Writes the shipped configuration with these changes, and with `end` after it.
    fn configure(&self, changes: &[(&str, &str)], end: &str) -> Result<()> {
        let shipped = workspace_root().join("dist/atlas.toml");
        let mut text = fs::read_to_string(&shipped)?;
        for (from, to) in changes {
            ensure!(text.contains(from), "{}: no {from}", shipped.display());
            text = text.replacen(from, to, 1);
        }
        text += &format!("\n{end}\n");
        Ok(fs::write(self.machine.path("etc/atlas/atlas.toml"), text)?)
    }

    fn await_service(&self) -> Result<()> {
        self.machine
            .await_success("systemctl is-active atlas", RESTART_LIMIT)?;
        self.machine
            .await_success(&fetch(true, ETH0_URL), RESTART_LIMIT)
    }

    fn expect(&self, property: &str, value: &str) -> Result<()> {
        let show = format!("systemctl show atlas --property {property} --value");
        let found = self.machine.shell(&show)?;
        ensure!(found == value, "{property} is {found}, not {value}");
        Ok(())
    }

    /// The end of the server's journal, for what failed.
    fn journal(&self) -> String {
        let lines =
            "journalctl --unit atlas --lines 12 --output cat | grep -v counters | cut -c -300";
        self.machine.shell(lines).unwrap_or_default()
    }
}
