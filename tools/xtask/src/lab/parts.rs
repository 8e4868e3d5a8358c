//! What the lab is made of that is not ours: a kernel with its modules, busybox, QEMU. Debian's own
//! packages, unpacked in the lab's directory; nothing is installed on the machine.
//!
//! The packages are those of the machine's release or of its backports, from the mirror that the
//! machine's own sources name. It refuses machines that are not Debian on x86-64. Bounded by:
//! [`APT_LIMIT`] for each call of apt; what has been unpacked once is used again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use testbed::process::{output, run};

/// 150 MB, from a slow mirror.
const APT_LIMIT: Duration = Duration::from_secs(900);

/// QEMU, with the package that depends on the newest kernel.
const QEMU: &str = "qemu-system-x86";
const NEWEST_KERNEL: &str = "linux-image-amd64";
const BUSYBOX: &str = "busybox-static";

/// What Debian signs its packages with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The unpacked packages.
#[derive(Debug)]
pub(super) struct Parts {
    root: PathBuf,
    /// As `uname -r` says it.
    pub(super) kernel_version: String,
}

impl Parts {
    /// Those in the lab's directory; fetches them if they are not there.
    pub(super) fn find_or_fetch(lab: &Path) -> Result<Self> {
        let root = lab.join("root");
        if !root.exists() {
            println!("fetching a kernel, busybox and QEMU, about 130 MB");
            fetch(lab, &root)?;
        }
        let modules = root.join("lib/modules");
        let mut versions = fs::read_dir(&modules).context("reading the kernel's modules")?;
        let version = versions.next().context("no kernel was unpacked")??;
        let kernel_version = version.file_name().to_string_lossy().into_owned();
        Ok(Self {
            root,
            kernel_version,
        })
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.root
            .join(format!("boot/vmlinuz-{}", self.kernel_version))
    }

    /// The directory of the kernel's modules.
    pub(super) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.kernel_version)
    }

    pub(super) fn busybox(&self) -> PathBuf {
        self.root.join("bin/busybox")
    }

    /// A command that becomes QEMU: `env`, so that `ip netns exec` can run it, too.
    pub(super) fn qemu(&self, mut env: Command) -> Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let few = self.root.join("lib/x86_64-linux-gnu");
        let (libraries, few) = (libraries.display(), few.display());
        env.arg(format!("LD_LIBRARY_PATH={libraries}:{few}"))
            .arg(format!("QEMU_MODULE_DIR={libraries}/qemu"))
            .arg(self.root.join("usr/bin/qemu-system-x86_64"));
        for directory in ["usr/share/qemu", "usr/share/seabios"] {
            env.arg("-L").arg(self.root.join(directory));
        }
        env
    }
}

/// Fetches the packages with an apt that has its own sources and lists, and unpacks them.
fn fetch(lab: &Path, root: &Path) -> Result<()> {
    let apt = lab.join("apt");
    if apt.exists() {
        fs::remove_dir_all(&apt).context("removing what was begun before")?;
    }
    for directory in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(directory))?;
    }
    let release = fs::read_to_string("/etc/os-release").context("reading the machine's release")?;
    let codename = value_of(&release, "VERSION_CODENAME");
    ensure!(
        value_of(&release, "ID") == Some("debian") && cfg!(target_arch = "x86_64"),
        "only packages of Debian on x86-64 are known"
    );
    let codename = codename.context("the machine's release has no codename")?;
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = run(Command::new("apt-get")
        .args(["indextargets", "--format", format])
        .arg("Created-By: Packages"))?;
    fs::write(apt.join("sources.list"), sources(&targets, codename)?)?;

    let backports = format!("{codename}-backports");
    apt_run(&apt, "apt-get", &["update"])?;
    // Libraries that the machine has are not fetched. QEMU itself is, whether or not it has it.
    let what = ["install", "--download-only", "--reinstall", "--yes"];
    let what = [&what[..], &["--no-install-recommends", "-t", &backports]].concat();
    apt_run(&apt, "apt-get", &[&what[..], &[QEMU]].concat())?;
    let newest = format!("{NEWEST_KERNEL}/{backports}");
    let text = apt_run(&apt, "apt-cache", &["depends", &newest])?;
    let kernel = text.lines().find_map(|line| line.split_once("Depends: "));
    let (_, kernel) = kernel.with_context(|| format!("{newest} depends on no kernel"))?;
    apt_run(
        &apt,
        "apt-get",
        &["download", "-t", &backports, kernel, BUSYBOX],
    )?;

    // Complete under its name, or not there.
    let part = lab.join("root.part");
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    for entry in fs::read_dir(apt.join("archives"))? {
        let package = entry?.path();
        if package
            .extension()
            .is_some_and(|extension| extension == "deb")
        {
            run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&part))?;
        }
    }
    fs::rename(&part, root).context("naming what was unpacked")?;
    fs::remove_dir_all(&apt).context("removing the packages")
}

fn apt_run(apt: &Path, program: &str, arguments: &[&str]) -> Result<String> {
    let archives = apt.join("archives");
    let mut command = Command::new(program);
    for (name, value) in [
        ("Dir::Etc::sourcelist", apt.join("sources.list")),
        ("Dir::Etc::sourceparts", PathBuf::from("/dev/null")),
        ("Dir::State::lists", apt.join("lists")),
        ("Dir::Cache::archives", archives.clone()),
        ("Dir::Cache::pkgcache", PathBuf::new()),
        ("Dir::Cache::srcpkgcache", PathBuf::new()),
    ] {
        command.args(["-o", &format!("{name}={}", value.display())]);
    }
    // No locks: the machine's own state is read only. `download` writes where it is called.
    command.args(["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]);
    command.args(arguments).current_dir(&archives);
    let output = output(&mut command, APT_LIMIT)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A value of `/etc/os-release`.
fn value_of<'a>(release: &'a str, name: &str) -> Option<&'a str> {
    release.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key == name).then(|| value.trim_matches('"'))
    })
}

/// Lines for a release and for its backports, made of what apt says of the machine's sources.
fn sources(targets: &str, codename: &str) -> Result<String> {
    let mut text = String::new();
    let mut mirror = None;
    for target in targets.lines() {
        let mut words = target.split_whitespace();
        let (Some(place), Some(suite), Some("main")) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if suite == codename {
            mirror = Some(place);
        }
        if suite.starts_with(codename) {
            let _ = writeln!(text, "deb [signed-by={KEYRING}] {place} {suite} main");
        }
    }
    let mirror = mirror.with_context(|| format!("the machine's sources have no {codename}"))?;
    let suite = format!("{codename}-backports");
    if !text.contains(&suite) {
        let _ = writeln!(text, "deb [signed-by={KEYRING}] {mirror} {suite} main");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{sources, value_of};

    #[test]
    fn backports_come_from_the_mirror_of_the_release() {
        let targets = "http://mirror.test/debian/ bookworm main\n\
                       http://mirror.test/security/ bookworm-security main\n\
                       http://mirror.test/debian/ bookworm contrib\n\
                       http://other.test/ nodistro main\n";
        let text = sources(targets, "bookworm").expect("it has the release");
        let places: Vec<_> = text
            .lines()
            .map(|line| line.split_once("] ").expect("a place").1)
            .collect();
        assert_eq!(
            places,
            [
                "http://mirror.test/debian/ bookworm main",
                "http://mirror.test/security/ bookworm-security main",
                "http://mirror.test/debian/ bookworm-backports main",
            ]
        );
        assert!(sources(targets, "trixie").is_err());
    }

    #[test]
    fn the_release_is_read() {
        let release = "ID=debian\nVERSION_CODENAME=\"bookworm\"\n";
        assert_eq!(value_of(release, "ID"), Some("debian"));
        assert_eq!(value_of(release, "VERSION_CODENAME"), Some("bookworm"));
        assert_eq!(value_of(release, "NAME"), None);
    }
}
