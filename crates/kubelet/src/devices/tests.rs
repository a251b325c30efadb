//! The device manager with plugins in this process, behind real sockets.

mod plugin;

use std::collections::BTreeMap;
use std::time::Duration;

use base::metrics::Metrics;
use cri::device_plugin::{DevicePluginOptions, RegisterRequest, RegistrationClient};
use serde_json::json;
use tonic::client::Grpc;

use super::inventory::Inventory;
use super::registration::serve;
use super::*;
use plugin::{FakePlugin, healthy};

const GPU: &str = "example.com/gpu";

struct Bench {
    directory: tempfile::TempDir,
    tasks: TaskGroup,
}

impl Bench {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory"), tasks: TaskGroup::new() }
    }

    /// The manager of a kubelet that starts, serving registrations.
    async fn start(&mut self) -> Devices {
        let socket = self.directory.path().join(DIRECTORY).join("kubelet.sock");
        self.tasks.stop();
        let _ = std::fs::remove_file(&socket);
        self.tasks = TaskGroup::new();
        let clock = base::clock::Clock::system();
        let metrics = Metrics::new(&clock).and_then(|metrics| DeviceMetrics::new(&metrics)).expect("metrics");
        let devices = Devices::open(self.directory.path(), metrics, self.tasks.clone());
        let serving = devices.clone();
        self.tasks.spawn_until_stopped(async move { serve(&serving).await });
        until("the socket", || socket.exists()).await;
        devices
    }

    async fn plugin(&self, name: &str, options: DevicePluginOptions) -> Arc<FakePlugin> {
        FakePlugin::serve(&self.directory.path().join(DIRECTORY).join(name), options).await
    }

    async fn register(&self, resource: &str, endpoint: &str) -> Result<(), Status> {
        let socket = self.directory.path().join(DIRECTORY).join("kubelet.sock");
        let channel = cri::client::channel(&socket.display().to_string()).expect("an address");
        let mut client = RegistrationClient::new(Grpc::new(channel));
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: resource.to_owned(),
            options: None,
        };
        client.register(request).await.map(|_| ())
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_capacity(devices: &Devices, wanted: (i64, i64)) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = devices.capacity().await.get(GPU).copied();
        if found == Some(wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "capacity {found:?}, wanted {wanted:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn pod(uid: &str, init: &[(&str, u32)], containers: &[(&str, u32)]) -> Pod {
    let list = |all: &[(&str, u32)]| {
        let one = |(name, count): &(&str, u32)| json!({"name": name, "resources": {"limits": {GPU: count.to_string()}}});
        all.iter().map(one).collect::<Vec<_>>()
    };
    let object = json!({"metadata": {"uid": uid, "name": uid, "namespace": "default"},
        "spec": {"initContainers": list(init), "containers": list(containers)}});
    serde_json::from_value(object).expect("a pod")
}

fn container(pod: &Pod, name: &str) -> objects::core::v1::Container {
    let spec = pod.spec.as_ref().expect("a spec");
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|one| one.name == name).expect("a container").clone()
}

async fn allocate(devices: &Devices, pod: &Pod) -> Result<(), String> {
    devices.allocate_pod(pod, &|_| false, &|_| None).await.map_err(|error| error.to_string())
}

fn ids(devices: &Devices, uid: &str, container: &str) -> Vec<String> {
    let found = devices.of_container(uid, container);
    found.get(GPU).map(|devices| devices.keys().cloned().collect()).unwrap_or_default()
}

#[tokio::test]
async fn devices_are_allocated_until_none_is_left() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let plugin = bench.plugin("gpu.sock", DevicePluginOptions::default()).await;
    plugin.report(healthy(&["a", "b", "c"]));
    bench.register(GPU, "gpu.sock").await.expect("registered");
    until_capacity(&devices, (3, 3)).await;

    let first = pod("1", &[], &[("main", 2)]);
    allocate(&devices, &first).await.expect("allocated");
    assert_eq!(ids(&devices, "1", "main"), ["a", "b"]);
    let options = devices.options(&first, &container(&first, "main")).await.expect("options");
    assert_eq!(options.environment, BTreeMap::from([("GPUS".to_owned(), "a,b".to_owned())]));
    assert_eq!(
        options.devices.iter().map(|d| d.host_path.as_str()).collect::<Vec<_>>(),
        ["/dev/null", "/dev/zero"]
    );
    assert_eq!(options.mounts[0].container_path, "/opt/gpu");
    assert_eq!(options.annotations["gpu"], "yes");
    assert_eq!(options.cdi_devices, ["example.com/gpu=a", "example.com/gpu=b"]);

    let error = allocate(&devices, &pod("2", &[], &[("one", 1), ("two", 1)])).await.expect_err("too many");
    assert_eq!(
        error,
        "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0"
    );
    assert!(ids(&devices, "2", "one").is_empty(), "a rejected pod keeps nothing");
    devices.release("1").await;
    allocate(&devices, &pod("3", &[], &[("main", 3)])).await.expect("all are free again");
}

#[tokio::test]
async fn init_containers_share_their_devices_with_later_containers() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let plugin = bench.plugin("gpu.sock", DevicePluginOptions::default()).await;
    plugin.report(healthy(&["a", "b"]));
    bench.register(GPU, "gpu.sock").await.expect("registered");
    until_capacity(&devices, (2, 2)).await;
    allocate(&devices, &pod("1", &[("setup", 2)], &[("one", 1), ("two", 1)])).await.expect("allocated");
    assert_eq!(ids(&devices, "1", "setup"), ["a", "b"]);
    let mut apps = [ids(&devices, "1", "one"), ids(&devices, "1", "two")].concat();
    apps.sort();
    assert_eq!(apps, ["a", "b"], "each has one of its own");
}

#[tokio::test]
async fn plugin_preference_and_pre_start_are_honoured() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let options = DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
    let plugin = bench.plugin("gpu.sock", options).await;
    plugin.report(healthy(&["a", "b", "c"]));
    plugin.prefer(&["c", "unknown"]);
    bench.register(GPU, "gpu.sock").await.expect("registered");
    until_capacity(&devices, (3, 3)).await;
    let pod = pod("1", &[], &[("main", 2)]);
    allocate(&devices, &pod).await.expect("allocated");
    assert_eq!(ids(&devices, "1", "main"), ["a", "c"], "one is preferred");
    devices.options(&pod, &container(&pod, "main")).await.expect("options");
    assert_eq!(plugin.calls(), ["preferred 2 of a,b,c with ", "allocate a,c", "prestart a,c"]);

    plugin.stop();
    until_capacity(&devices, (3, 0)).await;
    let error = devices.options(&pod, &container(&pod, "main")).await.expect_err("it is gone");
    assert_eq!(error.to_string(), "endpoint of device plugin example.com/gpu has been stopped");
}

#[tokio::test]
async fn restarted_kubelet_keeps_allocations_until_plugin_returns() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let plugin = bench.plugin("gpu.sock", DevicePluginOptions::default()).await;
    plugin.report(healthy(&["a", "b"]));
    bench.register(GPU, "gpu.sock").await.expect("registered");
    until_capacity(&devices, (2, 2)).await;
    let first = pod("1", &[], &[("main", 1)]);
    allocate(&devices, &first).await.expect("allocated");
    plugin.stop();

    let devices = bench.start().await;
    until("old sockets are removed", || !bench.directory.path().join("device-plugins/gpu.sock").exists())
        .await;
    assert_eq!(devices.capacity().await, DeviceCapacity::from([(GPU.to_owned(), (0, 0))]));
    assert_eq!(ids(&devices, "1", "main"), ["a"]);
    let options =
        devices.options(&first, &container(&first, "main")).await.expect("a restart needs no plugin");
    assert_eq!(options.environment["GPUS"], "a");
    let error = allocate(&devices, &pod("2", &[], &[("main", 1)])).await.expect_err("no plugin");
    assert_eq!(error, "no healthy devices present; cannot allocate unhealthy devices example.com/gpu");

    // It returns with fewer devices: the allocated one is missing, and stays with its pod.
    let plugin = bench.plugin("gpu.sock", DevicePluginOptions::default()).await;
    plugin.report(healthy(&["b"]));
    bench.register(GPU, "gpu.sock").await.expect("registered");
    until_capacity(&devices, (1, 1)).await;
    assert_eq!(ids(&devices, "1", "main"), ["a"]);
    allocate(&devices, &pod("2", &[], &[("main", 1)])).await.expect("allocated");
    assert_eq!(ids(&devices, "2", "main"), ["b"]);
    devices.retain(|uid| uid == "2").await;
    assert!(ids(&devices, "1", "main").is_empty());
}

#[tokio::test]
async fn health_of_allocated_devices_is_reported() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let plugin = bench.plugin("gpu.sock", DevicePluginOptions::default()).await;
    plugin.report(healthy(&["a", "b"]));
    bench.register(GPU, "gpu.sock").await.expect("registered");
    until_capacity(&devices, (2, 2)).await;
    allocate(&devices, &pod("1", &[], &[("main", 1)])).await.expect("allocated");
    let health = || {
        let mut statuses = [ContainerStatus { name: "main".to_owned(), ..ContainerStatus::default() }];
        devices.add_health("1", &mut statuses);
        serde_json::to_value(&statuses[0].allocated_resources_status).expect("JSON")
    };
    assert_eq!(health(), json!([{"name": GPU, "resources": [{"resourceID": "a", "health": "Healthy"}]}]));
    let _ = devices.changes().await;
    let mut list = healthy(&["a", "b"]);
    list[0].health = "Unhealthy".to_owned();
    plugin.report(list);
    until_capacity(&devices, (2, 1)).await;
    assert_eq!(devices.changes().await, (BTreeSet::from(["1".to_owned()]), true));
    assert_eq!(health(), json!([{"name": GPU, "resources": [{"resourceID": "a", "health": "Unhealthy"}]}]));
}

#[tokio::test]
async fn hostile_registrations_are_rejected() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let plugin = bench.plugin("gpu.sock", DevicePluginOptions::default()).await;
    plugin.report(healthy(&["a"]));
    for (resource, endpoint) in [
        ("cpu", "gpu.sock"),
        ("kubernetes.io/gpu", "gpu.sock"),
        ("requests.example.com/gpu", "gpu.sock"),
        ("example.com/", "gpu.sock"),
        ("example.com/ü", "gpu.sock"),
        (GPU, "../gpu.sock"),
        (GPU, "/etc/passwd"),
        (GPU, ""),
        (GPU, "missing.sock"),
    ] {
        bench.register(resource, endpoint).await.expect_err("rejected");
    }
    assert!(devices.capacity().await.is_empty());
    let socket = bench.directory.path().join(DIRECTORY).join("kubelet.sock");
    let channel = cri::client::channel(&socket.display().to_string()).expect("an address");
    let old = RegisterRequest {
        version: "v1alpha1".to_owned(),
        endpoint: "gpu.sock".to_owned(),
        resource_name: GPU.to_owned(),
        options: None,
    };
    let error = RegistrationClient::new(Grpc::new(channel)).register(old).await.expect_err("an old version");
    assert!(error.message().contains("requested API version \"v1alpha1\" is not supported"), "{error}");
}

#[tokio::test]
async fn newer_plugin_replaces_older_one() {
    let mut bench = Bench::new();
    let devices = bench.start().await;
    let old = bench.plugin("old.sock", DevicePluginOptions::default()).await;
    old.report(healthy(&["a"]));
    bench.register(GPU, "old.sock").await.expect("registered");
    until_capacity(&devices, (1, 1)).await;
    let new = bench.plugin("new.sock", DevicePluginOptions::default()).await;
    new.report(healthy(&["a", "b"]));
    bench.register(GPU, "new.sock").await.expect("registered");
    until_capacity(&devices, (2, 2)).await;
    old.stop();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(devices.capacity().await[GPU], (2, 2), "the end of the old one does not matter");
}

#[test]
fn resource_of_stopped_plugin_is_removed_after_grace() {
    let start = Instant::now();
    let mut inventory = Inventory::default();
    inventory.restore_resource(GPU.to_owned(), start);
    assert!(!inventory.capacity(start + Duration::from_secs(299)).1);
    let (capacity, removed) = inventory.capacity(start + Duration::from_secs(301));
    assert_eq!((capacity[GPU], removed), ((0, 0), true));
    assert!(!inventory.is_managed(GPU));
    assert_eq!(inventory.capacity(start + Duration::from_secs(999)).0[GPU], (0, 0), "the node reports zero");
}

#[test]
fn damaged_checkpoint_is_rejected() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join(checkpoint::FILE);
    assert!(checkpoint::read(directory.path()).expect("none").is_none());
    let mut inventory = Inventory::default();
    inventory.insert(
        "1",
        "main",
        GPU,
        inventory::Allocation { devices: [(0, vec!["a".to_owned()])].into(), ..Default::default() },
    );
    let good = checkpoint::encode(&inventory);
    std::fs::write(&file, &good).expect("a file");
    assert!(checkpoint::read(directory.path()).expect("read").is_some());
    let text = String::from_utf8(good).expect("text");
    for bad in [text.replace("\"a\"", "\"b\""), text[..text.len() / 2].to_owned(), "null".to_owned()] {
        std::fs::write(&file, bad).expect("a file");
        checkpoint::read(directory.path()).expect_err("damaged");
    }
}
