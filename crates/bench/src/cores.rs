//! Core affinity and priority of processes.
//!
//! On one machine a load generator competes with the server for CPU, and the measuring process waits for a core while
//! both are busy. Separate cores isolate the measurement.

use anyhow::{Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The lowest and the highest priority.
pub const LAST: i32 = 19;
pub const FIRST: i32 = -20;

/// The cores of this process, in two parts: the server's, and the last one for clients.
pub struct Cores {
    server: CpuSet,
    clients: CpuSet,
}

impl Cores {
    pub fn divide() -> Result<Self> {
        let all = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let last = cores.next_back();
        let (mut server, mut clients) = (CpuSet::new(), CpuSet::new());
        cores.for_each(|core| server.set(core));
        last.into_iter().for_each(|core| clients.set(core));
        ensure!(server.count() > 0, "server and clients need a core each");
        Ok(Self { server, clients })
    }

    pub fn of_server(&self) -> u32 {
        self.server.count()
    }

    /// Starts a process on the server's cores; it and its threads stay there.
    pub fn start<T>(&self, start: impl FnOnce() -> T) -> Result<T> {
        sched_setaffinity(None, &self.server)?;
        let started = start();
        sched_setaffinity(None, &self.clients)?;
        Ok(started)
    }

    /// Binds all threads of this process, and processes it starts later, to the clients' core.
    pub fn stay(&self) -> Result<()> {
        for thread in std::fs::read_dir("/proc/self/task")? {
            let id = thread?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            sched_setaffinity(id, &self.clients)?;
        }
        Ok(())
    }
}

/// Sets the scheduling priority of this process; false if not permitted.
pub fn set_priority(priority: i32) -> bool {
    rustix::process::setpriority_process(None, priority).is_ok()
}
