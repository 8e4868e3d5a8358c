//! Content that changes while it is served, each time beside nginx: playlists that are replaced or rewritten in
//! place, files that grow, a served path that is switched to another directory.
//!
//! A reply must be of the file as it was when the request came or later: what a client has seen, no reply to a
//! later request contradicts, whichever worker it comes from. How often nginx and Atlas fall short of that is
//! printed; Atlas may not. Bounded by the numbers of changes, or by a time.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::files::Access;
use super::identities::Identities;
use super::setup::{Family, LinkKind, REFERENCE, Setup};
use testbed::client::{Client, Head};
use testbed::content::Content;
use testbed::curl::Curl;
use testbed::namespace::Namespace;
use testbed::random::Random;
use testbed::server::Server;
use testbed::suite::{Outcome, Suite};
use testbed::{interrupt, scratch_directory};

/// The playlist that is replaced by a rename, as packagers do.
const PLAYLIST: &str = "live.m3u8";
/// The manifest that is rewritten in place, as simple scripts do.
const MANIFEST: &str = "live.mpd";
/// Between two times that it is rewritten.
const REWRITE_PAUSE: Duration = Duration::from_millis(5);
/// The recording that is appended to.
const RECORDING: &str = "recording.ts";
/// Its bytes when it is first asked for.
const RECORDED_BYTES: u64 = 4 << 20;
/// What one append adds, bytes: no multiple of a block.
const APPENDED_BYTES: u64 = 4_099;
/// The most that a recording grows to, bytes.
const RECORDING_BYTES_MAX: u64 = 1 << 30;
/// Seed of its bytes.
const SEED: u64 = 37;
/// Longest wait for a switched directory to be seen; what is printed is the time it took.
const SWITCH_LIMIT: Duration = Duration::from_secs(5);

/// How much of it.
#[derive(Clone, Copy, Debug)]
struct Extent {
    workers: &'static [u32],
    /// Playlists replaced one after the other, each asked for at once.
    replaced: u64,
    /// How long the others run.
    time: Duration,
    /// Replacements of a playlist in a second.
    paces: &'static [u32],
    /// Appends to a recording in a second.
    append_paces: &'static [u32],
    /// Times that the served path is switched.
    switched: u64,
}

/// What a suite of checks has time for.
pub(crate) fn run(suite: &mut Suite, atlas: &Path, identities: &Identities) {
    let extent = Extent {
        workers: &[1, 3],
        replaced: 300,
        time: Duration::from_secs(1),
        paces: &[20],
        append_paces: &[5, 100],
        switched: 10,
    };
    run_with(suite, atlas, identities, extent);
}

/// For so long each, with more workers and paces.
pub(crate) fn run_for(suite: &mut Suite, atlas: &Path, identities: &Identities, time: Duration) {
    let extent = Extent {
        workers: &[1, 2, 5],
        replaced: 4_000,
        time,
        paces: &[1, 5, 20],
        append_paces: &[1, 5, 25, 100],
        switched: 100,
    };
    run_with(suite, atlas, identities, extent);
}

fn run_with(suite: &mut Suite, atlas: &Path, identities: &Identities, extent: Extent) {
    for &workers in extent.workers {
        if let Err(error) = run_with_workers(suite, atlas, identities, workers, extent) {
            suite.fail("content that changes", &format!("{error:#}"));
        }
    }
}

fn run_with_workers(
    suite: &mut Suite,
    atlas: &Path,
    identities: &Identities,
    workers: u32,
    extent: Extent,
) -> Result<()> {
    let mut site = Site::new(atlas, identities, workers)?;
    let (server, reference) = site.start()?;
    let label = |what: &str| format!("{} {what}", site.setup.name());
    suite.run(&label("a playlist replaced by a rename"), || {
        replaced(&site, extent.replaced)
    });
    for &per_second in extent.paces {
        let what = format!("a playlist replaced {per_second} times a second goes forward");
        suite.run(&label(&what), || in_order(&site, per_second, extent.time));
    }
    suite.run(&label("a manifest rewritten in place"), || {
        rewritten(&site, extent.time)
    });
    for &per_second in extent.append_paces {
        let what = format!("a recording appended to {per_second} times a second");
        suite.run(&label(&what), || grown(&site, per_second, extent.time));
    }
    suite.run(&label("the served path is switched"), || {
        switched(&site, extent.switched)
    });
    server.stop()?;
    if let Some(reference) = reference {
        reference.stop()?;
    }
    Ok(())
}

/// A directory behind a symbolic link, for two servers.
struct Site<'a> {
    directory: tempfile::TempDir,
    identities: &'a Identities,
    setup: Setup,
    has_reference: bool,
}

/// One of the two servers.
#[derive(Clone, Copy, Debug)]
struct Target {
    name: &'static str,
    address: SocketAddr,
}

impl<'a> Site<'a> {
    fn new(atlas: &Path, identities: &'a Identities, workers: u32) -> Result<Self> {
        let directory = scratch_directory("changing")?;
        // The server's user goes by the path again.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let tree = directory.path().join("tree0");
        fs::create_dir(&tree)?;
        fs::write(tree.join("version"), "0")?;
        symlink("tree0", directory.path().join("current"))?;
        let setup = Setup::usual(LinkKind::Packet, atlas, workers)?;
        // More connections than there are ports come and go within the minute of TIME-WAIT.
        setup.client().set("ipv4/tcp_tw_reuse", "1")?;
        Ok(Self {
            directory,
            identities,
            setup,
            has_reference: false,
        })
    }

    /// Starts Atlas, and nginx if it is installed.
    fn start(&mut self) -> Result<(Server, Option<Server>)> {
        let current = self.directory.path().join("current");
        let atlas = self.setup.start(&current, None, Some(self.identities))?;
        let reference = self.setup.start_reference(&current)?;
        self.has_reference = reference.is_some();
        Ok((atlas, reference))
    }

    /// A file in the tree that is served now.
    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join("current").join(name)
    }

    fn clients(&self) -> &Namespace {
        self.setup.client()
    }

    /// Atlas, and nginx if there is one.
    fn targets(&self) -> Result<Vec<Target>> {
        let mut targets = vec![Target {
            name: "Atlas",
            address: self.setup.address(Family::V4)?,
        }];
        if self.has_reference {
            targets.push(Target {
                name: "nginx",
                address: REFERENCE.parse()?,
            });
        }
        Ok(targets)
    }

    /// A request on a connection of its own, so that any worker may get it.
    fn get(&self, target: Target, name: &str, lines: &str) -> Result<(Head, Vec<u8>)> {
        let mut client = Client::connect(self.clients(), target.address)?;
        client.exchange("GET", &format!("/{name}"), lines)
    }
}

/// Puts a file in the place of another by a rename.
fn replace(path: &Path, text: &str) -> Result<()> {
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    Ok(fs::rename(next, path)?)
}

/// A playlist of a version; of one size, so that only its bytes and times tell versions apart.
fn playlist(version: u64) -> String {
    format!("#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:{version:012}\n")
}

fn version_of(body: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(body).context("a playlist is text")?;
    let number = text
        .strip_prefix("#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:")
        .and_then(|rest| rest.strip_suffix('\n'));
    let number = number.with_context(|| format!("not a playlist: {text:?}"))?;
    Ok(number.parse()?)
}

/// The next request after a rename gets the new version, whole, and no 304 for the old one's validator.
fn replaced(site: &Site<'_>, count: u64) -> Result<Outcome> {
    let path = site.file(PLAYLIST);
    let targets = site.targets()?;
    let mut stale = vec![0; targets.len()];
    let mut stale_304 = vec![0; targets.len()];
    let mut validators = vec![String::new(); targets.len()];
    for version in 0..count {
        interrupt::check()?;
        replace(&path, &playlist(version))?;
        for (index, &target) in targets.iter().enumerate() {
            let (head, body) = site.get(target, PLAYLIST, &validators[index])?;
            if head.status == 304 {
                stale_304[index] += 1;
            } else {
                ensure!(head.status == 200, "{}: {}", target.name, head.status);
                stale[index] += u64::from(version_of(&body)? != version);
            }
            // A file dated by the very tick of the clock has none.
            let tag = head.field("etag");
            validators[index] =
                tag.map_or_else(String::new, |tag| format!("If-None-Match: {tag}\r\n"));
        }
    }
    for (index, target) in targets.iter().enumerate() {
        println!(
            "        {}: {count} versions, {} old ones, {} told to be unchanged",
            target.name, stale[index], stale_304[index]
        );
    }
    ensure!(stale[0] == 0, "{} old playlists", stale[0]);
    ensure!(stale_304[0] == 0, "{} stale 304s", stale_304[0]);
    Ok(Outcome::Passed)
}

/// Runs `write` until the time is over, and meanwhile `read` for each server in a thread of its own. Returns
/// what each of the readers found.
fn meanwhile<T: Send>(
    targets: &[Target],
    time: Duration,
    write: impl FnOnce(&dyn Fn() -> bool) -> Result<()>,
    read: impl Fn(Target, &dyn Fn() -> bool) -> Result<T> + Sync,
) -> Result<Vec<(Target, T)>> {
    let end = Instant::now() + time;
    let is_over = AtomicBool::new(false);
    let goes_on = || !is_over.load(Ordering::Relaxed) && !interrupt::is_set();
    thread::scope(|scope| {
        let readers = targets
            .iter()
            .map(|&target| {
                let (read, goes_on) = (&read, &goes_on);
                (target, scope.spawn(move || read(target, goes_on)))
            })
            .collect::<Vec<_>>();
        let written = write(&|| Instant::now() < end && goes_on());
        is_over.store(true, Ordering::Relaxed);
        let mut found = Vec::new();
        for (target, reader) in readers {
            match reader.join() {
                Ok(result) => {
                    found.push((target, result.with_context(|| target.name.to_owned())?));
                }
                Err(_) => bail!("a reader panicked"),
            }
        }
        written?;
        interrupt::check()?;
        Ok(found)
    })
}

/// Writes one version after another, with a pause after each, as long as it goes on.
fn write_versions(
    goes_on: &dyn Fn() -> bool,
    pause: Duration,
    mut write: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    for version in (1..).take_while(|_| goes_on()) {
        write(version)?;
        thread::sleep(pause);
    }
    Ok(())
}

/// No reply is older than one that was complete before its request was sent.
fn in_order(site: &Site<'_>, per_second: u32, time: Duration) -> Result<Outcome> {
    let path = site.file(PLAYLIST);
    replace(&path, &playlist(0))?;
    let pause = Duration::from_secs(1) / per_second;
    let found = meanwhile(
        &site.targets()?,
        time,
        |goes_on| write_versions(goes_on, pause, |version| replace(&path, &playlist(version))),
        |target, goes_on| {
            let (mut latest, mut replies, mut backwards) = (0, 0_u64, 0_u64);
            while goes_on() {
                let (head, body) = site.get(target, PLAYLIST, "")?;
                ensure!(head.status == 200, "{}", head.status);
                let version = version_of(&body)?;
                replies += 1;
                backwards += u64::from(version < latest);
                latest = latest.max(version);
            }
            Ok((replies, backwards))
        },
    )?;
    for (target, (replies, backwards)) in &found {
        println!(
            "        {}: {replies} replies, {backwards} steps backwards",
            target.name
        );
    }
    let (_, (replies, backwards)) = found[0];
    ensure!(replies > 0, "no reply");
    ensure!(backwards == 0, "{backwards} steps backwards");
    Ok(Outcome::Passed)
}

/// Replies of a manifest that is rewritten in place.
#[derive(Clone, Copy, Debug, Default)]
struct Rewritten {
    whole: u64,
    empty: u64,
    /// Connections that end before their reply does.
    cut: u64,
}

/// A manifest of a version, whose length changes with it.
fn manifest(version: u64) -> String {
    let lines = 1 + version % 40;
    let mut text = format!("<MPD {version}>\n");
    for line in 0..lines {
        text += &format!("<S version=\"{version}\" line=\"{line}\"/>\n");
    }
    text + "</MPD>\n"
}

/// Every reply is one version, or nothing where nothing was there, or is cut off: never a mixture, and never the
/// first part of a longer one.
fn rewritten(site: &Site<'_>, time: Duration) -> Result<Outcome> {
    let path = site.file(MANIFEST);
    fs::write(&path, manifest(0))?;
    let found = meanwhile(
        &site.targets()?,
        time,
        |goes_on| {
            write_versions(goes_on, REWRITE_PAUSE, |version| {
                Ok(fs::write(&path, manifest(version))?)
            })
        },
        |target, goes_on| {
            let mut tally = Rewritten::default();
            while goes_on() {
                let Ok((head, body)) = site.get(target, MANIFEST, "") else {
                    tally.cut += 1;
                    continue;
                };
                ensure!(head.status == 200, "{}", head.status);
                if body.is_empty() {
                    tally.empty += 1;
                } else if is_whole(&body) {
                    tally.whole += 1;
                } else if target.name == "Atlas" {
                    bail!("mixed: {:?}", String::from_utf8_lossy(&body));
                }
            }
            Ok(tally)
        },
    )?;
    for (target, tally) in &found {
        println!(
            "        {}: {} whole, {} empty, {} cut off",
            target.name, tally.whole, tally.empty, tally.cut
        );
    }
    ensure!(found[0].1.whole > 0, "no reply was whole");
    Ok(Outcome::Passed)
}

fn is_whole(body: &[u8]) -> bool {
    let version = std::str::from_utf8(body).ok().and_then(|text| {
        let (number, _) = text.strip_prefix("<MPD ")?.split_once('>')?;
        number.parse().ok()
    });
    version.is_some_and(|version| manifest(version).as_bytes() == body)
}

/// What is asked for of a recording.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// A part that was written long ago.
    Old,
    /// All of it.
    Whole,
    /// From a place near its end on.
    Tail,
}

impl Wanted {
    const ALL: [Self; 3] = [Self::Old, Self::Whole, Self::Tail];

    /// The first byte asked for of a file that has at least `size` bytes, and how many; `None`: to its end.
    fn range(self, size: u64, random: &mut Random) -> (u64, Option<u64>) {
        match self {
            Self::Old => {
                let first = random.below(size / 2);
                (first, Some(1 + random.below(size / 2)))
            }
            Self::Whole => (0, None),
            Self::Tail => (size - 1 - random.below(3 * APPENDED_BYTES), None),
        }
    }
}

/// Whatever is asked for of a recording comes whole, and is right, while it grows.
fn grown(site: &Site<'_>, per_second: u32, time: Duration) -> Result<Outcome> {
    let path = site.file(RECORDING);
    let content = Content::new(SEED, RECORDING_BYTES_MAX);
    let size = AtomicU64::new(0);
    let mut file = File::create(&path)?;
    append(&mut file, content, &size, RECORDED_BYTES)?;
    drop(file);
    let secure = Target {
        name: "Atlas over TLS",
        address: site.setup.https_address(Family::V4)?,
    };
    let mut targets = site.targets()?;
    targets.push(secure);
    let pause = Duration::from_secs(1) / per_second;
    let found = meanwhile(
        &targets,
        time,
        |goes_on| {
            let mut file = OpenOptions::new().append(true).open(&path)?;
            while goes_on() {
                append(&mut file, content, &size, APPENDED_BYTES)?;
                thread::sleep(pause);
            }
            Ok(())
        },
        |target, goes_on| {
            let mut random = Random::new(u64::from(per_second));
            let (mut whole, mut problems) = (0_u64, Vec::new());
            while goes_on() {
                for wanted in Wanted::ALL {
                    let known = size.load(Ordering::Acquire);
                    let range = wanted.range(known, &mut random);
                    let result = if target.name == secure.name {
                        take_secure(site, content, range, known)
                    } else {
                        take(site, target, content, range, known)
                    };
                    match result {
                        Ok(()) => whole += 1,
                        Err(error) => problems.push(error.context(format!("{wanted:?} {range:?}"))),
                    }
                }
            }
            Ok((whole, problems))
        },
    )?;
    for (target, (whole, problems)) in &found {
        println!(
            "        {}: {whole} whole, {} not",
            target.name,
            problems.len()
        );
    }
    for (target, (whole, problems)) in found {
        if target.name != "nginx" {
            ensure!(whole > 0, "{}: no reply", target.name);
            if let Some(problem) = problems.into_iter().next() {
                return Err(problem.context(target.name));
            }
        }
    }
    Ok(Outcome::Passed)
}

/// Writes the next bytes, and says so once they are written.
fn append(file: &mut File, content: Content, size: &AtomicU64, count: u64) -> Result<()> {
    let at = size.load(Ordering::Relaxed);
    let mut piece = vec![0; usize::try_from(count)?];
    content.fill(at, &mut piece);
    file.write_all(&piece)?;
    size.store(at + count, Ordering::Release);
    Ok(())
}

/// Takes a range, and compares it. A reply to its end has at least what was known to be there.
fn take(
    site: &Site<'_>,
    target: Target,
    content: Content,
    (first, count): (u64, Option<u64>),
    known: u64,
) -> Result<()> {
    let mut client = Client::connect(site.clients(), target.address)?;
    let lines = match (first, count) {
        (0, None) => String::new(),
        (first, None) => format!("Range: bytes={first}-\r\n"),
        (first, Some(count)) => format!("Range: bytes={first}-{}\r\n", first + count - 1),
    };
    client.ask("GET", &format!("/{RECORDING}"), &lines)?;
    let head = client.read_head()?;
    ensure!([200, 206].contains(&head.status), "{}", head.status);
    let length = head.field("content-length").context("no length")?;
    let length: u64 = length.parse()?;
    match count {
        Some(count) => ensure!(length == count, "{length} bytes instead of {count}"),
        None => ensure!(first + length >= known, "an old length: {length}"),
    }
    client.read_checked(content, first, length)
}

/// The same over TLS, by curl; where there is no end, of what was known to be there.
fn take_secure(
    site: &Site<'_>,
    content: Content,
    (first, count): (u64, Option<u64>),
    known: u64,
) -> Result<()> {
    let access = Access::Https(site.identities);
    let mut arguments = access.options();
    arguments.push(access.url(&site.setup, Family::V4, &format!("/{RECORDING}"))?);
    let last = count.map_or(known, |count| first + count) - 1;
    arguments.extend(["--range".to_owned(), format!("{first}-{last}")]);
    let mut curl = Curl::start(site.clients(), &arguments)?;
    curl.read_checked(content, first, last + 1 - first)?;
    curl.finish().map(drop)
}

/// The served path leads to another directory, and the old one is removed.
fn switched(site: &Site<'_>, count: u64) -> Result<Outcome> {
    let targets = site.targets()?;
    let mut slowest = vec![Duration::ZERO; targets.len()];
    let mut missing = vec![0_u64; targets.len()];
    let base = site.directory.path();
    let mut before = fs::read_link(base.join("current"))?;
    for number in 1..=count {
        interrupt::check()?;
        let name = format!("tree{number}");
        let tree = base.join(&name);
        fs::create_dir(&tree)?;
        fs::write(tree.join("version"), number.to_string())?;
        let next = base.join("next");
        symlink(&name, &next)?;
        fs::rename(next, base.join("current"))?;
        fs::remove_dir_all(base.join(before))?;
        before = name.into();
        for (index, &target) in targets.iter().enumerate() {
            let start = Instant::now();
            loop {
                let (head, body) = site.get(target, "version", "")?;
                if head.status == 200 && body == number.to_string().as_bytes() {
                    break;
                }
                missing[index] += u64::from(head.status == 404);
                let waited = start.elapsed();
                ensure!(waited < SWITCH_LIMIT, "{}: {}", target.name, head.status);
            }
            slowest[index] = slowest[index].max(start.elapsed());
        }
    }
    for (index, target) in targets.iter().enumerate() {
        println!(
            "        {}: {count} switches, {} times 404, slowest {:.1} ms",
            target.name,
            missing[index],
            slowest[index].as_secs_f64() * 1e3
        );
    }
    ensure!(missing[0] == 0, "404 in the middle of a switch");
    Ok(Outcome::Passed)
}
