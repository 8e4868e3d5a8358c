//! `cargo xtask package`: the release as a Debian package: the server, its unit, user and configuration, the pages for
//! operators, and what clap knows as man pages and completions.
//!
//! dpkg-deb packs a tree that is made here from `dist`, so that installing by hand and by package give the same files.
//! It refuses a server that is linked with a library that it does not know the package of. Bounded by: a limit on
//! every command.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use clap_complete::Shell;

use crate::components;
use testbed::process::{output, run};
use testbed::program::Program;
use testbed::{target_directory, workspace_root};

/// The package's name: Debian has others that are called atlas.
pub(crate) const NAME: &str = "atlas-server";

/// Each command reads or writes some megabytes.
const LIMIT: Duration = Duration::from_secs(120);

/// Where the unit finds the server if it is installed by hand.
const BY_HAND: &str = "/usr/local/bin/atlas";

/// Files as they are in the tree: from, to, whether it is a program.
const FILES: [(&str, &str, bool); 10] = [
    (
        "dist/atlas-sysusers.conf",
        "usr/lib/sysusers.d/atlas.conf",
        false,
    ),
    ("dist/atlas.toml", "etc/atlas/atlas.toml", false),
    ("dist/atlas-logrotate", "etc/logrotate.d/atlas", false),
    (
        "dist/atlas-xdp.conf",
        "usr/share/doc/atlas-server/atlas-xdp.conf",
        false,
    ),
    ("LICENSE", "usr/share/doc/atlas-server/copyright", false),
    (
        "CHANGELOG.md",
        "usr/share/doc/atlas-server/changelog",
        false,
    ),
    ("dist/debian/conffiles", "DEBIAN/conffiles", false),
    ("dist/debian/postinst", "DEBIAN/postinst", true),
    ("dist/debian/prerm", "DEBIAN/prerm", true),
    ("dist/debian/postrm", "DEBIAN/postrm", true),
];

/// Options of `package`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PackageOptions {
    /// The server to pack (default: builds the release binary)
    #[arg(long, value_name = "PATH")]
    atlas: Option<PathBuf>,
}

/// Makes the package and names it.
pub(crate) fn run_command(options: &PackageOptions) -> Result<()> {
    let atlas = Program::Atlas.find(options.atlas.as_deref())?;
    let made = debian(&atlas, env!("CARGO_PKG_VERSION"))?;
    println!("{}", made.display());
    Ok(())
}

/// Makes a Debian package of this version in the target folder.
///
/// # Errors
/// dpkg-deb or binutils are not there, or the server needs an unknown library.
pub(crate) fn debian(atlas: &Path, version: &str) -> Result<PathBuf> {
    let scratch = testbed::scratch_directory("package")?;
    let root = scratch.path().join("tree");
    for (from, to, is_program) in FILES {
        put(
            &root.join(to),
            &fs::read(workspace_root().join(from))?,
            is_program,
        )?;
    }
    put(
        &root.join("usr/lib/systemd/system/atlas.service"),
        unit()?.as_bytes(),
        false,
    )?;
    let server = root.join("usr/bin/atlas");
    put(&server, &fs::read(atlas)?, true)?;
    // The names of functions stay, for backtraces.
    run(Command::new("strip").arg("--strip-debug").arg(&server))?;
    pages(&root)?;
    manual(&root)?;
    put(
        &root.join("usr/share/doc/atlas-server/components.cdx.json"),
        components::json()?.as_bytes(),
        false,
    )?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    let control = control(
        version,
        architecture.trim(),
        &depends(&server)?,
        kilobytes(&root)?,
    );
    put(&root.join("DEBIAN/control"), control.as_bytes(), false)?;
    let made = target_directory().join(format!("{NAME}_{version}_{}.deb", architecture.trim()));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&root)
        .arg(&made);
    said(&mut pack)?;
    Ok(made)
}

fn put(path: &Path, bytes: &[u8], is_program: bool) -> Result<()> {
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))?;
    let mode = if is_program { 0o755 } else { 0o644 };
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// The unit with the package's paths and without the commands that install it by hand.
fn unit() -> Result<String> {
    let text = fs::read_to_string(workspace_root().join("dist/atlas.service"))?;
    ensure!(
        text.contains(BY_HAND),
        "dist/atlas.service starts another program"
    );
    let lines = text.lines().filter(|line| !line.starts_with("#   "));
    let lines: Vec<String> = lines
        .map(|line| line.replace(BY_HAND, "/usr/bin/atlas"))
        .collect();
    Ok(lines.join("\n") + "\n")
}

/// What the unit, the configuration and messages refer to.
fn pages(root: &Path) -> Result<()> {
    let from = workspace_root().join("docs/run");
    for entry in fs::read_dir(&from)? {
        let entry = entry?;
        let to = root
            .join("usr/share/doc/atlas-server/run")
            .join(entry.file_name());
        put(&to, &fs::read(entry.path())?, false)?;
    }
    Ok(())
}

/// Man pages and completions.
fn manual(root: &Path) -> Result<()> {
    let mut command = server::documents::command();
    let pages = root.join("usr/share/man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(command.clone(), &pages)?;
    for entry in fs::read_dir(&pages)? {
        run(Command::new("gzip")
            .args(["--best", "--no-name"])
            .arg(entry?.path()))?;
    }
    for (shell, folder, name) in [
        (
            Shell::Bash,
            "usr/share/bash-completion/completions",
            "atlas",
        ),
        (Shell::Zsh, "usr/share/zsh/vendor-completions", "_atlas"),
        (
            Shell::Fish,
            "usr/share/fish/vendor_completions.d",
            "atlas.fish",
        ),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, "atlas", &mut text);
        put(&root.join(folder).join(name), &text, false)?;
    }
    Ok(())
}

fn control(version: &str, architecture: &str, depends: &str, kilobytes: u64) -> String {
    format!(
        "Package: {NAME}\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: Atlas maintainers <atlas@localhost>\n\
         Section: httpd\n\
         Priority: optional\n\
         Installed-Size: {kilobytes}\n\
         Depends: {depends}, systemd\n\
         Description: video server with its own TCP/IP stack\n \
         Serves files over HTTP/1.1 and HTTPS from disk to network without a page cache and\n \
         without send buffers: it reads what a TCP acknowledgment makes room for, and sends it\n \
         from the buffer that the disk has filled.\n"
    )
}

/// The packages of the libraries that the server is linked with, libc in the version that it needs at least.
fn depends(server: &Path) -> Result<String> {
    let headers = said(Command::new("objdump").args(["-p", "-T"]).arg(server))?;
    let mut depends = vec![format!("libc6 (>= {})", glibc(&headers)?)];
    let needed = headers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("NEEDED"));
    for library in needed.map(str::trim) {
        match library {
            "libc.so.6" | "libm.so.6" => {}
            "libgcc_s.so.1" => depends.push("libgcc-s1".to_owned()),
            // The loader, which is libc's.
            it if it.starts_with("ld-linux") => {}
            it => bail!("the server is linked with {it}: in which package is it?"),
        }
    }
    Ok(depends.join(", "))
}

/// The newest version of glibc's symbols that the server uses.
fn glibc(headers: &str) -> Result<String> {
    let versions = headers.split(|it: char| it.is_whitespace() || it == '(' || it == ')');
    let versions = versions.filter_map(|word| word.strip_prefix("GLIBC_2."));
    let newest = versions
        .filter_map(|it| it.split('.').next()?.parse::<u32>().ok())
        .max();
    Ok(format!(
        "2.{}",
        newest.context("no version of glibc in the server")?
    ))
}

fn kilobytes(root: &Path) -> Result<u64> {
    let used = said(Command::new("du").args(["-ks"]).arg(root))?;
    let number = used.split_whitespace().next().context("du said nothing")?;
    Ok(number.parse()?)
}

/// What a command that must succeed writes.
fn said(command: &mut Command) -> Result<String> {
    let ended = output(command, LIMIT)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        ended.status.success(),
        "{command:?}: {}",
        text(&ended.stderr)
    );
    Ok(text(&ended.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_glibc_counts_and_not_the_longest() {
        let headers = " DF *UND* (GLIBC_2.2.5) free\n DF *UND* GLIBC_2.34 open\n 0x0 GLIBC_2.9\n";
        assert_eq!(glibc(headers).expect("there are some"), "2.34");
        assert!(glibc("NEEDED libc.so.6").is_err());
    }

    #[test]
    fn the_package_s_unit_starts_the_package_s_server() {
        let unit = unit().expect("it is there");
        assert!(unit.contains("\nExecStart=/usr/bin/atlas serve "), "{unit}");
        assert!(!unit.contains("/usr/local/"), "{unit}");
    }
}
