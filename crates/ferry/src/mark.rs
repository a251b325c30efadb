//! Which process runs in a data directory: one that holds a lock there, so that neither its name nor a number left
//! behind by a crash matters.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, Signal, fcntl_getlk, kill_process};

/// How long what runs may take to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A locked file with the process' number, there as long as the process runs.
#[derive(Debug)]
pub struct Mark {
    path: PathBuf,
    _locked: File,
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("ferry.pid")
}

impl Mark {
    /// Makes this process the one that runs here.
    pub fn claim(data_dir: &Path) -> Result<Self> {
        let path = path(data_dir);
        let doing = || format!("writing {}", path.display());
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

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn already(data_dir: &Path) -> Result<String> {
    let process = running(data_dir)?.map(|process| format!(" (process {})", process.as_raw_nonzero()));
    Ok(format!(
        "a cluster runs in {} already{}; stop it with `ferry down`, or name another --data-dir",
        data_dir.display(),
        process.unwrap_or_default()
    ))
}

/// An error if another process runs here.
pub fn ensure_free(data_dir: &Path) -> Result<()> {
    if running(data_dir)?.is_some() { Err(anyhow::anyhow!(already(data_dir)?)) } else { Ok(()) }
}

/// The process that runs here, by the kernel's word. An error if it cannot be told from here.
pub fn running(data_dir: &Path) -> Result<Option<Pid>> {
    let path = path(data_dir);
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("reading {}", path.display()))?,
    };
    let holder = fcntl_getlk(&file, &Flock::from(FlockType::ReadLock))
        .with_context(|| format!("looking who has {}", path.display()))?;
    match holder {
        None => Ok(None),
        Some(Flock { pid: Some(process), .. }) => Ok(Some(process)),
        Some(_) => bail!(
            "a cluster runs in {}, but where its process cannot be seen from here (another container, perhaps); stop it there first",
            data_dir.display()
        ),
    }
}

/// Ends what runs here and waits until it has ended; false if nothing does.
pub fn stop(data_dir: &Path) -> Result<bool> {
    let Some(process) = running(data_dir)? else { return Ok(false) };
    // Its number may be another's once it has ended; a zombie has ended.
    let number = process.as_raw_nonzero().get();
    let Ok(started) = sys::process::start_time(number) else { return Ok(false) };
    kill_process(process, Signal::TERM).context("sending SIGTERM")?;
    let begun = Instant::now();
    while sys::process::start_time(number).ok() == Some(started) {
        if begun.elapsed() > PATIENCE {
            bail!(
                "the cluster in {} (process {number}) has not ended in {} s; end it by hand, then try again",
                data_dir.display(),
                PATIENCE.as_secs()
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
    fn a_mark_goes_with_its_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path();
        assert!(running(place).expect("asked").is_none() && !stop(place).expect("nothing to stop"));
        // A number that a crash left says nothing.
        std::fs::write(path(place), std::process::id().to_string()).expect("written");
        assert!(running(place).expect("asked").is_none() && ensure_free(place).is_ok());
        let mark = Mark::claim(place).expect("claimed");
        assert_eq!(std::fs::read_to_string(path(place)).expect("read"), std::process::id().to_string());
        drop(mark);
        assert!(!path(place).exists());
    }

    /// Another process holds the lock, whatever its name is.
    #[test]
    fn another_process_is_found_and_stopped() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path();
        let script = "import fcntl, sys, time\n\
            file = open(sys.argv[1], 'w')\n\
            fcntl.lockf(file, fcntl.LOCK_EX)\n\
            print('locked', flush=True)\n\
            time.sleep(600)\n";
        let started =
            Command::new("python3").args(["-c", script]).arg(path(place)).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = started else { return println!("skipped: no python3 here") };
        let mut said = String::new();
        let mut output = io::BufReader::new(child.stdout.take().expect("its output"));
        io::BufRead::read_line(&mut output, &mut said).expect("its word");
        let number = i32::try_from(child.id()).expect("a number");
        let found = running(place).expect("asked").map(|process| process.as_raw_nonzero().get());
        let refused = ensure_free(place).expect_err("somebody runs here").to_string();
        let claimed = Mark::claim(place).map(drop).expect_err("somebody runs here").to_string();
        // Reaped as soon as it has ended: the number is free then.
        let reaper = std::thread::spawn(move || child.wait());
        let stopped = stop(place);
        let _ = rustix::process::Pid::from_raw(number).map(|process| kill_process(process, Signal::KILL));
        reaper.join().expect("joined").expect("waited");
        assert_eq!((said.trim(), found), ("locked", Some(number)));
        assert_eq!(refused, claimed);
        assert!(
            refused.contains(&format!("already (process {number}); stop it with `ferry down`")),
            "{refused}"
        );
        assert!(stopped.expect("stopped"));
        assert!(running(place).expect("asked").is_none());
    }
}
