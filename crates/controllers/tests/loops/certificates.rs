//! Cleaning and approval of certificate signing requests.

use anyhow::Result;
use base::clock::Clock;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ListOptions, Patch};
use jiff::{SignedDuration, Timestamp};
use objects::certificates::v1::CertificateSigningRequest;
use serde_json::json;
use testkit::eventually;

use crate::scenarios::signing_request;
use crate::world::{PATIENCE, World};

const LOOP: &str = "certificatesigningrequest-cleaner-controller";

async fn request(world: &World, user: &str) -> Result<()> {
    let request = signing_request(user, "team", "kubernetes.io/kube-apiserver-client")?;
    world.admin.create("", &serde_json::from_value::<CertificateSigningRequest>(request)?).await?;
    Ok(())
}

async fn settle(world: &World, name: &str, kind: &str, at: Timestamp) -> Result<()> {
    let at = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({"type": kind, "status": "True", "reason": "Test", "lastUpdateTime": at, "lastTransitionTime": at});
    let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    world.admin.patch::<CertificateSigningRequest>("", name, Some("approval"), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificate_requests_are_deleted() -> Result<()> {
    let mut world = World::outside().await?;
    let now = Timestamp::now();
    world.clock = Clock::held_at(now);
    for user in ["pending", "approved", "denied", "long-denied"] {
        request(&world, user).await?;
    }
    settle(&world, "approved", "Approved", now).await?;
    settle(&world, "denied", "Denied", now).await?;
    settle(&world, "long-denied", "Denied", now - SignedDuration::from_hours(2)).await?;
    let names = async |world: &World| {
        let list = world.admin.list::<CertificateSigningRequest>("", &ListOptions::default()).await;
        let items = list.expect("lists").items;
        items.into_iter().filter_map(|request| request.metadata.name).collect::<Vec<_>>()
    };
    world.start_loops(LOOP)?;
    let seen = async || names(&world).await;
    eventually("requests decided long ago are deleted", PATIENCE, seen, |seen| {
        *seen == ["approved", "denied", "pending"]
    })
    .await;

    // The loop is down while the hour passes; a recreated request of the same name is another one.
    world.kill_loops();
    world.clock.advance(SignedDuration::from_mins(61));
    request(&world, "long-denied").await?;
    world.start_loops(LOOP)?;
    let seen = async || names(&world).await;
    eventually("the denied request is deleted after an hour", PATIENCE, seen, |seen| {
        *seen == ["approved", "long-denied", "pending"]
    })
    .await;

    world.kill_loops();
    world.clock.advance(SignedDuration::from_hours(24));
    world.start_loops(LOOP)?;
    let seen = async || names(&world).await;
    eventually("pending requests are deleted after a day", PATIENCE, seen, |seen| seen.is_empty()).await;
    world.stop().await
}

/// A node's certificate request whose subject has another common name before the node's.
fn two_common_names() -> Result<CertificateSigningRequest> {
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    // A distinguished name holds one entry per type, so the first common name is set by its OID.
    let common_name = rcgen::DnType::CustomDnType(vec![2, 5, 4, 3]);
    params.distinguished_name.push(common_name, "system:kube-controller-manager");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:x");
    let text = params.serialize_request(&key)?.pem()?;
    Ok(serde_json::from_value(json!({"metadata": {"name": "two-names"}, "spec": {
        "request": STANDARD.encode(text), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }}))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_two_common_names_is_neither_approved_nor_signed() -> Result<()> {
    let loops = "certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller";
    let world = World::inside(loops).await?;
    let get = async |name: &str| {
        let request = world.admin.get::<CertificateSigningRequest>("", name).await.expect("reads");
        let status = request.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let kinds: Vec<String> = conditions.into_iter().map(|condition| condition.type_).collect();
        (kinds, status.certificate.is_some_and(|certificate| !certificate.0.is_empty()))
    };
    world.admin.create("", &two_common_names()?).await?;
    let node =
        signing_request("system:node:y", "system:nodes", "kubernetes.io/kube-apiserver-client-kubelet")?;
    world.admin.create("", &serde_json::from_value::<CertificateSigningRequest>(node)?).await?;
    // The approver has one worker: once the later request is approved, the earlier one has been processed.
    let seen = async || get("system-node-y").await;
    eventually("a node's request is signed", PATIENCE, seen, |(_, signed)| *signed).await;
    assert_eq!(get("two-names").await, (vec![], false));

    settle(&world, "two-names", "Approved", Timestamp::now()).await?;
    let seen = async || get("two-names").await;
    let (kinds, signed) = eventually("the signer rejects the request", PATIENCE, seen, |(kinds, signed)| {
        kinds.len() == 2 || *signed
    })
    .await;
    assert_eq!((kinds, signed), (vec!["Approved".to_owned(), "Failed".to_owned()], false));
    world.stop().await
}
