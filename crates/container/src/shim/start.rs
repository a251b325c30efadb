//! The last steps before exec of the container's program: limits, identity, seccomp filter.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::WaitOptions;
use sys::{capabilities, process, seccomp};

use super::identity::{self, Identity};
use super::spec::{Process, Seccomp};
use super::{ShimError, Step, failure};

/// Drops privileges to `who` and executes the container's program. Called in the child, inside the container's
/// namespaces and root. Returns only on error.
pub(super) fn become_program(
    process: &Process,
    who: &Identity,
) -> Result<std::convert::Infallible, ShimError> {
    enter_directory(&process.directory, who)?;
    let program = find(process, who)?;
    let held = process.capabilities & capabilities::bounding().step(|| "read capabilities".to_owned())?;
    let filter = match &process.seccomp {
        Seccomp::Unconfined => None,
        Seccomp::Default => Some(seccomp::Profile::runtime_default(held)),
        Seccomp::Profile(json) => Some(
            seccomp::Profile::parse(json.as_bytes())
                .map_err(|error| failure("read the seccomp profile", error.to_string()))?,
        ),
    };
    let filter = filter.map(|profile| seccomp::compile(&profile, held)).transpose();
    let filter = filter.map_err(|error| failure("compile the seccomp profile", error.to_string()))?;
    limit_open_files().step(|| "limit open files".to_owned())?;
    process::own_keyring();
    // Ferry disables huge pages for itself, but not for containers.
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    process::default_signals();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    capabilities::bound(held).step(|| "drop capabilities".to_owned())?;
    if process.no_new_privileges {
        rustix::thread::set_no_new_privs(true).step(|| "set no_new_privs".to_owned())?;
    } else if let Some(filter) = &filter {
        // Without no_new_privs, installing a filter needs CAP_SYS_ADMIN: install it before dropping capabilities.
        seccomp::install(filter).step(|| "install the seccomp filter".to_owned())?;
    }
    own_streams(who.uid);
    change_user(who, held, process.ambient & held)?;
    if process.no_new_privileges
        && let Some(filter) = &filter
    {
        seccomp::install(filter).step(|| "install the seccomp filter".to_owned())?;
    }
    let mut command = Command::new(&program);
    command.arg0(&process.arguments[0]).args(&process.arguments[1..]).env_clear();
    command.envs(process.environment.iter().map(|(name, value)| (name, value)));
    if !process.environment.iter().any(|(name, _)| name == "HOME") {
        command.env("HOME", &who.home);
    }
    let error = command.exec();
    Err(ShimError { step: format!("exec {}", program.display()), source: error })
}

/// Sets the usual soft limit of open files, which programs may raise: the daemon's own is far higher, and programs
/// that iterate over all possible descriptors would be slow.
fn limit_open_files() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const SOFT_LIMIT: u64 = 1024;
    let now = getrlimit(Resource::Nofile);
    let current = now.maximum.map_or(SOFT_LIMIT, |most| most.min(SOFT_LIMIT));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: now.maximum })?)
}

fn enter_directory(directory: &Path, who: &Identity) -> Result<(), ShimError> {
    let directory = if directory.as_os_str().is_empty() { Path::new("/") } else { directory };
    if !directory.exists() {
        std::fs::create_dir_all(directory)
            .and_then(|()| std::os::unix::fs::chown(directory, Some(who.uid), Some(who.gid)))
            .step(|| format!("make working directory {}", directory.display()))?;
    }
    let step = || format!("enter working directory {}", directory.display());
    std::env::set_current_dir(directory).step(step)?;
    // Through a leaked descriptor it could be a directory of the host (CVE-2024-21626).
    let entered = rustix::process::getcwd(Vec::new()).step(step)?;
    if !entered.as_bytes().starts_with(b"/") {
        return Err(failure(&step(), "it is outside of the container's root"));
    }
    Ok(())
}

/// Finds the program in `PATH`, with the error texts of Go's `exec`, which users search for.
fn find(process: &Process, who: &Identity) -> Result<PathBuf, ShimError> {
    let name = process.arguments.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| failure("exec", "no command specified"))?;
    if name.contains('/') {
        return match std::fs::metadata(name) {
            Ok(_) => Ok(name.into()),
            Err(error) => Err(ShimError { step: format!("exec: {name:?}: stat {name}"), source: error }),
        };
    }
    let path = process.environment.iter().rfind(|(key, _)| key == "PATH");
    let path = path.map_or_else(|| OsString::from(DEFAULT_PATH), |(_, value)| value.into());
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(name);
        if std::fs::metadata(&candidate)
            .is_ok_and(|found| found.is_file() && identity::may_execute(&found, who))
        {
            return Ok(candidate);
        }
    }
    Err(failure(&format!("exec: {name:?}"), "executable file not found in $PATH"))
}

/// Default `PATH` for images that set none.
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Programs open `/dev/stdout` by name, which only its owner may. Files with another owner are skipped.
fn own_streams(uid: u32) {
    use rustix::fs::{FileType, fchown, fstat};
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        let Ok(found) = fstat(stream) else { continue };
        let terminal = rustix::termios::isatty(stream);
        if FileType::from_raw_mode(found.st_mode) == FileType::Fifo || terminal {
            let _ = fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), None);
        }
    }
}

fn change_user(who: &Identity, held: u64, ambient: u64) -> Result<(), ShimError> {
    use rustix::fs::{Gid, Uid};
    let groups: Vec<Gid> = who.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_keep_capabilities(true).step(|| "keep capabilities".to_owned())?;
    rustix::thread::set_thread_groups(&groups).step(|| "set groups".to_owned())?;
    let gid = Gid::from_raw(who.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(|| format!("set group {}", who.gid))?;
    let uid = Uid::from_raw(who.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(|| format!("set user {}", who.uid))?;
    // Programs of root inherit the bounding set; those of other users the ambient set.
    let (effective, permitted) = if who.uid == 0 { (held, held) } else { (ambient, ambient) };
    capabilities::set(effective, permitted, ambient, ambient).step(|| "set capabilities".to_owned())?;
    rustix::thread::set_keep_capabilities(false).step(|| "keep capabilities".to_owned())
}

/// Makes three descriptors the standard streams.
pub(super) fn standard(
    stdin: BorrowedFd<'_>,
    stdout: BorrowedFd<'_>,
    stderr: BorrowedFd<'_>,
) -> io::Result<()> {
    let (stdin, stdout, stderr) = (
        rustix::io::fcntl_dupfd_cloexec(stdin, 10)?,
        rustix::io::fcntl_dupfd_cloexec(stdout, 10)?,
        rustix::io::fcntl_dupfd_cloexec(stderr, 10)?,
    );
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    rustix::stdio::dup2_stderr(stderr)?;
    Ok(())
}

/// Opens a terminal in the container, makes its slave the standard streams and returns the master.
pub(super) fn terminal() -> Result<OwnedFd, ShimError> {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
    const DEVPTS: u64 = 0x1cd1;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let ours = open("/dev/pts/ptmx", flags, Mode::empty()).step(|| "open a terminal".to_owned())?;
    // A volume may have replaced the file (CVE-2025-52565); the slave is opened by descriptor for the same reason.
    if sys::mounts::filesystem(ours.as_fd()).step(|| "open a terminal".to_owned())? != DEVPTS {
        return Err(failure("open a terminal", "/dev/pts/ptmx is not on a devpts"));
    }
    unlockpt(&ours).step(|| "unlock the terminal".to_owned())?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let theirs = ioctl_tiocgptpeer(&ours, flags).step(|| "open the terminal's other end".to_owned())?;
    let fd = theirs.as_fd();
    standard(fd, fd, fd).step(|| "use the terminal".to_owned())?;
    let _ = rustix::process::setsid();
    process::control_terminal(fd).step(|| "control the terminal".to_owned())?;
    Ok(ours)
}

/// Closes all descriptors inherited from the daemon.
pub(super) fn settle_in_background() {
    if let Ok(nothing) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = standard(nothing.as_fd(), nothing.as_fd(), nothing.as_fd());
    }
    let _ = std::env::set_current_dir("/");
    process::default_signals();
    // The socket to the daemon is among the others.
    let _ = process::close_from(3);
}

/// Waits for a child; returns its exit code as shells compute it.
pub(super) fn wait(pid: i32) -> io::Result<i32> {
    let pid =
        rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                let code =
                    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
                if let Some(code) = code {
                    return Ok(code);
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
