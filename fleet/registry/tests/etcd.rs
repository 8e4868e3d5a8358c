//! A registry that is a real etcd, with edges that publish themselves.

#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use placement::{Member, State};
use registry::{
    EtcdSettings, Freshness, Publication, PublishSettings, RegistrySettings, View, publish, watch,
};
use support::{Certificates, PATIENCE, RealEtcd, names, serve, until};
use tokio::sync::{oneshot, watch as channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A monitoring listener whose answers the test sets, and its publisher.
struct Edge {
    ready: Arc<AtomicU16>,
    health: Arc<AtomicU16>,
    sent: Arc<AtomicU64>,
    publication: channel::Receiver<Publication>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Edge {
    async fn start(etcd: &RealEtcd, name: &str) -> Self {
        let (ready, health) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicU16::new(200)));
        let sent = Arc::new(AtomicU64::new(0));
        let (r, h, s) = (Arc::clone(&ready), Arc::clone(&health), Arc::clone(&sent));
        let listener = serve(move |target| match target {
            "/ready" => (r.load(Ordering::Relaxed), String::new()),
            "/health" => (h.load(Ordering::Relaxed), String::new()),
            _ => (
                200,
                format!(
                    "atlas_link_transmitted_bytes_total {}\n",
                    s.load(Ordering::Relaxed)
                ),
            ),
        })
        .await;
        let settings = PublishSettings {
            member: Member::new(name, format!("http://{name}")),
            listener: listener.to_string(),
            send_bits_a_second: 8_000_000,
            lease: Duration::from_secs(2),
        };
        let (told, publication) = channel::channel(Publication::default());
        let (stop, stopped) = oneshot::channel();
        let etcd = etcd.settings();
        let task = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            publish(&etcd, &settings, &told, stop)
                .await
                .expect("settings that can be used");
        });
        Self {
            ready,
            health,
            sent,
            publication,
            stop: Some(stop),
            task,
        }
    }
}

fn is_lost(view: &View) -> bool {
    matches!(view.freshness, Freshness::LastKnown { .. })
}

#[tokio::test]
async fn edges_come_tell_their_load_and_health_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = RealEtcd::start(folder.path()) else {
        return;
    };
    let mut watch = watch(&RegistrySettings::Etcd(etcd.settings())).unwrap();
    let stays = Edge::start(&etcd, "stays").await;
    let mut edge = Edge::start(&etcd, "edge").await;
    let view = until(&mut watch, |view| view.members.len() == 2).await;
    assert_eq!(names(&view), ["edge", "stays"]);
    assert_eq!(view.freshness, Freshness::Current);

    // What it sends.
    let load = |view: &View| {
        view.members
            .iter()
            .find(|it| it.name == "edge")
            .map(|it| it.load)
    };
    edge.sent.store(1 << 40, Ordering::Relaxed);
    until(&mut watch, |view| load(view) == Some(1.0)).await;

    // Not well, and well again.
    let healthy = |view: &View| {
        view.members
            .iter()
            .find(|it| it.name == "edge")
            .map(|it| it.healthy)
    };
    // Never one that is not ready and well, which would be one that ends.
    edge.health.store(503, Ordering::Relaxed);
    edge.ready.store(503, Ordering::Relaxed);
    until(&mut watch, |view| healthy(view) == Some(false)).await;
    edge.ready.store(200, Ordering::Relaxed);
    edge.health.store(200, Ordering::Relaxed);
    until(&mut watch, |view| healthy(view) == Some(true)).await;

    // Told to end: it leaves while it still serves, and comes back when it is ready again.
    edge.ready.store(503, Ordering::Relaxed);
    until(&mut watch, |view| names(view) == ["stays"]).await;
    edge.ready.store(200, Ordering::Relaxed);
    until(&mut watch, |view| view.members.len() == 2).await;

    // Its publisher is told to end.
    drop(edge.stop.take());
    until(&mut watch, |view| names(view) == ["stays"]).await;
    let left = edge
        .publication
        .wait_for(|it| matches!(it, Publication::Left(_)));
    timeout(PATIENCE, left).await.unwrap().unwrap();

    // Its publisher dies: the lease ends. The last one of a fleet stays known.
    stays.task.abort();
    let view = until(&mut watch, is_lost).await;
    assert_eq!(names(&view), ["stays"]);
}

#[tokio::test]
async fn the_last_edge_of_a_fleet_gets_no_players_once_it_was_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = RealEtcd::start(folder.path()) else {
        return;
    };
    let mut watch = watch(&RegistrySettings::Etcd(etcd.settings())).unwrap();
    let edge = Edge::start(&etcd, "edge").await;
    until(&mut watch, |view| view.members.len() == 1).await;
    edge.ready.store(503, Ordering::Relaxed);
    // A fleet of nobody is not believed, but what is known last of this one is that it drains.
    let view = until(&mut watch, is_lost).await;
    assert_eq!(names(&view), ["edge"]);
    assert_eq!(view.members[0].state, State::Draining);
}

#[tokio::test]
async fn while_etcd_is_killed_the_last_members_stay_and_it_heals_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut etcd) = RealEtcd::start(folder.path()) else {
        return;
    };
    let mut edge = Edge::start(&etcd, "edge").await;
    let mut watch = watch(&RegistrySettings::Etcd(etcd.settings())).unwrap();
    until(&mut watch, |view| view.members.len() == 1).await;
    etcd.kill();
    let view = until(&mut watch, is_lost).await;
    assert_eq!(names(&view), ["edge"]);
    let failed = edge
        .publication
        .wait_for(|it| matches!(it, Publication::Failed(_)));
    timeout(PATIENCE, failed).await.unwrap().unwrap();
    etcd.restart(folder.path());
    let view = until(&mut watch, |view| view.freshness == Freshness::Current).await;
    assert_eq!(names(&view), ["edge"]);
    let listed = edge
        .publication
        .wait_for(|it| *it == Publication::Listed { healthy: true });
    timeout(PATIENCE, listed).await.unwrap().unwrap();
    // What changes after that is seen: the watch is one of the new server.
    let _other = Edge::start(&etcd, "other").await;
    until(&mut watch, |view| view.members.len() == 2).await;
}

#[tokio::test]
async fn over_tls_both_sides_show_certificates_of_the_authority_that_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(folder.path());
    let Some(etcd) = RealEtcd::start_with(folder.path(), Some(certificates)) else {
        return;
    };
    let mut right = watch(&RegistrySettings::Etcd(etcd.settings())).unwrap();
    let _edge = Edge::start(&etcd, "edge").await;
    let view = until(&mut right, |view| view.members.len() == 1).await;
    assert_eq!(view.freshness, Freshness::Current);
    // It is there. Who has no certificate, or does not know its authority, is not let in.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let other = Certificates::make(&other);
    let nobody = EtcdSettings {
        identity: None,
        ..etcd.settings()
    };
    let stranger = EtcdSettings {
        identity: Some(other.identity),
        ..etcd.settings()
    };
    let distrusting = EtcdSettings {
        ca: Some(other.ca),
        ..etcd.settings()
    };
    for settings in [nobody, stranger, distrusting] {
        let mut wrong = watch(&RegistrySettings::Etcd(settings)).unwrap();
        let view = until(&mut wrong, |view| view.freshness != Freshness::Waiting).await;
        assert!(is_lost(&view), "{view:?}");
        assert_eq!(view.members.len(), 0);
    }
}

#[tokio::test]
async fn a_key_that_is_no_edge_is_told_and_the_others_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = RealEtcd::start(folder.path()) else {
        return;
    };
    let mut watch = watch(&RegistrySettings::Etcd(etcd.settings())).unwrap();
    let _edge = Edge::start(&etcd, "edge").await;
    until(&mut watch, |view| view.members.len() == 1).await;
    let put = reqwest::Client::new().post(format!("http://127.0.0.1:{}/v3/kv/put", etcd.client));
    // /atlas/edges/odd, and "x".
    let put = put
        .body(r#"{"key":"L2F0bGFzL2VkZ2VzL29kZA==","value":"eA=="}"#)
        .send();
    assert!(put.await.unwrap().status().is_success());
    let view = until(&mut watch, |view| !view.refused.is_empty()).await;
    assert_eq!(names(&view), ["edge"]);
    assert!(
        view.refused[0].starts_with("/atlas/edges/odd: "),
        "{:?}",
        view.refused
    );
}
