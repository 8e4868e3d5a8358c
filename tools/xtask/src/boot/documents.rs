//! The commands of the documents, run as they stand there, with a machine that has what they name.
//!
//! Every fenced block of `sh` is taken apart by code, so a command that is added is run, too. What cannot be run is
//! named in [`NOT_RUN`] with the reason, and an entry there that no document has any more fails. Bounded by: a limit on
//! every command.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::machine::Machine;
use super::{CHECKOUT, MAKE_ETH0, fetch};
use testbed::process::{Process, run as run_command};
use testbed::suite::{Outcome, Suite};
use testbed::undo::Undo;
use testbed::workspace_root;

/// The documents, each with the server that its first commands ask, if one must be there before.
const DOCUMENTS: [(&str, Option<&str>); 4] = [
    ("README.md", None),
    ("docs/run/configuration.md", None),
    ("docs/run/deploy.md", None),
    (
        "docs/run/slow-streams.md",
        Some("atlas serve /srv/video --metrics 127.0.0.1:9100"),
    ),
];

/// Size of the file that takes the place of /dev/nvme0n1.
const DISK_BYTES: u64 = 64 << 20;

const NO_CONTROLLER: &str = "needs an NVMe controller: cargo xtask lab --disk nvme";
const NO_MACVTAP: &str = "needs a kernel with macvtap, and udev";

/// Beginnings of commands that are not run, and why.
const NOT_RUN: [(&str, &str); 9] = [
    ("make ", "needs the sources, and runs checks itself"),
    ("cargo build", "by this the server was built"),
    (
        "target/release/atlas try",
        "is for the reader's own files: cargo test -p atlas-server --test serve relay",
    ),
    ("atlas nvme", NO_CONTROLLER),
    ("atlas serve nvme:", NO_CONTROLLER),
    ("ip link", NO_MACVTAP),
    ("ip address add 192.0.2.9", NO_MACVTAP),
    ("ip route add 192.0.2.10", NO_MACVTAP),
    ("atlas serve /srv/video --link tap:atlas-tap", NO_MACVTAP),
];

/// What commands name that stands for something of the reader's: an interface; a client, which is the machine itself
/// here, as a tap has it; and a file in the reader's directory.
const STAND_INS: [(&str, &str); 3] = [
    ("IFACE", "eth0"),
    ("192.0.2.7", "10.77.0.1"),
    (" slow.sqlog", " /var/log/atlas/slow.sqlog"),
];

/// How long a server may take until it is ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Commands in the head of a file that is to be installed: lines with three spaces after the #.
pub(super) fn commands_in_head(file: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace_root().join(file))?;
    let head = text.lines().take_while(|line| line.starts_with('#'));
    let commands = head.filter_map(|line| line.strip_prefix("#   "));
    let commands: Vec<String> = commands.map(str::to_owned).collect();
    ensure!(!commands.is_empty(), "{file} has no commands in its head");
    Ok(commands)
}

/// What docs/run/deploy.md has logrotate run.
pub(super) fn log_rotation() -> Result<String> {
    let text = fs::read_to_string(workspace_root().join("docs/run/deploy.md"))?;
    let (_, command) = text
        .split_once("`postrotate ")
        .context("no postrotate line")?;
    let (command, _) = command.split_once('`').context("no end of it")?;
    Ok(command.to_owned())
}

/// A command of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    /// Line of the document, counted from 1.
    line: usize,
    /// On one line, without comments.
    text: String,
}

/// The commands in a document's blocks of `sh`.
fn commands(document: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut is_inside, mut continues) = (false, false);
    for (index, line) in document.lines().enumerate() {
        let line = line.trim();
        if let Some(language) = line.strip_prefix("```") {
            (is_inside, continues) = (language == "sh", false);
            continue;
        }
        let text = without_comment(line);
        if !is_inside || text.is_empty() {
            continue;
        }
        let part = text.trim_end_matches('\\').trim_end();
        match found.last_mut() {
            Some(last) if continues => last.text += &format!(" {part}"),
            _ => found.push(Shown {
                line: index + 1,
                text: part.to_owned(),
            }),
        }
        continues = text.ends_with('\\') || text.ends_with('|');
    }
    found
}

/// A line of a script up to its comment: a # after a space, outside quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (None, '#') if before == ' ' => return line[..at].trim_end(),
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
        before = character;
    }
    line.trim_end()
}

pub(super) fn run(suite: &mut Suite, machine: &Machine) {
    suite.run("documents: what is not run", || {
        check_not_run()?;
        Ok(Outcome::Passed)
    });
    for (document, server) in DOCUMENTS {
        suite.run(&format!("documents: {document}"), || {
            run_document(machine, document, server)?;
            Ok(Outcome::Passed)
        });
    }
}

/// Gives the machine a file as the block device that documents call /dev/nvme0n1, until it is undone.
fn add_disk(machine: &Machine) -> Result<Undo> {
    let file = machine.path("root/disk");
    fs::File::create(&file)?.set_len(DISK_BYTES)?;
    let device = run_command(
        Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&file),
    )?;
    let device = device.trim().to_owned();
    let number = device.strip_prefix("/dev/loop").context("a loop device")?;
    let mut undo = Undo::default();
    let make = format!("rm -f /dev/nvme0n1; mknod /dev/nvme0n1 b 7 {number}");
    undo.add(format!("detach {device}"), move || {
        run_command(Command::new("losetup").args(["--detach", &device])).map(drop)
    });
    machine.shell(&make)?;
    Ok(undo)
}

/// Fails if one of [`NOT_RUN`] is in no document.
fn check_not_run() -> Result<()> {
    let mut all = Vec::new();
    for (document, _) in DOCUMENTS {
        all.extend(commands(&read(document)?));
    }
    for (beginning, _) in NOT_RUN {
        let is_shown = all.iter().any(|it| it.text.starts_with(beginning));
        ensure!(is_shown, "no document has a command {beginning}");
    }
    Ok(())
}

fn read(document: &str) -> Result<String> {
    let file = workspace_root().join(document);
    fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
}

/// Runs a document's commands in order, in one directory. A server runs until the next is started or the document ends.
fn run_document(machine: &Machine, document: &str, server: Option<&str>) -> Result<()> {
    machine.shell(MAKE_ETH0)?;
    let _disk = add_disk(machine)?;
    let mut server = server.map(|text| serve(machine, text)).transpose()?;
    for Shown { line, text } in commands(&read(document)?) {
        if NOT_RUN
            .iter()
            .any(|(beginning, _)| text.starts_with(beginning))
        {
            continue;
        }
        let text = STAND_INS
            .iter()
            .fold(text, |it, (from, to)| it.replace(from, to));
        println!("        {document}:{line}: {text}");
        let place = || format!("{document}:{line}: {text}");
        if text.contains("atlas serve ") {
            // The address of the one before is this one's, too.
            drop(server.take());
            server = Some(serve(machine, &text).with_context(place)?);
        } else {
            machine.shell(&script(&text)).with_context(place)?;
        }
    }
    drop(server);
    machine.shell("ip link del eth0")?;
    Ok(())
}

/// A command as the reader types it, who confirms what it asks. It sees the machine's own interfaces in `/sys`, of
/// which a container has the host's.
fn script(text: &str) -> String {
    let typed = format!(
        "mount -t sysfs sysfs /sys; mount -o remount,rw /sys; cd /{CHECKOUT}; {{ {text}; }} <<< YES"
    );
    let quoted = typed.replace('\'', r"'\''");
    format!("unshare --mount bash -o pipefail -c '{quoted}'")
}

/// Starts a server and fetches a file from each address that it says it serves.
fn serve(machine: &Machine, text: &str) -> Result<Process> {
    let log = "/root/serve.log";
    // The one before ends first, or has the address still; and its log is not to be read.
    machine.await_success("! pgrep --exact atlas", READY_LIMIT)?;
    machine.shell(&format!("rm -f {log}"))?;
    let script = format!("cd /{CHECKOUT}; exec {text} > {log} 2>&1");
    let mut command = machine.command(&script);
    command.stdin(Stdio::null());
    let server = Process::spawn_tree("atlas serve", &mut command)?;
    let ready = machine.await_success(&format!("grep '^ready ' {log}"), READY_LIMIT);
    let said = machine.shell(&format!("cat {log} || true"))?;
    ready.with_context(|| said.clone())?;
    let ready = said.lines().find(|line| line.starts_with("ready "));
    let from_client = text.contains("packet:eth0");
    for url in ready
        .unwrap_or_default()
        .split(' ')
        .filter(|it| it.contains("://"))
    {
        let url = format!("{url}film.mp4");
        machine
            .shell(&fetch(from_client, &url))
            .with_context(|| said.clone())?;
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::{check_not_run, commands, commands_in_head, log_rotation};

    #[test]
    fn commands_are_found_with_their_continuations_and_without_comments() {
        let document = "\
# Title
```sh
one --flag   # why
two \\
   more '# no comment' \\
   end
a 'b' |  # and
  c
```
```text
no command
```
* item

  ```sh
  # alone
  three
  ```
";
        let found: Vec<_> = commands(document);
        let found: Vec<_> = found.iter().map(|it| (it.line, it.text.as_str())).collect();
        assert_eq!(
            found,
            [
                (3, "one --flag"),
                (4, "two more '# no comment' end"),
                (7, "a 'b' | c"),
                (17, "three"),
            ]
        );
    }

    #[test]
    fn what_is_not_run_is_in_a_document() {
        check_not_run().expect("each is");
    }

    #[test]
    fn heads_and_the_rotation_have_commands() {
        for file in ["dist/atlas.service", "dist/atlas-xdp.conf"] {
            let found = commands_in_head(file).expect("commands");
            assert!(found[0].starts_with("install "), "{found:?}");
        }
        assert!(log_rotation().expect("a command").contains("USR1"));
    }
}
