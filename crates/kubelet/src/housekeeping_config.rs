//! Housekeeping settings: reserved resources, eviction, garbage collection.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cpus::CpuManagerConfig;
use crate::housekeeping::Eviction;
use crate::shutdown::Grace;

/// Housekeeping settings, with Kubernetes' defaults.
#[derive(Clone, Debug)]
pub struct HousekeepingConfig {
    pub eviction: Eviction,
    /// Resources reserved for the system and for Kubernetes' own components, in thousandths.
    pub reserved: BTreeMap<String, i64>,
    pub images: ImageCollection,
    pub logs: LogRotation,
    /// Process limit per pod; a quarter of the machine's limit if `None`.
    pub pod_pids: Option<i64>,
    /// Graceful shutdown periods.
    pub(crate) shutdown: Grace,
    /// Sysctls beyond the safe set that pods may use.
    pub unsafe_sysctls: Vec<String>,
    /// True if pod and QoS class cgroups get their own limits.
    pub cgroups_per_qos: bool,
    pub cpu_manager: CpuManagerConfig,
}

/// Image garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct ImageCollection {
    /// Disk usage in percent at which collection starts, and at which it stops.
    pub begin: i64,
    pub until: i64,
    /// Minimum age; younger images are retained.
    pub min_age: Duration,
    /// Images unused for longer than this are removed regardless of disk usage.
    pub max_age: Option<Duration>,
}

/// Container log rotation.
#[derive(Clone, Copy, Debug)]
pub struct LogRotation {
    pub max_size: u64,
    /// Log files per container, including the current one.
    pub max_files: usize,
}

impl HousekeepingConfig {
    /// Grace period of a node shutdown, and the part of it reserved for critical pods.
    pub fn set_shutdown(&mut self, total: Duration, critical: Duration) {
        self.shutdown = Grace::new(total, critical);
    }

    /// Shutdown grace periods by pod priority.
    pub fn set_shutdown_by_priority(&mut self, steps: Vec<(i32, Duration)>) {
        self.shutdown = Grace::by_priority(steps);
    }
}

impl Default for HousekeepingConfig {
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
            cpu_manager: CpuManagerConfig::default(),
        }
    }
}
