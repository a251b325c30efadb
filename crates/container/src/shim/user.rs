//! User namespaces: the users of a pod have other ids on the host, where its root is unprivileged.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use sys::process::{self, Fork, Namespace};

use super::spec::UserMap;
use super::{ShimError, Step, failure, start};

impl UserMap {
    /// Host id of one of the pod's users.
    pub(super) fn uid(&self, inside: u32) -> Option<u32> {
        outside(&self.uids, inside)
    }

    pub(super) fn gid(&self, inside: u32) -> Option<u32> {
        outside(&self.gids, inside)
    }

    /// Host ids of the pod's root.
    pub(super) fn root(&self) -> Result<(u32, u32), ShimError> {
        self.uid(0).zip(self.gid(0)).ok_or_else(|| failure("map users", "the pod has no root"))
    }
}

fn outside(map: &[(u32, u32, u32)], wanted: u32) -> Option<u32> {
    map.iter().find_map(|(inside, outside, length)| {
        let offset = wanted.checked_sub(*inside).filter(|offset| offset < length)?;
        outside.checked_add(offset)
    })
}

fn lines(map: &[(u32, u32, u32)]) -> String {
    map.iter().map(|(inside, outside, length)| format!("{inside} {outside} {length}\n")).collect()
}

/// Enters a user namespace as its root. Irreversible.
pub(super) fn enter(namespace: &File) -> Result<(), ShimError> {
    process::enter(namespace.as_fd(), Namespace::User).step(|| "enter the user namespace".to_owned())?;
    become_root().step(|| "become root of the user namespace".to_owned())
}

fn become_root() -> io::Result<()> {
    use rustix::fs::{Gid, Uid};
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    Ok(rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?)
}

/// Reports whether a process is in another user namespace than this one.
pub(super) fn is_another(pid: i32) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let of = |who: &str| std::fs::metadata(format!("/proc/{who}/ns/user")).map(|found| found.ino());
    Ok(of(&pid.to_string())? != of("self")?)
}

/// Runs `inside` in a child that is root of a new user namespace, then `outside` with the child's id and the result
/// of `inside`, while the child is still alive.
pub(super) fn with_namespace(
    map: &UserMap,
    inside: impl FnOnce() -> Result<i32, ShimError>,
    outside: impl FnOnce(i32, i32) -> Result<(), ShimError>,
) -> Result<(), ShimError> {
    let (mut ours, mut theirs) = UnixStream::pair().step(|| "make a socket".to_owned())?;
    match process::fork().step(|| "fork".to_owned())? {
        Fork::Child => {
            drop(ours);
            let outcome = process::unshare(&[Namespace::User])
                .step(|| "make a user namespace".to_owned())
                .and_then(|()| exchange(&mut theirs, b"m").step(|| "wait for the map of users".to_owned()))
                .and_then(|()| become_root().step(|| "become root of the user namespace".to_owned()))
                .and_then(|()| inside());
            let payload = match outcome {
                Ok(number) => format!("={number}\n"),
                Err(error) => format!("!{error}\n"),
            };
            let _ = theirs.write_all(payload.as_bytes());
            // Keeps this process alive until the parent is done with it.
            let _ = theirs.read(&mut [0]);
            std::process::exit(0);
        }
        Fork::Parent(child) => {
            drop(theirs);
            let outcome = map_and_await(&mut ours, child, map).and_then(|number| outside(child, number));
            drop(ours);
            let _ = start::wait(child);
            outcome
        }
    }
}

/// Sends a byte and waits for one.
fn exchange(socket: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    socket.write_all(message)?;
    socket.read_exact(&mut [0])
}

/// Writes the child's id maps, and reads the result of its work.
fn map_and_await(socket: &mut UnixStream, child: i32, map: &UserMap) -> Result<i32, ShimError> {
    let mut first = [0];
    socket.read_exact(&mut first).step(|| "wait for the user namespace".to_owned())?;
    if first == *b"m" {
        for (file, content) in [("uid_map", lines(&map.uids)), ("gid_map", lines(&map.gids))] {
            std::fs::write(Path::new("/proc").join(child.to_string()).join(file), content)
                .step(|| format!("write the {file}"))?;
        }
        socket.write_all(b"m").step(|| "map users".to_owned())?;
        socket.read_exact(&mut first).step(|| "wait for the namespaces".to_owned())?;
    }
    let mut text = Vec::new();
    let mut byte = [0];
    while text.len() < 4096 && socket.read(&mut byte).is_ok_and(|count| count == 1) && byte != *b"\n" {
        text.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    match first {
        [b'='] => text.parse().map_err(|_| failure("make namespaces", "no reply")),
        _ => Err(failure("make namespaces", text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_maps_are_applied() {
        let map =
            UserMap { uids: vec![(0, 65536, 1000), (2000, 70000, 10)], gids: vec![(0, 131_072, 65536)] };
        assert_eq!(map.root().unwrap(), (65536, 131_072));
        for (inside, outside) in
            [(999, Some(66535)), (1000, None), (2009, Some(70009)), (2010, None), (u32::MAX, None)]
        {
            assert_eq!(map.uid(inside), outside, "{inside}");
        }
        assert_eq!(lines(&map.uids), "0 65536 1000\n2000 70000 10\n");
        assert!(UserMap::default().root().is_err());
    }
}
