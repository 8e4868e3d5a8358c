//! A registry that is an API server of Kubernetes: a fake one, which the test tells what to say.

#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

mod support;

use std::net::SocketAddr;
use std::path::Path;

use registry::{Freshness, KubernetesSettings, RegistrySettings, Watch, watch};
use support::{head, names, until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

fn slice(version: u32, endpoints: &[&str]) -> String {
    let endpoint = |name: &&str| {
        format!(r#"{{"addresses":["10.0.0.1"],"conditions":{{"ready":true}},"nodeName":"{name}"}}"#)
    };
    let endpoints: Vec<String> = endpoints.iter().map(endpoint).collect();
    format!(
        r#"{{"metadata":{{"name":"s","resourceVersion":"{version}"}},"addressType":"IPv4","endpoints":[{}]}}"#,
        endpoints.join(",")
    )
}

fn list(version: u32, slice: &str) -> String {
    format!(
        r#"{{"kind":"EndpointSliceList","metadata":{{"resourceVersion":"{version}"}},"items":[{slice}]}}"#
    )
}

fn event(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// A connection with its request's head.
async fn accept(listener: &TcpListener) -> (TcpStream, String) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        if let Some(head) = head(&mut stream).await {
            return (stream, head);
        }
    }
}

async fn reply(stream: &mut TcpStream, status: u16, body: &str) {
    let text = format!(
        "HTTP/1.1 {status} -\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// The beginning of a watch's reply: it has no length and ends with its connection.
async fn begin(stream: &mut TcpStream) {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
}

fn start(address: SocketAddr, token_file: &Path) -> Watch {
    watch(&RegistrySettings::Kubernetes(KubernetesSettings {
        service: "edges".into(),
        namespace: Some("video".into()),
        url: "http://{address}:8080".into(),
        capacity_bytes: 1,
        api: Some(format!("http://{address}")),
        token_file: token_file.into(),
        ca: "/nonexistent".into(),
    }))
    .unwrap()
}

#[tokio::test]
async fn slices_are_listed_watched_and_taken_up_where_a_watch_ended() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut watch = start(address, &token);

    let (mut stream, head) = accept(&listener).await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/video/endpointslices";
    let selector = "labelSelector=kubernetes.io%2Fservice-name%3Dedges";
    assert!(
        head.starts_with(&format!("GET {path}?{selector} HTTP/1.1\r\n")),
        "{head}"
    );
    // Over plain HTTP the token would be readable on its way.
    assert!(!head.to_lowercase().contains("authorization:"), "{head}");
    reply(&mut stream, 200, &list(5, &slice(4, &["a", "b"]))).await;

    let (mut stream, head) = accept(&listener).await;
    assert!(
        head.contains("&watch=true&") && head.contains("&resourceVersion=5 "),
        "{head}"
    );
    begin(&mut stream).await;
    let view = until(&mut watch, |view| view.freshness == Freshness::Current).await;
    assert_eq!(names(&view), ["a", "b"]);
    // An event in two pieces.
    let text = event("MODIFIED", &slice(6, &["a", "b", "c"]));
    stream.write_all(&text.as_bytes()[..40]).await.unwrap();
    stream.flush().await.unwrap();
    stream.write_all(&text.as_bytes()[40..]).await.unwrap();
    until(&mut watch, |view| view.members.len() == 3).await;
    let bookmark = event("BOOKMARK", r#"{"metadata":{"resourceVersion":"9"}}"#);
    stream.write_all(bookmark.as_bytes()).await.unwrap();
    // Its time is over.
    drop(stream);

    let (mut stream, head) = accept(&listener).await;
    assert!(head.contains("&resourceVersion=9 "), "{head}");
    begin(&mut stream).await;
    stream
        .write_all(event("MODIFIED", &slice(10, &["c"])).as_bytes())
        .await
        .unwrap();
    let view = until(&mut watch, |view| view.members.len() == 1).await;
    assert_eq!(names(&view), ["c"]);
    assert_eq!(view.freshness, Freshness::Current);

    // A version that is too old: it lists anew.
    let status = event(
        "ERROR",
        r#"{"kind":"Status","code":410,"message":"too old resource version"}"#,
    );
    stream.write_all(status.as_bytes()).await.unwrap();
    let (mut stream, head) = accept(&listener).await;
    assert!(!head.contains("watch=true"), "{head}");
    let view = until(&mut watch, |view| view.freshness != Freshness::Current).await;
    assert!(
        matches!(&view.freshness, Freshness::LastKnown { why, .. } if why.contains("410: too old"))
    );
    assert_eq!(view.members.len(), 1);
    reply(&mut stream, 200, &list(20, &slice(20, &["d"]))).await;
    let (mut stream, _) = accept(&listener).await;
    begin(&mut stream).await;
    until(&mut watch, |view| names(view) == ["d"]).await;

    // No slice any more: the last known members stay.
    stream
        .write_all(event("DELETED", &slice(21, &[])).as_bytes())
        .await
        .unwrap();
    let view = until(&mut watch, |view| view.freshness != Freshness::Current).await;
    assert_eq!(names(&view), ["d"]);
}

#[tokio::test]
async fn a_server_that_refuses_or_sends_something_else_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut watch = start(listener.local_addr().unwrap(), Path::new("/nonexistent"));
    for (status, body, told) in [
        (
            403,
            "endpointslices is forbidden",
            "403: endpointslices is forbidden",
        ),
        (200, "<html>", "cannot be read"),
        (
            200,
            r#"{"metadata":{},"items":[{"endpoints":7}]}"#,
            "cannot be read",
        ),
    ] {
        let (mut stream, _) = accept(&listener).await;
        reply(&mut stream, status, body).await;
        until(&mut watch, |view| {
            matches!(&view.freshness, Freshness::LastKnown { why, .. } if why.contains(told))
        })
        .await;
    }
    // A refusal whose text never comes.
    let (mut stream, _) = accept(&listener).await;
    reply(&mut stream, 200, &list(1, &slice(1, &["a"]))).await;
    let (mut stream, _) = accept(&listener).await;
    let head = b"HTTP/1.1 403 -\r\nContent-Length: 9\r\n\r\n";
    stream.write_all(head).await.unwrap();
    until(&mut watch, |view| {
        matches!(&view.freshness, Freshness::LastKnown { why, .. } if why.contains("did not answer within"))
    })
    .await;
    drop((stream, listener));
    until(&mut watch, |view| {
        matches!(&view.freshness, Freshness::LastKnown { why, .. } if why.contains("refused"))
    })
    .await;
}
