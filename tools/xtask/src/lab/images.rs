//! What the guest boots from and serves: an initial file system in memory (cpio, "newc"), and a disk
//! with an ext4 file system.
//!
//! The modules are in the order in which they can be loaded, so the guest needs no tool that knows
//! what depends on what. The archive is not compressed: unpacking it in the guest would take longer
//! than reading it. It refuses a kernel that lacks a module. Bounded by: the files are in memory, one
//! after another, about 100 MB.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::parts::{Kernel, Parts};
use testbed::certificate::IdentityFiles;
use testbed::content::{self, Content};
use testbed::process::{output, run};

/// The modules that a guest with a NIC loads, with what they depend on.
pub(super) const MODULES: [&str; 6] = ["ext4", "nvme", "e1000e", "igb", "virtio_net", "8021q"];

/// Before Linux 6.15, ext4 asks for its checksums by a program that the guest does not have.
const CHECKSUMS: &str = "crc32c_generic";

/// The guest's first process.
const INIT: &str = include_str!("init.sh");

/// How Atlas is configured, at addresses of its own and at the guest's. Few slots, so that each is used
/// again soon.
const OWN: &str = r#"address = ["10.77.0.2/24", "fd77::2/64"]
"#;
const CONFIG: &str = r#"http = 80
https = 443
slots = 64

[[certificate]]
cert = "/etc/lab.pem"
key = "/etc/lab.key"
"#;

/// The sizes of the files: on both sides of a block and of a record, and larger than the slots.
const SIZES_BYTES: [u64; 8] = [
    1,
    4_095,
    15_360,
    15_361,
    300_000,
    1 << 20,
    (3 << 20) + 1,
    (24 << 20) + 13,
];

/// The largest file, the last one.
pub(super) const LARGEST: &str = "7.bin";

/// Files to serve, in a directory that is also what replies are compared with. Their names.
pub(super) fn write_files(directory: &Path) -> Result<Vec<String>> {
    fs::create_dir_all(directory)?;
    let mut names = Vec::new();
    for (seed, size_bytes) in (0..).zip(SIZES_BYTES) {
        let name = format!("{seed}.bin");
        content::write(Content { seed, size_bytes }, &directory.join(&name))?;
        names.push(name);
    }
    Ok(names)
}

/// Makes a disk's image with the files of a directory.
pub(super) fn make_disk(directory: &Path, image: &Path) -> Result<()> {
    let mut command = Command::new("mkfs.ext4");
    command
        .args(["-q", "-F", "-b", "4096", "-d"])
        .arg(directory);
    run(command.arg(image).arg("64M")).map(drop)
}

/// Makes images that hold a raw store of a directory's files together.
pub(super) fn make_store(atlas: &Path, directory: &Path, images: &[PathBuf]) -> Result<()> {
    let images: Vec<_> = images.iter().map(|it| it.as_os_str()).collect();
    let images = images.join(OsStr::new(","));
    let store = |verb: &str| {
        let mut command = Command::new(atlas);
        command.args(["store", verb]).arg(&images);
        command
    };
    run(store("init").args(["--size", "64M"]))?;
    run(store("add").arg(directory)).map(drop)
}

/// A file of the guest: its path without the leading slash, its mode, its content.
pub(super) type GuestFile = (String, u32, Vec<u8>);

/// An executable of the guest.
pub(super) fn program(name: &str, path: &Path) -> Result<GuestFile> {
    Ok((format!("bin/{name}"), 0o100_755, read(path)?))
}

/// The guest's users.
fn users() -> [GuestFile; 2] {
    let users = "root:x:0:0::/:\nnobody:x:65534:65534::/:\n";
    let groups = "root:x:0:\nnogroup:x:65534:\n";
    [("passwd", users), ("group", groups)]
        .map(|(name, text)| (format!("etc/{name}"), 0o100_644, text.into()))
}

/// What a guest with a NIC has: the server, how it is configured, and its first process.
pub(super) fn server_files(atlas: &Path, identity: &IdentityFiles) -> Result<Vec<GuestFile>> {
    let text = |name: &str, text: &str| (format!("etc/{name}"), 0o100_644, text.into());
    Ok(vec![
        ("init".to_owned(), 0o100_755, INIT.into()),
        program("atlas", atlas)?,
        text("own.toml", &format!("{OWN}{CONFIG}")),
        // A queue pair for each of several workers.
        text("vfio.toml", &format!("workers = 2\n{OWN}{CONFIG}")),
        text(
            "passthrough.toml",
            &format!("nvme_passthrough = true\n{OWN}{CONFIG}"),
        ),
        text("shared.toml", CONFIG),
        (
            "etc/lab.pem".to_owned(),
            0o100_644,
            read(&identity.certificate)?,
        ),
        ("etc/lab.key".to_owned(), 0o100_600, read(&identity.key)?),
    ])
}

/// Makes the guest's initial file system, with `files` and with modules and what they depend on.
/// `module_arguments` are for modules of that name.
pub(super) fn make_initramfs(
    (parts, kernel): (&Parts, &Kernel),
    files: &[GuestFile],
    (names, module_arguments): (&[&str], &[(&str, &str)]),
    image: &Path,
) -> Result<()> {
    let file = fs::File::create(image).with_context(|| format!("creating {}", image.display()))?;
    let mut archive = Archive {
        file: std::io::BufWriter::new(file),
        at_bytes: 0,
        entries: 0,
    };
    for directory in ["bin", "etc", "modules", "proc", "sys", "dev", "srv", "tmp"] {
        archive.add(directory, 0o040_755, &[])?;
    }
    archive.add("bin/busybox", 0o100_755, &read(&parts.busybox())?)?;
    for (name, mode, bytes) in files.iter().chain(&users()) {
        archive.add(name, *mode, bytes)?;
    }
    let mut order = String::new();
    for (name, bytes) in modules(&kernel.modules, names)? {
        let of_it = module_arguments
            .iter()
            .filter(|(module, _)| *module == name);
        let words: Vec<&str> = of_it.map(|(_, words)| *words).collect();
        order += &format!("{name}.ko {}\n", words.join(" "));
        archive.add(&format!("modules/{name}.ko"), 0o100_644, &bytes)?;
    }
    archive.add("modules/order", 0o100_644, order.as_bytes())?;
    archive.add("TRAILER!!!", 0, &[])?;
    archive.file.flush().context("writing the guest's files")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// A cpio archive in the format "newc", which the kernel unpacks
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
struct Archive {
    file: std::io::BufWriter<fs::File>,
    at_bytes: usize,
    entries: usize,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.entries += 1;
        // Inode, mode, user, group, links, time, size; two device numbers of two parts; the name's
        // length with its NUL; a checksum that this format does not use.
        let (inode, size, name_size) = (self.entries, bytes.len(), name.len() + 1);
        let header = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}\
             {0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}{name}\0",
            0, 1
        );
        self.write_aligned(header.as_bytes())?;
        self.write_aligned(bytes)
    }

    /// Header with name, and content, each end at a multiple of four bytes.
    fn write_aligned(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes)?;
        let fill = bytes.len().next_multiple_of(4) - bytes.len();
        self.file.write_all(&[0; 3][..fill])?;
        self.at_bytes += bytes.len() + fill;
        Ok(())
    }
}

/// The modules and what they depend on, by name, in the order in which they can be loaded.
fn modules(directory: &Path, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = BTreeMap::new();
    find_modules(directory, &mut files)?;
    let builtin = fs::read_to_string(directory.join("modules.builtin"))
        .context("reading the list of what the kernel has built in")?;
    let builtin: Vec<String> = builtin
        .lines()
        .filter_map(|line| module_name(Path::new(line)))
        .collect();
    let mut loaded = Vec::new();
    let has_checksums = names.contains(&"ext4") && files.contains_key(CHECKSUMS);
    let checksums = has_checksums.then_some(CHECKSUMS);
    for name in checksums.into_iter().chain(names.iter().copied()) {
        load(name, &files, &builtin, &mut loaded)?;
    }
    Ok(loaded)
}

fn load(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    builtin: &[String],
    loaded: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    if builtin.iter().any(|it| it == name) || loaded.iter().any(|(it, _)| it == name) {
        return Ok(());
    }
    let file = files.get(name);
    let file = file.with_context(|| format!("the kernel has no module {name}"))?;
    let bytes = if file.extension().is_some_and(|extension| extension == "xz") {
        let output = output(
            Command::new("xz").arg("-dc").arg(file),
            Duration::from_secs(60),
        )?;
        ensure!(output.status.success(), "unpacking {}", file.display());
        output.stdout
    } else {
        read(file)?
    };
    for dependency in dependencies(&bytes) {
        load(&dependency, files, builtin, loaded)?;
    }
    loaded.push((name.to_owned(), bytes));
    Ok(())
}

/// What a module says it depends on, in its section `.modinfo`: texts that end with a NUL.
fn dependencies(module: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let at = module.windows(MARK.len()).position(|bytes| bytes == MARK);
    let text = at.and_then(|at| module.get(at + MARK.len()..));
    let text = text.and_then(|text| text.split(|byte| *byte == 0).next());
    String::from_utf8_lossy(text.unwrap_or_default())
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn find_modules(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find_modules(&entry.path(), files)?;
        } else if let Some(name) = module_name(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The name of a module's file, compressed or not; the kernel takes `-` for `_`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".xz").unwrap_or(name);
    Some(name.strip_suffix(".ko")?.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{LARGEST, SIZES_BYTES, dependencies, module_name};

    #[test]
    fn a_module_names_what_it_depends_on() {
        let module = b"\x7fELF\0license=GPL\0depends=i2c-algo-bit,dca\0name=igb\0";
        assert_eq!(dependencies(module), ["i2c_algo_bit", "dca"]);
        assert!(dependencies(b"\0depends=\0name=a\0").is_empty());
        assert!(dependencies(b"none").is_empty());
    }

    #[test]
    fn modules_are_known_by_their_files() {
        let name = |path| module_name(Path::new(path));
        assert_eq!(
            name("kernel/a/nvme-core.ko.xz").as_deref(),
            Some("nvme_core")
        );
        assert_eq!(name("kernel/a/igb.ko").as_deref(), Some("igb"));
        assert_eq!(name("modules.dep"), None);
    }

    #[test]
    fn the_largest_file_is_named_right() {
        let most = SIZES_BYTES.iter().max().expect("there are files");
        let index = SIZES_BYTES.iter().position(|size| size == most);
        assert_eq!(
            index.map(|index| format!("{index}.bin")).as_deref(),
            Some(LARGEST)
        );
    }
}
