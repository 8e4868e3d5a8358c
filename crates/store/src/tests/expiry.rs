//! Unused objects: when they expire, and how their descriptors are closed.

use super::*;

/// What the worker does each round: the handles given up, and their descriptors to the threads.
fn close_unused(site: &mut Site, now: Instant) -> Vec<u32> {
    site.store.expire_unused(now);
    std::iter::from_fn(|| site.store.poll_closed()).collect()
}

#[test]
fn an_unused_object_is_closed_after_unused_time_max() {
    let mut site = Site::new(config(), &["a", "b"]);
    let unused_max = config().unused_time_max;
    let [a, b] = ["/a", "/b"].map(|path| site.ask(path).unwrap().handle);
    assert_eq!(site.store.poll_timeout(), None, "both are in use");
    site.store.release(a);
    let due = NOW + unused_max;
    assert_eq!(site.store.poll_timeout(), Some(due));
    let just_before = NOW + (unused_max - Duration::from_nanos(1));
    assert_eq!(close_unused(&mut site, just_before), []);
    assert_eq!(close_unused(&mut site, due), [a]);
    // `b` is still in use.
    assert_eq!(close_unused(&mut site, due + unused_max), []);
    assert_eq!(site.store.poll_timeout(), None, "nothing is unused");
    site.store.release(b);
    assert_eq!(site.store.counters().store_expired_objects, 1);
}

#[test]
fn an_object_used_again_and_again_stays_open() {
    let mut site = Site::new(config(), &["a"]);
    let step = config().unused_time_max - Duration::from_nanos(1);
    let (mut now, first) = (NOW, site.ask("/a").unwrap().handle);
    for _ in 0..5 {
        site.store.release(first);
        now += step;
        assert_eq!(close_unused(&mut site, now), []);
        assert_eq!(site.ask_at(now, "/a").unwrap().handle, first);
    }
    assert_eq!(site.store.counters().store_opened_objects, 1);
}

#[test]
fn objects_that_expire_within_one_second_are_closed_together() {
    let names: Vec<String> = (0..4).map(|name| name.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut site = Site::new(config(), &names);
    let mut now = Instant::from_millis(400);
    for name in &names {
        let handle = site.ask_at(now, &format!("/{name}")).unwrap().handle;
        site.store.release(handle);
        now += Duration::from_millis(1);
    }
    // At the next whole second.
    let due = Instant::from_millis(1_000) + config().unused_time_max;
    assert_eq!(site.store.poll_timeout(), Some(due));
    assert_eq!(close_unused(&mut site, due).len(), 4);
}

#[test]
fn one_call_expires_at_most_expired_objects_max() {
    let files = EXPIRED_OBJECTS_MAX + 1;
    let names: Vec<String> = (0..files).map(|name| name.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let config = StoreConfig {
        objects_max: files,
        ..config()
    };
    let mut site = Site::new(config, &names);
    for name in &names {
        let handle = site.ask(&format!("/{name}")).unwrap().handle;
        site.store.release(handle);
    }
    let due = NOW + config.unused_time_max;
    assert_eq!(close_unused(&mut site, due).len(), EXPIRED_OBJECTS_MAX);
    assert_eq!(site.store.poll_timeout(), Some(due), "there is more to do");
    assert_eq!(close_unused(&mut site, due).len(), 1);
}

/// The threads have the most descriptors to close, and make no progress.
#[test]
fn a_device_whose_closes_hang_delays_others_for_one_interval_only() {
    let mut site = Site::new(config(), &["a", "b"]);
    let handles = ["/a", "/b"].map(|path| site.ask(path).unwrap().handle);
    let device = site.store.table.metadata(handles[0]).device;
    for handle in handles {
        site.store.release(handle);
    }
    let device = DeviceId::new(device);
    let due = NOW + config().unused_time_max;
    site.store.closing.push(Closing {
        device,
        count: EXPIRED_OBJECTS_MAX,
        since: due,
    });
    assert_eq!(close_unused(&mut site, due), []);
    let resumes = due + EXPIRY_INTERVAL;
    assert_eq!(site.store.poll_timeout(), Some(resumes), "no spinning");
    // Something was closed: there is room again.
    site.store.note_closed(device, 1);
    assert_eq!(close_unused(&mut site, due).len(), 2);

    let handle = site.ask_at(due, "/a").unwrap().handle;
    site.store.release(handle);
    let due = due + config().unused_time_max;
    site.store.closing[0] = Closing {
        device,
        count: EXPIRED_OBJECTS_MAX,
        since: due + EXPIRY_INTERVAL,
    };
    let later = due + EXPIRY_INTERVAL + EXPIRY_INTERVAL;
    assert_eq!(close_unused(&mut site, later), []);
    let postpone = later + config().unused_time_max;
    assert_eq!(site.store.poll_timeout(), Some(postpone), "it hangs");
    site.store.note_closed(device, EXPIRED_OBJECTS_MAX);
}

#[test]
fn a_device_with_too_much_to_close_has_no_room() {
    let mut site = Site::new(config(), &["a"]);
    let device = site.store.device_of_name("/a");
    let mut closing = Closing {
        device,
        count: CLOSES_MAX - 1,
        since: NOW,
    };
    site.store.closing.push(closing);
    assert!(site.has_room());
    closing.count = CLOSES_MAX;
    site.store.closing[0] = closing;
    assert!(!site.has_room());
    assert!(site.store.has_room(DeviceId::UNKNOWN), "others have");
}

/// The last descriptor of a deleted file is closed by a thread, and the worker hears of it.
#[test]
fn the_threads_close_the_descriptors_they_are_given() {
    let mut site = Site::new(config(), &["a"]);
    let mut found = site.ask("/a").unwrap();
    let Some(Source::File { descriptor, .. }) = found.opened.take() else {
        panic!("not newly opened: {found:?}")
    };
    fs::remove_file(site.path("a")).unwrap();
    let number = descriptor.as_raw_fd();
    let shown = format!("/proc/self/fd/{number}");
    let before = fs::read_link(&shown).unwrap();
    site.store
        .close_descriptor(found.metadata.device, descriptor);
    while site.store.counters().store_finished_closes == 0 {
        assert!(site.store.poll_answer(NOW).is_none());
        if site.store.counters().store_finished_closes == 0 {
            wait_readable(site.store.poll_fd().unwrap());
        }
    }
    // Another test may have been given the number since.
    assert_ne!(fs::read_link(&shown).ok(), Some(before));
    assert_eq!(site.store.counters().store_threaded_closes, 1);
    assert!(site.store.closing.is_empty());
}
