//! Properties of this host and process that the standard library does not report: interfaces and
//! their addresses, limits, randomness, processor time.
//!
//! Called at start, at the end and by metrics, never on the data path. It refuses to change the host,
//! except the soft limit of open descriptors of this process. Bounds: one buffer per call.

#![allow(
    unsafe_code,
    reason = "UNSAFETY: libc calls that fill structures of ours"
)]

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// Bytes of a user's or group's entry, names of members included.
const ACCOUNT_BYTES_MAX: usize = 64 << 10;

/// An address this host has, and the interface it is on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InterfaceAddress {
    /// The interface's name.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
}

/// Processor time this process has used, all its threads together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CpuTimes {
    /// In user mode, microseconds.
    pub user_us: u64,
    /// In the kernel on our behalf, microseconds.
    pub system_us: u64,
}

/// Every IPv4 and IPv6 address of this network namespace.
///
/// # Errors
/// What the kernel said.
pub(crate) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let mut head: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `head` is ours; on success it holds a list that is ours until `freeifaddrs`.
    let outcome = unsafe { libc::getifaddrs(&raw mut head) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    // SAFETY: `next` is null or a node of the list, which is neither freed nor changed in here.
    while let Some(node) = unsafe { next.as_ref() } {
        next = node.ifa_next;
        // SAFETY: `ifa_addr` is null or an address of the family it names (getifaddrs(3)).
        let Some(address) = (unsafe { read_address(node.ifa_addr) }) else {
            continue;
        };
        // SAFETY: `ifa_name` is a C string of the list's (getifaddrs(3)).
        let name = unsafe { CStr::from_ptr(node.ifa_name) };
        found.push(InterfaceAddress {
            interface: without_label(&name.to_string_lossy()).to_owned(),
            address,
        });
    }
    // SAFETY: the list came from `getifaddrs` and nothing refers to it any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// The interface of an IPv4 address, whose label is given for it: `lo:0`, as `ifconfig` makes them. No name of an
/// interface has a colon.
fn without_label(label: &str) -> &str {
    label.split(':').next().unwrap_or(label)
}

/// # Safety
/// `address` is null or points to a socket address as large as the family in it says.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise; every socket address begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a `sockaddr_in`; it may be unaligned.
            let v4 = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in>()) };
            Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_be(
                v4.sin_addr.s_addr,
            ))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a `sockaddr_in6`; it may be unaligned.
            let v6 = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in6>()) };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

/// Whether a socket of this host listens on this TCP port, at one of these addresses or at all.
///
/// # Errors
/// `/proc` does not say.
pub(crate) fn listens_at(addresses: &[IpAddr], port: u16) -> io::Result<bool> {
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        match fs::read_to_string(table) {
            Ok(text) => {
                let mut listeners = text.lines().filter_map(|line| listener(line, port));
                if listeners.any(|it| it.is_unspecified() || addresses.contains(&it)) {
                    return Ok(true);
                }
            }
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// The address of a socket that listens on this port, of its line in such a table (proc_pid_net(5)).
fn listener(line: &str, port: u16) -> Option<IpAddr> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, digits) = fields.next()?.rsplit_once(':')?;
    let is_port = u16::from_str_radix(digits, 16) == Ok(port);
    (is_port && fields.nth(1) == Some(LISTEN)).then(|| table_address(address))?
}

/// An address as these tables write it: words of the machine's byte order, in hexadecimal.
fn table_address(digits: &str) -> Option<IpAddr> {
    let word = |from: usize| {
        let digits = digits.get(from..from + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    if digits.len() == 8 {
        return Some(IpAddr::from(word(0)?));
    }
    let mut octets = [0; 16];
    for (number, bytes) in octets.chunks_exact_mut(4).enumerate() {
        bytes.copy_from_slice(&word(8 * number)?);
    }
    // An IPv6 socket may listen at an IPv4 address.
    Some(IpAddr::from(octets).to_canonical())
}

/// Whether system calls of this process are filtered (seccomp(2)).
#[must_use]
pub(crate) fn has_filter() -> bool {
    const FILTERED: &str = "2";
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    fields.any(|(name, value)| name == "Seccomp" && value.trim() == FILTERED)
}

/// Raises the soft limit of open descriptors to the hard one and returns it.
///
/// # Errors
/// What the kernel said.
pub(crate) fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is ours and of the type the call fills.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid `rlimit`.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// 32 bytes from the kernel's generator: what every secret of the stack is derived from.
///
/// # Errors
/// What the kernel said.
pub(crate) fn random_seed() -> io::Result<[u8; 32]> {
    let mut seed = [0u8; 32];
    // SAFETY: the buffer is ours and as long as said. Up to 256 bytes are given whole or not at
    // all (getrandom(2)).
    let length = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if usize::try_from(length) == Ok(seed.len()) {
        Ok(seed)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Processor time used so far.
///
/// # Errors
/// What the kernel said.
pub(crate) fn cpu_times() -> io::Result<CpuTimes> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` has room for what the call fills.
    check(unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) })?;
    // SAFETY: the call succeeded, so it filled all of it.
    let usage = unsafe { usage.assume_init() };
    Ok(CpuTimes {
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
    })
}

/// The numbers of a user and of its group; `None`: there is no such user.
///
/// # Errors
/// What the list of users answered.
pub(crate) fn user_named(name: &str) -> io::Result<Option<(u32, u32)>> {
    if IS_STATIC {
        let numbers = numbers_of(&fs::read("/etc/passwd")?, name);
        return Ok(numbers.and_then(|it| Some((*it.first()?, *it.get(1)?))));
    }
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    let mut text = [0; ACCOUNT_BYTES_MAX];
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut found: *mut libc::passwd = ptr::null_mut();
    // SAFETY: the name is a C string; entry, text and found are ours, and text is as long as said.
    let errno = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            text.as_mut_ptr(),
            text.len(),
            &raw mut found,
        )
    };
    // SAFETY: null, or points to the entry, which the call has filled (getpwnam(3)).
    let entry = unsafe { found.as_ref() };
    check_lookup(errno, entry.map(|entry| (entry.pw_uid, entry.pw_gid)))
}

/// The number of a group; `None`: there is no such group.
///
/// # Errors
/// What the list of groups answered.
pub(crate) fn group_named(name: &str) -> io::Result<Option<u32>> {
    if IS_STATIC {
        let numbers = numbers_of(&fs::read("/etc/group")?, name);
        return Ok(numbers.and_then(|it| it.first().copied()));
    }
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    let mut text = [0; ACCOUNT_BYTES_MAX];
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut found: *mut libc::group = ptr::null_mut();
    // SAFETY: the name is a C string; entry, text and found are ours, and text is as long as said.
    let errno = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            entry.as_mut_ptr(),
            text.as_mut_ptr(),
            text.len(),
            &raw mut found,
        )
    };
    // SAFETY: null, or points to the entry, which the call has filled (getgrnam(3)).
    let entry = unsafe { found.as_ref() };
    check_lookup(errno, entry.map(|entry| entry.gr_gid))
}

/// Linked with no library. glibc would load those of other lists of names (systemd, LDAP) all the same, and crash:
/// only the files are read then.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// The numbers behind a name in `/etc/passwd` or `/etc/group`: of the user and its group, or of the group.
fn numbers_of(file: &[u8], name: &str) -> Option<Vec<u32>> {
    let file = String::from_utf8_lossy(file);
    let mut entries = file.lines().map(|line| line.split(':'));
    let mut entry = entries.find_map(|mut it| (it.next() == Some(name)).then_some(it))?;
    let _password = entry.next()?;
    Some(entry.map_while(|it| it.parse().ok()).collect())
}

/// A missing name is no error, but some lists say it by one (getpwnam(3)).
fn check_lookup<T>(errno: libc::c_int, found: Option<T>) -> io::Result<Option<T>> {
    match errno {
        0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => Ok(found),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn micros(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}

fn check(outcome: libc::c_int) -> io::Result<()> {
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::{
        InterfaceAddress, cpu_times, interface_addresses, listener, listens_at, numbers_of,
        raise_descriptor_limit, random_seed, without_label,
    };

    #[test]
    fn names_are_found_in_the_files_whole_and_what_is_no_entry_is_passed_over() {
        let users =
            b"# atlas:x:1:1\n\nroot:x:0:0:root:/:/\natlas2:x:5:6::/:/\natlas:x:970:971:A: :/\n";
        assert_eq!(numbers_of(users, "atlas"), Some(vec![970, 971]));
        assert_eq!(numbers_of(users, "root"), Some(vec![0, 0]));
        assert_eq!(numbers_of(users, "atl"), None);
        assert_eq!(numbers_of(b"video:x:44:atlas,7\n", "video"), Some(vec![44]));
        assert_eq!(numbers_of(b"atlas:x:many:1\n", "atlas"), Some(vec![]));
    }

    #[test]
    fn a_listener_is_found_by_its_address_its_port_and_its_state() {
        let line = |state: &str| {
            format!("   0: 0100007F:1F90 00000000:0000 {state} 00000000:00000000 00:00000000")
        };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        if cfg!(target_endian = "little") {
            assert_eq!(listener(&line("0A"), 8080), Some(loopback));
        }
        assert_eq!(listener(&line("0A"), 8081), None);
        assert_eq!(listener(&line("01"), 8080), None, "an open connection");
        let heading = "  sl  local_address rem_address   st tx_queue";
        assert_eq!(listener(heading, 8080), None);
        let other = IpAddr::from([192, 0, 2, 1]);
        for (at, addresses, expected) in [
            ("127.0.0.1:0", loopback, true),
            ("127.0.0.1:0", other, false),
            ("0.0.0.0:0", other, true),
            ("[::1]:0", Ipv6Addr::LOCALHOST.into(), true),
            ("[::1]:0", other, false),
            ("[::ffff:127.0.0.1]:0", loopback, true),
            ("[::]:0", other, true),
        ] {
            let listener = std::net::TcpListener::bind(at).unwrap();
            let port = listener.local_addr().unwrap().port();
            let found = listens_at(&[addresses], port).unwrap();
            assert_eq!(found, expected, "{at}, {addresses}");
        }
    }

    #[test]
    fn a_label_is_no_part_of_the_interface_s_name() {
        for label in ["eth0.100:1", "eth0.100:vip:2", "eth0.100:", "eth0.100"] {
            assert_eq!(without_label(label), "eth0.100");
        }
    }

    #[test]
    fn loopback_is_there_under_its_name() {
        let loopback = InterfaceAddress {
            interface: "lo".into(),
            address: "127.0.0.1".parse().unwrap(),
        };
        assert!(interface_addresses().unwrap().contains(&loopback));
    }

    #[test]
    fn raising_the_descriptor_limit_twice_gives_the_same() {
        let first = raise_descriptor_limit().unwrap();
        assert!(first >= 64, "{first}");
        assert_eq!(raise_descriptor_limit().unwrap(), first);
    }

    #[test]
    fn two_seeds_differ() {
        assert_ne!(random_seed().unwrap(), random_seed().unwrap());
    }

    #[test]
    fn processor_time_does_not_go_backwards() {
        let (before, after) = (cpu_times().unwrap(), cpu_times().unwrap());
        assert!(after.user_us + after.system_us >= before.user_us + before.system_us);
    }
}
