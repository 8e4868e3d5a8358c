//! Files of mounts that are not local: whoever asks them may wait for ever, and the disk's user must not.
//!
//! The mount is FUSE, whose server is a thread of the test: it answers questions for a file's status when the test
//! says so. Each test has a mount namespace of its own, so nothing is left when it ends.

use std::ffi::CString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Mutex;

use super::changes::known;
use super::*;

const SIZE_BYTES: u64 = 65_536;
/// `fuse.h`: the length of the header of a request, and of an answer.
const REQUEST_HEADER_BYTES: usize = 40;
const ANSWER_HEADER_BYTES: usize = 16;

/// What a FUSE server was asked for, and keeps waiting.
#[derive(Debug, Default)]
struct Status {
    is_withheld: bool,
    waiting: Vec<u64>,
    /// Reads wait, too, for ever.
    are_reads_withheld: bool,
    waiting_reads: usize,
}

/// The server of a FUSE file system with one file of pattern bytes, `film`.
struct Server {
    device: File,
    status: Mutex<Status>,
}

/// Where it is mounted, until this is dropped.
struct Mount {
    server: Arc<Server>,
    point: CString,
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: a C string, which the kernel only reads.
        let outcome = unsafe { libc::umount2(self.point.as_ptr(), libc::MNT_DETACH) };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
    }
}

impl Mount {
    /// Ends all that waits for the server.
    fn abort(&self) {
        // SAFETY: a C string, which the kernel only reads.
        let outcome = unsafe { libc::umount2(self.point.as_ptr(), libc::MNT_FORCE) };
        let busy = io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY);
        assert!(outcome == 0 || busy, "{}", io::Error::last_os_error());
    }

    /// `None` if this user may not mount.
    fn new(point: &Path) -> Option<Self> {
        // SAFETY: no memory is involved; this thread alone gets another namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            eprintln!("SKIPPED: this user may not make a mount namespace");
            return None;
        }
        let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
            eprintln!("SKIPPED: no /dev/fuse");
            return None;
        };
        let none = std::ptr::null();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: C strings and null pointers, as mount(2) takes them for a change of propagation.
        let outcome = unsafe { libc::mount(none, c"/".as_ptr(), none, private, none.cast()) };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let options = CString::new(options).expect("no NUL");
        let point = CString::new(point.as_os_str().as_bytes()).expect("no NUL");
        let (name, kind) = (c"far".as_ptr(), c"fuse".as_ptr());
        // SAFETY: C strings; the kernel only reads them.
        let outcome =
            unsafe { libc::mount(name, point.as_ptr(), kind, 0, options.as_ptr().cast()) };
        assert_eq!(outcome, 0, "{}", io::Error::last_os_error());
        let server = Arc::new(Server {
            device,
            status: Mutex::new(Status::default()),
        });
        let serving = Arc::clone(&server);
        std::thread::spawn(move || serving.serve());
        Some(Self { server, point })
    }
}

impl Server {
    /// Until nothing of the file system is in use any more.
    fn serve(&self) {
        let mut request = vec![0; 1 << 18];
        loop {
            let outcome = (&self.device).read(&mut request);
            match outcome.map_err(|error| error.raw_os_error()) {
                Ok(length) => self.answer_request(&request[..length]),
                // Whoever asked was interrupted.
                Err(Some(libc::EINTR | libc::ENOENT)) => {}
                Err(_) => return,
            }
        }
    }

    /// Answers as `fuse_kernel.h` has it, version 7.31.
    fn answer_request(&self, request: &[u8]) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
        let (opcode, unique, node) = (number(4), long(8), long(16));
        let body = REQUEST_HEADER_BYTES;
        match opcode {
            // FORGET, INTERRUPT and BATCH_FORGET have no answer.
            2 | 36 | 42 => {}
            // LOOKUP
            1 if &request[body..] == b"film\0" => {
                let mut entry = [2_u64, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
                entry.extend(attributes(2));
                self.answer(unique, 0, &entry);
            }
            1 => self.answer(unique, libc::ENOENT, &[]),
            // GETATTR
            3 => {
                let mut status = self.status.lock().expect("no panic");
                if status.is_withheld && node == 2 {
                    status.waiting.push(unique);
                } else {
                    self.answer_status(unique, node);
                }
            }
            // OPEN, with FOPEN_DIRECT_IO.
            14 => self.answer(unique, 0, &[0_u64, 1].map(u64::to_ne_bytes).concat()),
            // READ
            15 => {
                let mut status = self.status.lock().expect("no panic");
                if status.are_reads_withheld {
                    status.waiting_reads += 1;
                    return;
                }
                drop(status);
                let (start, length) = (long(body + 8), u64::from(number(body + 16)));
                let bytes = pattern(start, length.min(SIZE_BYTES.saturating_sub(start)));
                self.answer(unique, 0, &bytes);
            }
            // INIT
            26 => {
                let mut answer = [0_u32; 16];
                (answer[0], answer[1], answer[5]) = (7, 31, 1 << 17);
                self.answer(unique, 0, &answer.map(u32::to_ne_bytes).concat());
            }
            // FLUSH and RELEASE
            18 | 25 => self.answer(unique, 0, &[]),
            _ => self.answer(unique, libc::ENOSYS, &[]),
        }
    }

    fn answer_status(&self, unique: u64, node: u64) {
        // Valid for no time: the kernel asks each time.
        let mut status = [0_u64, 0].map(u64::to_ne_bytes).concat();
        status.extend(attributes(node));
        self.answer(unique, 0, &status);
    }

    fn answer(&self, unique: u64, errno: i32, body: &[u8]) {
        let length = u32::try_from(ANSWER_HEADER_BYTES + body.len()).expect("short");
        let mut answer = length.to_ne_bytes().to_vec();
        answer.extend((-errno).to_ne_bytes());
        answer.extend(unique.to_ne_bytes());
        answer.extend(body);
        // Whoever asked may be gone.
        let _ = (&self.device).write(&answer);
    }

    /// From now on nobody is told the file's status.
    fn withhold_status(&self) {
        self.status.lock().expect("no panic").is_withheld = true;
    }

    /// Waits until somebody waits for the file's status.
    fn wait_for_question(&self) {
        while self.status.lock().expect("no panic").waiting.is_empty() {
            std::thread::yield_now();
        }
    }

    fn tell_status(&self) {
        let mut status = self.status.lock().expect("no panic");
        status.is_withheld = false;
        for unique in status.waiting.drain(..) {
            self.answer_status(unique, 2);
        }
    }
}

/// `fuse_attr` of the root, or of the file.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 {
        (libc::S_IFDIR | 0o755, 0)
    } else {
        (libc::S_IFREG | 0o644, SIZE_BYTES)
    };
    let times = [1_000_000_000_u64; 3];
    let mut bytes = [node, size, size / 512, times[0], times[1], times[2]]
        .map(u64::to_ne_bytes)
        .concat();
    let numbers = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    bytes.extend(numbers.map(u32::to_ne_bytes).concat());
    bytes
}

fn open_far(bench: &mut Bench) -> Option<(Mount, FileIndex)> {
    let point = bench.path("far");
    fs::create_dir(&point).expect("our own directory");
    let mount = Mount::new(&point)?;
    let mut source = known(&point.join("film"), 4096);
    if let FileSource::File { status, .. } = &mut source {
        status.is_local = false;
    }
    let (file, _) = bench.disk.open(source).expect("there is room");
    Some((mount, file))
}

#[test]
fn a_mount_that_tells_no_status_keeps_its_own_reads_waiting_only() {
    let mut bench = Bench::new();
    let near = bench.create("near", SIZE_BYTES);
    let Some((mount, far)) = open_far(&mut bench) else {
        return;
    };
    let (near, _) = bench.open(&near);
    assert_eq!(bench.read(far, 4096), Ok(pattern(4096, 4096)));
    mount.server.withhold_status();
    bench.enqueue(far, 8192, 4096, 1);
    bench.disk.sqsync(NOW).expect("a working ring");
    let checks = bench.disk.counters().disk_check_calls;
    while bench.disk.counters().disk_check_calls == checks {
        assert!(is_readable(&bench.disk, 30_000));
        bench.disk.clear_wake();
        assert_eq!(bench.consume(usize::MAX), 0, "it is not known yet");
    }
    mount.server.wait_for_question();
    for token in 2..10 {
        bench.enqueue(near, token * 4096, 4096, token);
    }
    bench.disk.sqsync(NOW).expect("a working ring");
    while bench.results.len() < 8 {
        assert!(is_readable(&bench.disk, 30_000));
        bench.disk.clear_wake();
        bench.consume(usize::MAX);
    }
    assert_eq!(bench.disk.in_flight(), 1);
    assert!(bench.results.iter().all(|(token, _)| *token != 1));
    // One that comes meanwhile waits, too, for a status of its own.
    bench.enqueue(far, 12_288, 4096, 10);
    mount.server.tell_status();
    for (token, result) in bench.run() {
        let offset = if token == 10 {
            12_288
        } else {
            token.max(2) * 4096
        };
        assert_eq!(result, Ok(pattern(offset, 4096)), "{token}");
    }
}

#[test]
fn a_mount_that_tells_no_status_keeps_a_disk_that_is_dropped_waiting_only_for_it() {
    let mut bench = Bench::new();
    let Some((mount, far)) = open_far(&mut bench) else {
        return;
    };
    mount.server.withhold_status();
    for token in 0..4 {
        bench.enqueue(far, token * 4096, 4096, token);
    }
    bench.disk.sqsync(NOW).expect("a working ring");
    while bench.disk.counters().disk_check_calls == 0 {
        assert!(is_readable(&bench.disk, 30_000));
        bench.disk.clear_wake();
        bench.consume(usize::MAX);
    }
    mount.server.wait_for_question();
    mount.server.tell_status();
    drop(bench.disk);
}

/// The kernel has four threads for each processor for reads of local files that must wait. Those of others do not use
/// them: more than so many wait at once.
#[test]
fn reads_of_a_mount_that_hangs_do_not_wait_for_each_other() {
    const FAR_READS: u64 = 40;
    let mut bench = Bench::new();
    let near = bench.create("near", SIZE_BYTES);
    let Some((mount, far)) = open_far(&mut bench) else {
        return;
    };
    let (near, _) = bench.open(&near);
    let status = || mount.server.status.lock().expect("no panic");
    status().are_reads_withheld = true;
    for token in 1..=FAR_READS {
        // Not adjacent, or they would be one.
        bench.enqueue(far, token % 2 * 8192, 4096, token);
    }
    bench.disk.sqsync(NOW).expect("a working ring");
    while status().waiting_reads < 40 {
        std::thread::yield_now();
    }
    bench.enqueue(near, 0, 4096, 0);
    bench.disk.sqsync(NOW).expect("a working ring");
    while bench.results.is_empty() {
        assert!(is_readable(&bench.disk, 30_000), "nothing came in 30 s");
        bench.disk.clear_wake();
        bench.consume(usize::MAX);
    }
    assert_eq!(bench.results, [(0, Ok(pattern(0, 4096)))]);
    // The mount's process ends: whoever waits for it gets an error.
    mount.abort();
    assert_eq!(bench.run().len() as u64, 1 + FAR_READS);
}

#[test]
fn reads_of_a_file_that_is_not_local_are_left_to_threads_of_the_kernel() {
    for is_local in [true, false] {
        let mut bench = Bench::new();
        let path = bench.create("served", SIZE_BYTES);
        let mut source = known(&path, 4096);
        if let FileSource::File { status, .. } = &mut source {
            status.is_local = is_local;
        }
        let (file, _) = bench.disk.open(source).expect("there is room");
        let index = bench.disk.files.find(file);
        let (_, flags, _) = bench.disk.target(index, 0);
        assert_eq!(flags.contains(squeue::Flags::ASYNC), !is_local);
        check_whole(&mut bench, file, SIZE_BYTES, 4096);
    }
}
