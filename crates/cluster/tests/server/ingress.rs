//! Ingress is left to controllers that users install. One that ships as plain manifests works here: there is a
//! default class, and a service account with only the permissions of its manifest watches ingresses and writes their
//! status.

use std::time::Duration;

use anyhow::{Context, Result};
use base::tasks::TaskGroup;
use client::{Client, ListOptions, ResourceKey, delete_options};
use objects::core::v1::{Secret, Service};
use objects::networking::v1::{Ingress, IngressClass};
use runtime::Informers;
use serde_json::{Value, json};
use testkit::{Server, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// Typical manifest of a controller: service account, RBAC objects, and class.
fn manifests() -> Vec<(ResourceKey, &'static str, Value)> {
    let kind = |group: &str, resource: &str, namespaced: bool| ResourceKey {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespaced,
    };
    let rbac = "rbac.authorization.k8s.io";
    vec![
        (kind("", "namespaces", false), "", json!({ "metadata": { "name": "ingress" } })),
        (kind("", "serviceaccounts", true), "ingress", json!({ "metadata": { "name": "controller" } })),
        (
            kind(rbac, "clusterroles", false),
            "",
            json!({
                "metadata": { "name": "ingress-controller" },
                "rules": [
                    { "apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"] },
                    { "apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "ingressclasses"], "verbs": ["get", "list", "watch"] },
                    { "apiGroups": ["networking.k8s.io"], "resources": ["ingresses/status"], "verbs": ["update"] },
                ],
            }),
        ),
        (
            kind(rbac, "clusterrolebindings", false),
            "",
            json!({
                "metadata": { "name": "ingress-controller" },
                "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": "ingress-controller" },
                "subjects": [{ "kind": "ServiceAccount", "name": "controller", "namespace": "ingress" }],
            }),
        ),
        (
            kind("networking.k8s.io", "ingressclasses", false),
            "",
            json!({
                "metadata": {
                    "name": "plain", "annotations": { "ingressclass.kubernetes.io/is-default-class": "true" },
                },
                "spec": { "controller": "example.com/plain" },
            }),
        ),
    ]
}

/// Client with the service account's token, as in a pod.
async fn account(server: &Server, administrator: &Client, directory: &std::path::Path) -> Result<Client> {
    let path = "/api/v1/namespaces/ingress/serviceaccounts/controller/token";
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
    let review: Value = administrator.post(path, &request).await?;
    let token = review["status"]["token"].as_str().context("a token")?;
    let root = std::fs::read_to_string(&server.kubeconfig)?;
    let authority = root
        .lines()
        .find_map(|line| line.trim().strip_prefix("certificate-authority-data:"))
        .context("an authority")?
        .trim();
    let file = directory.join("kubeconfig");
    std::fs::write(
        &file,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster:\n    server: https://{}\n    \
             certificate-authority-data: {authority}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n\
             users:\n- name: u\n  user: {{token: {token}}}\n",
            server.address
        ),
    )?;
    Ok(Client::connect(&file, "plain-controller")?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingress_controller_works_with_manifest_permissions() -> Result<()> {
    let server = Server::start().await?;
    let administrator = Client::connect(&server.kubeconfig, "test")?;
    for (kind, namespace, object) in manifests() {
        administrator.dynamic(&kind).create(namespace, &object).await.context(kind.resource.clone())?;
    }
    let directory = tempfile::tempdir()?;
    let controller = account(&server, &administrator, directory.path()).await?;
    let tasks = TaskGroup::new();
    let informers = Informers::new(controller.clone(), &tasks);
    let (ingresses, classes) = (informers.of::<Ingress>(), informers.of::<IngressClass>());
    tokio::time::timeout(PATIENCE, async {
        ingresses.synced().await;
        classes.synced().await
    })
    .await?;
    assert_eq!(classes.count(), 1);

    // An ingress without a class gets the default one, and the controller sees it.
    let wanted: Ingress = serde_json::from_value(json!({
        "metadata": { "name": "site" },
        "spec": { "rules": [{ "host": "site.example", "http": { "paths": [{
            "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } },
        }] } }] },
    }))?;
    administrator.create("default", &wanted).await?;
    let seen = eventually(
        "the controller sees the ingress",
        PATIENCE,
        async || ingresses.get("default", "site"),
        Option::is_some,
    )
    .await
    .context("an ingress")?;
    assert_eq!(seen.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref()), Some("plain"));

    // It writes the status with the published address; spec changes through the status subresource are ignored.
    let mut served = (*seen).clone();
    served.status = Some(serde_json::from_value(json!({ "loadBalancer": { "ingress": [
        { "ip": "192.0.2.9", "ports": [{ "port": 80, "protocol": "TCP" }] }, { "hostname": "lb.example" },
    ] } }))?);
    served.spec.get_or_insert_default().rules = None;
    let written = controller.update_status(&served).await?;
    assert!(written.spec.is_some_and(|spec| spec.rules.is_some()), "the spec stays");
    let table = server.admin.get("/apis/networking.k8s.io/v1/namespaces/default/ingresses/site").await?;
    let text = table.body.to_string();
    assert!(text.contains("192.0.2.9") && text.contains("lb.example"), "{text}");
    eventually(
        "its own change is watched",
        PATIENCE,
        async || ingresses.get("default", "site").and_then(|one| one.status.clone()),
        |status| status.as_ref().is_some_and(|status| status.load_balancer.is_some()),
    )
    .await;

    // No other permissions.
    assert!(controller.update(&*seen).await.expect_err("the object itself").is_forbidden());
    let options = delete_options(None, None);
    assert!(
        controller
            .delete::<Ingress>("default", "site", &options)
            .await
            .expect_err("to delete")
            .is_forbidden()
    );
    assert!(
        controller.list::<Secret>("", &ListOptions::default()).await.expect_err("secrets").is_forbidden()
    );
    controller
        .list::<Service>("", &ListOptions::default())
        .await
        .context("services, which its manifest allows")?;
    tasks.stop();
    tasks.drain(PATIENCE).await.ok();
    server.stop().await
}
