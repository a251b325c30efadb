//! CPUs of running containers, after the shared ones have changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use cri::v1::LinuxContainerResources;

use super::CpuSet;
use crate::pods::Workers;
use crate::shared::Shared;

/// Applies changes at once and periodically, until the kubelet stops. The period covers containers that started with the
/// CPUs before a change, and failed updates.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let period = shared.config.housekeeping.cpu_manager.reconcile_period;
    let mut applied = BTreeMap::new();
    loop {
        if shared.cpus.is_static() {
            apply(&shared, &workers, &mut applied).await;
        }
        tokio::select! {
            () = shared.cpus.changed() => {}
            () = tokio::time::sleep(period), if shared.cpus.is_static() => {}
        }
    }
}

/// Sets the CPUs of containers that have others; remembers them by container ID.
async fn apply(shared: &Shared, workers: &Workers, applied: &mut BTreeMap<String, CpuSet>) {
    let mut seen = BTreeMap::new();
    for pod in workers.pods() {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let observed = match shared.engine.observe(uid).await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(pod = uid, %error, "failed to list containers for their CPUs");
                continue;
            }
        };
        for container in observed.running() {
            let Some(cpus) = shared.cpus.of_container(uid, &container.name) else { continue };
            if applied.get(&container.id) != Some(&cpus) {
                let resources = LinuxContainerResources {
                    cpuset_cpus: cpus.to_string(),
                    ..LinuxContainerResources::default()
                };
                if let Err(error) = shared.engine.update_resources(&container.id, resources).await {
                    tracing::warn!(pod = uid, container = container.name, %error, "failed to set CPUs of a container");
                    continue;
                }
            }
            seen.insert(container.id.clone(), cpus);
        }
    }
    *applied = seen;
}
