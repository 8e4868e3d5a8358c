//! The store against real directories, and against its catalogue.

mod expiry;
mod fresh;
mod hung;
mod images;
mod links;
mod several;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use tempfile::TempDir;

use super::*;

const NOW: Instant = Instant::ZERO;
/// From one turn of the worker to the next.
const TURN: Duration = Duration::from_micros(1);

/// A directory with files, some way to look up, and what the store has open.
struct Site {
    directory: TempDir,
    store: Store,
}

/// Small bounds, and buffered reads allowed: temporary directories may be anywhere.
fn config() -> StoreConfig {
    StoreConfig {
        objects_max: 4,
        // A device has two of them.
        lookups_max: 8,
        threads: 8,
        direct: Direct::Preferred,
        ..StoreConfig::default()
    }
}

fn through_threads() -> StoreConfig {
    StoreConfig {
        cached_lookups: false,
        ..config()
    }
}

impl Site {
    fn new(config: StoreConfig, files: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file.as_bytes()).unwrap();
        }
        let store = Store::open_directory(&root, config).unwrap();
        Self { directory, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// The answer to a path, however it comes.
    fn ask_at(&mut self, now: Instant, path: &str) -> Result<Found, StoreRefusal> {
        match self.store.look_up(now, 7, path) {
            LookUp::Ready(found) => Ok(found),
            LookUp::Refused(refusal) => Err(refusal),
            LookUp::Pending => {
                let (token, result) = self.wait(now);
                assert_eq!(token, 7);
                result
            }
        }
    }

    fn ask(&mut self, path: &str) -> Result<Found, StoreRefusal> {
        self.ask_at(NOW, path)
    }

    /// Waits for an answer of the threads by their descriptor, as the worker does.
    fn wait(&mut self, now: Instant) -> (u64, Result<Found, StoreRefusal>) {
        loop {
            if let Some(answer) = self.store.poll_answer(now) {
                return answer;
            }
            wait_readable(self.store.poll_fd().unwrap());
        }
    }

    /// What a path is told that there is no room for.
    fn full(&self) -> StoreRefusal {
        StoreRefusal::Full(self.store.device_of_name("/a"))
    }

    fn has_room(&self) -> bool {
        self.store.has_room(self.store.device_of_name("/a"))
    }

    fn refuse(&mut self, path: &str) -> StoreRefusal {
        match self.ask(path) {
            Err(refusal) => refusal,
            Ok(found) => panic!("{path:?} was found: {found:?}"),
        }
    }
}

#[allow(unsafe_code, reason = "UNSAFETY: poll(2), to wait as the worker does")]
pub(crate) fn wait_readable(descriptor: BorrowedFd<'_>) {
    let mut wanted = libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid `pollfd`, exclusively ours.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, 10_000) };
    assert_eq!(ready, 1, "no answer within 10 s");
}

#[allow(unsafe_code, reason = "UNSAFETY: poll(2), without waiting")]
fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut wanted = libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid `pollfd`, exclusively ours.
    unsafe { libc::poll(&raw mut wanted, 1, 0) == 1 }
}

/// A site whose first look-up, of `/a`, was answered by the kernel's caches, and that answer. They may have none at
/// times: where a tick of the clock lies between the making of a link and its reading, or a mount changed anywhere.
fn answered_by_caches(make: impl Fn() -> Site) -> Option<(Site, Found)> {
    const TRIES: usize = 100;
    let answered = (0..TRIES).find_map(|_| {
        let mut site = make();
        match site.store.look_up(NOW, 0, "/a") {
            LookUp::Ready(found) => Some((site, found)),
            LookUp::Pending => None,
            LookUp::Refused(refusal) => panic!("{refusal}"),
        }
    });
    if answered.is_none() {
        eprintln!("SKIPPED: this file system or kernel has no cached look-ups");
    }
    answered
}

/// What the descriptor of a first find reads, through the page cache.
fn content(found: &mut Found) -> String {
    let Some(Source::File {
        descriptor: file, ..
    }) = found.opened.take()
    else {
        panic!("not newly opened: {found:?}");
    };
    // A direct read needs an aligned buffer: the proof is in another open of the same file.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut text = String::new();
    File::open(path).unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn files_are_found_both_ways() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["a", "deep/er/b c.mp4"]);
        for name in ["a", "deep/er/b c.mp4"] {
            let mut found = site.ask(&format!("/{name}")).unwrap();
            assert_eq!(content(&mut found), name);
            let meta = fs::metadata(site.path(name)).unwrap();
            assert_eq!(found.metadata.size_bytes, name.len() as u64);
            assert_eq!(found.metadata.inode, meta.ino());
            let modified = &found.metadata.modified;
            assert_eq!(
                (modified.seconds, i64::from(modified.nanos)),
                (meta.mtime(), meta.mtime_nsec())
            );
            let changed = &found.metadata.changed;
            assert_eq!(
                (changed.seconds, i64::from(changed.nanos)),
                (meta.ctime(), meta.ctime_nsec())
            );
        }
        let threaded = site.store.counters().store_threaded_lookups;
        if !config.cached_lookups {
            assert_eq!(threaded, 2);
        }
    }
}

#[test]
fn a_path_in_the_kernel_s_caches_is_answered_at_once() {
    // Just written, so its path is in the kernel's caches.
    if let Some((site, _)) = answered_by_caches(|| Site::new(config(), &["a"])) {
        assert_eq!(site.store.counters().store_inline_lookups, 1);
    }
}

/// Both ways, for every path below: what is no object, and why.
#[test]
fn nothing_leads_out_of_the_directory() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["a", "dir/b"]);
        fs::write(site.directory.path().join("secret"), b"secret").unwrap();
        let outside = site.directory.path().join("secret");
        for (name, target) in [
            ("absolute", outside.to_str().unwrap()),
            ("climbs", "../secret"),
            ("climbs-late", "dir/../../secret"),
            ("etc", "/etc"),
            ("loop", "loop"),
            ("magic", "/proc/self/exe"),
            ("dangling", "nothing"),
            ("in", "dir/b"),
            ("in-dir", "dir"),
            ("in-round", "dir/../a"),
        ] {
            symlink(target, site.path(name)).unwrap();
        }
        use StoreRefusal::{Directory, Forbidden, NotFound};
        let long_segment = format!("/{}", "s".repeat(256));
        let long_path = "/d".repeat(PATH_BYTES_MAX);
        for (path, refusal) in [
            ("", NotFound),
            ("/", NotFound),
            ("a", NotFound),
            ("/a/", NotFound),
            ("//a", NotFound),
            ("/./a", NotFound),
            ("/dir/../a", NotFound),
            ("/..", NotFound),
            ("/../secret", NotFound),
            ("/a\0", NotFound),
            ("/a\0/../../secret", NotFound),
            ("/dir", Directory),
            ("/a/b", NotFound),
            ("/nothing", NotFound),
            ("/A", NotFound),
            ("/%61", NotFound),
            (&long_segment, NotFound),
            (&long_path, NotFound),
            ("/dangling", NotFound),
            ("/in-dir", Directory),
            ("/absolute", Forbidden),
            ("/climbs", Forbidden),
            ("/climbs-late", Forbidden),
            ("/etc", Forbidden),
            ("/etc/passwd", Forbidden),
            ("/loop", Forbidden),
            ("/magic", Forbidden),
        ] {
            assert_eq!(site.refuse(path), refusal, "{path:?}");
        }
        for (path, text) in [("/in", "dir/b"), ("/in-dir/b", "dir/b"), ("/in-round", "a")] {
            let mut found = site.ask(path).unwrap();
            assert_eq!(content(&mut found), text, "{path}");
        }
    }
}

#[test]
fn fifos_sockets_and_devices_are_refused_without_blocking() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["a"]);
        let made = Command::new("mkfifo").arg(site.path("fifo")).status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "mkfifo is missing"
        );
        let _socket = std::os::unix::net::UnixListener::bind(site.path("socket")).unwrap();
        for path in ["/fifo", "/socket"] {
            assert_eq!(site.refuse(path), StoreRefusal::Forbidden, "{path}");
        }
        let device = Command::new("mknod")
            .arg(site.path("null"))
            .args(["c", "1", "3"])
            .output();
        if device.is_ok_and(|output| output.status.success()) {
            assert_eq!(site.refuse("/null"), StoreRefusal::Forbidden);
        } else {
            eprintln!("SKIPPED: no right to make a device");
        }
    }
}

#[test]
fn files_without_read_permission_are_refused() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["closed", "open", "shut/a"]);
        for (name, mode) in [("closed", 0o000), ("shut", 0o000), ("..", 0o755)] {
            fs::set_permissions(site.path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        // Root may read everything, so this thread, and those the store starts, become user nobody.
        let before = become_user(65_534);
        if File::open(site.path("closed")).is_ok() {
            become_user(before);
            eprintln!("SKIPPED: this user may read everything and cannot become nobody");
            return;
        }
        site.store = Store::open_directory(&site.path(""), config).unwrap();
        assert_eq!(site.refuse("/closed"), StoreRefusal::Forbidden);
        assert_eq!(site.refuse("/shut/a"), StoreRefusal::Forbidden);
        let open = site.ask("/open");
        become_user(before);
        assert!(open.is_ok(), "{open:?}");
        fs::set_permissions(site.path("shut"), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Whether the open file of a first find notes the time of reads, if its mount does; it is said so, too.
fn notes_access_time(found: &Found) -> bool {
    let Some(Source::File {
        descriptor,
        notes_reads,
        ..
    }) = &found.opened
    else {
        panic!("not newly opened: {found:?}");
    };
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = fs::read_to_string(path).unwrap();
    let flags = text
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .unwrap();
    let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
    let is_noted = flags & libc::O_NOATIME == 0;
    let name = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).unwrap();
    let mount = crate::mounts::Mounts::read(name.parent().unwrap()).root();
    assert_eq!(*notes_reads, is_noted && mount.notes_reads);
    is_noted
}

#[test]
fn the_time_of_reads_is_not_noted_where_the_kernel_permits_that() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["ours", "theirs", "ours too"]);
        assert!(!notes_access_time(&site.ask("/ours").unwrap()));
        fs::set_permissions(site.path(".."), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["ours", "ours too"] {
            if std::os::unix::fs::chown(site.path(name), Some(65_534), None).is_err() {
                eprintln!("SKIPPED: no right to give files away");
                return;
            }
        }
        let before = become_user(65_534);
        site.store = Store::open_directory(&site.path(""), config).unwrap();
        let ours = site.ask("/ours");
        let theirs = site.ask("/theirs");
        // Not tried any more.
        let later = site.ask("/ours too");
        become_user(before);
        assert!(!notes_access_time(&ours.unwrap()));
        assert!(notes_access_time(&theirs.unwrap()));
        assert!(notes_access_time(&later.unwrap()));
    }
}

/// Makes this thread look at files as another user (only root can); who it was before.
#[allow(unsafe_code, reason = "UNSAFETY: setfsuid(2)")]
fn become_user(user: libc::uid_t) -> libc::uid_t {
    // SAFETY: it changes the rights of this thread alone, and no memory.
    let before = unsafe { libc::setfsuid(user) };
    libc::uid_t::try_from(before).unwrap()
}

#[test]
fn two_look_ups_of_one_path_share_the_object() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["a", "b"]);
        let first = site.ask("/a").unwrap();
        let again = site.ask("/a").unwrap();
        assert!(first.opened.is_some() && again.opened.is_none());
        assert_eq!(
            (first.handle, first.metadata),
            (again.handle, again.metadata)
        );
        assert_ne!(site.ask("/b").unwrap().handle, first.handle);
        // The answer of a thread is for the look-up that asked it.
        let counters = site.store.counters();
        assert_eq!(
            counters.store_shared_lookups + counters.store_threaded_lookups.saturating_sub(2),
            1
        );
    }
}

#[test]
fn two_pending_look_ups_of_one_path_share_the_object() {
    let mut site = Site::new(through_threads(), &["a"]);
    for token in [1, 2] {
        assert!(matches!(
            site.store.look_up(NOW, token, "/a"),
            LookUp::Pending
        ));
    }
    let answers = [site.wait(NOW), site.wait(NOW)];
    let mut tokens = answers.each_ref().map(|(token, _)| *token);
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 2]);
    let [first, second] = answers.map(|(_, result)| result.unwrap());
    assert_eq!(first.handle, second.handle);
    assert!(first.opened.is_some() && second.opened.is_none());
}

#[test]
fn an_open_object_is_asked_for_in_each_turn() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["a"]);
        let first = site.ask("/a").unwrap();
        for turn in 1..5 {
            let now = NOW + Duration::from_nanos(turn);
            let again = site.ask_at(now, "/a").unwrap();
            assert!(again.opened.is_none() && again.handle == first.handle);
        }
        let counters = site.store.counters();
        assert_eq!(counters.store_opened_objects, 1);
        let asked = counters.store_shared_lookups + counters.store_threaded_lookups;
        assert!(asked >= 4, "{counters:?}");
    }
}

#[test]
fn a_replaced_file_is_another_object() {
    for config in [config(), through_threads()] {
        let mut site = Site::new(config, &["a"]);
        let later = NOW + TURN;
        let mut old = site.ask("/a").unwrap();
        fs::write(site.path("new"), "new!").unwrap();
        fs::rename(site.path("new"), site.path("a")).unwrap();
        let mut new = site.ask_at(later, "/a").unwrap();
        assert_ne!(new.handle, old.handle);
        assert_ne!(new.metadata, old.metadata);
        assert_eq!(content(&mut new), "new!");
        assert!(
            content(&mut old).starts_with('a'),
            "the old one is still what it was"
        );

        assert_eq!(site.store.poll_closed(), None, "it is in use");
        site.store.release(old.handle);
        assert_eq!(site.store.poll_closed(), Some(old.handle));
        assert_eq!(site.store.counters().store_replaced_objects, 1);
        assert_eq!(site.store.counters().store_closed_objects, 1);
    }
}

#[test]
fn a_file_written_in_place_and_one_removed() {
    let mut site = Site::new(config(), &["a"]);
    let later = NOW + TURN;
    let old = site.ask("/a").unwrap();
    fs::write(site.path("a"), "longer than before").unwrap();
    let new = site.ask_at(later, "/a").unwrap();
    assert!(new.opened.is_some() && new.handle != old.handle);

    fs::remove_file(site.path("a")).unwrap();
    let later = later + TURN;
    assert_eq!(
        site.ask_at(later, "/a").unwrap_err(),
        StoreRefusal::NotFound
    );
}

#[test]
fn an_object_beyond_objects_max_is_refused() {
    let names = ["a", "b", "c", "d", "e"];
    let mut site = Site::new(config(), &names);
    let path = |name: &str| format!("/{name}");
    let handles: Vec<u32> = names[..4]
        .iter()
        .map(|name| site.ask(&path(name)).unwrap().handle)
        .collect();
    assert_eq!(site.refuse("/e"), site.full());
    assert!(
        handles
            .iter()
            .all(|&handle| (handle as usize) < site.store.handles_max())
    );

    // `c`, then `a`: the first released is the first to go.
    site.store.release(handles[2]);
    site.store.release(handles[0]);
    let fifth = site.ask("/e").unwrap();
    assert!(
        !handles.contains(&fifth.handle),
        "a handle is free only once it was polled"
    );
    assert_eq!(site.store.poll_closed(), Some(handles[2]));
    assert_eq!(site.store.poll_closed(), None);
    assert!(site.ask("/a").unwrap().opened.is_none());
    assert_eq!(site.refuse("/c"), site.full());
}

#[test]
fn a_look_up_beyond_lookups_max_is_refused() {
    let mut site = Site::new(through_threads(), &["a", "b", "c"]);
    assert!(matches!(site.store.look_up(NOW, 1, "/a"), LookUp::Pending));
    assert!(matches!(site.store.look_up(NOW, 2, "/b"), LookUp::Pending));
    let third = site.store.look_up(NOW, 3, "/c");
    assert!(matches!(third, LookUp::Refused(StoreRefusal::Full(_))));
    let _ = site.wait(NOW);
    assert!(matches!(site.store.look_up(NOW, 3, "/c"), LookUp::Pending));
    let mut tokens = [site.wait(NOW).0, site.wait(NOW).0];
    tokens.sort_unstable();
    assert_eq!(tokens[1], 3);
}

#[test]
fn a_pending_look_up_has_a_reserved_entry() {
    let config = StoreConfig {
        objects_max: 2,
        ..through_threads()
    };
    let mut site = Site::new(config, &["a", "b", "c"]);
    let a = site.ask("/a").unwrap();
    assert!(matches!(site.store.look_up(NOW, 1, "/b"), LookUp::Pending));
    assert!(!site.has_room(), "one is open, one is being opened");
    let third = site.store.look_up(NOW, 2, "/c");
    assert!(matches!(third, LookUp::Refused(StoreRefusal::Full(_))));

    // An unused object is evicted before the next file is opened, not after.
    site.store.release(a.handle);
    assert!(site.has_room());
    assert!(matches!(site.store.look_up(NOW, 2, "/c"), LookUp::Pending));
    assert_eq!(site.store.poll_closed(), Some(a.handle));
    for _ in 0..2 {
        assert!(site.wait(NOW).1.unwrap().opened.is_some());
    }
    let counters = site.store.counters();
    assert_eq!(counters.store_full_lookups, 1);
    assert_eq!(counters.store_refused_lookups, 0);
}

#[test]
fn a_look_up_that_finds_nothing_ends_its_reservation() {
    let config = StoreConfig {
        objects_max: 1,
        ..through_threads()
    };
    let mut site = Site::new(config, &["a"]);
    for _ in 0..3 {
        assert_eq!(site.refuse("/nothing"), StoreRefusal::NotFound);
    }
    let first = site.ask("/a").unwrap();
    assert!(!site.has_room());
    // So does one that finds what is open already.
    site.store.release(first.handle);
    for token in [1, 2] {
        let later = NOW + TURN;
        let (asked, expected) = (site.store.look_up(later, token, "/a"), token == 1);
        assert_eq!(matches!(asked, LookUp::Pending), expected, "{asked:?}");
    }
    let again = site.wait(NOW).1.unwrap();
    assert!(again.opened.is_some(), "it made room for itself");
    site.store.release(again.handle);
    assert!(site.has_room());
}

#[test]
fn an_open_object_is_checked_without_a_free_entry() {
    let config = StoreConfig {
        objects_max: 1,
        ..config()
    };
    let mut site = Site::new(config, &["a", "b"]);
    let first = site.ask("/a").unwrap();
    let later = NOW + TURN;
    match site.store.look_up(later, 7, "/a") {
        LookUp::Ready(again) => assert_eq!(again.handle, first.handle),
        LookUp::Refused(StoreRefusal::Full(_)) => eprintln!("SKIPPED: no cached look-ups here"),
        other => panic!("{other:?}"),
    }
    assert_eq!(site.refuse("/b"), site.full());
}

#[test]
fn poll_fd_is_not_readable_once_all_answers_are_taken() {
    let mut site = Site::new(through_threads(), &["a"]);
    let later = NOW + TURN;
    let mut now = NOW;
    for _ in 0..200 {
        // Each answer has a descriptor closed; a machine that is busy closes them late.
        while !site.has_room() {
            wait_readable(site.store.poll_fd().unwrap());
            assert!(site.store.poll_answer(now).is_none());
        }
        for token in [1, 2] {
            let asked = site.store.look_up(now, token, "/a");
            assert!(matches!(asked, LookUp::Pending), "{asked:?}");
        }
        for _ in 0..2 {
            let (_, result) = site.wait(now);
            site.store.release(result.unwrap().handle);
        }
        now += later.since(NOW);
    }
    // The last signals may still be on their way; each comes once. So may replies of threads that close
    // the descriptors of later look-ups, which are no answers.
    while signals_due(&site.store) > 0 || !site.store.closing.is_empty() {
        wait_readable(site.store.poll_fd().unwrap());
        assert!(site.store.poll_answer(now).is_none());
    }
    assert_eq!(signals_due(&site.store), 0);
    assert!(!is_readable(site.store.poll_fd().unwrap()));
}

fn signals_due(store: &Store) -> i64 {
    match &store.backend {
        Backend::Directories(directory) => directory.signals_due(),
        Backend::Catalogue(_) | Backend::Volume(_) => 0,
    }
}

#[test]
fn a_retired_object_is_opened_anew() {
    let mut site = Site::new(config(), &["a"]);
    let first = site.ask("/a").unwrap();
    site.store.retire(first.handle);
    let second = site.ask("/a").unwrap();
    assert!(second.opened.is_some() && second.handle != first.handle);
    site.store.release(first.handle);
    assert_eq!(site.store.poll_closed(), Some(first.handle));
}

#[test]
fn an_object_that_is_in_use_long_after_its_name_is_named_once() {
    let long = config().retired_time_max;
    let mut site = Site::new(config(), &["a", "b"]);
    let (a, b) = (site.ask("/a").unwrap(), site.ask("/b").unwrap());
    site.store.retire(a.handle);
    let later = NOW + Duration::from_secs(1);
    site.store.expire_unused(later);
    site.store.retire(b.handle);
    let just_before = NOW + long - Duration::from_nanos(1);
    assert_eq!(site.store.poll_outdated(just_before), None);
    assert_eq!(site.store.poll_timeout(), Some(NOW + long));
    assert_eq!(site.store.poll_outdated(NOW + long), Some(a.handle));
    assert_eq!(site.store.poll_outdated(NOW + long), None);
    // Its users may end it by themselves.
    site.store.release(b.handle);
    assert_eq!(site.store.poll_outdated(later + long), None);
    assert_eq!(site.store.counters().store_outdated_objects, 1);
    site.store.release(a.handle);
    assert_eq!(site.store.poll_closed(), Some(b.handle));
    assert_eq!(site.store.poll_closed(), Some(a.handle));
}

#[test]
fn direct_reads_where_the_file_system_can() {
    let strict = StoreConfig {
        direct: Direct::Required,
        ..config()
    };
    let directory = tempfile::tempdir().unwrap();
    let empty = Store::open_directory(directory.path(), strict).unwrap();
    assert_eq!(empty.direct_support(), DirectSupport::Unknown);
    fs::create_dir(directory.path().join("d")).unwrap();
    fs::write(directory.path().join("d/a"), b"a").unwrap();
    match Store::open_directory(directory.path(), strict) {
        Ok(mut store) => {
            assert_eq!(store.direct_support(), DirectSupport::Direct);
            let LookUp::Ready(found) = store.look_up(NOW, 0, "/d/a") else {
                return;
            };
            assert!(found.metadata.direct);
            let align = found.metadata.direct_offset_align_bytes;
            assert!(align == 0 || align.is_power_of_two(), "{align}");
        }
        Err(StoreError::NotDirect { path }) => {
            assert!(path.ends_with("d/a"));
            let store = Store::open_directory(directory.path(), config()).unwrap();
            assert_eq!(store.direct_support(), DirectSupport::Refused);
        }
        Err(error) => panic!("{error}"),
    }
}

/// `/proc` has regular files and no `O_DIRECT`, on every Linux.
#[test]
fn a_file_system_without_o_direct() {
    let strict = StoreConfig {
        direct: Direct::Required,
        ..config()
    };
    let proc = Path::new("/proc/sys/kernel");
    match Store::open_directory(proc, strict) {
        Err(error @ StoreError::NotDirect { .. }) => {
            assert!(
                error.to_string().contains("allow buffered reads"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    let mut site = Site {
        directory: tempfile::tempdir().unwrap(),
        store: Store::open_directory(proc, config()).unwrap(),
    };
    assert_eq!(site.store.direct_support(), DirectSupport::Refused);
    let found = site.ask("/ostype").unwrap();
    assert!(!found.metadata.direct && found.opened.is_some());
    assert_eq!(site.refuse("/random"), StoreRefusal::Directory);
}

#[test]
fn no_directory_no_store() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), b"").unwrap();
    for name in ["missing", "file"] {
        let path = directory.path().join(name);
        let error = Store::open_directory(&path, config()).unwrap_err();
        assert!(matches!(&error, StoreError::Directory { path: named, .. } if *named == path));
        assert!(error.to_string().contains(name), "{error}");
    }
}

fn entry(source: u32, answers_later: bool) -> CatalogueEntry {
    let metadata = Metadata {
        size_bytes: u64::from(source),
        ..Metadata::default()
    };
    CatalogueEntry {
        source,
        metadata,
        answers_later,
    }
}

fn source_of(found: &Found) -> Option<u32> {
    match found.opened {
        Some(Source::Simulated(source)) => Some(source),
        _ => None,
    }
}

#[test]
fn a_catalogue_answers_at_once_or_later() {
    let mut catalogue = Catalogue::new();
    catalogue.insert("/now", entry(1, false));
    catalogue.insert("/later", entry(2, true));
    let config = StoreConfig {
        lookups_max: 1,
        ..config()
    };
    let mut store = Store::catalogue(catalogue, config);
    assert!(store.poll_fd().is_none() && store.poll_answer(NOW).is_none());

    let LookUp::Ready(found) = store.look_up(NOW, 1, "/now") else {
        panic!()
    };
    assert_eq!((source_of(&found), found.metadata.size_bytes), (Some(1), 1));
    assert!(matches!(store.look_up(NOW, 2, "/later"), LookUp::Pending));
    let over = store.look_up(NOW, 3, "/later");
    assert!(matches!(over, LookUp::Refused(StoreRefusal::Full(_))));
    let none = store.look_up(NOW, 4, "/none");
    assert!(matches!(none, LookUp::Refused(StoreRefusal::NotFound)));
    let (token, result) = store.poll_answer(NOW).unwrap();
    assert_eq!((token, source_of(&result.unwrap())), (2, Some(2)));
    assert!(store.poll_answer(NOW).is_none());
    let counters = store.counters();
    assert_eq!(
        (
            counters.store_threaded_lookups,
            counters.store_refused_lookups,
            counters.store_full_lookups
        ),
        (1, 1, 1)
    );
}

#[test]
fn a_catalogue_hangs_like_a_mount() {
    let mut catalogue = Catalogue::new();
    let on = |source, device| CatalogueEntry {
        metadata: Metadata {
            device,
            ..entry(source, true).metadata
        },
        ..entry(source, true)
    };
    catalogue.insert("/here", on(1, 1));
    catalogue.insert("/far", on(2, 2));
    let mut store = Store::catalogue(catalogue, config());
    store.catalogue_mut().unwrap().set_hung(2, true);
    for (token, path) in [(1, "/far"), (2, "/here")] {
        assert!(matches!(store.look_up(NOW, token, path), LookUp::Pending));
    }
    let (token, result) = store.poll_answer(NOW).unwrap();
    assert_eq!((token, source_of(&result.unwrap())), (2, Some(1)));
    assert!(store.poll_answer(NOW).is_none());
    let due = NOW + config().lookup_time_max;
    let (token, result) = store.poll_answer(due).unwrap();
    assert_eq!((token, result.unwrap_err()), (1, StoreRefusal::TimedOut));
    store.catalogue_mut().unwrap().set_hung(2, false);
    assert!(store.poll_answer(due).is_none(), "too late");
    assert_eq!(store.counters().store_late_lookups, 1);
}

#[test]
fn a_catalogue_changes_like_a_directory() {
    let mut catalogue = Catalogue::new();
    catalogue.insert("/a", entry(1, false));
    let mut store = Store::catalogue(catalogue, config());
    let later = NOW + TURN;
    let LookUp::Ready(old) = store.look_up(NOW, 0, "/a") else {
        panic!()
    };
    store.catalogue_mut().unwrap().insert("/a", entry(2, false));
    let LookUp::Ready(new) = store.look_up(later, 0, "/a") else {
        panic!()
    };
    assert_eq!(source_of(&new), Some(2));
    assert_ne!(old.handle, new.handle);
    assert!(store.catalogue_mut().unwrap().remove("/a"));
    assert!(!store.catalogue_mut().unwrap().remove("/a"));
    let later = later + TURN;
    let gone = store.look_up(later, 0, "/a");
    assert!(matches!(gone, LookUp::Refused(StoreRefusal::NotFound)));
}

#[test]
#[should_panic(expected = "plain segments")]
fn a_catalogue_has_no_path_that_cannot_be_asked_for() {
    Catalogue::new().insert("/a/../b", entry(1, false));
}
