//! Concurrent writers: no double allocation and no leak.

use super::services::{ServiceConfig, Services};
use super::{Registry, WriteContext, WriteRecord, Written};
use crate::admission::Admission;
use crate::user::UserInfo;
use crate::wire::options::DeleteOptions;
use futures_util::future::join_all;
use machinery::status::{Result, Status};
use machinery::{Value, codec, meta};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::{Embedded, EmbeddedOptions, Layer, Op, Outcome, Store, StoreError, Txn};

const SERVICES: (&str, &str, &str) = ("", "v1", "services");
const PODS: (&str, &str, &str) = ("", "v1", "pods");
const ADDRESSES: (&str, &str, &str) = ("networking.k8s.io", "v1", "ipaddresses");

fn registry(directory: &tempfile::TempDir, config: ServiceConfig) -> Registry {
    let options = EmbeddedOptions::new(directory.path().join("store"));
    let store = Embedded::open(options).expect("a store");
    Registry::new(Arc::new(store), Admission::default(), Services::new(config))
}

async fn create(registry: &Registry, resource: (&str, &str, &str), mut object: Value) -> Result<Value> {
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let served = registry.builtin(resource.0, resource.1, resource.2)?;
    let namespace = meta::namespace(&object).to_owned();
    let context = WriteContext::server(&user, &record, &namespace);
    codec::typed::normalize(&mut object, served.schema()).map_err(Status::internal)?;
    served.rules.set_defaults(&mut object);
    registry.create(served, object, &context).await.as_ref().map(Written::value).map_err(Clone::clone)
}

async fn delete(registry: &Registry, resource: (&str, &str, &str), object: &Value) -> Result<()> {
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let served = registry.builtin(resource.0, resource.1, resource.2)?;
    let context = WriteContext::server(&user, &record, meta::namespace(object));
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
async fn concurrent_services_get_distinct_addresses_and_ports() {
    let directory = tempfile::tempdir().expect("a directory");
    // 254 addresses limit the number of services.
    let mut config = ServiceConfig::default();
    config.set_cidrs(["10.9.0.0/24"]).expect("a range");
    let registry = registry(&directory, config);
    namespace(&registry).await;
    for round in 0..2 {
        let names: Vec<String> = (0..300).map(|i| format!("s-{round}-{i}")).collect();
        let outcomes = join_all(names.iter().map(|name| create(&registry, SERVICES, service(name)))).await;
        let made: Vec<Value> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(made.len(), 254, "every address is allocated once, in round {round}");
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

/// A pod deleted without grace period is marked and then removed; a status write in between also removes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pod_deletion_completed_by_status_write_succeeds() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = registry(&directory, ServiceConfig::default());
    namespace(&registry).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "n"}});
    create(&registry, ("", "v1", "serviceaccounts"), account).await.expect("an account");
    let registry = Arc::new(registry);
    for round in 0..100 {
        let name = format!("p-{round}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        create(&registry, PODS, pod).await.expect("a pod");
        let others: Vec<_> =
            (0..4).map(|_| tokio::spawn(write_until_gone(registry.clone(), name.clone()))).collect();
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let served = registry.builtin(PODS.0, PODS.1, PODS.2).expect("pods");
        let context = WriteContext::server(&user, &record, "n");
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let outcome = registry.delete(served, &name, &options, &context).await;
        assert!(outcome.is_ok(), "round {round}: {:?}", outcome.err().map(|status| status.message));
        for other in others {
            other.await.expect("writes until the pod is gone");
        }
    }
}

/// Writes a pod's status repeatedly, as long as the pod exists.
async fn write_until_gone(registry: Arc<Registry>, name: String) {
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext::server(&user, &record, "n");
    let served = registry.builtin(PODS.0, PODS.1, PODS.2).expect("pods");
    for count in 0.. {
        let strategy = super::update::UpdateStrategy::status(served.governing());
        let change = |old: &Value| {
            let mut new = old.clone();
            new["status"]["message"] = format!("{count}").into();
            Ok(super::update::Change::Patched(new))
        };
        match registry.update(served, &name, strategy, true, &context, change).await {
            Ok(_) => {}
            Err(status) if status.code == 404 => return,
            // All attempts conflicted with other writers.
            Err(status) if status.code == 409 => {}
            Err(status) => panic!("{}", status.message),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quota_is_not_exceeded_by_concurrent_creates() {
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
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext { subresource: "status", ..WriteContext::server(&user, &record, "n") };
    let served = registry.builtin("", "v1", "resourcequotas").expect("served");
    let strategy = super::update::UpdateStrategy::status(served.governing());
    registry
        .update(served, "q", strategy, true, &context, |old| {
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

/// Thousands of writers: rejected writes leave nothing behind, deletions release everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_created_and_deleted_concurrently_release_allocations() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = ServiceConfig::default();
    config.set_cidrs(["10.8.0.0/20", "fd00:8::/116"]).expect("ranges");
    (config.node_ports.first, config.node_ports.last) = (30000, 31999);
    let registry = registry(&directory, config);
    namespace(&registry).await;
    let ports = 2000;
    let dual = |index: usize| {
        let mut object = service(&format!("s-{index}"));
        object["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
        object
    };
    // All also request the same address and port: exactly one gets them.
    let pinned = |index: usize| {
        let mut object = service(&format!("p-{index}"));
        object["spec"]["clusterIP"] = "10.8.0.77".into();
        object["spec"]["ports"] = json!([{"port": 80, "nodePort": 30077}]);
        object
    };
    let wanted = (0..2500).map(dual).chain((0..50).map(pinned));
    let outcomes = join_all(wanted.map(|object| create(&registry, SERVICES, object))).await;
    let made: Vec<Value> = outcomes.into_iter().filter_map(Result::ok).collect();
    assert_eq!(made.len(), ports, "there are as many services as ports");
    let mut ips = HashSet::new();
    let mut allocated = HashSet::new();
    for service in &made {
        for ip in service["spec"]["clusterIPs"].as_array().into_iter().flatten() {
            assert!(ips.insert(ip.to_string()), "{ip} was given twice");
        }
        let port = service["spec"]["ports"][0]["nodePort"].as_i64().expect("a port");
        assert!(allocated.insert(port), "{port} was given twice");
    }
    let addresses = registry.find_all(ADDRESSES, "", "").await.expect("addresses");
    assert_eq!(addresses.len(), ips.len(), "one IPAddress each, and none for rejected writes");
    for outcome in join_all(made.iter().map(|made| delete(&registry, SERVICES, made))).await {
        outcome.expect("deleted");
    }
    assert!(registry.find_all(ADDRESSES, "", "").await.expect("addresses").is_empty(), "no leak");
    let again = join_all((0..ports).map(|index| create(&registry, SERVICES, dual(index)))).await;
    assert_eq!(again.iter().filter(|outcome| outcome.is_ok()).count(), ports, "everything is free again");
}

/// Leftovers of a crash are repaired at the next start.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn service_addresses_are_repaired_after_crash() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = registry(&directory, ServiceConfig::default());
    namespace(&registry).await;
    let made = create(&registry, SERVICES, service("s")).await.expect("a service");
    let ip = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    let address = registry.find(ADDRESSES, "", &ip).await.expect("read").expect("there");
    delete(&registry, ADDRESSES, &address).await.expect("deleted");
    registry.repair_services().await.expect("repaired");
    let address = registry.find(ADDRESSES, "", &ip).await.expect("read").expect("created again");
    assert_eq!(address["spec"]["parentRef"]["name"], "s");
    let events = registry.find_all(("", "v1", "events"), "n", "").await.expect("events");
    assert_eq!(events.iter().filter(|event| event["reason"] == "ClusterIPNotAllocated").count(), 1);

    // One with a wrong reference is replaced; a second repair changes nothing.
    delete(&registry, ADDRESSES, &address).await.expect("deleted");
    let mut foreign = address.clone();
    foreign["metadata"] = json!({"name": ip, "labels": address["metadata"]["labels"]});
    foreign["spec"]["parentRef"]["name"] = "other".into();
    create(&registry, ADDRESSES, foreign).await.expect("created");
    for _ in 0..2 {
        registry.repair_services().await.expect("repaired");
    }
    let address = registry.find(ADDRESSES, "", &ip).await.expect("read").expect("there");
    assert_eq!(address["spec"]["parentRef"]["name"], "s");
    let events = registry.find_all(("", "v1", "events"), "n", "").await.expect("events");
    assert_eq!(events.len(), 2, "one for each repair");
}

/// After a start the ports of services, including health check ports, are allocated, and services with conflicting
/// ports get an event.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn node_ports_stay_allocated_after_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = ServiceConfig::default();
    (config.node_ports.first, config.node_ports.last) = (30000, 30003);
    let first = registry(&directory, config.clone());
    namespace(&first).await;
    let balanced = |name: &str| {
        let mut object = service(name);
        object["spec"]["type"] = "LoadBalancer".into();
        object["spec"]["externalTrafficPolicy"] = "Local".into();
        object
    };
    let ports = |service: &Value| {
        let spec = &service["spec"];
        [&spec["healthCheckNodePort"], &spec["ports"][0]["nodePort"]].map(|port| port.as_i64().unwrap_or(0))
    };
    let one = create(&first, SERVICES, balanced("one")).await.expect("a service");
    first.store.close().await;
    drop(first);

    let second = registry(&directory, config.clone());
    second.repair_services().await.expect("nothing to repair");
    let two = create(&second, SERVICES, balanced("two")).await.expect("another");
    let allocated: HashSet<i64> = ports(&one).into_iter().chain(ports(&two)).collect();
    assert_eq!(allocated, (30000..=30003).collect(), "no port is allocated twice");
    let full = create(&second, SERVICES, service("three")).await.expect_err("no port is left");
    assert_eq!(full.code, 500, "{full}");
    let events = ("", "v1", "events");
    assert!(second.find_all(events, "n", "").await.expect("events").is_empty());

    // Simulates a write to the store that bypasses the server.
    let mut twin = two.clone();
    twin["spec"]["ports"][0]["nodePort"] = one["spec"]["ports"][0]["nodePort"].clone();
    twin["spec"]["healthCheckNodePort"] = 40000.into();
    let served = second.builtin("", "v1", "services").expect("served");
    let key: Arc<str> = served.key("n", "two").into();
    let op = store::Op::Put { value: served.storage.cache.layout.prefix.encode(&twin), lease: None };
    second.store.txn(store::Txn { key, expect: store::Expect::Any, op }).await.expect("stored");
    second.store.close().await;
    drop(second);
    let third = registry(&directory, config);
    third.repair_services().await.expect("repaired");
    let events = third.find_all(events, "n", "").await.expect("events");
    let mut reasons: Vec<&str> = events.iter().filter_map(|event| event["reason"].as_str()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["PortAlreadyAllocated", "PortOutOfRange"]);
}

fn port(service: &Value) -> i64 {
    service["spec"]["ports"][0]["nodePort"].as_i64().expect("a port")
}

async fn claims(registry: &Registry) -> usize {
    let start = "/registry/ranges/servicenodeports/".to_owned();
    let end = store::prefix_end(&start);
    let request = store::RangeRequest { start, end, ..store::RangeRequest::default() };
    registry.store.range(request).await.expect("a range").kvs.len()
}

/// Two servers on one store: no port is allocated twice, and each can allocate the ports that the other releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn node_ports_of_two_servers_are_distinct() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = ServiceConfig::default();
    (config.node_ports.first, config.node_ports.last) = (30000, 30099);
    let options = EmbeddedOptions::new(directory.path().join("store"));
    let store: Arc<dyn store::Store> = Arc::new(Embedded::open(options).expect("a store"));
    let server = || Registry::new(Arc::clone(&store), Admission::default(), Services::new(config.clone()));
    let (one, other) = (server(), server());
    namespace(&one).await;
    one.fill_services().await.expect("filled");
    other.fill_services().await.expect("filled");
    // Both have all ports free in memory, and get concurrent requests for any port and for the same ones.
    let names: Vec<String> = (0..120).map(|i| format!("s-{i}")).collect();
    let wanted = |name: &String, index: usize| {
        let mut object = service(name);
        if index.is_multiple_of(4) {
            object["spec"]["ports"][0]["nodePort"] = (30000 + index / 8).into();
        }
        object
    };
    let outcomes = join_all(names.iter().enumerate().map(|(index, name)| {
        create(if index % 2 == 0 { &one } else { &other }, SERVICES, wanted(name, index))
    }))
    .await;
    let made: Vec<Value> = outcomes.into_iter().filter_map(Result::ok).collect();
    let ports: HashSet<i64> = made.iter().map(port).collect();
    assert_eq!(ports.len(), made.len(), "no port is allocated twice");
    assert_eq!(claims(&one).await, made.len(), "one claim each, and none for rejected writes");
    assert!(made.len() > 60, "{}", made.len());
    for outcome in join_all(made.iter().map(|made| delete(&other, SERVICES, made))).await {
        outcome.expect("deleted");
    }
    assert_eq!(claims(&one).await, 0, "no leak");
    // The first server does not see the releases; it refills when the range seems exhausted.
    let begun = std::time::Instant::now();
    let mut count = 0;
    while count < 100 {
        match create(&one, SERVICES, service(&format!("t-{count}"))).await {
            Ok(_) => count += 1,
            Err(error) => {
                assert!(begun.elapsed().as_secs() < 60, "after {count}: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
    assert_eq!(claims(&one).await, 100);
}

/// Claims are created for services without one, as after an upgrade, and deleted for services that do not have the
/// port.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn node_port_claims_are_repaired() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = registry(&directory, ServiceConfig::default());
    namespace(&registry).await;
    let made = create(&registry, SERVICES, service("s")).await.expect("a service");
    let put = async |port: i64, value: &str| {
        let key: Arc<str> = format!("/registry/ranges/servicenodeports/{port}").into();
        let op = store::Op::Put { value: value.to_owned().into(), lease: None };
        registry.store.txn(store::Txn { key, expect: store::Expect::Any, op }).await.expect("stored");
    };
    put(port(&made), r#"{"namespace":"n","name":"other","at":"2020-01-01T00:00:00Z"}"#).await;
    let free = if port(&made) == 30001 { 30002 } else { 30001 };
    put(free, r#"{"namespace":"n","name":"gone","at":"2020-01-01T00:00:00Z"}"#).await;
    registry.repair_services().await.expect("repaired");
    assert_eq!(claims(&registry).await, 1, "only that of the service");
    delete(&registry, SERVICES, &made).await.expect("deleted");
    assert_eq!(claims(&registry).await, 0, "the claim was released with its service");
}

/// Quota with updates and deletions: released quota can be used again, by exactly as many.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quota_is_released_by_updates_and_deletions() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = registry(&directory, ServiceConfig::default());
    namespace(&registry).await;
    let quotas = ("", "v1", "resourcequotas");
    let maps = ("", "v1", "configmaps");
    let hard = json!({"count/configmaps": "100"});
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "n"},
        "spec": {"hard": hard},
    });
    create(&registry, quotas, quota).await.expect("a quota");
    let map = |i: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{i}"), "namespace": "n"}});
    for round in 0..3 {
        report(&registry, &hard, "0").await;
        let outcomes = join_all((0..1000).map(|i| create(&registry, maps, map(i)))).await;
        let made: Vec<Value> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(made.len(), 100, "round {round}");
        let quota = registry.find(quotas, "n", "q").await.expect("read").expect("there");
        assert_eq!(quota["status"]["used"], json!({"count/configmaps": "100"}));
        for outcome in join_all(made.iter().map(|made| delete(&registry, maps, made))).await {
            outcome.expect("deleted");
        }
    }
}

/// Recounts like the quota controller.
async fn report(registry: &Registry, hard: &Value, used: &str) {
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context = WriteContext { subresource: "status", ..WriteContext::server(&user, &record, "n") };
    let served = registry.builtin("", "v1", "resourcequotas").expect("served");
    let strategy = super::update::UpdateStrategy::status(served.governing());
    let status = json!({"hard": hard, "used": {"count/configmaps": used}});
    registry
        .update(served, "q", strategy, true, &context, |old| {
            let mut new = old.clone();
            new["status"] = status.clone();
            Ok(super::update::Change::Replace(new))
        })
        .await
        .expect("a status");
}

/// A store that fails in the given way, on the next writes below a prefix.
struct Failing {
    below: Embedded,
    prefix: &'static str,
    left: AtomicUsize,
    failure: fn(&Txn) -> StoreError,
    /// True if a failing write is stored nevertheless.
    stores: bool,
}

impl Failing {
    fn fails(&self, txn: &Txn) -> bool {
        txn.key.starts_with(self.prefix)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

#[async_trait::async_trait]
impl Layer for Failing {
    fn below(&self) -> &dyn Store {
        &self.below
    }

    async fn txn(&self, txn: Txn) -> store::Result<Outcome> {
        if !self.fails(&txn) {
            return self.below.txn(txn).await;
        }
        let failure = (self.failure)(&txn);
        if self.stores {
            self.below.txn(txn).await?;
        }
        Err(failure)
    }
}

fn failing(
    directory: &tempfile::TempDir,
    prefix: &'static str,
    failure: fn(&Txn) -> StoreError,
    stores: bool,
) -> Registry {
    let options = EmbeddedOptions::new(directory.path().join("store"));
    let below = Embedded::open(options).expect("a store");
    let store = Failing { below, prefix, left: AtomicUsize::new(1), failure, stores };
    let mut config = ServiceConfig::default();
    config.set_cidrs(["10.9.0.0/24"]).expect("a range");
    Registry::new(Arc::new(store), Admission::default(), Services::new(config))
}

fn service_with(name: &str, ip: &str, port: u16) -> Value {
    let mut service = service(name);
    service["spec"]["clusterIP"] = ip.into();
    service["spec"]["ports"][0]["nodePort"] = port.into();
    service
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_write_with_unknown_outcome_keeps_its_allocations() {
    let unknown = |txn: &Txn| StoreError::OutcomeUnknown { key: txn.key.clone(), reason: "cut off".into() };
    for stores in [true, false] {
        let directory = tempfile::tempdir().expect("a directory");
        let registry = failing(&directory, "/registry/core/services/", unknown, stores);
        namespace(&registry).await;
        let first = service_with("first", "10.9.0.77", 30_077);
        create(&registry, SERVICES, first).await.expect_err("the outcome is unknown");
        let address = registry.find(ADDRESSES, "", "10.9.0.77").await.expect("read");
        assert!(address.is_some(), "the IPAddress stays, stored: {stores}");
        for (name, ip, port) in [("ip", "10.9.0.77", 30_078), ("port", "10.9.0.78", 30_077)] {
            let second = create(&registry, SERVICES, service_with(name, ip, port)).await;
            assert!(second.is_err(), "{name} was handed out again, stored: {stores}");
        }
        create(&registry, SERVICES, service_with("other", "10.9.0.79", 30_079))
            .await
            .expect("others are free");
    }
}

#[tokio::test]
async fn service_write_that_failed_releases_its_allocations() {
    let unavailable = |_: &Txn| StoreError::Unavailable { reason: "no leader".into() };
    let directory = tempfile::tempdir().expect("a directory");
    let registry = failing(&directory, "/registry/core/services/", unavailable, false);
    namespace(&registry).await;
    create(&registry, SERVICES, service_with("first", "10.9.0.77", 30_077)).await.expect_err("it failed");
    create(&registry, SERVICES, service_with("second", "10.9.0.77", 30_077)).await.expect("all is free");
}

#[tokio::test]
async fn event_with_lost_lease_is_stored_with_a_new_one() {
    let lost = |txn: &Txn| match &txn.op {
        Op::Put { lease: Some(lease), .. } => StoreError::LeaseNotFound(*lease),
        _ => StoreError::Closed,
    };
    let directory = tempfile::tempdir().expect("a directory");
    let registry = failing(&directory, "/registry/core/events/", lost, false);
    namespace(&registry).await;
    let about = json!({"kind": "Pod", "namespace": "n", "name": "p"});
    let event = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "n"},
            "involvedObject": about, "reason": "r", "message": "m",
        })
    };
    create(&registry, ("", "v1", "events"), event("a")).await.expect("stored with a new lease");
    create(&registry, ("", "v1", "events"), event("b")).await.expect("which serves the next one, too");
}
