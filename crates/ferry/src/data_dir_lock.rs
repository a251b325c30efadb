//! Lock of a data directory. The process that holds it runs the cluster, so neither process names nor stale PIDs
//! matter.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, Signal, fcntl_getlk, kill_process};

/// Time limit for the running process to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// Locked file with the PID, held while the process runs.
#[derive(Debug)]
pub struct DataDirLock {
    path: PathBuf,
    _locked: File,
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("ferry.pid")
}

impl DataDirLock {
    /// Locks the data directory for this process.
    pub fn claim(data_dir: &Path) -> Result<Self> {
        let path = path(data_dir);
        let doing = || format!("failed to write {}", path.display());
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.with_context(doing)?;
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN | Errno::ACCESS) => bail!(already(data_dir)?),
            other => other.with_context(doing)?,
        }
        file.set_len(0).and_then(|()| file.rewind()).with_context(doing)?;
        write!(file, "{}", std::process::id()).with_context(doing)?;
        Ok(Self { path, _locked: file })
    }
}

impl Drop for DataDirLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn already(data_dir: &Path) -> Result<String> {
    let process = running(data_dir)?.map(|process| format!(" (process {})", process.as_raw_nonzero()));
    Ok(format!(
        "a cluster is already running in {}{}; stop it with `ferry down`, or set another --data-dir",
        data_dir.display(),
        process.unwrap_or_default()
    ))
}

/// Returns an error if another process holds the lock.
pub fn ensure_free(data_dir: &Path) -> Result<()> {
    if running(data_dir)?.is_some() { Err(anyhow::anyhow!(already(data_dir)?)) } else { Ok(()) }
}

/// Process that holds the lock, as reported by the kernel. An error if its PID is not visible from here.
pub fn running(data_dir: &Path) -> Result<Option<Pid>> {
    let path = path(data_dir);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("failed to read {}", path.display()))?,
    };
    let holder = fcntl_getlk(&file, &Flock::from(FlockType::ReadLock))
        .with_context(|| format!("failed to read the lock of {}", path.display()))?;
    match holder {
        None => Ok(None),
        Some(Flock { pid: Some(process), .. }) => Ok(Some(process)),
        Some(_) => bail!(
            "a cluster is running in {}, but its process is not visible from here (perhaps in another container); stop it there first",
            data_dir.display()
        ),
    }
}

/// Stops the running process and waits for its exit; false if none runs.
pub fn stop(data_dir: &Path) -> Result<bool> {
    let Some(process) = running(data_dir)? else { return Ok(false) };
    // The PID may be reused after the exit; a zombie counts as exited.
    let number = process.as_raw_nonzero().get();
    let Ok(started) = sys::process::start_time(number) else { return Ok(false) };
    kill_process(process, Signal::TERM).context("failed to send SIGTERM")?;
    let begun = Instant::now();
    while sys::process::start_time(number).ok() == Some(started) {
        if begun.elapsed() > STOP_TIMEOUT {
            bail!(
                "the cluster in {} (process {number}) has not stopped within {} s; kill it, then try again",
                data_dir.display(),
                STOP_TIMEOUT.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn lock_ends_with_its_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let data_dir = directory.path();
        assert!(
            running(data_dir).expect("lock state").is_none() && !stop(data_dir).expect("nothing to stop")
        );
        // A stale PID left by a crash is ignored.
        std::fs::write(path(data_dir), std::process::id().to_string()).expect("written");
        assert!(running(data_dir).expect("lock state").is_none() && ensure_free(data_dir).is_ok());
        let mark = DataDirLock::claim(data_dir).expect("claimed");
        assert_eq!(std::fs::read_to_string(path(data_dir)).expect("read"), std::process::id().to_string());
        drop(mark);
        assert!(!path(data_dir).exists());
    }

    /// The lock identifies the process, regardless of its name.
    #[test]
    fn lock_of_other_process_is_detected_and_process_stopped() {
        let directory = tempfile::tempdir().expect("a directory");
        let data_dir = directory.path();
        let script = "import fcntl, sys, time\n\
            file = open(sys.argv[1], 'w')\n\
            fcntl.lockf(file, fcntl.LOCK_EX)\n\
            print('locked', flush=True)\n\
            time.sleep(600)\n";
        let started =
            Command::new("python3").args(["-c", script]).arg(path(data_dir)).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = started else { return println!("skipped: no python3 here") };
        let mut line = String::new();
        let mut output = io::BufReader::new(child.stdout.take().expect("standard output"));
        io::BufRead::read_line(&mut output, &mut line).expect("a line");
        let number = i32::try_from(child.id()).expect("a number");
        let found = running(data_dir).expect("lock state").map(|process| process.as_raw_nonzero().get());
        let refused = ensure_free(data_dir).expect_err("the lock is held").to_string();
        let claimed = DataDirLock::claim(data_dir).map(drop).expect_err("the lock is held").to_string();
        // Reaped immediately, so that the PID is free.
        let reaper = std::thread::spawn(move || child.wait());
        let stopped = stop(data_dir);
        let _ = rustix::process::Pid::from_raw(number).map(|process| kill_process(process, Signal::KILL));
        reaper.join().expect("joined").expect("waited");
        assert_eq!((line.trim(), found), ("locked", Some(number)));
        assert_eq!(refused, claimed);
        assert!(refused.contains(&format!("(process {number}); stop it with `ferry down`")), "{refused}");
        assert!(stopped.expect("stopped"));
        assert!(running(data_dir).expect("lock state").is_none());
    }
}
