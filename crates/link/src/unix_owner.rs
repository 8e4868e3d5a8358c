//! Which user made the Unix socket that has a name of the abstract namespace.
//!
//! A name alone proves nothing: any local user may take any. The kernel keeps the user of each socket, and
//! tells it through sock_diag: who bound the name cannot hide it, and needs to answer nothing. It refuses to
//! say which process has the socket: that takes the right to look into all of them.
//!
//! Bounds: one pass over `/proc/thread-self/net/unix`, and one request for each line that shows the name.
//! Reading first: unix(7), sock_diag(7).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader};

use crate::netlink::{Attributes, Netlink, read_u32};

/// The sockets of the network namespace of the thread that reads it.
const SOCKETS_FILE: &str = "/proc/thread-self/net/unix";
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct unix_diag_msg`.
const ANSWER_HEAD_BYTES: usize = 16;
const SHOW_NAME: u32 = 1;
const SHOW_USER: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;

/// The number of the user that made the socket of this abstract `name`, in the network namespace of the
/// calling thread; `None` if nobody has the name.
///
/// # Errors
/// The kernel's: without `CONFIG_UNIX_DIAG` it does not tell.
pub fn abstract_name_owner(name: &str) -> io::Result<Option<u32>> {
    let mut refusal = None;
    for inode in inodes(BufReader::new(File::open(SOCKETS_FILE)?), name)? {
        let answer = Netlink::open_diagnosis()
            .and_then(|mut netlink| netlink.request(SOCK_DIAG_BY_FAMILY, 0, &request(inode)));
        match answer {
            // It was closed meanwhile.
            Err(libc::ENOENT) => {}
            // Not the end yet: who puts a line feed in a name makes up lines, and inodes.
            Err(errno) => refusal = Some(io::Error::from_raw_os_error(errno)),
            Ok(answer) => {
                let owner = owner(&answer, name);
                if owner.is_some() {
                    return Ok(owner);
                }
            }
        }
    }
    refusal.map_or(Ok(None), Err)
}

/// The sockets that are shown with this name. A path that begins with `@` looks the same.
fn inodes(lines: impl io::BufRead, name: &str) -> io::Result<BTreeSet<u32>> {
    let mut inodes = BTreeSet::new();
    for line in lines.split(b'\n') {
        // Names are any bytes.
        let line = line?;
        let head = line.strip_suffix(name.as_bytes());
        let Some(head) = head.and_then(|head| head.strip_suffix(b" @")) else {
            continue;
        };
        let head = String::from_utf8_lossy(head);
        let inode = head.split_whitespace().nth(6);
        inodes.extend(inode.and_then(|inode| inode.parse::<u32>().ok()));
    }
    Ok(inodes)
}

/// `struct unix_diag_req`: one socket in whatever state, by its inode and without its cookie.
fn request(inode: u32) -> Vec<u8> {
    let family = u8::try_from(libc::AF_UNIX).expect("invariant: address families are small");
    let mut body = vec![family, 0, 0, 0];
    for word in [u32::MAX, inode, SHOW_NAME | SHOW_USER, u32::MAX, u32::MAX] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body
}

/// The user in an answer about a socket of this abstract name.
fn owner(answer: &[u8], name: &str) -> Option<u32> {
    let attributes = answer.get(ANSWER_HEAD_BYTES..)?;
    let find = |wanted: u16| Attributes(attributes).find(|(kind, _)| *kind == wanted);
    let (_, bound) = find(UNIX_DIAG_NAME)?;
    (bound.strip_prefix(&[0])? == name.as_bytes()).then_some(())?;
    find(UNIX_DIAG_UID).and_then(|(_, user)| read_u32(user, 0))
}

#[cfg(test)]
mod tests {
    use super::{ANSWER_HEAD_BYTES, abstract_name_owner, inodes, owner};
    use crate::netlink::push_attribute;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::fs::{MetadataExt as _, fchown};
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn the_user_of_a_name_is_the_one_that_made_its_socket() {
        let name = format!("atlas-test/{}", std::process::id());
        assert_eq!(abstract_name_owner(&name).unwrap(), None);
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let own = std::fs::metadata("/proc/self").unwrap().uid();
        assert_eq!(abstract_name_owner(&name).unwrap(), Some(own));
        // Root gives it away, as if that user had made it.
        if fchown(&socket, Some(4_242), None).is_ok() {
            assert_eq!(abstract_name_owner(&name).unwrap(), Some(4_242));
        }
        drop(socket);
        assert_eq!(abstract_name_owner(&name).unwrap(), None);
    }

    #[test]
    fn what_others_call_their_sockets_hides_no_owner() {
        let name = format!("atlas-test/hidden/{}", std::process::id());
        let bind = |name: &[u8]| {
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
        };
        // A line of the file that is made up, with an inode that the kernel refuses to be asked for.
        let _others = [
            bind(b"\xff\xfe"),
            bind(format!("\n0: 0 0 0 0 0 0 @{name}").as_bytes()),
        ];
        assert!(abstract_name_owner(&name).is_err());
        let _socket = bind(name.as_bytes());
        assert!(abstract_name_owner(&name).unwrap().is_some());
    }

    #[test]
    fn only_lines_with_the_whole_name_count() {
        let lines = b"Num RefCount Protocol Flags Type St Inode Path\n\
            0: 00000002 00000000 00000000 0002 01 17 @a/b\n\
            0: 00000002 00000000 00000000 0002 01 18 @a/bc\n\
            0: 00000002 00000000 00000000 0002 01 19 @x/a/b\n\
            0: 00000002 00000000 00000000 0002 01 20\n\
            0: 00000002 00000000 00000000 0002 01 20 @\xff\xfe\n\
            0: 00000002 00000000 00000000 0002 01 21 /run/x @a/b\n";
        let found = inodes(&lines[..], "a/b").unwrap();
        // The last is a path with a blank: the kernel is asked what its name is.
        assert_eq!(found, [17, 21].into());
    }

    #[test]
    fn a_path_that_looks_like_the_name_is_not_it_and_a_short_answer_is_none() {
        let answer = |bound: &[u8]| {
            let mut body = vec![0; ANSWER_HEAD_BYTES];
            push_attribute(&mut body, super::UNIX_DIAG_NAME, bound);
            push_attribute(&mut body, super::UNIX_DIAG_UID, &7_u32.to_ne_bytes());
            body
        };
        let whole = answer(b"\0a/b");
        assert_eq!(owner(&whole, "a/b"), Some(7));
        assert_eq!(owner(&answer(b"@a/b\0"), "a/b"), None);
        for length in 0..whole.len() {
            assert_eq!(owner(&whole[..length], "a/b"), None);
        }
    }
}
