//! Claims prepared by drivers in this process, behind real sockets, with a scripted API server.

mod driver;

use std::collections::BTreeMap;

use base::metrics::Metrics;
use serde_json::{Value, json};

use super::*;
use crate::dra::claims::{DriverState, PreparedDevice};
use driver::{FakeDriver, api_server};

const V1: &str = "v1.DRAPlugin";

struct Bench {
    directory: tempfile::TempDir,
    tasks: TaskGroup,
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
}

impl Bench {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            tasks: TaskGroup::new(),
            objects: Arc::default(),
        }
    }

    fn start(&self) -> Dra {
        let clock = base::clock::Clock::system();
        let metrics = Metrics::new(&clock).and_then(|metrics| DraMetrics::new(&metrics)).expect("metrics");
        let client = api_server(Arc::clone(&self.objects));
        Dra::open(self.directory.path(), "n1", client, metrics, self.tasks.clone())
    }

    /// Adds a claim that is allocated from drivers and reserved for pods.
    fn claim(&self, name: &str, uid: &str, drivers: &[&str], pods: &[&str]) {
        let result = |driver: &&str| json!({"request": "r", "driver": driver, "pool": "n1", "device": "d0"});
        let results: Vec<Value> = drivers.iter().map(result).collect();
        let consumer = |uid: &&str| json!({"resource": "pods", "name": uid, "uid": uid});
        let reserved: Vec<Value> = pods.iter().map(consumer).collect();
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": {},
            "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}});
        self.objects.lock().insert(name.to_owned(), claim);
    }

    fn driver(&self, dra: &Dra, name: &str, versions: &[&str]) -> Arc<FakeDriver> {
        let socket = self.directory.path().join(format!("{name}.sock"));
        let driver = FakeDriver::serve(&socket);
        let versions: Vec<String> = versions.iter().map(|version| (*version).to_owned()).collect();
        dra.register(name, &socket.display().to_string(), &versions).expect("registered");
        driver
    }
}

fn pod(uid: &str, claims: &[&str]) -> Pod {
    let entries: Vec<Value> = claims
        .iter()
        .map(|name| json!({"name": format!("entry-{name}"), "resourceClaimName": name}))
        .collect();
    let used: Vec<Value> = claims.iter().map(|name| json!({"name": format!("entry-{name}")})).collect();
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"resourceClaims": entries, "containers": [{"name": "main", "resources": {"claims": used}},
            {"name": "other"}]}}))
    .expect("a pod")
}

fn cdi(dra: &Dra, pod: &Pod, container: usize) -> Vec<String> {
    let spec = pod.spec.as_ref().expect("a spec");
    dra.cdi_devices(pod, &spec.containers[container]).expect("prepared")
}

async fn until<T: PartialEq + std::fmt::Debug>(wanted: T, mut found: impl FnMut() -> T) {
    let deadline = Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let now = found();
        if now == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{now:?} instead of {wanted:?}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn shared_claim_is_prepared_once_and_unprepared_after_its_last_pod() {
    let bench = Bench::new();
    let dra = bench.start();
    bench.claim("c", "u", &["a.example.com"], &["1", "2"]);
    let driver = bench.driver(&dra, "a.example.com", &[V1]);
    let (one, two) = (pod("1", &["c"]), pod("2", &["c"]));
    dra.prepare(&one).await.expect("prepared");
    dra.prepare(&two).await.expect("prepared");
    assert_eq!(driver.calls(), ["v1 prepare u"]);
    assert_eq!(cdi(&dra, &one, 0), ["example.com/dev=u"]);
    assert_eq!(cdi(&dra, &one, 1), [""; 0], "the container has no claims");
    let rows = dra.of_container(&two, &two.spec.as_ref().expect("a spec").containers[0]);
    assert_eq!((rows[0].claim_name.as_str(), rows[0].claim_resources[0].device_name.as_str()), ("c", "d0"));
    dra.unprepare("1").await.expect("unprepared");
    dra.unprepare("1").await.expect("idempotent");
    assert_eq!(driver.calls().len(), 1, "the other pod uses it");
    dra.unprepare("2").await.expect("unprepared");
    assert_eq!(driver.calls(), ["v1 prepare u", "v1 unprepare u"]);
    assert!(dra.pods().is_empty());
}

#[tokio::test]
async fn pod_with_unusable_claim_is_not_prepared() {
    let bench = Bench::new();
    let dra = bench.start();
    let error = async |pod: &Pod| dra.prepare(pod).await.expect_err("an error").to_string();
    assert!(error(&pod("1", &["missing"])).await.starts_with("fetch ResourceClaim missing: "));
    bench.claim("c", "u", &["a.example.com"], &["other"]);
    assert_eq!(error(&pod("1", &["c"])).await, "pod 1 (1) is not allowed to use ResourceClaim c (u)");
    bench.claim("c", "u", &["a.example.com"], &["1"]);
    assert_eq!(error(&pod("1", &["c"])).await, "DRA driver a.example.com is not registered");
    if let Some(claim) = bench.objects.lock().get_mut("c") {
        claim["status"]["allocation"] = Value::Null;
    }
    assert_eq!(error(&pod("1", &["c"])).await, "ResourceClaim c: not allocated");
    let mut generated = pod("1", &["c"]);
    if let Some(entry) = generated.spec.as_mut().and_then(|spec| spec.resource_claims.as_mut()?.first_mut()) {
        (entry.resource_claim_name, entry.resource_claim_template_name) = (None, Some("t".to_owned()));
    }
    assert_eq!(error(&generated).await, "pod \"default/1\": ResourceClaim not created yet");
    generated.status = serde_json::from_value(
        json!({"resourceClaimStatuses": [{"name": "entry-c", "resourceClaimName": "c"}]}),
    )
    .expect("a status");
    assert_eq!(
        error(&generated).await,
        "ResourceClaim c was not created for pod default/1 (pod is not owner)"
    );
    assert!(dra.pods().is_empty(), "a failing pod can be deleted");
    dra.unprepare("1").await.expect("nothing to do");
}

#[tokio::test]
async fn failed_preparation_is_repeated_and_replaces_devices() {
    let bench = Bench::new();
    let dra = bench.start();
    bench.claim("c", "u", &["a.example.com", "b.example.com"], &["1"]);
    let a = bench.driver(&dra, "a.example.com", &[V1]);
    let b = bench.driver(&dra, "b.example.com", &["v1beta1.DRAPlugin"]);
    b.fail_with("out of luck");
    let pod = pod("1", &["c"]);
    let error = dra.prepare(&pod).await.expect_err("b fails").to_string();
    assert_eq!(error, "NodePrepareResources failed for ResourceClaim c: out of luck");
    b.fail_with("");
    dra.prepare(&pod).await.expect("prepared");
    assert_eq!((a.calls().len(), b.calls()), (2, vec!["v1beta1 prepare u".to_owned(); 2]));
    assert_eq!(cdi(&dra, &pod, 0), ["example.com/dev=u"; 2], "one device of each driver");
}

#[tokio::test]
async fn restarted_kubelet_unprepares_what_it_prepared() {
    let bench = Bench::new();
    let dra = bench.start();
    bench.claim("c", "u", &["a.example.com"], &["1"]);
    let _driver = bench.driver(&dra, "a.example.com", &[V1]);
    dra.prepare(&pod("1", &["c"])).await.expect("prepared");
    drop(dra);
    let dra = bench.start();
    assert_eq!(dra.pods(), BTreeSet::from(["1".to_owned()]));
    assert_eq!(cdi(&dra, &pod("1", &["c"]), 0), ["example.com/dev=u"], "containers may start again");
    let error = dra.unprepare("1").await.expect_err("no driver").to_string();
    assert_eq!(error, "DRA driver a.example.com is not registered");
    std::fs::remove_file(bench.directory.path().join("a.example.com.sock")).expect("removed");
    let driver = bench.driver(&dra, "a.example.com", &[V1]);
    dra.unprepare("1").await.expect("unprepared");
    assert_eq!(driver.calls(), ["v1 unprepare u"]);
    assert!(bench.start().pods().is_empty());
}

#[tokio::test]
async fn health_of_devices_is_reported() {
    let bench = Bench::new();
    let dra = bench.start();
    bench.claim("c", "u", &["a.example.com"], &["1"]);
    let driver = bench.driver(&dra, "a.example.com", &[V1]);
    let pod = pod("1", &["c"]);
    dra.prepare(&pod).await.expect("prepared");
    let health = || {
        let mut statuses = [ContainerStatus { name: "main".to_owned(), ..ContainerStatus::default() }];
        dra.add_health(&pod, &mut statuses);
        let rows = statuses[0].allocated_resources_status.clone().unwrap_or_default();
        assert_eq!(rows[0].name, "claim:entry-c");
        let row = &rows[0].resources.as_ref().expect("devices")[0];
        assert_eq!(row.resource_id, "example.com/dev=u");
        (row.health.clone().unwrap_or_default(), row.message.clone())
    };
    assert_eq!(health(), ("Unknown".to_owned(), None));
    driver.report_health("d0", false, "fell off the bus");
    until(("Unhealthy".to_owned(), Some("fell off the bus".to_owned())), health).await;
    assert_eq!(dra.changes().await, BTreeSet::from(["1".to_owned()]));
    driver.stop();
    until(("Unknown".to_owned(), None), health).await;
}

#[tokio::test]
async fn newest_connected_plugin_is_used() {
    let bench = Bench::new();
    let dra = bench.start();
    let old = bench.driver(&dra, "a.example.com", &[V1]);
    let socket = bench.directory.path().join("new.sock");
    let new = FakeDriver::serve(&socket);
    let endpoint = socket.display().to_string();
    dra.register("a.example.com", &endpoint, &[V1.to_owned()]).expect("registered");
    dra.register("a.example.com", &endpoint, &[V1.to_owned()]).expect_err("the endpoint is in use");
    let endpoint_of = || dra.0.plugins.get("a.example.com").map(|plugin| plugin.endpoint.clone()).ok();
    until(Some(endpoint.clone()), endpoint_of).await;
    new.stop();
    let first = bench.directory.path().join("a.example.com.sock").display().to_string();
    until(Some(first), endpoint_of).await;
    old.stop();
    until(Some(endpoint.clone()), endpoint_of).await;
    dra.unregister("a.example.com", &endpoint);
    dra.register("Not_A_Name", "/x", &[V1.to_owned()]).expect_err("an invalid name");
    dra.register("b.example.com", "/x", &["v1alpha3".to_owned()]).expect_err("an old version");
    dra.register("b.example.com", "/x", &[]).expect_err("no version");
}

#[tokio::test(start_paused = true)]
async fn slices_of_absent_driver_are_deleted() {
    let bench = Bench::new();
    let dra = bench.start();
    let deletions = || {
        let objects = bench.objects.lock();
        objects.keys().filter_map(|key| key.strip_prefix("DELETE ").map(str::to_owned)).collect::<Vec<_>>()
    };
    let wiping = dra.clone();
    bench.tasks.spawn_until_stopped(async move { wiping.0.plugins.wipe(&wiping.0.client, "n1").await });
    until(vec!["spec.nodeName=n1".to_owned()], deletions).await;
    dra.0.plugins.add("a.example.com", "/missing.sock", &[V1.to_owned()]).expect("added");
    dra.0.plugins.sync("a.example.com");
    tokio::time::sleep(std::time::Duration::from_secs(25)).await;
    assert_eq!(deletions().len(), 1, "it may still return");
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let wanted = ["spec.nodeName=n1", "spec.nodeName=n1,spec.driver=a.example.com"].map(str::to_owned);
    until(wanted.to_vec(), deletions).await;
}

#[test]
fn requests_select_devices() {
    let device = |name: &str, requests: &[&str]| PreparedDevice {
        device_name: name.to_owned(),
        request_names: Some(requests.iter().map(|name| (*name).to_owned()).collect()),
        ..PreparedDevice::default()
    };
    let devices = vec![device("a", &["x"]), device("b", &["y"]), device("c", &[])];
    let claim = ClaimInfo {
        driver_state: [("d".to_owned(), DriverState { devices: Some(devices) })].into(),
        ..ClaimInfo::default()
    };
    let names =
        |request: &str| claim.devices_of(request).map(|(_, one)| one.device_name.clone()).collect::<String>();
    assert_eq!(
        (names(""), names("x"), names("y"), names("z")),
        ("abc".into(), "ac".into(), "bc".into(), "c".into())
    );
}
