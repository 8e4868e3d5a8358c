//! Connections listed as they are asked for through the mailbox.

use std::thread;
use std::time::Instant as RealInstant;

use super::{Setup, World};
use crate::connections::{Asker, Query};
use crate::mailbox::mailbox;
use crate::output::tests::LONG;

/// What `query` is answered by a worker that does nothing else meanwhile.
fn listed(world: &World, query: &str) -> Vec<serde_json::Value> {
    let (sender, mailbox) = mailbox().unwrap();
    let asker = Asker::new(vec![sender]);
    let query = Query::parse(query.as_bytes()).unwrap();
    let asking = thread::spawn(move || asker.lines(&query, RealInstant::now() + LONG));
    while !asking.is_finished() {
        if let Some(question) = mailbox.poll_question() {
            let page = world.worker.list_connections(world.now, &question);
            question.answer(page);
        }
        thread::yield_now();
    }
    let lines = asking.join().unwrap().unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_listed_connection_has_the_path_of_its_object() {
    let mut world = World::connected(Setup::default());
    assert_eq!(listed(&world, "")[0]["object"], serde_json::Value::Null);
    world.ask(0);
    world.step();
    for query in ["", "peer=10.77.0.1", "peer=10.77.0.1:50000"] {
        let rows = listed(&world, query);
        assert_eq!(rows.len(), 1, "{query}");
        assert_eq!(rows[0]["peer"], "10.77.0.1:50000");
        assert_eq!(rows[0]["object"], "/0");
        assert_eq!(
            (&rows[0]["limit"], &rows[0]["reads"]),
            (&"disk".into(), &1.into())
        );
    }
    assert!(listed(&world, "peer=10.77.0.9").is_empty());
    assert!(listed(&world, "peer=10.77.0.1:50001").is_empty());
}
