//! Figures about the component itself, at the end of its page.

use super::family::Kind;
use super::kinds::KINDS;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lists by kind and outcome.
pub struct Telemetry {
    lists: Vec<[AtomicU64; 2]>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { lists: KINDS.iter().map(|_| <[AtomicU64; 2]>::default()).collect() }
    }
}

impl Telemetry {
    /// Counts a list of the kind at an index of the table.
    pub fn listed(&self, kind: usize, is_success: bool) {
        if let Some(counts) = self.lists.get(kind) {
            counts[usize::from(is_success)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Appends the figures of the kinds that are `served`.
    pub fn render(&self, out: &mut String, served: &dyn Fn(&Kind) -> bool) {
        let mut requests = |name: &str, help: &str, count: &dyn Fn(usize, usize) -> u64| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n");
            for (at, kind) in KINDS.iter().enumerate().filter(|(_, kind)| served(kind)) {
                let resource = kind.telemetry_name();
                for (outcome, result) in ["error", "success"].into_iter().enumerate() {
                    let count = count(at, outcome);
                    let _ = writeln!(out, "{name}{{resource=\"{resource}\",result=\"{result}\"}} {count}");
                }
            }
        };
        let lists = |at: usize, outcome: usize| self.lists[at][outcome].load(Ordering::Relaxed);
        requests("kube_state_metrics_list_total", "Number of resource lists, by outcome", &lists);
        // Objects are listed for each scrape, never watched.
        requests("kube_state_metrics_watch_total", "Number of resource watches, by outcome", &|_, _| 0);
        let version = env!("CARGO_PKG_VERSION");
        let architecture = std::env::consts::ARCH;
        let mut gauge = |name: &str, labels: &str, help: &str, value: u32| {
            let name = format!("kube_state_metrics_{name}");
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}\n");
        };
        gauge("shard_ordinal", "{shard_ordinal=\"0\"}", "Index of this instance among the shards", 0);
        gauge("total_shards", "", "Number of shards", 1);
        let labels = format!(
            "{{branch=\"\",goarch=\"{architecture}\",goos=\"linux\",goversion=\"\",revision=\"\",tags=\"\",\
             version=\"{version}\"}}"
        );
        gauge("build_info", &labels, "The build that serves these metrics", 1);
    }
}
