//! Evicts pods that exceed a limit of local ephemeral storage: of an `emptyDir`, a container or the pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use objects::core::v1::{Pod, Volume};

use crate::configure::labels;
use crate::configure::sandbox::log_directory;
use crate::lifecycle::members::members;
use crate::lifecycle::qos;
use crate::pods::Workers;
use crate::shared::Shared;
use crate::volumes::{PodDirectories, disk_usage};

const RESOURCE: &str = "ephemeral-storage";

/// Evicts pods that exceed a storage limit. Pods without limits are not measured.
pub async fn check_once(shared: &Arc<Shared>, workers: &Arc<Workers>) {
    let limited: Vec<Arc<Pod>> = workers.pods().into_iter().filter(|pod| is_limited(pod)).collect();
    if limited.is_empty() {
        return;
    }
    let layers = layers(shared).await;
    for pod in limited {
        let (uid, inner) = (pod.metadata.uid.clone().unwrap_or_default(), Arc::clone(shared));
        let own = layers.get(&uid).cloned().unwrap_or_default();
        let looked = tokio::task::spawn_blocking(move || {
            let directories = PodDirectories::new(&inner.config.directory, &pod);
            let logs = log_directory(&inner.settings.logs, &pod);
            excess(&pod, &own, &|volume| size(&directories.volume("empty-dir", volume)), &|container| {
                size(&logs.join(container))
            })
        })
        .await;
        if let Ok(Some((signal, message))) = looked {
            tracing::warn!(pod = uid, message, "evicting pod");
            shared.metrics.evicted(signal);
            workers.evict(&uid, "Evicted", message, Some(1));
        }
    }
}

fn is_limited(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let limits = |name: &str| {
        members(spec).iter().any(|member| {
            let limits = member.container.resources.as_ref().and_then(|own| own.limits.as_ref());
            qos::whole(limits, name).is_some_and(|limit| limit > 0)
        })
    };
    phase == Some("Running") && (disk_volumes(pod).any(|volume| volume.1.is_some()) || limits(RESOURCE))
}

/// Disk-backed `emptyDir` volumes with their limits.
fn disk_volumes(pod: &Pod) -> impl Iterator<Item = (&Volume, Option<i64>)> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter_map(|volume| {
        let source = volume.empty_dir.as_ref()?;
        if source.medium.as_deref().is_some_and(|medium| !medium.is_empty()) {
            return None;
        }
        let limit = source.size_limit.as_ref();
        let limit =
            limit.and_then(|text| machinery::quantity::Quantity::parse(&text.0).ok()).map(|q| q.value());
        Some((volume, limit.filter(|limit| *limit > 0)))
    })
}

/// Eviction signal, and message in Kubernetes' wording. `layers` are bytes of writable layers, by container name.
fn excess(
    pod: &Pod,
    layers: &BTreeMap<String, i64>,
    volume_size: &dyn Fn(&str) -> i64,
    log_size: &dyn Fn(&str) -> i64,
) -> Option<(&'static str, String)> {
    let mut total = 0_i64;
    for (volume, limit) in disk_volumes(pod) {
        let used = volume_size(&volume.name);
        total = total.saturating_add(used);
        if let Some(limit) = limit.filter(|limit| used > *limit) {
            let text = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref());
            let text = text.map_or_else(|| limit.to_string(), |text| text.0.clone());
            let message = format!("Usage of EmptyDir volume {:?} exceeds the limit {text:?}. ", volume.name);
            return Some(("emptydirfs.limit", message));
        }
    }
    let spec = pod.spec.as_ref()?;
    for member in members(spec) {
        let used = layers.get(member.name()).copied().unwrap_or(0).saturating_add(log_size(member.name()));
        total = total.saturating_add(used);
        let limits = member.container.resources.as_ref().and_then(|own| own.limits.as_ref());
        if qos::whole(limits, RESOURCE).is_some_and(|limit| limit > 0 && used > limit) {
            let text = limits.and_then(|limits| limits.get(RESOURCE)).map(|text| text.0.clone());
            let message = format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                member.name(),
                text.unwrap_or_default()
            );
            return Some(("ephemeralcontainerfs.limit", message));
        }
    }
    // The sum of the limits applies even if not all containers have one.
    let limits = spec.containers.iter().filter_map(|container| {
        qos::whole(container.resources.as_ref().and_then(|own| own.limits.as_ref()), RESOURCE)
    });
    let limit = limits.fold(0, i64::saturating_add);
    (limit > 0 && total > limit).then(|| {
        let message =
            format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        ("ephemeralpodfs.limit", message)
    })
}

/// Bytes of writable layers, by pod and container name.
async fn layers(shared: &Shared) -> BTreeMap<String, BTreeMap<String, i64>> {
    let mut found: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for one in shared.engine.container_stats().await.unwrap_or_default() {
        let Some(attributes) = &one.attributes else { continue };
        let used = one.writable_layer.as_ref().and_then(|layer| layer.used_bytes.as_ref());
        if let (Some(uid), Some(name), Some(used)) =
            (attributes.labels.get(labels::POD_UID), attributes.labels.get(labels::CONTAINER_NAME), used)
        {
            let bytes = i64::try_from(used.value).unwrap_or(i64::MAX);
            found.entry(uid.clone()).or_default().insert(name.clone(), bytes);
        }
    }
    found
}

/// Disk usage of a directory in bytes.
fn size(directory: &Path) -> i64 {
    i64::try_from(disk_usage(directory).bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        let text = br#"{"metadata": {"name": "p"}, "status": {"phase": "Running"}, "spec": {
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}, {"name": "w", "emptyDir": {}},
                        {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ki"}}],
            "containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "4Ki"}}}]}}"#;
        serde_json::from_slice(text).expect("a pod")
    }

    #[test]
    fn local_storage_over_limit_is_reported() {
        let pod = pod();
        assert!(is_limited(&pod));
        let check = |volume: i64, other: i64, layer: i64| {
            let layers = BTreeMap::from([("c".to_owned(), layer)]);
            excess(&pod, &layers, &|name| if name == "v" { volume } else { other }, &|_| 0)
        };
        assert_eq!(check(1024, 0, 0), None);
        assert_eq!(
            check(2000, 0, 0),
            Some((
                "emptydirfs.limit",
                "Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ".to_owned()
            ))
        );
        assert_eq!(
            check(0, 0, 5000).map(|found| found.1).as_deref(),
            Some("Container c exceeded its local ephemeral storage limit \"4Ki\". ")
        );
        assert!(
            check(1000, 3000, 1000)
                .expect("too much")
                .1
                .starts_with("Pod ephemeral local storage usage exceeds")
        );
    }
}
