//! Who runs on which core, and who goes first there.
//!
//! On one machine a load generator takes the server's CPU, and whoever measures waits for a core while both are busy.
//! Apart from each other, what is measured is the server.

use anyhow::{Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The lowest and the highest priority.
pub const LAST: i32 = 19;
pub const FIRST: i32 = -20;

/// The cores of this process, in two parts: the server's, and the last one for those who send requests.
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

    /// Starts something on the server's cores; it and its threads stay there.
    pub fn start<T>(&self, start: impl FnOnce() -> T) -> Result<T> {
        sched_setaffinity(None, &self.server)?;
        let started = start();
        sched_setaffinity(None, &self.clients)?;
        Ok(started)
    }

    /// All threads of this process stay on the clients' core, and so do the processes it starts from now on.
    pub fn stay(&self) -> Result<()> {
        for thread in std::fs::read_dir("/proc/self/task")? {
            let id = thread?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            sched_setaffinity(id, &self.clients)?;
        }
        Ok(())
    }
}

/// How soon this process runs when others want to as well. Whether it was allowed.
pub fn set_priority(priority: i32) -> bool {
    rustix::process::setpriority_process(None, priority).is_ok()
}
