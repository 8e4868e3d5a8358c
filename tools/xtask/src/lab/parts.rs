//! What the lab is made of that is not ours: a kernel with its modules, busybox, QEMU. Debian's own
//! packages, unpacked in the lab's directory; nothing is installed on the machine.
//!
//! QEMU and busybox are of the machine's release or of its backports, the kernels of [`KernelAge`]'s; all
//! from the mirror that the machine's own sources name. It refuses machines that are not Debian on
//! x86-64. Bounded by: [`APT_LIMIT`] for each call of apt; [`KERNEL_PACKAGES_MAX`]; what has been unpacked
//! once is used again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use testbed::process::{output, run};

/// 130 MB, from a slow mirror.
const APT_LIMIT: Duration = Duration::from_secs(900);

const QEMU: &str = "qemu-system-x86";
const BUSYBOX: &str = "busybox-static";

/// The package that depends on the newest kernel.
const NEWEST_KERNEL: &str = "linux-image-amd64";

/// Most packages that a kernel is divided into.
const KERNEL_PACKAGES_MAX: usize = 16;

/// What Debian signs its packages with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Which of two kernels a guest runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KernelAge {
    /// Linux 6.12, whose virtio driver without NAPI for sending releases frames before they were read. That
    /// of 7.3 copies them first (docs/develop/decisions/0012-slots-on-loan.md).
    Old,
    /// A newer one, whose igb and virtio drivers have zero copy for AF_XDP (since Linux 6.14 and 6.13).
    New,
}

impl KernelAge {
    /// Where it is from: backports of a release.
    const fn suite(self) -> &'static str {
        match self {
            Self::Old => "bookworm-backports",
            Self::New => "trixie-backports",
        }
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The directory of its modules.
    pub(super) modules: PathBuf,
    /// Its image.
    pub(super) image: PathBuf,
}

impl Kernel {
    /// The one that was unpacked in a directory.
    fn find(directory: &Path) -> Result<Self> {
        // Packages have `/lib` merged into `/usr`, or not.
        let places = ["usr/lib/modules", "lib/modules"].map(|place| directory.join(place));
        let place = places.iter().find(|place| place.exists());
        let place = place.context("no kernel was unpacked")?;
        let mut versions = fs::read_dir(place).context("reading the kernel's modules")?;
        let version = versions.next().context("no kernel was unpacked")??;
        let modules = version.path();
        let name = version.file_name().to_string_lossy().into_owned();
        let images = [
            modules.join("vmlinuz"),
            directory.join(format!("boot/vmlinuz-{name}")),
        ];
        let image = images.into_iter().find(|image| image.exists());
        let image = image.with_context(|| format!("kernel {name} has no image"))?;
        Ok(Self { modules, image })
    }
}

/// The unpacked packages.
#[derive(Debug)]
pub(super) struct Parts {
    root: PathBuf,
    /// Those that were asked for.
    kernels: Vec<(KernelAge, Kernel)>,
}

impl Parts {
    /// Those in the lab's directory, with kernels of these ages; fetches them if they are not there.
    pub(super) fn find_or_fetch(lab: &Path, ages: &[KernelAge]) -> Result<Self> {
        let root = lab.join("root");
        if !root.exists() {
            println!("fetching QEMU and busybox, about 30 MB");
            fetch(lab, &root, fetch_programs)?;
        }
        let kernel = |age: KernelAge| {
            let directory = lab.join(format!("kernel-{}", age.suite()));
            if !directory.exists() {
                println!("fetching a kernel of {}, about 110 MB", age.suite());
                fetch(lab, &directory, |apt, _| fetch_kernel(apt, age.suite()))?;
            }
            Kernel::find(&directory)
        };
        let kernels = ages.iter().map(|age| Ok((*age, kernel(*age)?)));
        let kernels = kernels.collect::<Result<_>>()?;
        Ok(Self { root, kernels })
    }

    /// One of those that were asked for.
    pub(super) fn kernel(&self, age: KernelAge) -> Result<&Kernel> {
        let mut kernels = self.kernels.iter();
        let found = kernels.find(|(of_it, _)| *of_it == age);
        let (_, kernel) = found.with_context(|| format!("no kernel of {}", age.suite()))?;
        Ok(kernel)
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

/// Fetches packages with an apt that has its own sources and lists, and unpacks them; `download` says which.
fn fetch(lab: &Path, root: &Path, download: impl Fn(&Path, &str) -> Result<()>) -> Result<()> {
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
    apt_run(&apt, "apt-get", &["update"])?;
    download(&apt, codename)?;

    // Complete under its name, or not there.
    let part = root.with_extension("part");
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

/// Downloads QEMU and busybox.
fn fetch_programs(apt: &Path, codename: &str) -> Result<()> {
    let backports = format!("{codename}-backports");
    // Libraries that the machine has are not fetched. QEMU itself is, whether or not it has it.
    let what = ["install", "--download-only", "--reinstall", "--yes"];
    let what = [&what[..], &["--no-install-recommends", "-t", &backports]].concat();
    apt_run(apt, "apt-get", &[&what[..], &[QEMU]].concat())?;
    apt_run(apt, "apt-get", &["download", "-t", &backports, BUSYBOX]).map(drop)
}

/// Downloads a suite's newest kernel: since 7.3, image and modules are packages of their own.
fn fetch_kernel(apt: &Path, suite: &str) -> Result<()> {
    let newest = format!("{NEWEST_KERNEL}/{suite}");
    let text = apt_run(apt, "apt-cache", &["depends", &newest])?;
    let mut packages = kernel_packages(&text, "");
    let kernel = packages.iter().find_map(|name| version_of(name));
    let version = kernel
        .with_context(|| format!("{newest} depends on no kernel"))?
        .to_owned();
    packages.retain(|name| name.contains(&version));
    let mut looked_at = 0;
    while let Some(package) = packages.get(looked_at) {
        let text = apt_run(apt, "apt-cache", &["depends", package])?;
        for name in kernel_packages(&text, &version) {
            if !packages.contains(&name) {
                packages.push(name);
            }
        }
        looked_at += 1;
        ensure!(
            packages.len() <= KERNEL_PACKAGES_MAX,
            "a kernel of more than {KERNEL_PACKAGES_MAX} packages"
        );
    }
    let names = packages.iter().map(String::as_str);
    let what: Vec<&str> = ["download", "-t", suite].into_iter().chain(names).collect();
    apt_run(apt, "apt-get", &what).map(drop)
}

/// Packages of the kernel's source with this in their name, of what `apt-cache depends` says.
fn kernel_packages(text: &str, version: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| name.starts_with("linux-") && name.contains(version))
        .map(ToOwned::to_owned)
        .collect()
}

/// The version in the name of an image's package: `linux-image-7.3.4+deb13-amd64`.
fn version_of(name: &str) -> Option<&str> {
    let version = name.strip_prefix("linux-image-")?;
    version
        .starts_with(|digit: char| digit.is_ascii_digit())
        .then_some(version)
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

/// Lines for a release, for its backports and for the kernels', made of what apt says of the machine's
/// sources.
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
    for suite in [
        &format!("{codename}-backports"),
        KernelAge::Old.suite(),
        KernelAge::New.suite(),
    ] {
        if !text.contains(suite) {
            let _ = writeln!(text, "deb [signed-by={KEYRING}] {mirror} {suite} main");
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{kernel_packages, sources, value_of, version_of};

    #[test]
    fn a_kernel_s_packages_are_known_by_its_version() {
        let text = "linux-image-amd64\n  Depends: linux-base-amd64\n  \
                    Depends: linux-image-7.3.4+deb13-amd64\n |Depends: dracut\n";
        let all = kernel_packages(text, "");
        assert_eq!(all, ["linux-base-amd64", "linux-image-7.3.4+deb13-amd64"]);
        assert_eq!(version_of(&all[0]), None);
        let version = version_of(&all[1]).expect("it is an image's");
        assert_eq!(version, "7.3.4+deb13-amd64");
        assert_eq!(kernel_packages(text, version), all[1..]);
    }

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
                "http://mirror.test/debian/ trixie-backports main",
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
