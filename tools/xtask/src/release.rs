//! `cargo xtask release`: all that is shipped, in `target/dist`: an archive to unpack anywhere, the Debian package,
//! the OCI image, the list of components, and the checksums of all.
//!
//! The archive has the server that is linked with no library, so that it runs on any Linux. It refuses nothing of its
//! own. Bounded as what it calls.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::image::{self, Entry};
use crate::{components, package};
use testbed::process::run;
use testbed::program::Program;
use testbed::{target_directory, workspace_root};

/// What the archive has besides the server and the pages for operators.
const FILES: [&str; 5] = [
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "docs/README.md",
];

/// Makes all of it and names it.
pub(crate) fn run_command() -> Result<()> {
    let folder = target_directory().join("dist");
    fs::create_dir_all(&folder)?;
    let linked = Program::Atlas.find(None)?;
    let alone = image::build_static()?;
    let version = env!("CARGO_PKG_VERSION");
    let package = package::debian(&linked, version)?;
    let moved = folder.join(package.file_name().context("a package has a name")?);
    fs::copy(&package, &moved)?;
    let list = folder.join(format!("atlas-{version}.cdx.json"));
    fs::write(&list, components::json()?)?;
    let made = [
        archive(&alone, &folder)?,
        moved,
        image::make(&alone, &folder)?,
        list,
    ];
    let mut sums = String::new();
    for file in &made {
        let digest = Sha256::digest(fs::read(file)?);
        let name = file.file_name().context("a file has a name")?;
        for byte in digest {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {}", name.display())?;
        println!("{}", file.display());
    }
    let file = folder.join("SHA256SUMS");
    fs::write(&file, sums)?;
    println!("{}", file.display());
    Ok(())
}

/// The archive: a folder with the server, `dist`, the pages for operators.
fn archive(server: &Path, folder: &Path) -> Result<PathBuf> {
    let name = format!("atlas-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let root = workspace_root();
    let mut files: Vec<PathBuf> = FILES.map(PathBuf::from).into();
    for within in ["dist", "docs/run"] {
        for entry in fs::read_dir(root.join(within))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                files.push(Path::new(within).join(entry.file_name()));
            }
        }
    }
    files.sort_unstable();
    let time = image::commit_time()?;
    let mut tar = tar::Builder::new(Vec::new());
    let program = image::stripped(server)?;
    image::add(&mut tar, &format!("{name}/"), Entry::Folder, time)?;
    let to = format!("{name}/atlas");
    image::add(&mut tar, &to, Entry::Program(&program), time)?;
    for file in files {
        let to = format!("{name}/{}", file.display());
        let bytes = fs::read(root.join(&file)).with_context(|| to.clone())?;
        image::add(&mut tar, &to, Entry::File(&bytes), time)?;
    }
    let made = folder.join(format!("{name}.tar"));
    fs::write(&made, tar.into_inner()?)?;
    // Without the name and the time of the file, which would differ.
    run(Command::new("gzip")
        .args(["--force", "--best", "--no-name"])
        .arg(&made))?;
    Ok(made.with_extension("tar.gz"))
}
