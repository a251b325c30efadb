//! Processes and the namespaces they live in.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    Cgroup,
    Ipc,
    Mount,
    Network,
    Pid,
    User,
    Uts,
}

impl Namespace {
    /// Its file in `/proc/PID/ns`.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mnt",
            Self::Network => "net",
            Self::Pid => "pid",
            Self::User => "user",
            Self::Uts => "uts",
        }
    }

    const fn flag(self) -> libc::c_int {
        match self {
            Self::Cgroup => libc::CLONE_NEWCGROUP,
            Self::Ipc => libc::CLONE_NEWIPC,
            Self::Mount => libc::CLONE_NEWNS,
            Self::Network => libc::CLONE_NEWNET,
            Self::Pid => libc::CLONE_NEWPID,
            Self::User => libc::CLONE_NEWUSER,
            Self::Uts => libc::CLONE_NEWUTS,
        }
    }
}

/// Which side of a fork the caller is on.
#[derive(Debug)]
pub enum Fork {
    Child,
    Parent(i32),
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks a process that has one thread.
///
/// A child of a process with several threads could meet locks that nobody will ever release, so that is refused.
#[expect(unsafe_code, reason = "there is no safe way to fork")]
pub fn fork() -> io::Result<Fork> {
    // In a container's mount namespace there may be no such directory; whoever got there was alone before.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    // SAFETY: this process has one thread, as far as it can be seen above, so the child's memory is consistent.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Whether children that end are forgotten at once, or wait for this process to ask how.
#[expect(unsafe_code, reason = "signal actions are set by number")]
pub fn let_children_go(forgotten: bool) {
    let action = if forgotten { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither action runs code of this process.
    unsafe { libc::signal(libc::SIGCHLD, action) };
}

/// What lists of processes say of this one: the place of its arguments in its memory.
#[derive(Clone, Copy, Debug)]
pub struct Title {
    start: u64,
    length: usize,
}

impl Title {
    /// The place, which is as large as the arguments that this process was started with.
    pub fn find() -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = after_name.split_ascii_whitespace().skip(45).map(|field| field.parse().unwrap_or(0));
        let (start, end): (u64, u64) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        if start == 0 || length == 0 {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(Self { start, length })
    }

    /// Puts words there, as many as fit. The arguments as they were are not to be used afterwards.
    pub fn set(&self, words: &[&[u8]]) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let mut text = words.join(&b'\0');
        text.resize(self.length - 1, 0);
        text.push(0);
        std::fs::OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(&text, self.start)
    }
}

/// Moves the calling thread into new namespaces; children follow into a new pid namespace.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn unshare(namespaces: &[Namespace]) -> io::Result<()> {
    let flags = namespaces.iter().fold(0, |flags, namespace| flags | namespace.flag());
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into the namespace that a file of `/proc/PID/ns`, or a bind mount of one, stands for.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn enter(file: BorrowedFd<'_>, namespace: Namespace) -> io::Result<()> {
    // SAFETY: no memory is passed; the descriptor is alive.
    check(unsafe { libc::setns(file.as_raw_fd(), namespace.flag()) }).map(drop)
}

/// The file of a process's namespace, opened.
pub fn namespace_of(pid: i32, namespace: Namespace) -> io::Result<File> {
    File::open(format!("/proc/{pid}/ns/{}", namespace.file_name()))
}

/// When a process was started, in ticks since boot: together with its id this names it, as ids are used again.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace();
    if fields.next().is_none_or(|state| state == "Z" || state == "X") {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the process is dead"));
    }
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(|| io::Error::other("no start time"))
}

/// Identifies this boot of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Sends a signal by number; a process that is gone is no error.
#[expect(unsafe_code, reason = "signals are given by number, real-time ones too")]
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    if pid <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: no memory is passed; the id names one process, not a group.
    match check(unsafe { libc::kill(pid, signal) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// Becomes the leader of a session whose controlling terminal is `terminal`.
#[expect(unsafe_code, reason = "an ioctl without pointers")]
pub fn control_terminal(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed; the descriptor is alive.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) }).map(drop)
}

/// Makes all descriptors from `first` on close when this process executes another program.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: no memory is passed, and descriptors stay open until exec.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes all descriptors from `first` on.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: no memory is passed; the caller is done with whatever owned these descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The signal for the end of a child.
pub const CHILD_ENDED: i32 = libc::SIGCHLD;

/// Holds a signal back until [`wait_for_signal`] takes it, so that none is lost.
#[expect(unsafe_code, reason = "signal sets are passed by address")]
pub fn hold_back(signal: i32) -> io::Result<()> {
    // SAFETY: the set is written by sigemptyset before it is read, and alive during the calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())).map(drop)
    }
}

/// Sleeps until a signal that is held back comes.
#[expect(unsafe_code, reason = "signal sets are passed by address")]
pub fn wait_for_signal(signal: i32) -> io::Result<()> {
    // SAFETY: the set is written by sigemptyset before it is read, and alive during the calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        match libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) {
            -1 if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted => {
                Err(io::Error::last_os_error())
            }
            _ => Ok(()),
        }
    }
}

/// Gives every signal its default action and lets all through: a program starts with what it inherits.
#[expect(unsafe_code, reason = "signal actions are set by number")]
pub fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            // SAFETY: the default action runs no code of this process; a number that is refused stays as it is.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    // SAFETY: the set is written by sigemptyset before it is read.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Sets the session keyring apart from the parent's.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn own_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring. Kernels without keys refuse, and have nothing to hide.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Whether `path` is a mount of a namespace, or another file of the kernel's namespace file system.
#[must_use]
pub fn is_namespace_file(path: &Path) -> bool {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_told_apart() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(start_time(me).unwrap() > 0);
        assert!(start_time(i32::MAX).is_err());
        assert!(kill(0, 9).is_err() && kill(1, 9).is_err() && kill(-1, 9).is_err());
        assert!(is_namespace_file(Path::new("/proc/self/ns/net")));
        assert!(!is_namespace_file(Path::new("/proc/self/stat")));
        assert!(boot_id().unwrap().len() > 30);
    }

    #[test]
    fn processes_with_threads_do_not_fork() {
        assert!(fork().is_err(), "the test runner has several threads");
    }
}
