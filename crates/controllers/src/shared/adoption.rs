//! Adoption and release: adopts objects that match an owner's selector and have no controller; releases controlled
//! objects that no longer match.

use std::sync::Arc;

use client::{Client, ClientError, Object, Patch};
use objects::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use runtime::{Cache, controller_of};
use serde_json::json;

use crate::shared::selector;

/// Index of objects without a controller, by namespace.
const ORPHANS: &str = "orphans";

/// Owner reference that makes the object the controller.
#[must_use]
pub fn controller_reference<K: Object>(owner: &K) -> OwnerReference {
    reference_of(K::API_VERSION, K::KIND, owner.metadata())
}

fn reference_of(api_version: &str, kind: &str, meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Adds the index that [`claim`] needs to find orphans. Called when a loop is built.
pub fn index_orphans<K: Object>(cache: &Cache<K>) {
    cache.add_index(ORPHANS, |object: &K| match controller_of(object.metadata()) {
        None => vec![object.metadata().namespace.clone().unwrap_or_default()],
        Some(_) => Vec::new(),
    });
}

/// Objects of a namespace without a controller.
#[must_use]
pub fn orphans<K: Object>(cache: &Cache<K>, namespace: &str) -> Vec<Arc<K>> {
    cache.indexed(ORPHANS, namespace)
}

/// Objects that `owner` controls, after adopting and releasing. `suits` may reject orphans for reasons other than
/// their labels.
pub async fn claim<O: Object, K: Object>(
    client: &Client,
    cache: &Cache<K>,
    owner: &O,
    wanted: &LabelSelector,
    suits: impl Fn(&K) -> bool + Send,
) -> Result<Vec<Arc<K>>, ClientError> {
    let meta = owner.metadata();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let uid = meta.uid.as_deref().unwrap_or_default();
    let leaving = meta.deletion_timestamp.is_some();
    let mut claimed = Vec::new();
    for object in cache.owned_by(uid) {
        if controller_of(object.metadata()).is_none_or(|controller| controller.uid != uid) {
            continue;
        }
        if selector::matches(wanted, object.metadata().labels.as_ref()) && suits(&object) {
            claimed.push(object);
        } else if !leaving {
            release(client, &*object, uid).await?;
        }
    }
    if leaving {
        return Ok(claimed);
    }
    let candidates: Vec<_> = orphans(cache, namespace)
        .into_iter()
        .filter(|object| object.metadata().deletion_timestamp.is_none())
        .filter(|object| selector::matches(wanted, object.metadata().labels.as_ref()) && suits(object))
        .collect();
    if candidates.is_empty() {
        return Ok(claimed);
    }
    // The cache may be stale: an owner that is being deleted, or has been replaced, adopts nothing.
    let fresh: O = client.get(namespace, meta.name.as_deref().unwrap_or_default()).await?;
    if fresh.metadata().uid != meta.uid || fresh.metadata().deletion_timestamp.is_some() {
        return Ok(claimed);
    }
    let reference = controller_reference(owner);
    for object in candidates {
        match adopt(client, &*object, &reference).await {
            Ok(adopted) => claimed.push(Arc::new(adopted)),
            // Deleted, or replaced by another object of that name.
            Err(error) if error.is_not_found() || error.is_conflict() || error.is_invalid() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(claimed)
}

async fn adopt<K: Object>(client: &Client, object: &K, owner: &OwnerReference) -> Result<K, ClientError> {
    let meta = object.metadata();
    let patch = Patch::Strategic(json!({ "metadata": { "ownerReferences": [owner], "uid": meta.uid } }));
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    client.patch(namespace, meta.name.as_deref().unwrap_or_default(), None, &patch).await
}

async fn release<K: Object>(client: &Client, object: &K, owner: &str) -> Result<(), ClientError> {
    let meta = object.metadata();
    let removed = json!([{ "$patch": "delete", "uid": owner }]);
    let patch = Patch::Strategic(json!({ "metadata": { "ownerReferences": removed, "uid": meta.uid } }));
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    match client.patch::<K>(namespace, meta.name.as_deref().unwrap_or_default(), None, &patch).await {
        Ok(_) => Ok(()),
        // Deleted, or replaced by another object of that name: nothing to release.
        Err(error) if error.is_not_found() || error.is_invalid() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}
