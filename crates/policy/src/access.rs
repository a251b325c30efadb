//! Who the driver is to the API server, and what it may read there: Kubernetes has no role for it.

use futures_util::future::BoxFuture;
use objects::meta::v1::ObjectMeta;
use objects::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};

use client::{Client, ClientError};

/// Who the driver is.
pub const USER: &str = "system:serviceaccount:kube-system:network-policy";
const ACCOUNT: &str = "network-policy";
const ROLE: &str = "ferry:network-policy";

/// What the driver reads, and nothing else.
#[must_use]
pub fn role() -> (ClusterRole, ClusterRoleBinding) {
    let texts = |all: &[&str]| Some(all.iter().map(|text| (*text).to_owned()).collect());
    let read = |group: &str, resources: &[&str]| PolicyRule {
        api_groups: texts(&[group]),
        resources: texts(resources),
        verbs: ["list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    let metadata = ObjectMeta { name: Some(ROLE.to_owned()), ..ObjectMeta::default() };
    let role = ClusterRole {
        metadata: metadata.clone(),
        rules: Some(vec![
            read("", &["namespaces", "pods"]),
            read("networking.k8s.io", &["networkpolicies"]),
            read("discovery.k8s.io", &["endpointslices"]),
        ]),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: ROLE.to_owned(),
        },
        subjects: Some(vec![
            Subject {
                kind: "ServiceAccount".to_owned(),
                name: ACCOUNT.to_owned(),
                namespace: Some("kube-system".to_owned()),
                ..Subject::default()
            },
            // A node that joined has no other certificate than its own.
            Subject {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "Group".to_owned(),
                name: "system:nodes".to_owned(),
                ..Subject::default()
            },
        ]),
    };
    (role, binding)
}

/// Creates the role and its binding, unless they are there; `administrator` may create them.
pub fn install<'a>(administrator: &'a Client) -> BoxFuture<'a, Result<(), ClientError>> {
    Box::pin(async move {
        let (role, binding) = role();
        let ignore_existing =
            |error: ClientError| if error.is_already_exists() { Ok(()) } else { Err(error) };
        administrator.create("", &role).await.map(drop).or_else(ignore_existing)?;
        administrator.create("", &binding).await.map(drop).or_else(ignore_existing)
    })
}
