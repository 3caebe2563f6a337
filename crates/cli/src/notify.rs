//! Words to whoever started the daemon as a service: the datagrams of `sd_notify(3)`.
//!
//! Owns: saying them, if there is anybody. Never fails and never waits: a service manager that does
//! not hear us has bounds of its own. Written here because the crate for it cannot reach an
//! abstract socket, which is what a container's manager often has.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The daemon serves: whoever waits for it may go on.
pub(crate) fn ready() {
    tell("READY=1");
}

/// The daemon is leaving, as it was told to. Runs go on.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(what: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET") {
        let _ = send(&socket, what);
    }
}

fn send(socket: &OsString, what: &str) -> io::Result<()> {
    // A name that begins with `@` is not in the file system.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let from = UnixDatagram::unbound()?;
    // A full queue is the manager's trouble, and the daemon's start must not wait for it.
    from.set_nonblocking(true)?;
    from.send_to_addr(what.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_reaches_sockets_of_both_kinds() {
        let name = format!("kennel-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_path = UnixDatagram::bind(&path).unwrap();
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&abstract_name).unwrap();
        for (heard, socket) in
            [(by_path, path.clone().into()), (by_name, format!("@{name}").into())]
        {
            send(&socket, "READY=1").unwrap();
            let mut bytes = [0; 64];
            let n = heard.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], b"READY=1");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn nobody_there_is_an_error_of_nobody() {
        assert!(send(&"/nowhere/at/all".into(), "READY=1").is_err());
    }
}
