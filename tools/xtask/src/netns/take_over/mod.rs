//! `--take-over N`: viewers in mid-stream, plaintext and TLS, while other processes take over again and again, with other
//! sites, certificates, memory and numbers of workers, one of them from another file; and nginx's reload beside it, if
//! nginx is there.
//!
//! Fails if a request got no reply, a connection was reset or a byte was wrong, which is told once all take-overs are done,
//! and if anything is left behind at the end; prints how long viewers waited. What a process of another version would do is
//! tried with a copy of the same program. Over minutes there are [`events`] in between, and what processes hold must not
//! grow. Bounded by: the numbers asked for, a limit on every wait.

mod events;
mod viewers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use self::viewers::ViewerGroup;
use super::files::{self, Library};
use super::identities::Identities;
use super::setup::{Family, HTTPS_PORT, LinkKind, PORT, Setup};
use testbed::client::{Client, Trust};
use testbed::namespace::{Namespace, VethPair};
use testbed::process::output;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};

/// Between two take-overs.
const INTERVAL: Duration = Duration::from_millis(700);
/// Where the server tells of itself, in its namespace.
const METRICS: &str = "127.0.0.1:9100";
/// How long a reload may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How long processes may take to end once their viewers have left.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How often it is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) times: u32,
    pub(super) viewers: u32,
    /// For how long, with viewers who ask again and again; what processes hold is then compared.
    pub(super) minutes: Option<u32>,
}

impl Extent {
    /// Between two take-overs.
    fn interval(self) -> Duration {
        let seconds = |minutes: u32| Duration::from_secs(u64::from(minutes) * 60);
        self.minutes
            .map_or(INTERVAL, |minutes| seconds(minutes) / self.times)
    }

    /// Read buffers. Few where memory is compared: with them the memory for copies is small, and has all been used after
    /// some minutes.
    fn slots(self) -> u32 {
        if self.minutes.is_some() { 64 } else { 512 }
    }
}

/// Which settings are in force: those of a round, which begins with a take-over, and of a step in it.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    round: u32,
    step: u32,
}

/// All links that another process can take over.
pub(super) fn run(
    suite: &mut Suite,
    atlas: &Path,
    library: &Library,
    links: &[LinkKind],
    extent: Extent,
) {
    let can_be = |kind: &&LinkKind| !matches!(kind, LinkKind::Relay);
    for &kind in links.iter().filter(can_be) {
        run_one(suite, atlas, library, kind, extent);
    }
    if extent.minutes.is_some() {
        return;
    }
    let mut said = String::new();
    suite.run(&format!("nginx: reloaded {} times", extent.times), || {
        let setup = Setup::usual(LinkKind::Packet, atlas, 1)?;
        let Some(nginx) = setup.start_reference(library.root())? else {
            return Ok(Outcome::Skipped("nginx is not installed".into()));
        };
        let group = ViewerGroup {
            namespace: setup.client(),
            plain: super::setup::REFERENCE.parse()?,
            tls: None,
            has_films: true,
            is_strict: false,
            count: extent.viewers,
        };
        let work = || {
            for _ in 0..extent.times {
                thread::sleep(INTERVAL);
                nginx.signal(Signal::HUP)?;
            }
            thread::sleep(INTERVAL);
            Ok(())
        };
        said = match viewers::watch(group, work) {
            Ok([seen, _]) => format!("    {}", seen.describe()),
            Err(error) => format!("    nginx: {error:#}"),
        };
        Ok(Outcome::Passed)
    });
    println!("{said}");
}

/// One of them.
pub(super) fn run_one(
    suite: &mut Suite,
    atlas: &Path,
    library: &Library,
    kind: LinkKind,
    extent: Extent,
) {
    let mut said = String::new();
    let label = format!("{} taken over {} times", kind.name(), extent.times);
    suite.run(&label, || {
        let tested = ServerUnderTest::new(atlas, library, kind, extent.slots())?;
        said = watch_take_overs(&tested, extent)?;
        Ok(Outcome::Passed)
    });
    println!("{said}");
}

/// What is served, by what, and to whom.
struct ServerUnderTest<'a> {
    kind: LinkKind,
    /// Read buffers, at least.
    slots: u32,
    setup: Setup,
    served: &'a Library,
    identities: Identities,
    scratch: tempfile::TempDir,
}

impl<'a> ServerUnderTest<'a> {
    fn new(atlas: &Path, library: &'a Library, kind: LinkKind, slots: u32) -> Result<Self> {
        let tested = Self {
            kind,
            slots,
            setup: Setup::usual(kind, atlas, 1)?,
            served: library,
            identities: Identities::new()?,
            scratch: testbed::scratch_directory("take-over")?,
        };
        tested.install(atlas)?;
        Ok(tested)
    }

    /// The program, at a path of its own.
    fn program(&self) -> PathBuf {
        self.scratch.path().join("atlas")
    }

    /// Puts a program at that path, as a package does.
    fn install(&self, atlas: &Path) -> Result<()> {
        let new = self.scratch.path().join("new");
        fs::copy(atlas, &new).context("copying the program")?;
        fs::rename(&new, self.program()).context("putting the program in its place")
    }

    fn config(&self) -> PathBuf {
        self.scratch.path().join("atlas.toml")
    }

    fn workers(&self, round: u32) -> u32 {
        // A tap keeps its number of queues, and AF_XDP has a worker for each.
        match self.kind {
            LinkKind::Packet => 1 + round % 2,
            _ => 1,
        }
    }

    fn access_log(&self) -> PathBuf {
        self.scratch.path().join("access.log")
    }

    /// Other settings and another certificate: for each round some that need another process, for each step in it some
    /// that do not.
    fn write(&self, Moment { round, step }: Moment) -> Result<()> {
        let workers = self.workers(round);
        let slots = self.slots + round % 2;
        let text = format!(
            "workers = {workers}\nslots = {slots}\n[[site]]\nnames = [\"atlas\"]\nheader = [\"X-Round: {round}.{step}\"]\n\
             [[site]]\nnames = [\"round{round}.test\"]\n"
        );
        fs::write(self.config(), text).context("writing the configuration")?;
        self.identities.renew_first()
    }

    fn start(&self) -> Result<Server> {
        let mut command = self.setup.server().command("env");
        command
            .arg(self.program())
            .arg("serve")
            .arg(self.served.root());
        let link = format!("{}:{}", self.kind.name(), self.setup.interface());
        command.args(["--link", &link]);
        command.args(["--address", &format!("{}/24", VethPair::ATLAS_V4)]);
        command.args(["--http", &PORT.to_string()]);
        command.args(["--https", &HTTPS_PORT.to_string(), "--metrics", METRICS]);
        command.args(self.identities.atlas_options());
        command.arg("--config").arg(self.config());
        command.arg("--access-log").arg(self.access_log());
        Server::atlas(&mut command)
    }

    /// Read buffers that are free, and all.
    fn slots(&self) -> Result<[u64; 2]> {
        let mut client = Client::connect(self.setup.server(), METRICS.parse()?)?;
        let (_, body) = client.exchange("GET", "/metrics", "Connection: close\r\n")?;
        let text = String::from_utf8(body)?;
        let read = |name: &str| -> Result<u64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            Ok(value.context("a gauge")?.trim().parse()?)
        };
        Ok([
            read("atlas_memory_free_slots ")?,
            read("atlas_memory_all_slots ")?,
        ])
    }

    fn viewer_group<'b>(&'b self, trust: &'b Trust, extent: Extent) -> Result<ViewerGroup<'b>> {
        Ok(ViewerGroup {
            has_films: extent.minutes.is_none(),
            is_strict: true,
            namespace: self.setup.client(),
            plain: self.setup.address(Family::V4)?,
            tls: Some((self.setup.https_address(Family::V4)?, trust)),
            count: extent.viewers,
        })
    }

    /// Sites and certificate are those of the moment.
    fn check(&self, trust: &Trust, Moment { round, step }: Moment) -> Result<()> {
        let address = self.setup.https_address(Family::V4)?;
        let mut client = Client::connect_with(self.setup.client(), address, 64 << 10, Some(trust))?;
        let now = Trust::der(&self.identities.first_certificate()?)?;
        ensure!(
            client.certificate() == Some(&now[..]),
            "another certificate than the last"
        );
        let (head, _) = client.exchange("GET", &files::name(1), "")?;
        ensure!(head.status == 200, "status {}", head.status);
        let told = head.field("x-round").unwrap_or_default();
        ensure!(
            told == format!("{round}.{step}"),
            "settings of round {told:?}, not {round}.{step}"
        );
        Ok(())
    }

    /// Processes of the program.
    fn processes(&self) -> Vec<u32> {
        processes_of(self.scratch.path())
    }

    /// Nothing is left of a server that has ended: no process, program, interface or name of a socket.
    fn check_nothing_left(&self) -> Result<()> {
        await_that("processes are left over", || self.processes().is_empty())?;
        let links = self.setup.server().ip("-details link show")?;
        ensure!(!links.contains("xdp"), "an XDP program is left: {links}");
        ensure!(!links.contains("atlas0"), "an interface is left: {links}");
        let read = || fs::read_to_string("/proc/thread-self/net/unix").context("names of sockets");
        let names = self.setup.server().enter(read)?;
        let left = names.lines().find(|line| line.contains("@atlas/"));
        ensure!(left.is_none(), "a socket is left: {left:?}");
        let read = || fs::read_to_string("/proc/thread-self/net/packet").context("packet sockets");
        let sockets = self.setup.server().enter(read)?;
        ensure!(
            sockets.lines().count() <= 1,
            "packet sockets are left: {sockets}"
        );
        Ok(())
    }
}

impl Drop for ServerUnderTest<'_> {
    /// Ends what a failed check has left.
    fn drop(&mut self) {
        for id in self.processes() {
            if let Ok(pid) = pid_of(id) {
                // It may have ended meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Processes of programs in this directory, also if their files are gone.
fn processes_of(directory: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let number = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        let program = fs::read_link(entry.path().join("exe")).ok()?;
        program.starts_with(directory).then_some(id)
    };
    entries.filter_map(number).collect()
}

/// Descriptors of a process, but for standard input, which is another one's socket of a process that took over, and those
/// of the files that are served, which come and go.
fn descriptors(pid: Pid, served: &Path) -> Result<Vec<String>> {
    let directory = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let entries = fs::read_dir(&directory).with_context(|| directory.clone())?;
    let target = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok().filter(|entry| entry.file_name() != "0")?;
        fs::read_link(entry.path()).ok()
    };
    let targets = entries.filter_map(target);
    let others = targets.filter(|target| !target.starts_with(served) || target == served);
    // Numbers of sockets, pipes and processes differ from process to process.
    let kind = |target: PathBuf| {
        let text = target.to_string_lossy().into_owned();
        text.replace(|it: char| it.is_ascii_digit(), "")
    };
    let mut kinds: Vec<_> = others.map(kind).collect();
    kinds.sort();
    Ok(kinds)
}

fn await_that(problem: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + END_LIMIT;
    while !done() {
        ensure!(Instant::now() < deadline, "{problem}");
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn pid_of(id: u32) -> Result<Pid> {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    id.context("the number of a process")
}

/// What a process holds at a moment.
#[derive(Clone, Debug)]
struct Sample {
    descriptors: Vec<String>,
    resident_bytes: u64,
}

fn sample(pid: Pid, served: &Path) -> Result<Sample> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(Sample {
        descriptors: descriptors(pid, served)?,
        resident_bytes: kibibytes.context("VmRSS")? << 10,
    })
}

/// Take-overs one after the other, and what became of the processes.
struct Run<'a> {
    tested: &'a ServerUnderTest<'a>,
    trust: Trust,
    extent: Extent,
    /// All processes that were the server, in order.
    servers: Vec<Pid>,
    longest_reload: Duration,
    /// By the number of workers.
    samples: BTreeMap<u32, Vec<Sample>>,
}

impl Run<'_> {
    fn watch(&mut self, times: u32) -> Result<String> {
        let (trust, tested) = (self.trust.clone(), self.tested);
        let group = tested.viewer_group(&trust, self.extent)?;
        let work = || {
            for round in 1..=times {
                self.pass_interval(round)?;
                self.take_over(round)?;
            }
            thread::sleep(if times == 0 { 4 * INTERVAL } else { INTERVAL });
            Ok(())
        };
        let [plain, tls] = viewers::watch(group, work)?;
        Ok(format!(
            "{}\n      TLS: {}",
            plain.describe(),
            tls.describe()
        ))
    }

    /// The time until the next take-over.
    fn pass_interval(&mut self, round: u32) -> Result<()> {
        let end = Instant::now() + self.extent.interval();
        if self.extent.minutes.is_some() {
            let mut step = 1;
            while Instant::now() + events::STEP < end {
                thread::sleep(events::STEP);
                let moment = Moment {
                    round: round - 1,
                    step,
                };
                events::happen(self.tested, &self.trust, self.server()?, moment)?;
                self.sample(moment.round)?;
                step += 1;
            }
        }
        thread::sleep(end.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// The process that serves.
    fn server(&self) -> Result<Pid> {
        self.servers.last().copied().context("a server")
    }

    fn sample(&mut self, round: u32) -> Result<()> {
        let (pid, served) = (self.server()?, self.tested.served.root());
        let workers = self.tested.workers(round);
        let mut now = sample(pid, served)?;
        let deadline = Instant::now() + END_LIMIT;
        let samples = self.samples.entry(workers).or_default();
        // One that has just answered has a connection more.
        while let Some(first) = samples.first()
            && first.descriptors != now.descriptors
            && Instant::now() < deadline
        {
            thread::sleep(LOOK_EVERY);
            now = sample(pid, served)?;
        }
        samples.push(now);
        Ok(())
    }

    fn take_over(&mut self, round: u32) -> Result<()> {
        let tested = self.tested;
        let moment = Moment { round, step: 0 };
        tested.write(moment)?;
        if round == self.extent.times / 2 {
            tested.install(&tested.program())?;
        }
        let begun = Instant::now();
        let pid = reload(tested.setup.server(), &tested.program())?;
        self.servers.push(pid);
        self.longest_reload = self.longest_reload.max(begun.elapsed());
        tested.check(&self.trust, moment)?;
        if self.extent.minutes.is_some() {
            self.await_others()?;
            self.sample(round)?;
        }
        Ok(())
    }

    /// Waits until the last one is alone.
    fn await_others(&self) -> Result<()> {
        let others = self
            .servers
            .split_last()
            .map_or(&[][..], |(_, others)| others);
        await_that("processes that were taken over from are left over", || {
            others.iter().all(|pid| has_ended(*pid))
        })
    }
}

/// Descriptors are the same each time, and memory does not grow: what the first tenth has, with a tenth more.
fn check_flat(workers: u32, samples: &[Sample]) -> Result<String> {
    let (first, last) = samples.first().zip(samples.last()).context("a sample")?;
    for sample in samples {
        let (was, is) = (&first.descriptors, &sample.descriptors);
        ensure!(is == was, "descriptors {was:?}, later {is:?}");
    }
    let most = |samples: &[Sample]| samples.iter().map(|it| it.resident_bytes).max();
    let early = most(&samples[..samples.len().div_ceil(10)]).unwrap_or_default();
    let all = most(samples).unwrap_or_default();
    ensure!(
        all <= early + early / 10,
        "workers: {workers}: resident {early} bytes, later {all}"
    );
    Ok(format!(
        "\n    workers: {workers}, {} samples: {} descriptors, resident MiB: first {}, most {}, last {}",
        samples.len(),
        first.descriptors.len(),
        first.resident_bytes >> 20,
        all >> 20,
        last.resident_bytes >> 20,
    ))
}

/// Whether a process has ended, waited for or not.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |text| text.contains(") Z "))
}

fn watch_take_overs(tested: &ServerUnderTest<'_>, extent: Extent) -> Result<String> {
    tested.write(Moment::default())?;
    let server = tested.start()?;
    let first = pid_of(server.id())?;
    let mut run = Run {
        tested,
        trust: Trust::new(&tested.identities.authority())?,
        extent,
        servers: vec![first],
        longest_reload: Duration::ZERO,
        samples: BTreeMap::new(),
    };
    let at_start = descriptors(first, tested.served.root())?;
    let undisturbed = run.watch(0)?;
    let taken_over = run.watch(extent.times)?;
    run.await_others()?;
    let stopped = server.wait()?.succeeded()?;
    ensure!(!stopped.stderr.contains("panicked"), "{}", stopped.stderr);
    let last = *run.servers.last().context("at least one take-over")?;
    let mut at_end = Vec::new();
    // One that has just answered has a connection more.
    let is_same = || {
        at_end = descriptors(last, tested.served.root()).unwrap_or_default();
        at_end == at_start
    };
    let outcome = await_that("other descriptors than at the start", is_same);
    outcome.with_context(|| format!("{at_start:?} at the start, {at_end:?} at the end"))?;
    await_that("slots are left in use", || {
        tested.slots().is_ok_and(|[free, all]| free == all)
    })?;
    let flat = run.samples.iter();
    let flat = flat.map(|(&workers, samples)| check_flat(workers, samples));
    let flat = flat.collect::<Result<String>>()?;
    kill_process(last, Signal::TERM).context("ending the last process")?;
    tested.check_nothing_left()?;
    let longest = run.longest_reload.as_millis();
    Ok(format!(
        "    undisturbed: {undisturbed}\n    taken over: {taken_over}\n    longest reload {longest} ms{flat}"
    ))
}

/// Has another process take over; its number.
fn reload(namespace: &Namespace, atlas: &Path) -> Result<Pid> {
    let (text, errors) = ask_to_reload(namespace, atlas)?;
    let number = text
        .strip_prefix("process ")
        .and_then(|it| it.split(' ').next());
    let pid = number.and_then(|number| Pid::from_raw(number.parse().ok()?));
    pid.with_context(|| format!("{text}{errors}"))
}

/// What `atlas reload` prints, and says on stderr.
fn ask_to_reload(namespace: &Namespace, atlas: &Path) -> Result<(String, String)> {
    let mut command = namespace.command("env");
    let output = output(command.arg(atlas).arg("reload"), LIMIT)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr)))
}
