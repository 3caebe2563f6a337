//! Bytes with a descriptor beside them, over a unix socket.
//!
//! Owns: the only two calls that pass a descriptor from process to process. What arrives is
//! close-on-exec from its first moment.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends bytes and a descriptor. Returns how many of the bytes went with it.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], passed: BorrowedFd<'_>) -> io::Result<usize> {
    let fds = [passed];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Receives at most `room` bytes, and the descriptor that came with them if one did. No bytes mean
/// that the other side has closed.
pub(crate) fn receive(socket: impl AsFd, room: usize) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0_u8; room];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = loop {
        match recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut passed = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            passed = fds.next();
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, passed))
}
