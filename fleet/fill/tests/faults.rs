//! An origin that does what is wrong: each time an error that says so, once; nothing wrong appears; and it heals by itself.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use common::{Edge, Ended, Origin, Running, Wrong, content};

const NAME: &str = "films/a.ts";
/// Several parts of 64 KiB.
const LENGTH: usize = 300_000;

/// An origin with an object, of which this is wrong, and one of which nothing is.
fn wrong(wrong: Wrong, length: usize) -> (Origin, Edge) {
    let origin = Origin::start();
    origin.put(NAME, &content(NAME, length));
    origin.put("films/good.ts", b"good");
    origin.wrong(NAME, Some(wrong));
    let edge = Edge::new(&origin);
    (origin, edge)
}

/// Runs until the object failed with this kind and text; then nothing is wrong any more, and it comes.
fn fails_and_heals(fault: Wrong, length: usize, kind: &str, text: &str) {
    let (origin, edge) = wrong(fault.clone(), length);
    let mut running = edge.start(&[]);
    let failed = running.wait_for_name("failed", "a.ts");
    assert_eq!(failed["kind"], kind, "{failed}");
    let told = failed["text"].as_str().unwrap();
    assert!(told.contains(text) && told.contains("a.ts"), "{told}");
    assert_no_secrets(&running);
    assert_eq!(edge.read("a.ts"), None, "{fault:?}");
    origin.wrong(NAME, None);
    running.wait_for_name("fetched", "a.ts");
    assert_eq!(edge.read("a.ts").unwrap(), content(NAME, length));
    assert_eq!(edge.read("good.ts").unwrap(), b"good");
    running.terminate();
}

fn assert_no_secrets(running: &Running) {
    for event in &running.seen {
        let text = event.to_string();
        for secret in ["hunter2", "Signature", "Secret", "127.0.0.1"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn an_origin_that_stalls_is_given_up_and_asked_again() {
    for length in [1_000, LENGTH] {
        fails_and_heals(
            Wrong::Stall(500),
            length,
            "stalled",
            "sent nothing for 0.5 s",
        );
    }
}

#[test]
fn a_body_that_ends_early_does_not_appear() {
    for length in [1_000, LENGTH] {
        fails_and_heals(Wrong::Cut(500), length, "broken", "GET a.ts: ");
    }
}

#[test]
fn a_body_that_is_longer_than_was_listed_does_not_appear() {
    fails_and_heals(
        Wrong::Longer(1),
        LENGTH,
        "length",
        "the origin sent more than it said",
    );
    // Without a length it might be any.
    fails_and_heals(Wrong::Longer(1), 1_000, "protocol", "Content-Length");
}

#[test]
fn a_length_that_is_not_the_listing_s_does_not_appear() {
    fails_and_heals(
        Wrong::Length(900),
        1_000,
        "length",
        "the listing says 1000 bytes, and the reply 900",
    );
}

#[test]
fn wrong_bytes_do_not_appear() {
    for length in [1_000, LENGTH] {
        fails_and_heals(
            Wrong::Bytes,
            length,
            "checksum",
            "what came is not what the origin's md5 is of",
        );
    }
}

#[test]
fn redirects_for_ever_are_given_up() {
    for length in [1_000, LENGTH] {
        fails_and_heals(Wrong::Redirect, length, "redirects", "redirects for ever");
    }
}

#[test]
fn a_redirect_to_another_host_gets_no_request() {
    let other = Origin::start();
    for length in [1_000, LENGTH] {
        other.put(NAME, &content(NAME, length));
        let wrong = Wrong::RedirectTo(other.address);
        fails_and_heals(wrong, length, "redirects", "redirects to another host");
    }
    assert_eq!(other.count(""), 0);
}

#[test]
fn a_page_of_a_listing_that_does_not_end_is_given_up() {
    let origin = Origin::start();
    origin.put(NAME, b"x");
    origin.wrong_listing(Some(Wrong::Longer(33 << 20)));
    let edge = Edge::new(&origin);
    let text = std::fs::read_to_string(edge.path("fill.toml")).unwrap();
    let edge = edge.replace(&text.replace("500ms", "20s"));
    let mut running = edge.start(&[]);
    let waiting = running.wait_for("a listing", |it| {
        it["event"] == "waiting" || it["event"] == "listed"
    });
    let text = waiting["text"].as_str().unwrap_or_default();
    assert!(text.contains("as a page"), "{waiting}");
    origin.wrong_listing(None);
    running.wait_for_event("listed");
    running.terminate();
}

#[test]
fn an_object_that_is_listed_and_not_there_is_asked_for_again() {
    let gone = Wrong::Status(404, String::new(), "NoSuchKey".into());
    fails_and_heals(gone, 1_000, "absent", "the origin says 404 (NoSuchKey)");
}

#[test]
fn an_origin_without_parts_is_asked_for_the_whole() {
    let (_origin, edge) = wrong(Wrong::NoRanges, LENGTH);
    assert_eq!(edge.once(&[]).code, Some(0));
    assert_eq!(edge.read("a.ts").unwrap(), content(NAME, LENGTH));
}

#[test]
fn what_can_have_no_name_is_not_fetched_and_is_no_failure_of_the_origin() {
    let origin = Origin::start();
    let names: Vec<String> = (0..40).map(|index| format!("a/{index}.ts")).collect();
    for name in &names {
        origin.put(&format!("films/{name}"), b"x");
    }
    origin.put("films/b.ts", b"b");
    let edge = Edge::new(&origin).set("memory = \"1MiB\"\n");
    // Folders in the places of files, which are not the filler's to remove: they have something that is not served.
    for name in &names {
        let folder = edge.path("video").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(".mine"), "").unwrap();
    }
    let mut running = edge.start(&["--adopt"]);
    let failed = running.wait_for_event("failed");
    assert_eq!(failed["kind"], "name", "{failed}");
    running.wait_for_name("fetched", "b.ts");
    let ended = running.terminate();
    assert_eq!(ended.of("waiting").len(), 0, "{:?}", ended.events);
    assert_eq!(origin.count("GET films/a"), 0);
}

#[test]
fn an_origin_that_says_5xx_is_left_alone_for_a_while() {
    let (origin, edge) = failing(500, "", "InternalError");
    let mut running = edge.start(&[]);
    let waiting = running.wait_for_event("waiting");
    assert_eq!(waiting["kind"], "server", "{waiting}");
    assert!(
        waiting["text"]
            .as_str()
            .unwrap()
            .contains("the origin says 500 (InternalError)"),
        "{waiting}"
    );
    heal(&origin);
    running.wait_for_event("recovered");
    // It may have been in flight when all was well again.
    running.wait_until_told("fetched", "a.ts");
    let ended = running.terminate();
    // Told once, whatever was in flight.
    assert_eq!(ended.of("waiting").len(), 1, "{:?}", ended.events);
}

/// All objects fail with this status.
fn failing(status: u16, field: &str, code: &str) -> (Origin, Edge) {
    let origin = Origin::start();
    origin.put(NAME, &content(NAME, 1_000));
    origin.put("films/good.ts", b"good");
    for index in 0..30 {
        origin.put(&format!("films/{index}"), b"x");
    }
    let status = Wrong::Status(status, field.into(), code.into());
    origin.wrong_all(&all_names(), Some(&status));
    let edge = Edge::new(&origin);
    (origin, edge)
}

fn all_names() -> Vec<String> {
    let numbered = (0..30).map(|index| format!("films/{index}"));
    numbered
        .chain([NAME.to_owned(), "films/good.ts".to_owned()])
        .collect()
}

fn heal(origin: &Origin) {
    origin.wrong_all(&all_names(), None);
}

/// An object is held, and then another one fails so, which `event` tells; then the held one comes.
fn what_was_in_flight_comes(fault: &Wrong, event: &str) -> (Origin, Ended) {
    let origin = Origin::start();
    origin.put(NAME, b"held");
    origin.put("films/b.ts", b"b");
    origin.wrong(NAME, Some(Wrong::Held));
    origin.wrong("films/b.ts", Some(fault.clone()));
    let edge = Edge::new(&origin);
    let text = std::fs::read_to_string(edge.path("fill.toml")).unwrap();
    let edge = edge.replace(&text.replace("500ms", "60s"));
    let mut running = edge.start(&[]);
    running.wait_for_event(event);
    origin.wrong(NAME, None);
    running.wait_for_name("fetched", "a.ts");
    (origin, running.terminate())
}

#[test]
fn what_was_in_flight_when_the_origin_failed_does_not_end_its_wait() {
    let status = Wrong::Status(503, "Retry-After: 3600\r\n".into(), "SlowDown".into());
    let (origin, ended) = what_was_in_flight_comes(&status, "waiting");
    assert_eq!(ended.of("recovered").len(), 0, "{:?}", ended.events);
    assert_eq!(origin.count("GET films/b.ts"), 1);
}

#[test]
fn one_object_that_is_refused_or_broken_is_no_failure_of_the_origin() {
    for (status, code) in [
        (403, "AccessDenied"),
        (403, "InvalidObjectState"),
        (500, "InternalError"),
    ] {
        let status = Wrong::Status(status, String::new(), code.into());
        let (_origin, ended) = what_was_in_flight_comes(&status, "failed");
        assert_eq!(ended.of("waiting").len(), 0, "{:?}", ended.events);
    }
}

#[test]
fn one_object_that_is_refused_or_broken_does_not_hold_up_the_others() {
    for (status, code, kind) in [
        (403, "AccessDenied", "denied"),
        (500, "InternalError", "server"),
    ] {
        // The first one in the queue, and the only one at a time.
        let origin = Origin::start();
        origin.put("films/0.ts", b"0");
        let wrong = Wrong::Status(status, String::new(), code.into());
        origin.wrong("films/0.ts", Some(wrong));
        for index in 1..5 {
            origin.put(&format!("films/{index}.ts"), b"x");
        }
        let edge = Edge::new(&origin).set("memory = \"1MiB\"\n");
        let mut running = edge.start(&[]);
        let names: Vec<String> = (1..5).map(|index| format!("{index}.ts")).collect();
        running.wait_for_names("fetched", &names);
        // From then on it is a failure of that object.
        let failed = running.wait_for_name("failed", "0.ts");
        assert_eq!(failed["kind"], kind, "{failed}");
        origin.wrong("films/0.ts", None);
        running.wait_for_name("fetched", "0.ts");
        running.terminate();
    }
}

#[test]
fn an_origin_that_says_when_is_believed() {
    for status in [429, 503] {
        let (origin, edge) = failing(status, "Retry-After: 3600\r\n", "SlowDown");
        let mut running = edge.start(&[]);
        let waiting = running.wait_for_event("waiting");
        assert_eq!(waiting["kind"], "throttled", "{waiting}");
        let seconds = waiting["seconds"].as_f64().unwrap();
        assert!((3_590.0..=3_600.0).contains(&seconds), "{waiting}");
        let asked = origin.count("GET ");
        running.terminate();
        // What was in flight, and nothing more.
        assert!(asked <= 64, "{asked}");
    }
    let (origin, edge) = failing(503, "Retry-After: 1\r\n", "SlowDown");
    let mut running = edge.start(&[]);
    running.wait_for_event("waiting");
    heal(&origin);
    running.wait_for_event("recovered");
    running.wait_until_told("fetched", "good.ts");
    running.terminate();
}

#[test]
fn expired_credentials_are_told_once_and_read_again() {
    let origin = Origin::start();
    origin.put(NAME, b"x");
    origin.let_in("NEW");
    let edge = Edge::new(&origin);
    let mut running = edge.start(&[]);
    let waiting = running.wait_for_event("waiting");
    assert_eq!(waiting["kind"], "denied", "{waiting}");
    let text = waiting["text"].as_str().unwrap();
    assert!(
        text.contains("the origin says 403 (ExpiredToken)"),
        "{text}"
    );
    assert!(text.contains("see the credentials"), "{text}");
    origin.wait_for("LIST", 2);
    edge.credentials("NEW");
    running.wait_for_name("fetched", "a.ts");
    assert_no_secrets(&running);
    let ended = running.terminate();
    assert_eq!(ended.of("waiting").len(), 1, "{:?}", ended.events);
    assert_eq!(ended.stderr, "");
}

#[test]
fn an_origin_that_is_not_there_is_waited_for() {
    let origin = Origin::start();
    let address = origin.address;
    let edge = Edge::new(&origin);
    drop(origin);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let text = std::fs::read_to_string(edge.path("fill.toml")).unwrap();
    std::fs::write(
        edge.path("fill.toml"),
        text.replace(&address.to_string(), &nobody.to_string()),
    )
    .unwrap();
    let mut running = edge.start(&[]);
    let waiting = running.wait_for_event("waiting");
    assert_eq!(waiting["kind"], "connect", "{waiting}");
    running.terminate();
    let ended = edge.once(&[]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.of("waiting").len(), 1);
}

#[test]
fn a_listing_that_breaks_off_removes_nothing() {
    let origin = Origin::start();
    for index in 0..20 {
        origin.put(&format!("films/{index}"), b"x");
    }
    let edge = Edge::new(&origin);
    assert_eq!(edge.once(&[]).code, Some(0));
    for wrong in [Wrong::Cut(500), Wrong::Stall(500), Wrong::Redirect] {
        origin.wrong_listing(Some(wrong.clone()));
        let mut running = edge.start(&[]);
        running.wait_for(&format!("{wrong:?}"), |it| {
            it["event"] == "waiting" || it["event"] == "failed"
        });
        origin.wrong_listing(None);
        running.wait_for_event("listed");
        running.terminate();
        assert_eq!(edge.names().len(), 20, "{wrong:?}");
    }
}

#[test]
fn an_object_that_changes_while_it_is_fetched_comes_whole_in_one_version() {
    let origin = Origin::start();
    origin.put(NAME, &content("1", LENGTH));
    origin.rate(Some(200_000));
    let edge = Edge::new(&origin);
    let mut running = edge.start(&[]);
    origin.wait_for("GET films/a.ts bytes=", 1);
    origin.put(NAME, &content("2", LENGTH));
    origin.rate(None);
    running.wait_for_name("fetched", "a.ts");
    running.terminate();
    let read = edge.read("a.ts").unwrap();
    assert!(read == content("1", LENGTH) || read == content("2", LENGTH));
}
