//! systemd-logind shutdown inhibitor: delays node shutdown and receives its signal.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::message::{self, ANSWER, ERROR, FIXED, Message, Method, SIGNAL};

/// Socket of the system bus.
pub const BUS: &str = "/run/dbus/system_bus_socket";
const DRIVER: Method<'_> = Method {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    member: "Hello",
};
const MANAGER: Method<'_> = Method {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
    member: "Inhibit",
};
const RULE: &str = "type='signal',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'";

/// D-Bus connection that holds the inhibitor lock. Blocking.
#[derive(Debug)]
pub struct Inhibitor {
    stream: UnixStream,
    serial: u32,
    /// Inhibitor lock, held while open.
    lock: Option<OwnedFd>,
}

impl Inhibitor {
    /// Takes a delay lock on shutdown.
    pub fn take(bus: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(bus)?;
        let user = rustix::process::geteuid().as_raw().to_string();
        stream.write_all(format!("\0AUTH EXTERNAL {}\r\n", hex::encode(user)).as_bytes())?;
        expect(&mut stream, "OK")?;
        stream.write_all(b"NEGOTIATE_UNIX_FD\r\n")?;
        expect(&mut stream, "AGREE_UNIX_FD")?;
        stream.write_all(b"BEGIN\r\n")?;
        let mut inhibitor = Self { stream, serial: 0, lock: None };
        inhibitor.call(DRIVER, &[])?;
        inhibitor.call(Method { member: "AddMatch", ..DRIVER }, &[RULE])?;
        let call_arguments = ["shutdown", "ferry", "Pods need time to end", "delay"];
        inhibitor.lock = inhibitor.call(MANAGER, &call_arguments)?;
        if inhibitor.lock.is_none() {
            return Err(io::Error::other("systemd-logind returned no inhibitor lock"));
        }
        Ok(inhibitor)
    }

    /// Handle for another thread to interrupt [`Inhibitor::wait`].
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Waits for the shutdown signal.
    pub fn wait(&mut self) -> io::Result<()> {
        loop {
            let (message, _) = self.receive()?;
            if message.kind == SIGNAL
                && message.member == "PrepareForShutdown"
                && message.first_number() == Some(1)
            {
                return Ok(());
            }
        }
    }

    fn call(&mut self, method: Method<'_>, arguments: &[&str]) -> io::Result<Option<OwnedFd>> {
        self.serial += 1;
        self.stream.write_all(&message::call(self.serial, method, arguments))?;
        loop {
            let (message, descriptor) = self.receive()?;
            match message.kind {
                ANSWER if message.reply_serial == self.serial => return Ok(descriptor),
                ERROR if message.reply_serial == self.serial => {
                    return Err(io::Error::other(format!("D-Bus call {} failed", method.member)));
                }
                _ => {}
            }
        }
    }

    /// Receives the next message, with its file descriptor if any.
    fn receive(&mut self) -> io::Result<(Message, Option<OwnedFd>)> {
        let mut fixed = [0; FIXED];
        let mut descriptor = None;
        let mut have = 0;
        while have < FIXED {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut fixed[have..])];
            let got = recvmsg(&self.stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            have += got;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptor = rights.into_iter().next().or(descriptor);
                }
            }
        }
        let mut rest = vec![0; message::rest_length(&fixed)?];
        self.stream.read_exact(&mut rest)?;
        Ok((message::parse(&fixed, &rest)?, descriptor))
    }
}

/// Reads a line of the authentication handshake, which must have this prefix.
fn expect(stream: &mut UnixStream, beginning: &str) -> io::Result<()> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        if line.len() > 1024 {
            return Err(io::Error::other("D-Bus authentication reply is too long"));
        }
    }
    if line.starts_with(beginning.as_bytes()) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "unexpected D-Bus authentication reply {:?}",
        String::from_utf8_lossy(&line).trim_end()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;

    /// A D-Bus method return or signal, as a bus would send it.
    fn sent(kind: u8, serial: u32, member: &str, body: &[u8]) -> Vec<u8> {
        let mut fields = Vec::new();
        if kind == SIGNAL {
            fields.extend_from_slice(&[3, 1, b's', 0]);
            fields.extend_from_slice(&(member.len() as u32).to_le_bytes());
            fields.extend_from_slice(member.as_bytes());
            fields.push(0);
        } else {
            fields.extend_from_slice(&[5, 1, b'u', 0]);
            fields.extend_from_slice(&serial.to_le_bytes());
        }
        let mut bytes = vec![b'l', kind, 0, 1];
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&1_u32.to_le_bytes());
        bytes.extend_from_slice(&(fields.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&fields);
        while !bytes.len().is_multiple_of(8) {
            bytes.push(0);
        }
        bytes.extend_from_slice(body);
        bytes
    }

    fn next(stream: &mut UnixStream) -> Message {
        let mut fixed = [0; FIXED];
        stream.read_exact(&mut fixed).expect("a header");
        let mut rest = vec![0; message::rest_length(&fixed).expect("a length")];
        stream.read_exact(&mut rest).expect("a message");
        message::parse(&fixed, &rest).expect("a message")
    }

    #[test]
    fn inhibitor_lock_delays_shutdown() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bus");
        let listener = UnixListener::bind(&path).expect("a socket");
        let bus = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut first = [0; 1];
            stream.read_exact(&mut first).expect("a byte");
            expect(&mut stream, "AUTH EXTERNAL ").expect("who it is");
            stream.write_all(b"OK 1234\r\n").expect("written");
            expect(&mut stream, "NEGOTIATE_UNIX_FD").expect("a question");
            stream.write_all(b"AGREE_UNIX_FD\r\n").expect("written");
            expect(&mut stream, "BEGIN").expect("a beginning");
            for (serial, member) in [(1, "Hello"), (2, "AddMatch")] {
                assert_eq!(next(&mut stream).member, member);
                stream.write_all(&sent(ANSWER, serial, "", &[])).expect("written");
            }
            assert_eq!(next(&mut stream).member, "Inhibit");
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors = [theirs.as_fd()];
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let answer = sent(ANSWER, 3, "", &0_u32.to_le_bytes());
            sendmsg(&stream, &[io::IoSlice::new(&answer)], &mut ancillary, SendFlags::empty()).expect("sent");
            drop(theirs);
            stream.write_all(&sent(SIGNAL, 0, "PrepareForShutdown", &0_u32.to_le_bytes())).expect("written");
            stream.write_all(&sent(SIGNAL, 0, "PrepareForShutdown", &1_u32.to_le_bytes())).expect("written");
            // Fails when the lock is released.
            let mut ours = ours;
            assert_eq!(ours.read(&mut [0; 1]).expect("read"), 0);
        });
        let mut inhibitor = Inhibitor::take(&path).expect("a lock");
        inhibitor.wait().expect("the word");
        assert!(!bus.is_finished());
        drop(inhibitor);
        bus.join().expect("the bus thread succeeds");
    }
}
