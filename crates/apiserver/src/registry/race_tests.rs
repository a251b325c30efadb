//! Many writers at once: nothing is handed out twice, and nothing is lost when all is over.

use super::allocate::{ServiceConfig, Services};
use super::{Registry, Warnings, WriteContext, Written};
use crate::admission::Admission;
use crate::options::DeleteOptions;
use crate::user::UserInfo;
use futures_util::future::join_all;
use machinery::status::{Result, Status};
use machinery::{Value, codec, meta};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use store::{Embedded, EmbeddedOptions};

const SERVICES: (&str, &str, &str) = ("", "v1", "services");
const ADDRESSES: (&str, &str, &str) = ("networking.k8s.io", "v1", "ipaddresses");

fn registry(directory: &tempfile::TempDir, config: ServiceConfig) -> Registry {
    let options = EmbeddedOptions::new(directory.path().join("store"));
    let store = Embedded::open(options).expect("a store");
    Registry::new(Arc::new(store), Admission::default(), Services::new(config))
}

async fn create(registry: &Registry, resource: (&str, &str, &str), mut object: Value) -> Result<Value> {
    let (user, warnings) = (UserInfo::server(), Warnings::default());
    let served = registry.builtin(resource.0, resource.1, resource.2)?;
    let namespace = meta::namespace(&object).to_owned();
    let context = WriteContext::server(&user, &warnings, &namespace);
    codec::typed::normalize(&mut object, served.schema).map_err(Status::internal)?;
    (served.kind.default)(&mut object);
    registry.create(served, object, &context).await.as_ref().map(Written::value).map_err(Clone::clone)
}

async fn delete(registry: &Registry, resource: (&str, &str, &str), object: &Value) -> Result<()> {
    let (user, warnings) = (UserInfo::server(), Warnings::default());
    let served = registry.builtin(resource.0, resource.1, resource.2)?;
    let context = WriteContext::server(&user, &warnings, meta::namespace(object));
    registry.delete(served, meta::name(object), &DeleteOptions::default(), &context).await.map(drop)
}

async fn namespace(registry: &Registry) {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    create(registry, ("", "v1", "namespaces"), object).await.expect("a namespace");
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "n"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_share_addresses_and_ports() {
    let directory = tempfile::tempdir().expect("a directory");
    // 254 addresses: more services than that cannot be.
    let mut config = ServiceConfig::default();
    config.set_cidrs(["10.9.0.0/24"]).expect("a range");
    let registry = registry(&directory, config);
    namespace(&registry).await;
    for round in 0..2 {
        let names: Vec<String> = (0..300).map(|i| format!("s-{round}-{i}")).collect();
        let outcomes = join_all(names.iter().map(|name| create(&registry, SERVICES, service(name)))).await;
        let made: Vec<Value> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(made.len(), 254, "every address is given once, in round {round}");
        let ips: HashSet<String> = made.iter().map(|s| s["spec"]["clusterIP"].to_string()).collect();
        let ports: HashSet<i64> =
            made.iter().filter_map(|s| s["spec"]["ports"][0]["nodePort"].as_i64()).collect();
        assert_eq!((ips.len(), ports.len()), (254, 254));
        let addresses = registry.find_all(ADDRESSES, "", "").await.expect("addresses");
        assert_eq!(addresses.len(), 254, "one IPAddress each");
        for outcome in join_all(made.iter().map(|made| delete(&registry, SERVICES, made))).await {
            outcome.expect("deleted");
        }
        assert!(registry.find_all(ADDRESSES, "", "").await.expect("addresses").is_empty(), "no leak");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quota_is_never_exceeded() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = registry(&directory, ServiceConfig::default());
    namespace(&registry).await;
    let hard = json!({"configmaps": "50"});
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "n"},
        "spec": {"hard": hard},
    });
    let quotas = ("", "v1", "resourcequotas");
    create(&registry, quotas, quota).await.expect("a quota");
    let (user, warnings) = (UserInfo::server(), Warnings::default());
    let context = WriteContext { subresource: "status", ..WriteContext::server(&user, &warnings, "n") };
    let served = registry.builtin("", "v1", "resourcequotas").expect("served");
    let door = super::update::Door::status(served.kind);
    registry
        .update(served, "q", door, true, &context, |old| {
            let mut new = old.clone();
            new["status"] = json!({"hard": hard, "used": {"configmaps": "0"}});
            Ok(super::update::Change::Replace(new))
        })
        .await
        .expect("a status");
    let maps = (0..200).map(|i| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{i}"), "namespace": "n"}})
    });
    let outcomes = join_all(maps.map(|map| create(&registry, ("", "v1", "configmaps"), map))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 50);
    assert!(outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).all(|status| status.code == 403));
    let quota = registry.find(quotas, "n", "q").await.expect("read").expect("there");
    assert_eq!(quota["status"]["used"], json!({"configmaps": "50"}));
}
