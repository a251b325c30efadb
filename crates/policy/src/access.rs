//! Identity and RBAC of the driver: a service account that may list and watch the objects policies refer to.

use futures_util::future::BoxFuture;
use objects::core::v1::ServiceAccount;
use objects::meta::v1::ObjectMeta;
use objects::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};

use client::{Client, ClientError};

/// User name of the driver's service account.
pub const USER: &str = "system:serviceaccount:kube-system:ferry-network-policy";
/// Name of the driver's service account in kube-system.
pub const ACCOUNT: &str = "ferry-network-policy";
const NAMESPACE: &str = "kube-system";
const ROLE: &str = "ferry:network-policy";

/// Permissions of the driver: exactly what it reads.
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
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: ACCOUNT.to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            ..Subject::default()
        }]),
    };
    (role, binding)
}

/// Creates the service account, the role and its binding, unless they exist; `administrator` may create them. A binding
/// of an earlier version, which bound the role to all nodes, is corrected.
pub fn install<'a>(administrator: &'a Client) -> BoxFuture<'a, Result<(), ClientError>> {
    Box::pin(async move {
        let (role, binding) = role();
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some(ACCOUNT.to_owned()), ..ObjectMeta::default() },
            ..ServiceAccount::default()
        };
        let ignore_existing =
            |error: ClientError| if error.is_already_exists() { Ok(()) } else { Err(error) };
        administrator.create(NAMESPACE, &account).await.map(drop).or_else(ignore_existing)?;
        administrator.create("", &role).await.map(drop).or_else(ignore_existing)?;
        match administrator.create("", &binding).await {
            Err(error) if error.is_already_exists() => {}
            outcome => return outcome.map(drop),
        }
        let mut present: ClusterRoleBinding = administrator.get("", ROLE).await?;
        let all_nodes = |subject: &Subject| subject.kind == "Group" && subject.name == "system:nodes";
        if present.subjects.iter().flatten().any(all_nodes) {
            present.subjects = binding.subjects;
            administrator.update(&present).await?;
        }
        Ok(())
    })
}
