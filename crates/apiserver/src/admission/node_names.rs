//! Unique node names: a machine that joins with a bootstrap token does not get the certificate of another machine's node.
//! Part of CertificateSubjectRestriction.

use super::{Attributes, signers};
use crate::registry::Registry;
use api::value::Fields;
use base::clock::Clock;
use jiff::{SignedDuration, Timestamp};
use machinery::Value;
use machinery::status::Result;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Users of bootstrap tokens. A node that has joined requests certificates as itself.
const BOOTSTRAP_USERS: &str = "system:bootstrap:";
const NODE_USERS: &str = "system:node:";
/// Annotation of a request by a machine without credentials of an earlier join.
const NEW_MACHINE: &str = "ferry.dev/new-machine";
/// Age of a lease from which on its node counts as stopped.
const LEASE_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);

/// Rejects a request for the certificate of a node that runs, and of one that exists if the machine is new.
pub async fn check(registry: &Registry, attributes: &Attributes<'_>, request: &Value) -> Result<()> {
    let spec = request.field("spec");
    let is_bootstrap = attributes.context.user.name.starts_with(BOOTSTRAP_USERS);
    if !is_bootstrap || spec.text("signerName") != SIGNER {
        return Ok(());
    }
    let Some(node) = signers::subject(spec.text("request"), common_name).flatten() else { return Ok(()) };
    let Some(node) = node.strip_prefix(NODE_USERS) else { return Ok(()) };
    if registry.find(("", "v1", "nodes"), "", node).await?.is_none() {
        return Ok(());
    }
    let is_new = request.field("metadata").field("annotations").text(NEW_MACHINE) == "true";
    let lease = registry.find(("coordination.k8s.io", "v1", "leases"), "kube-node-lease", node).await?;
    let renewed = lease.and_then(|lease| lease.field("spec").text("renewTime").parse::<Timestamp>().ok());
    let is_running =
        renewed.is_some_and(|renewed| Clock::system().now().duration_since(renewed) < LEASE_TIMEOUT);
    if !is_new && !is_running {
        return Ok(());
    }
    Err(attributes.forbidden(format!(
        "node {node:?} exists and belongs to another machine: choose another name with --hostname-override; to admit \
         a re-installed machine, delete its old node with kubectl delete node {node}"
    )))
}

fn common_name(subject: &x509_parser::x509::X509Name<'_>) -> Option<String> {
    subject.iter_common_name().next().and_then(|name| name.as_str().ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::test_cluster::Cluster;
    use super::*;
    use crate::user::UserInfo;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use serde_json::json;

    fn request(node: &str, is_new: bool) -> Value {
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, format!("system:node:{node}"));
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = name;
        let key = KeyPair::generate().expect("a key");
        let pem = parameters.serialize_request(&key).and_then(|made| made.pem()).expect("a request");
        let annotations = if is_new { json!({NEW_MACHINE: "true"}) } else { json!({}) };
        json!({
            "metadata": {"generateName": "node-csr-", "annotations": annotations},
            "spec": {"signerName": SIGNER, "request": STANDARD.encode(pem),
                     "usages": ["digital signature", "client auth"]},
        })
    }

    #[tokio::test]
    async fn certificate_of_another_machines_node_is_rejected() {
        const REQUESTS: (&str, &str, &str) = ("certificates.k8s.io", "v1", "certificatesigningrequests");
        let cluster = Cluster::empty();
        let user = |name: &str| UserInfo { name: name.to_owned(), ..UserInfo::anonymous() };
        let (bootstrap, own) = (user("system:bootstrap:abcdef"), user("system:node:m1"));
        let allowed = async |user: &UserInfo, is_new: bool| {
            cluster
                .create_as(user, REQUESTS, request("m1", is_new))
                .await
                .map(drop)
                .map_err(|status| status.message)
        };
        assert!(allowed(&bootstrap, true).await.is_ok(), "no node of this name");
        cluster.create(("", "v1", "nodes"), json!({"metadata": {"name": "m1"}})).await.expect("a node");
        let message = allowed(&bootstrap, true).await.expect_err("another machine");
        assert!(
            message.contains("kubectl delete node m1") && message.contains("--hostname-override"),
            "{message}"
        );
        assert!(allowed(&bootstrap, false).await.is_ok(), "the machine lost its certificate");
        assert!(allowed(&own, true).await.is_ok(), "the node itself");
        cluster
            .create(("", "v1", "namespaces"), json!({"metadata": {"name": "kube-node-lease"}}))
            .await
            .expect("made");
        let lease = |renewed: &str| {
            json!({"metadata": {"name": "m1", "namespace": "kube-node-lease"},
                   "spec": {"holderIdentity": "m1", "renewTime": renewed}})
        };
        let now = Clock::system().now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
        cluster.create(("coordination.k8s.io", "v1", "leases"), lease(&now)).await.expect("a lease");
        assert!(allowed(&bootstrap, false).await.is_err(), "the node runs");
        assert!(allowed(&own, false).await.is_ok(), "a renewal");
    }
}
