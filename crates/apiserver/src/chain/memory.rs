//! Memory that requests take together, a part of what the process may have.
//!
//! A request reserves what decoding its body may take before it gets a seat; one that finds none left waits for others to
//! finish, and is refused with 429 if that takes too long. Requests with small bodies reserve nothing.

use machinery::codec::budget;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies up to this size reserve nothing.
const SMALL: u64 = 4 << 10;
/// A decoded body exists up to this many times: as sent, as stored before, as changed.
const COPIES: u64 = 2;
/// Heavy requests in progress at once, at most.
const HEAVY: u32 = 16;
/// The part of the process's memory that requests may take, and that bodies may which wait for a seat.
const WORK_PART: u64 = 4;
const BODIES_PART: u64 = 16;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Memory for the work of requests and for bodies that wait, in KiB.
pub struct Memory {
    work: Arc<Semaphore>,
    total: u32,
    pub bodies: Arc<Semaphore>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(limit())
    }
}

impl Memory {
    /// The budgets of a process that may take `limit` bytes.
    fn of(limit: u64) -> Self {
        let part = |part: u64, least: u64, most: u64| {
            u32::try_from((limit / part).clamp(least, most) / KIB).unwrap_or(u32::MAX)
        };
        let total = part(WORK_PART, 32 * MIB, 1024 * MIB);
        let semaphore = |permits: u32| Arc::new(Semaphore::new(permits as usize));
        Self { work: semaphore(total), total, bodies: semaphore(part(BODIES_PART, 8 * MIB, 128 * MIB)) }
    }

    /// Reserves what a request with a body of this size may take; `Err` if there was none until `until`.
    pub async fn reserve(
        &self,
        body: u64,
        is_heavy: bool,
        until: Instant,
    ) -> Result<Option<OwnedSemaphorePermit>, Exhausted> {
        if body <= SMALL && !is_heavy {
            return Ok(None);
        }
        let wanted = budget::of_body(usize::try_from(body).unwrap_or(usize::MAX)) as u64 * COPIES / KIB;
        let least = if is_heavy { self.total / HEAVY } else { 0 };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(least, self.total);
        let work = self.work.clone();
        if let Ok(share) = work.clone().try_acquire_many_owned(wanted) {
            return Ok(Some(share));
        }
        match tokio::time::timeout_at(until.into(), work.acquire_many_owned(wanted)).await {
            Ok(Ok(share)) => Ok(Some(share)),
            _ => Err(Exhausted),
        }
    }
}

/// Others took all memory for requests for too long.
#[derive(Debug)]
pub struct Exhausted;

/// The memory that this process may take: the machine's, or the lowest limit of the cgroups it is in.
fn limit() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(Path::new("/sys/fs/cgroup"), &groups).chain(machine()).min().unwrap_or(u64::MAX)
}

fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
}

/// Limits of the cgroups in a text of `/proc/PID/cgroup`, and of their parents. In a container with a cgroup namespace
/// of its own the path is that of the root.
fn limits(root: &Path, groups: &str) -> impl Iterator<Item = u64> {
    let found = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            ("", path) => Some((root.to_owned(), "memory.max", path)),
            (controllers, path) if controllers.split(',').any(|name| name == "memory") => {
                Some((root.join("memory"), "memory.limit_in_bytes", path))
            }
            _ => None,
        }
    });
    let mut all = Vec::new();
    for (root, file, path) in found {
        let mut group = root.join(path.trim_start_matches('/'));
        loop {
            let text = std::fs::read_to_string(group.join(file)).unwrap_or_default();
            all.extend(text.trim().parse::<u64>());
            if group == root || !group.pop() {
                break;
            }
        }
    }
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn requests_beyond_the_memory_wait_and_are_refused() {
        let memory = Memory::of(256 * MIB);
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(
            matches!(memory.reserve(1000, false, soon()).await, Ok(None)),
            "small bodies reserve nothing"
        );
        let first = memory.reserve(3 << 20, true, soon()).await.expect("there is room");
        assert!(first.is_some());
        assert!(memory.reserve(3 << 20, true, soon()).await.is_err());
        assert!(memory.reserve(1000, true, soon()).await.is_err(), "heavy ones are few");
        assert!(matches!(memory.reserve(1000, false, soon()).await, Ok(None)));
        drop(first);
        let mut several = Vec::new();
        for _ in 0..HEAVY {
            several.push(memory.reserve(1000, true, soon()).await.expect("there is room"));
        }
        assert!(memory.reserve(1000, true, soon()).await.is_err());
        several.pop();
        assert!(memory.reserve(1000, true, soon()).await.is_ok());
    }

    #[test]
    fn memory_limit_is_the_lowest_of_nested_cgroups() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        write("memory/x/memory.limit_in_bytes", "900\n");
        write("memory/x/y/memory.limit_in_bytes", "9223372036854771712\n");
        let lowest = |groups: &str| limits(root.path(), groups).min();
        assert_eq!(lowest("0::/a/b\n"), Some(1000));
        assert_eq!(lowest("5:cpu:/x\n4:memory,hugetlb:/x/y\n0::/\n"), Some(900));
        assert_eq!(lowest("0::/\n"), None);
        assert!(limit() > 0);
    }
}
