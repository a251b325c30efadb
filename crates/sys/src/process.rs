//! Processes and their namespaces.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// Namespace types.
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
    /// File name in `/proc/PID/ns`.
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

/// Result of a fork: parent or child.
#[derive(Debug)]
pub enum Fork {
    Child,
    Parent(i32),
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks a single-threaded process.
///
/// Multi-threaded processes are rejected: the child could deadlock on locks held by other threads.
#[expect(unsafe_code, reason = "fork has no safe wrapper")]
pub fn fork() -> io::Result<Fork> {
    // In a container's mount namespace the directory may be missing; the process was single-threaded when it entered.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(io::Error::other("cannot fork a multi-threaded process"));
    }
    // SAFETY: this process has a single thread, as far as checked above, so the child's memory is consistent.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// Selects automatic reaping of children, or zombies that wait for this process to collect them.
#[expect(unsafe_code, reason = "signal actions are set by number")]
pub fn let_children_go(forgotten: bool) {
    let action = if forgotten { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither action runs code of this process.
    unsafe { libc::signal(libc::SIGCHLD, action) };
}

/// The process title in process lists: the memory area of the arguments.
#[derive(Clone, Copy, Debug)]
pub struct Title {
    start: u64,
    length: usize,
}

impl Title {
    /// The area, as large as the original arguments.
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

    /// Writes the title, truncated to the area. The original arguments must not be used afterwards.
    pub fn set(&self, arguments: &[&[u8]]) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let mut text = arguments.join(&b'\0');
        text.resize(self.length - 1, 0);
        text.push(0);
        std::fs::OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(&text, self.start)
    }
}

/// Moves the calling thread into new namespaces; only children enter a new pid namespace.
///
/// ```no_run
/// use sys::netlink::Netlink;
/// use sys::process::{Namespace, unshare};
///
/// unshare(&[Namespace::Network])?;
/// let mut netlink = Netlink::open()?;
/// netlink.set_up("lo")?;
/// assert_eq!(netlink.links()?.len(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn unshare(namespaces: &[Namespace]) -> io::Result<()> {
    let flags = namespaces.iter().fold(0, |flags, namespace| flags | namespace.flag());
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into the namespace of a `/proc/PID/ns` file or a bind mount of one.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn enter(file: BorrowedFd<'_>, namespace: Namespace) -> io::Result<()> {
    // SAFETY: no memory is passed; the descriptor is alive.
    check(unsafe { libc::setns(file.as_raw_fd(), namespace.flag()) }).map(drop)
}

/// Moves the calling thread into a UTS namespace of its own with this host name.
pub fn own_hostname(name: &str) -> io::Result<()> {
    unshare(&[Namespace::Uts])?;
    rustix::system::sethostname(name.as_bytes()).map_err(io::Error::from)
}

/// Opens a namespace file of a process.
pub fn namespace_of(pid: i32, namespace: Namespace) -> io::Result<File> {
    File::open(format!("/proc/{pid}/ns/{}", namespace.file_name()))
}

/// Start time of a process in ticks since boot: identifies it together with its PID, as PIDs are reused.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace();
    if fields.next().is_none_or(|state| state == "Z" || state == "X") {
        return Err(io::Error::new(io::ErrorKind::NotFound, "process has exited"));
    }
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(|| io::Error::other("no start time"))
}

/// Boot ID of the machine.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Sends a signal by number; a missing process is no error.
#[expect(unsafe_code, reason = "signals are passed by number, real-time ones included")]
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

/// Sets close-on-exec for all descriptors from `first` on.
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

/// The SIGCHLD signal.
pub const CHILD_ENDED: i32 = libc::SIGCHLD;

/// Blocks a signal until [`wait_for_signal`] receives it, so that none is lost.
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

/// Waits for a blocked signal.
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

/// Resets all signals to their default action and unblocks them, since exec inherits both.
#[expect(unsafe_code, reason = "signal actions are set by number")]
pub fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        if signal != libc::SIGKILL && signal != libc::SIGSTOP {
            // SAFETY: the default action runs no code of this process; a rejected number is left unchanged.
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

/// Joins a new session keyring, separate from the parent's.
#[expect(unsafe_code, reason = "a plain system call without pointers")]
pub fn own_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name requests an anonymous keyring. Kernels without keyrings return an error, and have nothing
    // to hide.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) };
}

/// Returns true if `path` is a mount of a namespace, or another file of nsfs.
#[must_use]
pub fn is_namespace_file(path: &Path) -> bool {
    const NSFS_MAGIC: i64 = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_identifies_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(start_time(me).unwrap() > 0);
        assert!(start_time(i32::MAX).is_err());
        assert!(kill(0, 9).is_err() && kill(1, 9).is_err() && kill(-1, 9).is_err());
        assert!(is_namespace_file(Path::new("/proc/self/ns/net")));
        assert!(!is_namespace_file(Path::new("/proc/self/stat")));
        assert!(boot_id().unwrap().len() > 30);
    }

    #[test]
    fn fork_multi_threaded_process_fails() {
        assert!(fork().is_err(), "the test runner is multi-threaded");
    }
}
