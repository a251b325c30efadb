//! The objects every cluster has from its first second.

use crate::registry::{Registry, Warnings, WriteContext};
use crate::user::UserInfo;
use machinery::status::Result;
use serde_json::json;

const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Creates what is missing; what is there stays as it is.
pub async fn run(registry: &Registry) -> Result<()> {
    let user = UserInfo::server();
    let warnings = Warnings::default();
    let namespaces = registry.builtin("", "v1", "namespaces")?;
    for name in NAMESPACES {
        let context = WriteContext::server(&user, &warnings, "");
        let mut object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        (namespaces.kind.default)(&mut object);
        match registry.create(namespaces, object, &context).await {
            Err(status) if status.reason == "AlreadyExists" => {}
            outcome => drop(outcome?),
        }
    }
    Ok(())
}
