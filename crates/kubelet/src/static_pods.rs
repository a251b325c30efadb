//! Static pods: manifests in a directory run as pods of this node, with or without an API server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::file_changes::DirectoryChanges;
use client::{Client, ClientError, DeleteOptions, Preconditions};
use objects::core::v1::{Node, Pod, ResourceRequirements, Volume, VolumeProjection};
use objects::meta::v1::OwnerReference;
use runtime::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::configure::sources::{of_environment, of_volumes};
use crate::pods::Workers;
use crate::shared::Shared;

/// Interval of mirror pod checks, and of polling a directory that cannot be watched.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
const SOURCE: &str = "kubernetes.io/config.source";
const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns true for a mirror pod of this node.
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Returns true for a static pod of this node.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SOURCE));
    source.is_some_and(|source| source == "file") && !is_mirror(pod)
}

/// Parses a manifest into the pod that this node runs.
pub fn parse(text: &[u8], node: &str) -> Result<Pod, String> {
    let decoded = machinery::codec::yaml::decode(text).map_err(|error| error.to_string())?;
    let mut pod: Pod = objects::from_value(&decoded.value).map_err(|error| error.to_string())?;
    let meta = &mut pod.metadata;
    let name = meta.name.clone().filter(|name| !name.is_empty()).ok_or("missing metadata.name")?;
    let hash = hex::encode(&Sha256::digest([text, node.as_bytes()].concat())[..16]);
    meta.name = Some(format!("{name}-{node}"));
    meta.namespace.get_or_insert_with(|| "default".to_owned());
    meta.uid = Some(hash.clone());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(SOURCE.to_owned(), "file".to_owned());
    annotations.insert(HASH.to_owned(), hash);
    let spec = pod.spec.as_mut().ok_or("missing spec")?;
    spec.node_name = Some(node.to_owned());
    spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    spec.termination_grace_period_seconds.get_or_insert(30);
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    containers.filter_map(|container| container.resources.as_mut()).for_each(default_requests);
    if let Some(kind) = needed_objects(&pod) {
        return Err(format!("static pods may not reference {kind}"));
    }
    Ok(pod)
}

/// Requests that are not set equal the limits, as the API server sets them for other pods.
fn default_requests(resources: &mut ResourceRequirements) {
    for (name, limit) in resources.limits.iter().flatten() {
        resources.requests.get_or_insert_default().entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Returns a kind of API object that the pod references; it may not exist without an API server.
fn needed_objects(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let (volumes, environment) = (of_volumes(pod), of_environment(pod));
    let of_volume = |has: fn(&Volume) -> bool| spec.volumes.iter().flatten().any(has);
    let projected = |has: fn(&VolumeProjection) -> bool| {
        let all = spec.volumes.iter().flatten().filter_map(|volume| volume.projected.as_ref());
        all.flat_map(|source| source.sources.iter().flatten()).any(has)
    };
    let account = spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty());
    [
        (account || projected(|part| part.service_account_token.is_some()), "serviceaccounts"),
        (!volumes.config_maps.is_empty() || !environment.config_maps.is_empty(), "configmaps"),
        (!volumes.secrets.is_empty() || !environment.secrets.is_empty(), "secrets"),
        (spec.image_pull_secrets.as_ref().is_some_and(|list| !list.is_empty()), "secrets"),
        (projected(|part| part.cluster_trust_bundle.is_some()), "clustertrustbundles"),
        (
            of_volume(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()),
            "persistentvolumeclaims",
        ),
        (of_volume(|volume| volume.csi.is_some()), "csidrivers"),
        (spec.resource_claims.as_ref().is_some_and(|list| !list.is_empty()), "resourceclaims"),
    ]
    .into_iter()
    .find_map(|(needed, kind)| needed.then_some(kind))
}

/// Pods of a directory, by file; invalid manifests are logged and skipped.
fn read(directory: &Path, node: &str) -> BTreeMap<PathBuf, Pod> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let kind = path.extension().and_then(|extension| extension.to_str());
        if hidden || !matches!(kind, Some("yaml" | "yml" | "json" | "manifest")) {
            continue;
        }
        match std::fs::read(&path).map_err(|error| error.to_string()).and_then(|text| parse(&text, node)) {
            Ok(pod) => {
                found.insert(path, pod);
            }
            Err(error) => tracing::warn!(file = %path.display(), error, "invalid static pod manifest"),
        }
    }
    found
}

/// Running static pods, by UID.
pub type Running = BTreeMap<String, Arc<Pod>>;

fn wanted(shared: &Shared, directory: &Path) -> Running {
    let found = read(directory, &shared.config.node_name).into_values();
    found.map(|pod| (pod.metadata.uid.clone().unwrap_or_default(), Arc::new(pod))).collect()
}

/// Starts the pods in the directory.
pub fn begin(shared: &Shared, workers: &Arc<Workers>, directory: &Path) -> Running {
    let running = wanted(shared, directory);
    for pod in running.values() {
        workers.put(Arc::clone(pod));
    }
    running
}

/// Maintains mirror pods for static pods.
pub struct Mirrors {
    /// Pods of this node from the API server.
    pub pods: Cache<Pod>,
    /// Notified when one of them changes.
    pub changed: Arc<Notify>,
}

/// Watches the directory until the kubelet stops.
pub async fn follow(
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    directory: PathBuf,
    mut running: Running,
    mirrors: Mirrors,
) {
    // Polls for a directory that does not exist yet.
    let mut changes = DirectoryChanges::of(&directory).ok();
    loop {
        let wanted = wanted(&shared, &directory);
        for (uid, pod) in &running {
            if !wanted.contains_key(uid) {
                workers.gone(Arc::clone(pod));
            }
        }
        for (uid, pod) in &wanted {
            if !running.contains_key(uid) {
                workers.put(Arc::clone(pod));
            }
            match ensure_mirror(&shared, &mirrors.pods, pod).await {
                Ok(true) => workers.shown(uid),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, pod = uid, "failed to create mirror pod"),
            }
        }
        let known = |mirror: &Pod| wanted.values().any(|pod| name_of(pod) == name_of(mirror));
        for mirror in mirrors.pods.all().iter().filter(|pod| is_mirror(pod) && !known(pod)) {
            remove_mirror(&shared.client, mirror).await;
        }
        running = wanted;
        let file = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = file => {}
            () = mirrors.changed.notified() => {}
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
        if changes.is_none() {
            changes = DirectoryChanges::of(&directory).ok();
        }
    }
}

fn name_of(pod: &Pod) -> (&str, &str) {
    (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""))
}

/// Creates the mirror pod; true if it was missing. Nodes may only read pods bound to them, so existing mirrors are
/// known from the watch.
async fn ensure_mirror(shared: &Shared, pods: &Cache<Pod>, pod: &Pod) -> Result<bool, ClientError> {
    let (namespace, name) = name_of(pod);
    let hash = pod.metadata.uid.clone().unwrap_or_default();
    if let Some(found) = pods.get(namespace, name) {
        let mirrored = found.metadata.annotations.as_ref().and_then(|annotations| annotations.get(MIRROR));
        if mirrored == Some(&hash) && found.metadata.deletion_timestamp.is_none() {
            return Ok(false);
        }
        remove_mirror(&shared.client, &found).await;
    }
    let mut mirror = pod.clone();
    mirror.metadata.uid = None;
    mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.to_owned(), hash);
    if let Some(node) = shared.find::<Node>("", &shared.config.node_name).await? {
        mirror.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: shared.config.node_name.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        }]);
    }
    match shared.client.create(namespace, &mirror).await {
        // Created before the watch delivered it.
        Err(error) if error.is_already_exists() => Ok(false),
        made => made.map(|_| true),
    }
}

/// Deletes a mirror pod by UID, so never another pod of the same name.
async fn remove_mirror(client: &Client, mirror: &Pod) {
    let (namespace, name) = name_of(mirror);
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: mirror.metadata.uid.clone(), resource_version: None }),
        ..DeleteOptions::default()
    };
    if let Err(error) = client.delete::<Pod>(namespace, name, &options).await
        && !error.is_not_found()
        && !error.is_conflict()
    {
        tracing::debug!(%error, name, "failed to delete mirror pod");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requests_equal_limits() {
        let text = b"metadata: {name: web}\nspec: {containers: [{name: c, resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1}}}]}";
        let spec = parse(text, "n1").expect("a pod").spec.expect("a spec");
        let requests = spec.containers[0].resources.clone().and_then(|all| all.requests).expect("requests");
        let found: Vec<_> =
            requests.iter().map(|(name, amount)| (name.as_str(), amount.0.as_str())).collect();
        assert_eq!(found, [("cpu", "1"), ("memory", "1Gi")]);
    }

    #[test]
    fn static_pod_manifests_are_parsed() {
        let text =
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
        let pod = parse(text, "n1").expect("a pod");
        assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
        assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(pod.metadata.uid, parse(text, "n1").expect("a pod").metadata.uid);
        assert_ne!(pod.metadata.uid, parse(text, "n2").expect("a pod").metadata.uid);
        assert!(!is_mirror(&pod));
        assert!(parse(b"kind: Pod", "n1").is_err());
        assert!(parse(b"}{", "n1").is_err());
        for (more, kind) in [
            ("serviceAccountName: s", "serviceaccounts"),
            ("volumes: [{name: v, secret: {secretName: s}}]", "secrets"),
            ("volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", "persistentvolumeclaims"),
            ("imagePullSecrets: [{name: s}]", "secrets"),
        ] {
            let text =
                format!("metadata: {{name: web}}\nspec: {{containers: [{{name: c, image: i}}], {more}}}\n");
            let refused = parse(text.as_bytes(), "n1").expect_err("references API objects");
            assert_eq!(refused, format!("static pods may not reference {kind}"));
        }
    }
}
