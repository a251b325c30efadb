//! The machine's own metrics with the names of node-exporter, read from `/proc` at each scrape.

mod arrays;
mod disks;
mod memory;
mod networks;
mod page;
mod processor;
mod system;

use std::path::{Path, PathBuf};

use page::Page;

/// Root of the kernel's files; another directory in tests.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    proc: PathBuf,
    clock: fn() -> Option<ClockDiscipline>,
}

/// State of the kernel's clock discipline, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockDiscipline {
    pub offset: f64,
    pub max_error: f64,
    pub estimated_error: f64,
    pub frequency_ratio: f64,
    pub status: i32,
    pub tai_offset: i32,
    pub is_synchronized: bool,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), clock: || None }
    }
}

/// The part of a page that one source provides. A source that the kernel does not have provides nothing.
type Collector = fn(&Path, &mut Page);

const COLLECTORS: [Collector; 15] = [
    processor::of_cores,
    processor::of_load,
    processor::of_pressure,
    memory::of_memory,
    memory::of_paging,
    arrays::of_disks,
    arrays::of_bonds,
    arrays::of_text_files,
    disks::of_devices,
    disks::of_file_systems,
    networks::of_interfaces,
    networks::of_states,
    networks::of_protocols,
    system::of_system,
    system::of_build,
];

impl NodeMetrics {
    /// Metrics with the state of the clock that `clock` reads.
    #[must_use]
    pub fn with_clock(self, clock: fn() -> Option<ClockDiscipline>) -> Self {
        Self { clock, ..self }
    }

    /// The page in Prometheus' text format.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = Page::default();
        for collect in COLLECTORS {
            collect(&self.proc, &mut page);
        }
        if let Some(clock) = (self.clock)() {
            system::of_clock(&clock, &mut page);
        }
        page.finish()
    }
}

/// A file of the kernel; empty if it cannot be read.
fn read(proc: &Path, name: &str) -> String {
    std::fs::read_to_string(proc.join(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
