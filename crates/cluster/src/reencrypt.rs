//! Rewrites objects unchanged, so that they are stored with the current key.
//!
//! An ordinary client of the running server: concurrent updates by other clients have the same effect, and the server
//! does not rewrite objects that already have the right form.

use futures_util::future::BoxFuture;
use std::path::Path;
use std::time::Duration;

use apiserver::outbound::{CallError, Client, KubeconfigError, read_kubeconfig};
use http::StatusCode;
use serde_json::Value;

/// Timeout of a request.
const LIMIT: Duration = Duration::from_secs(60);
/// Page size of lists.
const PAGE: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum ReencryptError {
    #[error("failed to load the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("failed to discover {resource}")]
    Discover { resource: String, source: CallError },
    #[error("the server has no resource {0}")]
    Unknown(String),
    #[error("failed to list {resource}")]
    List { resource: String, source: CallError },
    #[error("failed to update {resource} {name}")]
    Write { resource: String, name: String, source: CallError },
}

/// Number of rewritten objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    pub resource: String,
    pub objects: usize,
    /// Objects updated or deleted by other clients meanwhile, which has the same effect.
    pub overtaken: usize,
}

/// Rewrites all objects of these resources (`secrets`, `ingresses.networking.k8s.io`), one after the other.
pub fn reencrypt<'a>(
    kubeconfig: &'a Path,
    resources: &'a [String],
) -> BoxFuture<'a, Result<Vec<Rewritten>, ReencryptError>> {
    Box::pin(async move {
        let client = read_kubeconfig(kubeconfig)?;
        let mut done = Vec::new();
        for resource in resources {
            done.push(rewrite(&client, resource).await?);
        }
        Ok(done)
    })
}

async fn rewrite(client: &Client, resource: &str) -> Result<Rewritten, ReencryptError> {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let place = find(client, plural, group).await?;
    let mut rewritten = Rewritten { resource: resource.to_owned(), objects: 0, overtaken: 0 };
    let mut token = String::new();
    loop {
        let path = format!("{}/{plural}?limit={PAGE}&continue={token}", place.root);
        let list = client.get(&path, LIMIT).await;
        let list = list.map_err(|source| ReencryptError::List { resource: resource.to_owned(), source })?;
        for item in list["items"].as_array().into_iter().flatten() {
            let mut object = item.clone();
            object["apiVersion"] = list["apiVersion"].clone();
            object["kind"] = place.kind.clone().into();
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or("").to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            let path = match place.namespaced {
                true => format!("{}/namespaces/{namespace}/{plural}/{name}", place.root),
                false => format!("{}/{plural}/{name}", place.root),
            };
            match client.put(&path, &object, LIMIT).await {
                Ok(_) => rewritten.objects += 1,
                Err(CallError::Refused { status: StatusCode::NOT_FOUND | StatusCode::CONFLICT, .. }) => {
                    rewritten.overtaken += 1;
                }
                Err(source) => {
                    let name = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
                    return Err(ReencryptError::Write { resource: resource.to_owned(), name, source });
                }
            }
        }
        token = list["metadata"]["continue"].as_str().unwrap_or("").to_owned();
        if token.is_empty() {
            return Ok(rewritten);
        }
    }
}

/// URL path of a resource.
struct ResourcePath {
    root: String,
    kind: String,
    namespaced: bool,
}

async fn find(client: &Client, plural: &str, group: &str) -> Result<ResourcePath, ReencryptError> {
    let name = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let get = async |path: &str| {
        let found = client.get(path, LIMIT).await;
        found.map_err(|source| ReencryptError::Discover { resource: name.clone(), source })
    };
    let root = if group.is_empty() {
        "/api/v1".to_owned()
    } else {
        let found = get(&format!("/apis/{group}")).await?;
        format!("/apis/{}", found["preferredVersion"]["groupVersion"].as_str().unwrap_or(""))
    };
    let list = get(&root).await?;
    let row = list["resources"].as_array().into_iter().flatten().find(|row| row["name"] == plural);
    let Some(row) = row else { return Err(ReencryptError::Unknown(name)) };
    Ok(ResourcePath {
        root,
        kind: row["kind"].as_str().unwrap_or("").to_owned(),
        namespaced: row["namespaced"] == Value::Bool(true),
    })
}
