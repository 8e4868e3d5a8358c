//! A mount that never answers: a FUSE file system without a process behind it.
//!
//! Each test has a mount namespace of its own, so nothing is left when it ends.

use std::os::fd::AsRawFd;

use super::*;

/// Gives this thread, and those it starts, mounts of their own; false if this user may not.
#[allow(unsafe_code, reason = "UNSAFETY: unshare(2), mount(2)")]
pub(super) fn enter_mount_namespace() -> bool {
    // SAFETY: no memory is involved; this thread alone gets another namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        eprintln!("SKIPPED: this user may not make a mount namespace");
        return false;
    }
    let none = std::ptr::null();
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: C strings and null pointers, as mount(2) takes them for a change of propagation.
    let outcome = unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    true
}

/// A mount point on which every system call blocks, until this is dropped.
struct HungMount {
    _device: File,
}

impl HungMount {
    /// `None` if this user may not mount.
    #[allow(unsafe_code, reason = "UNSAFETY: mount(2)")]
    fn new(point: &Path) -> Option<Self> {
        if !enter_mount_namespace() {
            return None;
        }
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device else {
            eprintln!("SKIPPED: no /dev/fuse");
            return None;
        };
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0\0");
        let point = format!("{}\0", point.display());
        // SAFETY: C strings; the kernel only reads them.
        let outcome = unsafe {
            libc::mount(
                c"hung".as_ptr(),
                point.as_ptr().cast(),
                c"fuse".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
        Some(Self { _device: device })
    }
}

/// A site with a mount beneath it that hangs; the store is opened after it was mounted.
fn site(config: StoreConfig) -> Option<(Site, HungMount)> {
    let mut site = Site::new(config, &["a", "b", "far/here"]);
    let mount = HungMount::new(&site.path("far"))?;
    site.store = Store::open_directory(&site.path(""), config).unwrap();
    Some((site, mount))
}

#[test]
fn a_look_up_that_is_not_answered_is_refused_in_time() {
    for config in [config(), through_threads()] {
        let Some((mut site, mount)) = site(config) else {
            return;
        };
        let asked = site.store.look_up(NOW, 1, "/far/a");
        assert!(matches!(asked, LookUp::Pending), "{asked:?}");
        let due = NOW + config.lookup_time_max;
        assert_eq!(site.store.poll_timeout(), Some(due));
        while queued(&site, "/far/a") > 0 {
            std::thread::yield_now();
        }
        let just_before = NOW + (config.lookup_time_max - Duration::from_nanos(1));
        assert!(site.store.poll_answer(just_before).is_none());
        let (token, answer) = site.store.poll_answer(due).expect("its time is up");
        assert_eq!((token, answer.unwrap_err()), (1, StoreRefusal::TimedOut));
        assert_eq!(site.store.counters().store_overdue_lookups, 1);
        assert!(site.store.poll_answer(due).is_none(), "answered once");
        // A thread's later answer is dropped; the process behind the mount is gone.
        drop(mount);
        while site.store.counters().store_late_lookups == 0 {
            wait_readable(site.store.poll_fd().unwrap());
            assert!(site.store.poll_answer(due).is_none());
        }
        assert!(site.store.has_room(site.store.device_of_name("/far/a")));
    }
}

/// Look-ups that no thread has taken yet, of the device of a path.
fn queued(site: &Site, path: &str) -> usize {
    match &site.store.backend {
        Backend::Directories(directory) => directory.queued(site.store.device_of_name(path)),
        Backend::Catalogue(_) | Backend::Volume(_) => 0,
    }
}

/// Starts look-ups until the store is full; returns their number.
fn ask_until_full(site: &mut Site, path: &str) -> usize {
    let mut asked = 0;
    loop {
        match site.store.look_up(NOW, 99, path) {
            LookUp::Pending => asked += 1,
            LookUp::Refused(StoreRefusal::Full(_)) => return asked,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_mount_that_hangs_occupies_no_more_than_its_share() {
    for config in [config(), through_threads()] {
        let config = StoreConfig {
            objects_max: 32,
            ..config
        };
        let Some((mut site, _mount)) = site(config) else {
            return;
        };
        let (here, far) = (
            site.store.device_of_name("/a"),
            site.store.device_of_name("/far/a"),
        );
        assert_ne!(here, far);
        assert_eq!(ask_until_full(&mut site, "/far/a"), config.lookups_max / 4);
        assert!(site.store.has_room(here) && !site.store.has_room(far));
        for _ in 0..10 {
            for path in ["/a", "/b"] {
                let found = site.ask(path).unwrap();
                site.store.release(found.handle);
            }
        }
        // Those whose time is up and that no thread had taken make room for others.
        let due = NOW + config.lookup_time_max;
        while site.store.poll_answer(due).is_some() {}
        assert_eq!(site.store.counters().store_overdue_lookups, 2);
        assert!(site.ask_at(due, "/a").is_ok());
    }
}

/// A link leads from the directory's own mount to one that hangs.
#[test]
fn symlinks_to_a_mount_that_hangs_occupy_the_share_of_unknown_devices() {
    let config = StoreConfig {
        objects_max: 32,
        ..through_threads()
    };
    let Some((mut site, _mount)) = site(config) else {
        return;
    };
    symlink("far/a", site.path("relative")).unwrap();
    symlink(site.path("far/a"), site.path("absolute")).unwrap();
    for path in ["/relative", "/absolute"] {
        for _ in 0..config.lookups_max {
            // Not full for good: a thread finds out where the link leads, and passes it on.
            let _ = site.store.look_up(NOW, 99, path);
            let _ = site.store.poll_answer(NOW);
        }
    }
    for _ in 0..10 {
        loop {
            match site.store.look_up(NOW, 7, "/a") {
                LookUp::Ready(found) => break site.store.release(found.handle),
                LookUp::Pending => {
                    let found = loop {
                        match site.wait(NOW) {
                            (7, found) => break found.unwrap(),
                            (99, Err(StoreRefusal::Full(DeviceId::UNKNOWN))) => {}
                            other => panic!("{other:?}"),
                        }
                    };
                    break site.store.release(found.handle);
                }
                LookUp::Refused(StoreRefusal::Full(_)) => {
                    wait_readable(site.store.poll_fd().unwrap());
                    let _ = site.store.poll_answer(NOW);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// The worker itself: what it asks of a mount that hangs.
#[test]
fn the_worker_asks_nothing_of_a_mount_that_may_hang() {
    let Some((mut site, _mount)) = site(config()) else {
        return;
    };
    for path in ["/far", "/far/a"] {
        let asked = site.store.look_up(NOW, 1, path);
        assert!(matches!(asked, LookUp::Pending), "{path}: {asked:?}");
    }
    assert_eq!(site.store.counters().store_inline_lookups, 0);
}

#[test]
fn a_later_mount_is_noticed() {
    let mut site = Site::new(config(), &["a", "far/here"]);
    let Some(_mount) = HungMount::new(&site.path("far")) else {
        return;
    };
    // In the namespace of this test, which the store's threads are to share.
    site.store = Store::open_directory(&site.path(""), config()).unwrap();
    let Backend::Directories(directory) = &site.store.backend else {
        unreachable!("a site is a directory")
    };
    let before = directory.version();
    let over = site.path("far");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "over"])
        .arg(&over)
        .status();
    assert!(mounted.is_ok_and(|status| status.success()));
    let started = std::time::Instant::now();
    while directory.version() == before {
        assert!(started.elapsed() < Duration::from_secs(30), "not noticed");
        std::thread::yield_now();
    }
    fs::write(over.join("a"), b"over").unwrap();
    let mut found = site.ask("/far/a").unwrap();
    assert_eq!(content(&mut found), "over");
}

/// The worker asks for the path it serves, too: not even there may it wait.
#[test]
fn a_served_path_that_is_switched_to_a_mount_that_hangs_and_back() {
    let directory = tempfile::tempdir().unwrap();
    let within = |name: &str| directory.path().join(name);
    for name in ["one", "far"] {
        fs::create_dir(within(name)).unwrap();
    }
    fs::write(within("one/a"), "one").unwrap();
    let Some(mount) = HungMount::new(&within("far")) else {
        return;
    };
    let (current, next) = (within("current"), within("next"));
    let switch_to = |target: &str| {
        symlink(target, &next).unwrap();
        fs::rename(&next, &current).unwrap();
        // Its first reader notes the time, so that the kernel's caches have an answer.
        let _ = fs::read_link(&current).unwrap();
    };
    switch_to("one");
    let store = Store::open_directory(&current, config()).unwrap();
    switch_to("far");
    let mut site = Site { directory, store };
    // Ends before the site does, whose removal would wait for it.
    let _mount = mount;
    let asked = site.store.look_up(NOW, 1, "/a");
    assert!(matches!(asked, LookUp::Pending), "{asked:?}");
    switch_to("one");
    let mut found = site.ask_at(NOW + TURN, "/a").unwrap();
    assert_eq!(content(&mut found), "one");
}

/// A mount that is there when the store is opened is found to refuse `O_DIRECT`, unlike the rest.
#[test]
fn a_mount_beneath_that_refuses_o_direct_is_named_at_start() {
    for direct in [Direct::Required, Direct::Preferred] {
        let config = StoreConfig { direct, ..config() };
        let mut site = Site::new(self::config(), &["a", "under/hidden"]);
        if !enter_mount_namespace() {
            return;
        }
        let under = site.path("under");
        let mounted = Command::new("mount")
            .args(["-t", "proc", "proc"])
            .arg(&under)
            .status();
        assert!(mounted.is_ok_and(|status| status.success()));
        site.store = match Store::open_directory(&site.path(""), config) {
            Ok(store) => store,
            Err(StoreError::NotDirect { path }) if path.ends_with("a") => {
                eprintln!("SKIPPED: temporary files have no O_DIRECT");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(site.store.mounts_without_direct(), [under.as_path()]);
        let version = site.ask("/under/version");
        match direct {
            Direct::Required => assert_eq!(version.unwrap_err(), StoreRefusal::NotDirect),
            Direct::Preferred => assert!(!version.unwrap().metadata.direct),
        }
        let _ = site.ask("/a").unwrap();
    }
}

#[test]
fn the_directory_is_opened_again_by_its_path() {
    let directory = tempfile::tempdir().unwrap();
    for release in ["one", "two"] {
        fs::create_dir(directory.path().join(release)).unwrap();
        fs::write(directory.path().join(release).join("a"), release).unwrap();
    }
    let current = directory.path().join("current");
    symlink("one", &current).unwrap();
    let store = Store::open_directory(&current, config()).unwrap();
    let mut site = Site { directory, store };
    let mut old = site.ask("/a").unwrap();
    assert_eq!(content(&mut old), "one");

    fs::remove_file(&current).unwrap();
    symlink("two", &current).unwrap();
    let later = NOW + TURN;
    let reopen = |site: &mut Site| {
        site.store.reopen();
        loop {
            assert!(site.store.poll_answer(later).is_none());
            if let Some(result) = site.store.poll_reopened() {
                return result;
            }
            wait_readable(site.store.poll_fd().unwrap());
        }
    };
    reopen(&mut site).unwrap();
    let later_still = later + TURN;
    let mut new = site.ask_at(later_still, "/a").unwrap();
    assert_eq!(content(&mut new), "two");

    // If it cannot be opened, the last one stays.
    fs::remove_file(&current).unwrap();
    assert!(matches!(
        reopen(&mut site),
        Err(StoreError::Directory { path, .. }) if path == current
    ));
    let much_later = later_still + TURN;
    assert_eq!(site.ask_at(much_later, "/a").unwrap().handle, new.handle);
    assert_eq!(site.store.counters().store_reopened_roots, 1);
}
