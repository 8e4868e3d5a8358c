//! The image, run: by crun, from a bundle that is made of the image's own blobs.
//!
//! It refuses what no runtime would take: a blob whose bytes are not those of its digest. Bounded by: the limit of a
//! server's start.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{ID, PORT, digest as digest_of, make};
use testbed::client::Client;
use testbed::content::{self, Content};
use testbed::namespace::Namespace;
use testbed::server::Server;
use testbed::suite::Outcome;
use testbed::{find_program, is_root, scratch_directory, workspace_root};

/// Has crun run the image, as its user, by its own command, behind the profile that is shipped, with no capability and
/// no network but a namespace's loopback. A file is fetched from it.
pub(crate) fn check(atlas: &Path) -> Result<Outcome> {
    if !is_root() || find_program("crun").is_none() {
        return Ok(Outcome::Skipped("needs root and crun".into()));
    }
    let scratch = scratch_directory("container")?;
    let image = make(atlas, scratch.path())?;
    let again = fs::read(&image)? == fs::read(make(atlas, scratch.path())?)?;
    ensure!(again, "made again, the image has other bytes");
    let bundle = unpack(&image, scratch.path())?;
    let film = Content {
        seed: 1,
        size_bytes: 3_000_000,
    };
    content::write(film, &bundle.join("rootfs/srv/video/film.mp4"))?;
    let namespace = Namespace::new("oci")?;
    let mut command = namespace.command("sh");
    // A namespace's /sys has no control groups, and crun takes no mixture of their versions.
    command.args([
        "-c",
        "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"",
        "sh",
    ]);
    command.args(["crun", "--cgroup-manager=disabled", "--root"]);
    command
        .arg(scratch.path().join("crun"))
        .args(["run", "--bundle"]);
    command.arg(&bundle).arg("atlas-check");
    let server = match Server::atlas(&mut command) {
        Ok(server) => server,
        Err(error) => {
            return Ok(Outcome::Skipped(format!(
                "crun runs no container here: {error:#}"
            )));
        }
    };
    let address = SocketAddr::new([127, 0, 0, 1].into(), PORT);
    let mut client = Client::connect(&namespace, address)?;
    let (head, body) = client.exchange("GET", "/film.mp4", "")?;
    ensure!(
        head.status == 200 && body.len() == 3_000_000,
        "{} {}",
        head.status,
        body.len()
    );
    film.check(0, &body)?;
    server.stop()?.succeeded()?;
    Ok(Outcome::Passed)
}

/// The image as a bundle that a runtime starts.
fn unpack(image: &Path, folder: &Path) -> Result<PathBuf> {
    let layout = folder.join("layout");
    tar::Archive::new(fs::File::open(image)?).unpack(&layout)?;
    let blob = |of: &Value| -> Result<PathBuf> {
        let digest = of["digest"].as_str().context("a descriptor has a digest")?;
        let path = layout.join("blobs").join(digest.replace(':', "/"));
        ensure!(
            digest_of(&fs::read(&path)?) == digest,
            "{digest} has other bytes"
        );
        Ok(path)
    };
    let read = |path: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    let index = read(&layout.join("index.json"))?;
    let manifest = read(&blob(&index["manifests"][0])?)?;
    let config = read(&blob(&manifest["config"])?)?;
    let bundle = folder.join("bundle");
    let mut layer = tar::Archive::new(fs::File::open(blob(&manifest["layers"][0])?)?);
    layer.set_preserve_permissions(true);
    layer.unpack(bundle.join("rootfs"))?;
    let words = |name: &str| {
        config["config"][name]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let command = [words("Entrypoint"), words("Cmd")].concat();
    let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
    let mount = |to: &str, kind: &str| json!({ "destination": to, "type": kind, "source": kind });
    let mounts = [mount("/proc", "proc"), mount("/dev", "tmpfs")];
    let settings = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": ID, "gid": ID },
            "args": command,
            "env": ["PATH=/usr/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "seccomp": read(&workspace_root().join("dist/seccomp.json"))?,
        },
    });
    fs::write(bundle.join("config.json"), settings.to_string())?;
    Ok(bundle)
}
