//! Default RBAC policy and its reconciliation: rules and subjects of a newer version are added to the stored objects,
//! unless an object opts out by annotation.

use super::{create, policy};
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use api::value::Fields;
use futures_util::future::try_join_all;
use machinery::status::Result;
use machinery::{Value, meta};

const AUTOUPDATE_ANNOTATION: &str = "rbac.authorization.kubernetes.io/autoupdate";

pub async fn reconcile(registry: &Registry) -> Result<()> {
    let objects = policy::objects(base::features::enabled);
    try_join_all(objects.iter().map(|wanted| reconcile_one(registry, wanted))).await.map(drop)
}

fn resource(object: &Value) -> (&'static str, &'static str, &'static str) {
    let resource = match object.text("kind") {
        "ClusterRole" => "clusterroles",
        "ClusterRoleBinding" => "clusterrolebindings",
        "Role" => "roles",
        _ => "rolebindings",
    };
    ("rbac.authorization.k8s.io", "v1", resource)
}

async fn reconcile_one(registry: &Registry, wanted: &Value) -> Result<()> {
    let resource = resource(wanted);
    let (namespace, name) = (meta::namespace(wanted), meta::name(wanted));
    let Some(present) = registry.find(resource, namespace, name).await? else {
        return match create(registry, resource, wanted.clone(), "kube-apiserver").await {
            Err(status) if status.reason == "AlreadyExists" => Ok(()),
            outcome => outcome.map(drop),
        };
    };
    if completed(&present, wanted).is_none() {
        return Ok(());
    }
    let served = registry.builtin(resource.0, resource.1, resource.2)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext::server(&user, &record, namespace);
    let strategy = UpdateStrategy::main(served.governing());
    let outcome = registry
        .update(served, name, strategy, true, &context, |old| {
            Ok(Change::Replace(completed(old, wanted).unwrap_or_else(|| old.clone())))
        })
        .await;
    match outcome {
        Err(status) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// The current object with its missing parts; `None` if it is complete or opts out.
fn completed(present: &Value, wanted: &Value) -> Option<Value> {
    if meta::annotation(present, AUTOUPDATE_ANNOTATION) == Some("false") {
        return None;
    }
    let mut new = present.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted.field("metadata").entries(field).into_iter().flatten() {
            new.child_mut("metadata").child_mut(field).default_to(key, value.clone());
        }
    }
    // The controller owns the rules of an aggregated role; its aggregation rule is part of the policy.
    for list in ["rules", "subjects"] {
        let missing: Vec<Value> =
            wanted.items(list).iter().filter(|item| !present.items(list).contains(item)).cloned().collect();
        if !missing.is_empty() {
            let mut all = present.items(list).to_vec();
            all.extend(missing);
            new.set(list, all);
        }
    }
    if wanted.has("aggregationRule") && wanted.field("aggregationRule") != present.field("aggregationRule") {
        new.set("aggregationRule", wanted.field("aggregationRule").clone());
    }
    (new != *present).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rbac_reconciliation_adds_only_missing_rules() {
        let rule = |verb: &str| json!({"verbs": [verb], "apiGroups": [""], "resources": ["pods"]});
        let role = |rules: Value, update: &str| json!({"kind": "Role", "metadata": {"name": "r", "annotations": {AUTOUPDATE_ANNOTATION: update}}, "rules": rules});
        let wanted = role(json!([rule("get"), rule("list")]), "true");
        assert_eq!(completed(&wanted, &wanted), None);
        let own = role(json!([rule("watch"), rule("list")]), "true");
        let new = completed(&own, &wanted).expect("a rule is missing");
        assert_eq!(new["rules"], json!([rule("watch"), rule("list"), rule("get")]));
        assert_eq!(completed(&role(json!([]), "false"), &wanted), None);
    }
}
