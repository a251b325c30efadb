//! AppArmor: kernel support, loaded profiles, and the profile of the next exec.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Reports whether the kernel enforces profiles.
#[must_use]
pub fn is_enabled() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|text| text.trim_start().starts_with('Y'))
}

/// Reports whether a profile of this name is loaded.
pub fn is_loaded(name: &str) -> io::Result<bool> {
    let loaded = std::fs::read_to_string("/sys/kernel/security/apparmor/profiles")?;
    Ok(has_profile(&loaded, name))
}

/// Parses lines of the form `name (mode)`.
fn has_profile(loaded: &str, name: &str) -> bool {
    loaded.lines().filter_map(|line| line.rsplit_once(" (")).any(|(found, _)| found == name)
}

/// Handle to the procfs currently mounted at `/proc`, for use after an untrusted one is mounted there.
#[derive(Debug)]
pub struct Procfs(std::os::fd::OwnedFd);

impl Procfs {
    /// Fails if `/proc` is not the root of a procfs.
    pub fn open() -> io::Result<Self> {
        const PROC: u64 = 0x9fa0;
        const ROOT: u64 = 1;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(CWD, "/proc", flags, Mode::empty())?;
        if crate::mounts::filesystem(file.as_fd())? != PROC || rustix::fs::fstat(&file)?.st_ino != ROOT {
            return Err(io::Error::other("/proc is not a procfs"));
        }
        Ok(Self(file))
    }

    /// Opens a file of the calling thread for writing; rejects anything mounted over it.
    fn own(&self, name: &str) -> io::Result<std::fs::File> {
        // Links are not followed, so the target of `thread-self` is named directly.
        let link = rustix::fs::readlinkat(&self.0, "thread-self", Vec::new())?;
        let path = format!("{}/{name}", link.to_string_lossy());
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(self.as_fd(), path, flags, Mode::empty(), how)?.into())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sets the profile of the next program that the calling thread executes.
    pub fn confine_next_program(&self, profile: &str) -> io::Result<()> {
        let file = self.own("attr/apparmor/exec").or_else(|_| self.own("attr/exec"));
        file?.write_all(format!("exec {profile}").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_found_by_whole_name() {
        let loaded = "docker-default (enforce)\n/usr/bin/man (enforce)\na b (complain)\n";
        for (name, wanted) in
            [("docker-default", true), ("a b", true), ("docker", false), ("", false), ("enforce", false)]
        {
            assert_eq!(has_profile(loaded, name), wanted, "{name}");
        }
    }

    /// CVE-2025-52881: the exec label is written to a procfs and nowhere else.
    #[test]
    fn procfs_covered_file_is_rejected() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        std::thread::spawn(|| {
            use crate::mounts::{MountPropagationFlags, bind, propagate};
            let directory = tempfile::tempdir().unwrap();
            let decoy = directory.path().join("decoy");
            std::fs::write(&decoy, "").unwrap();
            crate::process::unshare(&[crate::process::Namespace::Mount]).unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            propagate(std::path::Path::new("/"), private).unwrap();
            let procfs = Procfs::open().unwrap();
            assert!(procfs.own("oom_score_adj").is_ok());
            bind(&decoy, std::path::Path::new("/proc/thread-self/oom_score_adj"), false).unwrap();
            assert!(procfs.own("oom_score_adj").is_err());
            bind(directory.path(), std::path::Path::new("/proc"), false).unwrap();
            assert!(Procfs::open().is_err());
        })
        .join()
        .unwrap();
    }
}
