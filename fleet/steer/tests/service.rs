//! The service over real sockets: what it answers, what it refuses, what bounds it.

#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use placement::{Member, State};
use registry::{Freshness, View};
use serde_json::Value;
use steer::serve::{Service, run};
use steer::settings::Settings;
use steer::steering::Steering;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

struct Running {
    address: SocketAddr,
    steering: Arc<Steering>,
    service: Arc<Service>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

fn member(name: &str, zone: &str) -> Member {
    Member {
        zone: zone.to_owned(),
        ..Member::new(name, format!("http://{name}.example:81"))
    }
}

fn view(members: Vec<Member>) -> View {
    View {
        members: Arc::new(members),
        freshness: Freshness::Current,
        refused: Arc::default(),
    }
}

async fn start(settings: &str) -> Running {
    let text = format!("[registry]\nkind = \"file\"\npath = \"x\"\n{settings}");
    let settings = Settings::parse(&text).unwrap();
    let steering = Arc::new(Steering::new(&settings).unwrap());
    let service = Arc::new(Service::new(Arc::clone(&steering), &settings.steer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let running = Arc::clone(&service);
    let task = tokio::spawn(async move {
        let stop = async { drop(stopped.await) };
        run(listener, running, &settings.steer, stop).await;
    });
    Running {
        address,
        steering,
        service,
        stop: Some(stop),
        task,
    }
}

/// What comes until the connection is closed.
async fn exchange(address: SocketAddr, sent: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that has refused a long head may close before all of it is written.
    let _ = stream.write_all(sent.as_bytes()).await;
    let mut received = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut received))
        .await
        .unwrap();
    String::from_utf8(received).unwrap()
}

async fn get(address: SocketAddr, target: &str, fields: &str) -> String {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
    exchange(address, &head).await
}

async fn json(address: SocketAddr, target: &str, fields: &str) -> Value {
    let reply = get(address, target, fields).await;
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn players_are_told_of_the_edges_that_have_their_title() {
    let running = start("[layout]\ncopies = 2\n[steer]\npathways_max = 3\n").await;
    let names = ["e1", "e2", "e3", "e4", "e5"];
    running
        .steering
        .take(&view(names.map(|name| member(name, "")).to_vec()));
    let reply = get(
        running.address,
        "/steer?path=/film/a.m3u8&_HLS_pathway=.",
        "",
    )
    .await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    let head = reply.to_lowercase();
    for field in [
        "content-type: application/json\r\n",
        "access-control-allow-origin: *\r\n",
        "cache-control: no-store\r\n",
    ] {
        assert!(head.contains(field), "{head}");
    }
    let manifest = json(running.address, "/steer?path=/film/a.m3u8", "").await;
    let resolved = json(running.address, "/resolve?path=/film/1080p/7.m4s", "").await;
    let edges = resolved["edges"].as_array().unwrap();
    let holders: Vec<bool> = edges
        .iter()
        .map(|it| it["holder"].as_bool().unwrap())
        .collect();
    assert_eq!(holders, [true, true, false]);
    assert_eq!(
        (&resolved["title"], &resolved["members"]),
        (&"film".into(), &"current".into())
    );
    // Both services agree, and the first is where a redirect leads.
    let mut priority = manifest["PATHWAY-PRIORITY"].as_array().unwrap().clone();
    assert_eq!(priority.pop(), Some(".".into()));
    let resolved: Vec<&Value> = edges.iter().map(|it| &it["name"]).collect();
    assert_eq!(priority.iter().collect::<Vec<_>>(), resolved);
    let reply = get(running.address, "/redirect/film/a%20b.ts?t=1%2F", "").await;
    assert!(reply.starts_with("HTTP/1.1 307 "), "{reply}");
    let location = format!(
        "location: {}/film/a%20b.ts?t=1%2F\r\n",
        edges[0]["url"].as_str().unwrap()
    );
    assert!(reply.contains(&location), "{reply}");
    let metrics = get(running.address, "/metrics", "").await;
    for line in [
        "atlas_steer_answers_total{kind=\"manifest\"} 2\n",
        "atlas_steer_answers_total{kind=\"redirect\"} 1\n",
        "atlas_steer_members 5\n",
        "# EOF\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn an_edge_that_leaves_is_not_told_of_any_more_and_an_empty_fleet_sends_players_to_the_origin()
 {
    let running = start("[steer]\norigin = \"https://origin.example\"\n").await;
    let nobody = json(running.address, "/steer?path=/film/a.m3u8", "").await;
    assert_eq!(nobody["PATHWAY-PRIORITY"], serde_json::json!(["."]));
    let reply = get(running.address, "/redirect/film/a.ts", "").await;
    assert!(
        reply.contains("location: https://origin.example/film/a.ts\r\n"),
        "{reply}"
    );
    assert!(
        get(running.address, "/ready", "")
            .await
            .starts_with("HTTP/1.1 503 ")
    );
    let mut members = vec![member("e1", ""), member("e2", "")];
    running.steering.take(&view(members.clone()));
    assert!(
        get(running.address, "/ready", "")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    members[0].state = State::Draining;
    running.steering.take(&view(members.clone()));
    let one = json(running.address, "/steer?path=/film/a.m3u8", "").await;
    assert_eq!(one["PATHWAY-PRIORITY"], serde_json::json!(["e2", "."]));
    members[0].state = State::Serving;
    members[1].healthy = false;
    running.steering.take(&view(members));
    let other = json(running.address, "/steer?path=/film/a.m3u8", "").await;
    assert_eq!(
        other["SERVICE-LOCATION-PRIORITY"],
        serde_json::json!(["e1", "."])
    );
    let without = start("").await;
    let reply = get(without.address, "/redirect/film/a.ts", "").await;
    assert!(
        reply.starts_with("HTTP/1.1 503 ") && reply.contains("retry-after: 5\r\n"),
        "{reply}"
    );
}

#[tokio::test]
async fn health_says_that_members_are_the_last_known_ones_and_they_are_answered_by() {
    let running = start("").await;
    let health = get(running.address, "/health", "").await;
    assert!(
        health.starts_with("HTTP/1.1 503 ") && health.contains("\"waiting\""),
        "{health}"
    );
    let mut last = view(vec![member("e1", "")]);
    last.freshness = Freshness::LastKnown {
        since: Instant::now(),
        why: "etcd is down".to_owned(),
    };
    running.steering.take(&last);
    let health = get(running.address, "/health", "").await;
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    assert!(
        health.contains("\"last-known\"") && health.contains("etcd is down"),
        "{health}"
    );
    let resolved = json(running.address, "/resolve?path=/a", "").await;
    assert_eq!(
        (&resolved["members"], &resolved["edges"][0]["name"]),
        (&"last-known".into(), &"e1".into())
    );
    let metrics = get(running.address, "/metrics", "").await;
    assert!(
        metrics.contains("atlas_steer_registry_current 0\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_clients_zone_is_that_of_its_network_as_a_trusted_proxy_tells_it() {
    let settings = |proxies: &str| {
        format!(
            "[layout]\ncopies = 1\nby_zone = true\n[steer]\ntrusted_proxies = [{proxies}]\n\
             [[network]]\nnetworks = [\"10.0.0.0/8\"]\nzones = [\"a\", \"b\"]\n\
             [[network]]\nnetworks = [\"10.9.0.0/16\", \"2001:db8::/32\"]\nzones = [\"b\", \"a\"]\n"
        )
    };
    let trusting = start(&settings("\"127.0.0.1\", \"10.9.9.9\"")).await;
    let wary = start(&settings("")).await;
    let members = view(vec![member("ea", "a"), member("eb", "b")]);
    trusting.steering.take(&members);
    wary.steering.take(&members);
    let first = async |running: &Running, target: &str, field: &str| {
        let told = json(running.address, target, field).await;
        told["edges"][0]["name"].as_str().unwrap().to_owned()
    };
    for (query, field, edge) in [
        ("&client=10.1.1.1", "", "ea"),
        ("&client=10.9.1.1", "", "eb"),
        ("&client=2001:db8::1", "", "eb"),
        ("&zone=b&client=10.1.1.1", "", "eb"),
        ("", "X-Forwarded-For: 10.1.1.1\r\n", "ea"),
        ("", "X-Forwarded-For: 10.9.1.1\r\n", "eb"),
        // The last that is no proxy of ours: what is before it anybody may have written.
        ("", "X-Forwarded-For: 10.1.1.1, 10.9.1.1\r\n", "eb"),
        (
            "",
            "X-Forwarded-For: 10.1.1.1\r\nX-Forwarded-For: 10.9.9.9\r\n",
            "ea",
        ),
    ] {
        let target = format!("/resolve?path=/a{query}");
        assert_eq!(
            first(&trusting, &target, field).await,
            edge,
            "{query} {field}"
        );
    }
    // Who is not trusted is asked for by its own address, which is in no network of the table.
    let own = first(&wary, "/resolve?path=/a", "").await;
    for field in [
        "X-Forwarded-For: 10.1.1.1\r\n",
        "X-Forwarded-For: 10.9.1.1\r\n",
    ] {
        assert_eq!(first(&wary, "/resolve?path=/a", field).await, own);
    }
}

#[tokio::test]
async fn what_is_refused_has_its_status() {
    let running = start("").await;
    let long = |bytes: usize| format!("/steer?x={}", "a".repeat(bytes - "/steer?x=".len()));
    for (target, status) in [
        ("/", 404),
        ("/steer/", 404),
        ("/resolve", 400),
        ("/resolve?path=%zz", 400),
        ("/redirect/../a", 400),
        (&long(4096), 200),
        (&long(4097), 414),
    ] {
        let reply = get(running.address, target, "").await;
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {status} ")),
            "{target}: {reply}"
        );
    }
    for (request, status) in [
        (
            "POST /steer HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
            405,
        ),
        (
            "GET /steer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
            400,
        ),
        (
            "GET /steer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "OPTIONS /steer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            204,
        ),
        ("nonsense\r\n\r\n", 400),
    ] {
        let reply = exchange(running.address, request).await;
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {reply}"
        );
    }
    let fields = |count: usize| "X: y\r\n".repeat(count);
    assert!(
        get(running.address, "/steer", &fields(62))
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    assert!(
        get(running.address, "/steer", &fields(63))
            .await
            .starts_with("HTTP/1.1 431 ")
    );
    let wide = format!("X: {}\r\n", "y".repeat(32 << 10));
    assert!(
        get(running.address, "/steer", &wide)
            .await
            .starts_with("HTTP/1.1 431 ")
    );
    let refused = running.service.counters.refused.load(Ordering::Relaxed);
    assert!(refused >= 8, "{refused}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answers_is_given_up() {
    let running = start("[steer]\nconnections_max = 1\nidle_timeout_seconds = 1\n").await;
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (reader, mut writer) = stream.into_split();
    let asking = tokio::spawn(async move {
        let requests = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000);
        // More answers than the sockets' buffers hold.
        for _ in 0..100 {
            if writer.write_all(requests.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    // There is room for another when that one is gone.
    let reply = get(running.address, "/metrics", "").await;
    assert!(
        reply.contains("atlas_steer_accepted_connections_total 2\n"),
        "{reply}"
    );
    drop(reader);
    asking.await.unwrap();
}

#[tokio::test]
async fn connections_are_bounded_closed_when_idle_and_finished_at_the_end() {
    let mut running = start("[steer]\nconnections_max = 2\nidle_timeout_seconds = 1\n").await;
    let open = async || TcpStream::connect(running.address).await.unwrap();
    let closed = async |stream: &mut TcpStream| {
        let mut byte = [0];
        matches!(
            timeout(PATIENCE, stream.read(&mut byte)).await.unwrap(),
            Ok(0) | Err(_)
        )
    };
    // Two that say nothing are closed in time, and the third is answered then.
    let (mut one, mut two) = (open().await, open().await);
    two.write_all(b"GET /hea").await.unwrap();
    let third = get(running.address, "/metrics", "").await;
    assert!(
        third.contains("atlas_steer_accepted_connections_total 3\n"),
        "{third}"
    );
    assert!(closed(&mut one).await);
    // One whose head was incomplete may be told so first.
    let mut told = Vec::new();
    let _ = timeout(PATIENCE, two.read_to_end(&mut told)).await.unwrap();
    // One that is idle behind a reply is closed, too.
    let mut idle = open().await;
    idle.write_all(b"GET /steer HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    let mut told = Vec::new();
    timeout(PATIENCE, idle.read_to_end(&mut told))
        .await
        .unwrap()
        .unwrap();
    assert!(told.starts_with(b"HTTP/1.1 200 "));
    drop(running.stop.take());
    timeout(PATIENCE, &mut running.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}
