//! Static pods: files in a directory become pods of this node, whether or not there is an API server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, DeleteOptions};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sha2::{Digest, Sha256};

use crate::pods::Workers;
use crate::shared::Shared;

/// How often the directory is looked at.
const LOOK: Duration = Duration::from_secs(20);
const SOURCE: &str = "kubernetes.io/config.source";
const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether the object of the API server only mirrors a file of this node.
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Whether the pod comes from a file of this node.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SOURCE));
    source.is_some_and(|source| source == "file") && !is_mirror(pod)
}

/// The pod that a file describes, as this node runs it.
pub fn parse(text: &[u8], node: &str) -> Result<Pod, String> {
    let decoded = machinery::codec::yaml::decode(text).map_err(|error| error.to_string())?;
    let mut pod: Pod = serde_json::from_value(decoded.value).map_err(|error| error.to_string())?;
    let meta = &mut pod.metadata;
    let name = meta.name.clone().filter(|name| !name.is_empty()).ok_or("it has no name")?;
    let hash = hex::encode(&Sha256::digest([text, node.as_bytes()].concat())[..16]);
    meta.name = Some(format!("{name}-{node}"));
    meta.namespace.get_or_insert_with(|| "default".to_owned());
    meta.uid = Some(hash.clone());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(SOURCE.to_owned(), "file".to_owned());
    annotations.insert(HASH.to_owned(), hash);
    let spec = pod.spec.as_mut().ok_or("it has no spec")?;
    spec.node_name = Some(node.to_owned());
    spec.restart_policy.get_or_insert_with(|| "Always".to_owned());
    spec.termination_grace_period_seconds.get_or_insert(30);
    Ok(pod)
}

/// The pods of a directory, by file; files that are none are told of and left out.
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
            Err(error) => tracing::warn!(file = %path.display(), error, "not a static pod"),
        }
    }
    found
}

/// Static pods that run, by UID.
pub type Running = BTreeMap<String, Arc<Pod>>;

fn wanted(shared: &Shared, directory: &Path) -> Running {
    let found = read(directory, &shared.config.node_name).into_values();
    found.map(|pod| (pod.metadata.uid.clone().unwrap_or_default(), Arc::new(pod))).collect()
}

/// Starts the pods that the directory has now.
pub fn begin(shared: &Shared, workers: &Arc<Workers>, directory: &Path) -> Running {
    let running = wanted(shared, directory);
    for pod in running.values() {
        workers.put(Arc::clone(pod));
    }
    running
}

/// Follows the directory until the kubelet stops.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>, directory: PathBuf, mut running: Running) {
    loop {
        let wanted = wanted(&shared, &directory);
        for (uid, pod) in &running {
            if !wanted.contains_key(uid) {
                workers.gone(Arc::clone(pod));
                remove_mirror(&shared.client, pod).await;
            }
        }
        for (uid, pod) in &wanted {
            if !running.contains_key(uid) {
                workers.put(Arc::clone(pod));
            }
            if let Err(error) = ensure_mirror(&shared, pod).await {
                tracing::debug!(%error, "no mirror of a static pod yet");
            }
        }
        running = wanted;
        tokio::time::sleep(LOOK).await;
    }
}

/// Shows the pod at the API server.
async fn ensure_mirror(shared: &Shared, pod: &Pod) -> Result<(), client::ClientError> {
    let (namespace, name) =
        (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""));
    let hash = pod.metadata.uid.clone().unwrap_or_default();
    if let Some(found) = shared.find::<Pod>(namespace, name).await? {
        let mirrored = found.metadata.annotations.as_ref().and_then(|annotations| annotations.get(MIRROR));
        if mirrored == Some(&hash) && found.metadata.deletion_timestamp.is_none() {
            return Ok(());
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
    shared.client.create(namespace, &mirror).await.map(|_| ())
}

async fn remove_mirror(client: &Client, pod: &Pod) {
    let (namespace, name) =
        (pod.metadata.namespace.as_deref().unwrap_or(""), pod.metadata.name.as_deref().unwrap_or(""));
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    if let Err(error) = client.delete::<Pod>(namespace, name, &options).await
        && !error.is_not_found()
    {
        tracing::debug!(%error, name, "cannot remove the mirror of a static pod");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_pods() {
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
    }
}
