//! Unix sockets: messages with file descriptors, and paths longer than the kernel limit. Unacknowledged data of TCP
//! sockets. Identity of the network namespace of sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Maximum number of descriptors per message.
const MAX_DESCRIPTORS: usize = 4;

/// A connected pair of sockets that preserve message boundaries.
pub fn packets() -> io::Result<(UnixStream, UnixStream)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((one.into(), other.into()))
}

/// Number of bytes written to a TCP socket, including its FIN, that the peer has not acknowledged.
#[expect(unsafe_code, reason = "an ioctl that writes a number")]
pub fn unconfirmed(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel writes an int to `count`.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(usize::try_from(count).unwrap_or(0)) }
}

/// Identity of this thread's network namespace, which the kernel never assigns again, unlike its inode number (Linux 5.14).
#[expect(unsafe_code, reason = "a socket option that is a number")]
pub fn network_namespace_cookie() -> io::Result<u64> {
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    let mut cookie: u64 = 0;
    let mut size = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `cookie`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Sends bytes with descriptors.
pub fn send(socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if files.len() > MAX_DESCRIPTORS
        || (!files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)))
    {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    io::Write::write_all(&mut { socket }, bytes.get(sent..).unwrap_or_default())
}

/// Receives at most `bytes.len()` bytes with their descriptors.
pub fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors);
        }
    }
    Ok((received.bytes, files))
}

/// A short path for a socket in a directory of any depth; valid while the directory is open.
fn short(directory: BorrowedFd<'_>, path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

fn directory(path: &Path) -> io::Result<std::fs::File> {
    crate::mounts::open_root(path.parent().unwrap_or(Path::new("/")))
}

/// Listens at `path`, which may exceed the kernel limit.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let directory = directory(path)?;
    UnixListener::bind(short(directory.as_fd(), path)?)
}

/// Connects to the socket at `path`, which may exceed the kernel limit.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let directory = directory(path)?;
    UnixStream::connect(short(directory.as_fd(), path)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn descriptors_are_sent_and_received() {
        let (here, there) = UnixStream::pair().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        send(&here, b"take", &[reader.as_fd()]).unwrap();
        drop(reader);
        let mut bytes = [0; 16];
        let (count, mut files) = receive(&there, &mut bytes).unwrap();
        assert_eq!((&bytes[..count], files.len()), (&b"take"[..], 1));
        writer.write_all(b"hello").unwrap();
        drop(writer);
        let mut text = String::new();
        std::fs::File::from(files.remove(0)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn network_namespaces_have_their_own_cookies() {
        let here = network_namespace_cookie().unwrap();
        assert_eq!(network_namespace_cookie().unwrap(), here);
        let elsewhere = || {
            crate::process::unshare(&[crate::process::Namespace::Network])
                .map(|()| network_namespace_cookie())
        };
        let in_new_namespace = || std::thread::spawn(elsewhere).join().unwrap();
        let (Ok(one), Ok(other)) = (in_new_namespace(), in_new_namespace()) else {
            return println!("skipped: no permission to create a network namespace");
        };
        let cookies = std::collections::BTreeSet::from([here, one.unwrap(), other.unwrap()]);
        assert_eq!(cookies.len(), 3, "{cookies:?}");
    }

    #[test]
    fn long_socket_paths_are_reachable() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("s.sock");
        let listener = listen(&path).unwrap();
        let mut client = connect(&path).unwrap();
        client.write_all(b"x").unwrap();
        let mut one = [0];
        listener.accept().unwrap().0.read_exact(&mut one).unwrap();
        assert_eq!(&one, b"x");
    }
}
