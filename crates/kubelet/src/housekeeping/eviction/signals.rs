//! Eviction signals and their measurements.

use crate::node::{FileSystem, file_system_of, memory_available, memory_capacity, processes};
use crate::shared::Shared;

/// Resource monitored for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    Memory,
    NodeFs,
    NodeFsInodes,
    ImageFs,
    ImageFsInodes,
    Pids,
}

impl Signal {
    pub const ALL: [Self; 6] =
        [Self::Memory, Self::NodeFs, Self::NodeFsInodes, Self::ImageFs, Self::ImageFsInodes, Self::Pids];

    /// Signal name in flags and configuration files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::NodeFs => "nodefs.available",
            Self::NodeFsInodes => "nodefs.inodesFree",
            Self::ImageFs => "imagefs.available",
            Self::ImageFsInodes => "imagefs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    /// Resource name in messages.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::NodeFs | Self::ImageFs => "ephemeral-storage",
            Self::NodeFsInodes | Self::ImageFsInodes => "inodes",
            Self::Pids => "pids",
        }
    }

    #[must_use]
    pub fn is_disk(self) -> bool {
        !matches!(self, Self::Memory | Self::Pids)
    }

    /// Handling order of crossed thresholds: memory first.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name)
    }
}

/// Capacity and available amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    pub capacity: i64,
    pub available: i64,
}

/// Measurements of all signals at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measurements {
    memory: Measured,
    node: FileSystem,
    images: FileSystem,
    pids: Measured,
}

impl Measurements {
    pub async fn take(shared: &Shared) -> Self {
        let node = file_system_of(&shared.config.directory);
        let mount = shared.engine.image_file_system().await.ok().flatten().and_then(|usage| usage.fs_id);
        let images = mount
            .map(|id| file_system_of(std::path::Path::new(&id.mountpoint)))
            .filter(|images| images.bytes.0 > 0)
            .unwrap_or(node);
        let (most, running) = processes();
        Self {
            memory: Measured { capacity: memory_capacity(), available: memory_available() },
            node,
            images,
            pids: Measured { capacity: most, available: most.saturating_sub(running) },
        }
    }

    #[must_use]
    pub fn of(&self, signal: Signal) -> Measured {
        let pair = |(capacity, available): (i64, i64)| Measured { capacity, available };
        match signal {
            Signal::Memory => self.memory,
            Signal::NodeFs => pair(self.node.bytes),
            Signal::NodeFsInodes => pair(self.node.inodes),
            Signal::ImageFs => pair(self.images.bytes),
            Signal::ImageFsInodes => pair(self.images.inodes),
            Signal::Pids => self.pids,
        }
    }

    #[cfg(test)]
    pub fn with_memory(available: i64) -> Self {
        Self { memory: Measured { capacity: 1000, available }, ..Self::default() }
    }
}
