//! The objects every cluster has, created and maintained at each start.
//!
//! Missing objects are created; changes by users are retained, as far as Kubernetes permits them.

mod api_services;
mod authentication_trust;
pub mod flow_control;
mod kubernetes_service;
mod policy;
mod rbac;

pub use authentication_trust::{AuthenticationTrust, publish as publish_trust};

use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use api::value::Fields;
use futures_util::future::try_join_all;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use serde_json::json;

const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Name, value and description of the system priority classes.
const PRIORITY_CLASSES: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// A bootstrap object.
struct BootstrapObject {
    resource: (&'static str, &'static str, &'static str),
    /// May have a status: it is written in a second step, as by clients.
    object: Value,
    /// Its field manager.
    manager: &'static str,
}

impl BootstrapObject {
    fn new(resource: (&'static str, &'static str, &'static str), object: Value) -> Self {
        Self { resource, object, manager: "kube-apiserver" }
    }
}

/// `advertise` is the `host:port` by which clients reach this server.
pub async fn run(registry: &Registry, advertise: &str) -> Result<()> {
    let namespaces = NAMESPACES.map(|name| {
        BootstrapObject::new(
            ("", "v1", "namespaces"),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
    });
    try_join_all(namespaces.iter().map(|wanted| ensure(registry, wanted))).await?;
    registry.fill_services().await?;
    registry.repair_services().await?;
    let mut wanted: Vec<BootstrapObject> = PRIORITY_CLASSES.iter().map(priority_class).collect();
    wanted.extend(api_services::objects(&registry.catalogues.offered().discovery));
    wanted.extend(kubernetes_service::objects(&registry.services.config, advertise));
    // Commits are grouped: concurrent writes cost hardly more than one.
    tokio::try_join!(
        try_join_all(wanted.iter().map(|wanted| ensure(registry, wanted))),
        flow_control::maintain(registry),
        rbac::reconcile(registry)
    )?;
    Ok(())
}

fn priority_class((name, value, description): &(&str, i64, &str)) -> BootstrapObject {
    BootstrapObject::new(
        ("scheduling.k8s.io", "v1", "priorityclasses"),
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        }),
    )
}

/// Creates a missing object with its status. An existing one is unchanged.
async fn ensure(registry: &Registry, wanted: &BootstrapObject) -> Result<()> {
    let (namespace, name) = (meta::namespace(&wanted.object), meta::name(&wanted.object));
    let present = match registry.find(wanted.resource, namespace, name).await? {
        Some(present) => present,
        None => {
            let mut object = wanted.object.clone();
            object.unset("status");
            match create(registry, wanted.resource, object, wanted.manager).await {
                Err(status) if status.reason == "AlreadyExists" => return Ok(()),
                outcome => outcome?,
            }
        }
    };
    if wanted.object.has("status") && !present.field("status").has("conditions") {
        set_status(registry, wanted).await?;
    }
    Ok(())
}

/// Creates an object as the server.
pub(crate) async fn create(
    registry: &Registry,
    (group, version, resource): (&str, &str, &str),
    mut object: Value,
    manager: &str,
) -> Result<Value> {
    let served = registry.builtin(group, version, resource)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let namespace = meta::namespace(&object).to_owned();
    let context =
        WriteContext { manager: manager.to_owned(), ..WriteContext::server(&user, &record, &namespace) };
    machinery::codec::typed::normalize(&mut object, served.schema()).map_err(Status::internal)?;
    served.rules.set_defaults(&mut object);
    registry.create(served, object, &context).await.map(|written| written.value())
}

async fn set_status(registry: &Registry, wanted: &BootstrapObject) -> Result<()> {
    let served = registry.builtin(wanted.resource.0, wanted.resource.1, wanted.resource.2)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext {
        subresource: "status",
        manager: wanted.manager.to_owned(),
        ..WriteContext::server(&user, &record, meta::namespace(&wanted.object))
    };
    let name = meta::name(&wanted.object);
    let outcome = registry
        .update(served, name, UpdateStrategy::status(served.governing()), true, &context, |old| {
            let mut new = old.clone();
            new.set("status", wanted.object.field("status").clone());
            Ok(Change::Replace(new))
        })
        .await;
    match outcome {
        // A concurrent deletion wins.
        Err(status) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// A condition with the current time.
fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": crate::registry::metadata::now(),
    })
}
