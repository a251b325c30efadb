//! Removes dead containers and sandboxes: of each container the two newest are retained.

use std::collections::BTreeMap;

use crate::lifecycle::{ObservedContainer, ObservedPod, ObservedSandbox, RunState};

use super::worker::Worker;

/// Retained containers per name.
const RETAINED: usize = 2;

/// Dead containers beyond the retained ones, and dead sandboxes without retained containers.
pub fn garbage(observed: &ObservedPod) -> (Vec<&ObservedContainer>, Vec<&ObservedSandbox>) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut containers = Vec::new();
    for container in &observed.containers {
        let count = seen.entry(&container.name).or_default();
        *count += 1;
        if *count > RETAINED && container.state != RunState::Running {
            containers.push(container);
        }
    }
    let stays = |sandbox: &ObservedSandbox| {
        observed.containers.iter().any(|container| {
            container.sandbox == sandbox.id && !containers.iter().any(|gone| gone.id == container.id)
        })
    };
    let sandboxes =
        observed.sandboxes.iter().skip(1).filter(|sandbox| !sandbox.ready && !stays(sandbox)).collect();
    (containers, sandboxes)
}

impl Worker {
    /// Removes garbage; failures are retried later.
    pub(super) async fn remove_garbage(&self, observed: &ObservedPod) {
        let (containers, sandboxes) = garbage(observed);
        for container in containers {
            match self.shared.engine.remove_container(&container.id).await {
                Ok(()) if !container.log_path.is_empty() => {
                    let _ = tokio::fs::remove_file(&container.log_path).await;
                }
                Ok(()) => {}
                Err(error) => tracing::debug!(%error, id = container.id, "failed to remove container"),
            }
            let words = self.directories.termination_log(&container.name, container.restarts);
            let _ = tokio::fs::remove_file(words).await;
        }
        for sandbox in sandboxes {
            if let Err(error) = self.shared.engine.remove_sandbox(&sandbox.id).await {
                tracing::debug!(%error, id = sandbox.id, "failed to remove sandbox");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_retains_newest_two_per_name() {
        let container = |id: &str, name: &str, sandbox: &str, state| ObservedContainer {
            id: id.to_owned(),
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            state,
            ..ObservedContainer::default()
        };
        let sandbox =
            |id: &str, ready| ObservedSandbox { id: id.to_owned(), ready, ..ObservedSandbox::default() };
        let observed = ObservedPod {
            sandboxes: vec![sandbox("s2", true), sandbox("s1", false), sandbox("s0", false)],
            containers: vec![
                container("a3", "a", "s2", RunState::Running),
                container("a2", "a", "s2", RunState::Exited),
                container("b0", "b", "s1", RunState::Exited),
                container("a1", "a", "s0", RunState::Exited),
                container("a0", "a", "s0", RunState::Exited),
            ],
        };
        let (containers, sandboxes) = garbage(&observed);
        assert_eq!(containers.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["a1", "a0"]);
        assert_eq!(sandboxes.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["s0"]);
    }
}
