//! `cargo xtask image`: the release as an OCI image, made without a container engine.
//!
//! One layer on nothing: a server that is linked with no library, its user, an empty directory to mount videos on,
//! the licence and the list of components. The same sources give the same bytes: times are those of the commit,
//! entries are in order, nothing is compressed. It refuses a server that needs a library. Bounded by: a limit on
//! every command.

mod container;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

pub(crate) use self::container::check;
use crate::components;
use testbed::process::{Process, output, run};
use testbed::suite::Suite;
use testbed::{scratch_directory, target_directory, workspace_root};

/// A first build on a small machine takes minutes.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// A container that starts, is asked, and ends.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// What a server is built for that is linked with no library.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The port of the command that the image has. It is a user's who has no privilege.
const PORT: u16 = 8_080;

/// The user in the image, as in [`PASSWD`].
const ID: u64 = 970;
const PASSWD: &str = "root:x:0:0:root:/:/\natlas:x:970:970:Atlas video server:/:/\n";
const GROUP: &str = "root:x:0:\natlas:x:970:\n";

/// Folders of the image; `dev`, `proc` and `sys` are where a runtime mounts.
const FOLDERS: [&str; 14] = [
    "dev/",
    "etc/",
    "etc/atlas/",
    "proc/",
    "srv/",
    "srv/video/",
    "sys/",
    "usr/",
    "usr/bin/",
    "usr/share/",
    "usr/share/doc/",
    "usr/share/doc/atlas-server/",
    "var/",
    "var/log/",
];

/// What the check is called.
pub(crate) const CHECK: &str = "image: a container serves a file";

/// Options of `image`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ImageOptions {
    /// The server to pack, linked statically (default: builds the release)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
    /// Only has crun run it, and fetches a file from it (needs root)
    #[arg(long)]
    check: bool,
}

/// Makes the image and names it.
pub(crate) fn run_command(options: &ImageOptions) -> Result<()> {
    let atlas = match &options.atlas {
        Some(path) => path.clone(),
        None => build_static()?,
    };
    if options.check {
        let mut suite = Suite::default();
        suite.run(CHECK, || check(&atlas));
        return suite.close();
    }
    println!("{}", make(&atlas, &target_directory())?.display());
    Ok(())
}

/// Builds the server linked with no library, not even libc.
pub(crate) fn build_static() -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--package", "atlas-server"]);
    // With a target, what is built to be run by the build keeps its libraries.
    cargo.args(["--target", TARGET]);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    cargo.current_dir(workspace_root());
    let status = Process::spawn_tree("cargo build", &mut cargo)?.wait(BUILD_LIMIT)?;
    ensure!(
        status.success(),
        "the static server does not build: {status}"
    );
    Ok(target_directory().join(TARGET).join("release/atlas"))
}

/// The image as a file in `folder`: a tar of an OCI image layout, as `podman load` and `skopeo copy
/// oci-archive:` take it.
pub(crate) fn make(atlas: &Path, folder: &Path) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let time = commit_time()?;
    let layer = layer(atlas, time)?;
    let diff_id = digest(&layer);
    let labels = json!({
        "org.opencontainers.image.title": "atlas",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.description": "video server with its own TCP/IP stack",
    });
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/atlas"],
            "Cmd": ["serve", "/srv/video", "--link", "relay:0.0.0.0", "--http", PORT.to_string()],
            "ExposedPorts": { format!("{PORT}/tcp"): {} },
            "Volumes": { "/srv/video": {} },
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    let mut blobs = BTreeMap::new();
    let config = keep(&mut blobs, config.to_string().into_bytes());
    let layer = keep(&mut blobs, layer);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        "annotations": labels,
    });
    let manifest = keep(&mut blobs, manifest.to_string().into_bytes());
    let mut listed = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    listed["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    listed["annotations"] =
        json!({ "org.opencontainers.image.ref.name": format!("atlas:{version}") });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [listed],
    });
    let mut tar = Builder::new(Vec::new());
    for folder in ["blobs/", "blobs/sha256/"] {
        add(&mut tar, folder, Entry::Folder, time)?;
    }
    for (digest, bytes) in &blobs {
        add(
            &mut tar,
            &format!("blobs/sha256/{digest}"),
            Entry::File(bytes),
            time,
        )?;
    }
    add(
        &mut tar,
        "index.json",
        Entry::File(index.to_string().as_bytes()),
        time,
    )?;
    let layout = json!({ "imageLayoutVersion": "1.0.0" }).to_string();
    add(&mut tar, "oci-layout", Entry::File(layout.as_bytes()), time)?;
    let made = folder.join(format!("atlas-{version}-amd64.oci.tar"));
    fs::create_dir_all(folder)?;
    fs::write(&made, tar.into_inner()?)?;
    Ok(made)
}

/// What a container sees.
fn layer(atlas: &Path, time: u64) -> Result<Vec<u8>> {
    let server = stripped(atlas)?;
    let read = |name: &str| fs::read(workspace_root().join(name)).context(name.to_owned());
    let components = components::json()?;
    let files = [
        ("etc/atlas/atlas.toml", read("dist/atlas.toml")?),
        ("etc/group", GROUP.into()),
        ("etc/passwd", PASSWD.into()),
        (
            "usr/share/doc/atlas-server/components.cdx.json",
            components.into_bytes(),
        ),
        ("usr/share/doc/atlas-server/copyright", read("LICENSE")?),
    ];
    let mut tar = Builder::new(Vec::new());
    for folder in FOLDERS {
        add(&mut tar, folder, Entry::Folder, time)?;
    }
    add(&mut tar, "var/log/atlas/", Entry::UsersFolder, time)?;
    add(&mut tar, "usr/bin/atlas", Entry::Program(&server), time)?;
    for (name, bytes) in &files {
        add(&mut tar, name, Entry::File(bytes), time)?;
    }
    Ok(tar.into_inner()?)
}

/// The server without what only debuggers read.
pub(crate) fn stripped(atlas: &Path) -> Result<Vec<u8>> {
    let scratch = scratch_directory("image")?;
    let server = scratch.path().join("atlas");
    fs::copy(atlas, &server).with_context(|| format!("copying {}", atlas.display()))?;
    let headers = output(Command::new("objdump").arg("-p").arg(&server), RUN_LIMIT)?;
    ensure!(
        headers.status.success() && !String::from_utf8_lossy(&headers.stdout).contains("NEEDED"),
        "{} is linked with libraries: build it with crt-static",
        atlas.display()
    );
    // The names of functions stay, for backtraces.
    run(Command::new("strip").arg("--strip-debug").arg(&server))?;
    Ok(fs::read(&server)?)
}

/// An entry of an archive.
pub(crate) enum Entry<'a> {
    Folder,
    /// That the image's user may write to.
    UsersFolder,
    File(&'a [u8]),
    Program(&'a [u8]),
}

/// Appends an entry that any machine makes the same.
pub(crate) fn add(
    tar: &mut Builder<Vec<u8>>,
    name: &str,
    entry: Entry<'_>,
    time: u64,
) -> Result<()> {
    let (kind, mode, id, bytes): (_, _, _, &[u8]) = match entry {
        Entry::Folder => (EntryType::Directory, 0o755, 0, &[]),
        Entry::UsersFolder => (EntryType::Directory, 0o750, ID, &[]),
        Entry::File(bytes) => (EntryType::Regular, 0o644, 0, bytes),
        Entry::Program(bytes) => (EntryType::Regular, 0o755, 0, bytes),
    };
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(id);
    header.set_gid(id);
    header.set_mtime(time);
    header.set_size(bytes.len() as u64);
    Ok(tar.append_data(&mut header, name, bytes)?)
}

/// A blob's name and size.
struct Blob {
    digest: String,
    size_bytes: usize,
}

fn keep(blobs: &mut BTreeMap<String, Vec<u8>>, bytes: Vec<u8>) -> Blob {
    let blob = Blob {
        digest: digest(&bytes),
        size_bytes: bytes.len(),
    };
    let name = blob.digest.trim_start_matches("sha256:").to_owned();
    blobs.insert(name, bytes);
    blob
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({ "mediaType": media_type, "digest": blob.digest, "size": blob.size_bytes })
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Seconds since 1970 of the commit that is packed; 0 outside of git.
pub(crate) fn commit_time() -> Result<u64> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"])
        .current_dir(workspace_root());
    match output(&mut git, RUN_LIMIT) {
        Ok(said) if said.status.success() => {
            let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            text.parse().context("the time of the commit")
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::{TARGET, digest};

    #[test]
    fn a_digest_names_its_algorithm() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }

    #[test]
    fn what_is_shipped_in_a_container_is_of_this_version() {
        let compose = include_str!("../../../../dist/compose.yaml");
        let image = format!("image: atlas:{}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(
            compose.matches(&image).count(),
            compose.matches("image: ").count()
        );
        assert!(TARGET.contains("x86_64"), "the image says amd64");
    }
}
