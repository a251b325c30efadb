//! How a node keeps itself usable: what it reserves, when it evicts, when it collects garbage.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::housekeeping::Eviction;
use crate::shutdown::Grace;

/// Settings of housekeeping, with Kubernetes' defaults.
#[derive(Clone, Debug)]
pub struct Upkeep {
    pub eviction: Eviction,
    /// Amounts of resources that pods do not get, in thousandths: for the system and for Kubernetes' own parts.
    pub reserved: BTreeMap<String, i64>,
    pub images: ImageCollection,
    pub logs: LogRotation,
    /// Most processes of one pod; a quarter of what the machine can have if `None`.
    pub pod_pids: Option<i64>,
    /// How long the machine waits for pods when it goes down.
    pub(crate) shutdown: Grace,
    /// Kernel parameters beyond the safe ones that pods may set.
    pub unsafe_sysctls: Vec<String>,
    /// Whether pods' and classes' control groups get limits of their own.
    pub cgroups_per_qos: bool,
}

/// When images that nobody uses are removed.
#[derive(Clone, Copy, Debug)]
pub struct ImageCollection {
    /// Begin when more than this share of the disk is used, in percent, and go on until this much.
    pub begin: i64,
    pub until: i64,
    /// Younger ones stay.
    pub min_age: Duration,
    /// Unused for longer than this they go, however much room there is.
    pub max_age: Option<Duration>,
}

/// When a container's log is put aside.
#[derive(Clone, Copy, Debug)]
pub struct LogRotation {
    pub max_size: u64,
    /// Files of one container, the current one included.
    pub max_files: usize,
}

impl Upkeep {
    /// How long the machine waits for pods when it goes down, and how much of that is for critical ones.
    pub fn set_shutdown(&mut self, total: Duration, critical: Duration) {
        self.shutdown = Grace::new(total, critical);
    }

    /// The same by the pods' priorities.
    pub fn set_shutdown_by_priority(&mut self, steps: Vec<(i32, Duration)>) {
        self.shutdown = Grace::by_priority(steps);
    }
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            eviction: Eviction::default(),
            reserved: BTreeMap::new(),
            images: ImageCollection {
                begin: 85,
                until: 80,
                min_age: Duration::from_secs(120),
                max_age: None,
            },
            logs: LogRotation { max_size: 10 << 20, max_files: 5 },
            pod_pids: None,
            shutdown: Grace::default(),
            unsafe_sysctls: Vec::new(),
            cgroups_per_qos: true,
        }
    }
}
