//! Telling a service manager that the server is ready, and that it is about to end (sd_notify(3)).
//!
//! One datagram to the socket in the environment variable `NOTIFY_SOCKET`. It refuses to wait and to
//! fail: without the variable it does nothing, and a manager that does not receive is no error.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// Requests are answered from now on.
pub(crate) const READY: &str = "READY=1";
/// The replies under way are being finished.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Another process, of this number, is the server from now on.
pub(crate) fn tell_main_process(pid: u32) {
    tell(&format!("MAINPID={pid}"));
}

/// Where the manager listens.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells the manager, if there is one.
pub(crate) fn tell(state: &str) {
    let Some(socket) = env::var_os(VARIABLE) else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        warn!("{VARIABLE} {}: {error}", socket.display());
    }
}

/// A path, or a name in the abstract namespace behind an `@`.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{READY, STOPPING, send};
    use std::ffi::OsStr;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn the_manager_is_notified_by_path_or_abstract_name() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("notify");
        let at_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("atlas-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        send(path.as_os_str(), READY).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING).unwrap();
        let heard = |socket: UnixDatagram| {
            let mut text = [0; 64];
            let length = socket.recv(&mut text).unwrap();
            String::from_utf8(text[..length].to_vec()).unwrap()
        };
        assert_eq!(heard(at_path), "READY=1");
        assert_eq!(heard(at_name), "STOPPING=1");
    }

    #[test]
    fn a_manager_that_is_gone_is_an_error() {
        assert!(send(OsStr::new("/no/such/socket"), READY).is_err());
    }
}
