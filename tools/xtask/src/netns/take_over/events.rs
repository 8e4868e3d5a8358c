//! What happens to a server between two take-overs, one thing at each step: other sites and a renewed certificate without
//! another process, settings that are refused, a log that is rotated, a link that is down for a moment.
//!
//! Fails if one has not the effect that it must have. Bounded by: a limit on every wait.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Moment, ServerUnderTest, ask_to_reload, await_that};
use testbed::client::Trust;

/// From one to the next.
pub(super) const STEP: Duration = Duration::from_secs(10);
/// How long the link is down: viewers send again meanwhile.
const DOWN: Duration = Duration::from_millis(300);

/// That of this step.
pub(super) fn happen(
    tested: &ServerUnderTest<'_>,
    trust: &Trust,
    server: Pid,
    moment: Moment,
) -> Result<()> {
    match moment.step % 4 {
        0 => refuse(tested).context("settings that are refused"),
        1 => read_again(tested, trust, moment).context("settings that need no other process"),
        2 => rotate_log(tested, server).context("rotating the log"),
        _ => interrupt_link(tested).context("interrupting the link"),
    }
}

fn refuse(tested: &ServerUnderTest<'_>) -> Result<()> {
    let before = fs::read(tested.config())?;
    fs::write(tested.config(), "workers = 0\n")?;
    let (text, errors) = ask_to_reload(tested.setup.server(), &tested.program())?;
    fs::write(tested.config(), before)?;
    ensure!(
        text.is_empty() && errors.contains("workers"),
        "{text}{errors}"
    );
    Ok(())
}

fn read_again(tested: &ServerUnderTest<'_>, trust: &Trust, moment: Moment) -> Result<()> {
    tested.write(moment)?;
    let (text, errors) = ask_to_reload(tested.setup.server(), &tested.program())?;
    ensure!(text.contains("read again"), "{text}{errors}");
    tested.check(trust, moment)
}

fn rotate_log(tested: &ServerUnderTest<'_>, server: Pid) -> Result<()> {
    let log = tested.access_log();
    let owner = fs::metadata(&log)?;
    fs::rename(&log, log.with_extension("old"))?;
    fs::write(&log, "")?;
    // As logrotate's `create` does it.
    chown(&log, Some(owner.uid()), Some(owner.gid()))?;
    kill_process(server, Signal::USR1)?;
    await_that("no line comes to the new file", || {
        fs::metadata(&log).is_ok_and(|it| it.len() > 0)
    })
}

fn interrupt_link(tested: &ServerUnderTest<'_>) -> Result<()> {
    let (namespace, interface) = (tested.setup.server(), tested.setup.interface());
    namespace.ip(&format!("link set {interface} down"))?;
    thread::sleep(DOWN);
    namespace.ip(&format!("link set {interface} up")).map(drop)
}
