//! Against a server of S3 that others wrote: moto (`pip install 'moto[server]'`), where it is.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Edge, LIMIT, Origin, content};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{MultipartUpload as _, ObjectStoreExt as _};

struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Moto {
    fn start() -> Option<Self> {
        let has_moto = Command::new("python3")
            .args(["-c", "import moto.server"])
            .stderr(Stdio::null())
            .status();
        if !has_moto.is_ok_and(|status| status.success()) {
            return None;
        }
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let child = Command::new("python3")
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p"])
            .arg(address.port().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let moto = Self { child, address };
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "moto does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(moto)
    }

    fn client(&self) -> AmazonS3 {
        let builder = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_endpoint(format!("http://{}", self.address))
            .with_access_key_id("KEY")
            .with_secret_access_key("hunter2")
            .with_region("us-east-1")
            .with_allow_http(true);
        builder.build().unwrap()
    }

    fn make_bucket(&self) {
        use std::io::Write as _;
        let mut stream = TcpStream::connect(self.address).unwrap();
        let request = format!(
            "PUT /bucket HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
}

#[test]
fn a_library_of_moto_is_copied_compared_and_followed() {
    let Some(moto) = Moto::start() else {
        println!("SKIPPED: no moto (pip install 'moto[server]')");
        return;
    };
    moto.make_bucket();
    let client = moto.client();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = |name: &str, bytes: Vec<u8>| {
        let path = Path::parse(format!("films/{name}")).unwrap();
        runtime.block_on(client.put(&path, bytes.into())).unwrap();
    };
    // Several pages of a listing.
    for index in 0..1_100 {
        put(&format!("many/{index}.ts"), index.to_string().into_bytes());
    }
    put("a b/ü.m3u8", b"#EXTM3U\n".to_vec());
    put("long.ts", content("long", 1_000_000));
    let path = Path::from("films/parts.ts");
    runtime.block_on(async {
        let mut upload = client.put_multipart(&path).await.unwrap();
        for part in 0..2 {
            let bytes = content(&format!("part{part}"), 5 << 20);
            upload.put_part(bytes.into()).await.unwrap();
        }
        upload.complete().await.unwrap();
    });
    let nobody = Origin::start();
    let edge = Edge::new(&nobody);
    let text = std::fs::read_to_string(edge.path("fill.toml")).unwrap();
    let text = text.replace(&nobody.address.to_string(), &moto.address.to_string());
    std::fs::write(edge.path("fill.toml"), text.replace("\"500ms\"", "\"20s\"")).unwrap();
    let ended = edge.once(&[]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{:?}",
        ended.of("failed")
    );
    assert_eq!(edge.names().len(), 1_103);
    assert_eq!(edge.read("many/1099.ts").unwrap(), b"1099");
    assert_eq!(edge.read("a b/ü.m3u8").unwrap(), b"#EXTM3U\n");
    assert!(edge.read("long.ts").unwrap() == content("long", 1_000_000));
    let parts = [content("part0", 5 << 20), content("part1", 5 << 20)].concat();
    assert!(edge.read("parts.ts").unwrap() == parts);
    let verified = |name: &str| {
        let fetched = ended.of("fetched");
        let event = fetched.iter().find(|it| it["name"] == name).unwrap();
        event["verified"].as_str().unwrap().to_owned()
    };
    assert_eq!(verified("long.ts"), "md5");
    assert_eq!(verified("parts.ts"), "length");
    // Replaced, removed, and nothing else asked for.
    put("long.ts", content("longer", 1_000_000));
    runtime
        .block_on(client.delete(&Path::from("films/many/7.ts")))
        .unwrap();
    let ended = edge.once(&[]);
    assert_eq!(
        (
            ended.code,
            ended.of("fetched").len(),
            ended.of("removed").len()
        ),
        (Some(0), 1, 1)
    );
    assert!(edge.read("long.ts").unwrap() == content("longer", 1_000_000));
    assert_eq!(edge.names().len(), 1_102);
}
