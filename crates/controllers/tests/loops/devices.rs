//! Device taint eviction.

use anyhow::Result;
use client::{ListOptions, Patch};
use objects::core::v1::{Event, Pod, ServiceAccount};
use objects::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::{Value, json};
use testkit::eventually;

use crate::world::{PATIENCE, World};

const DRIVER: &str = "gpu.example.com";
const LOOP: &str = "device-taint-eviction-controller";

/// A pod that uses a device, with these tolerations, as scheduled; `node` may be empty.
async fn user(world: &World, name: &str, node: &str, device: &str, tolerations: Value) -> Result<()> {
    let request = json!({"name": "r", "exactly": {"deviceClassName": DRIVER}});
    let claim: ResourceClaim = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}},
    }))?;
    world.admin.create("default", &claim).await?;
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "c", "image": "image:1", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    let pod = world.admin.create("default", &serde_json::from_value::<Pod>(pod)?).await?;
    let allocated = json!({
        "request": "r", "driver": DRIVER, "pool": "pool", "device": device, "tolerations": tolerations,
    });
    let status = json!({"status": {
        "allocation": {"devices": {"results": [allocated]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": pod.metadata.uid}],
    }});
    world.admin.patch::<ResourceClaim>("default", name, Some("status"), &Patch::Merge(status)).await?;
    Ok(())
}

/// A generation of the pool: its devices, and whether they are tainted.
fn slice(name: &str, generation: i64, devices: &[(&str, bool)]) -> Value {
    let device = |(name, tainted): &(&str, bool)| {
        let taint = json!({"key": "example.com/broken", "value": "yes", "effect": "NoExecute"});
        if *tainted { json!({"name": name, "taints": [taint]}) } else { json!({"name": name}) }
    };
    json!({"metadata": {"name": name}, "spec": {
        "driver": DRIVER, "nodeName": "n1",
        "pool": {"name": "pool", "generation": generation, "resourceSliceCount": 1},
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
    }})
}

/// Terminating pods, and their reasons.
async fn leaving(world: &World) -> Vec<(String, String)> {
    let pods = world.admin.list::<Pod>("default", &ListOptions::default()).await.expect("lists").items;
    let leaving = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_some());
    let why = |pod: &Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let target = conditions.into_iter().find(|condition| condition.type_ == "DisruptionTarget");
        target.and_then(|condition| condition.reason.clone()).unwrap_or_default()
    };
    leaving.map(|pod| (pod.metadata.name.clone().unwrap_or_default(), why(&pod))).collect()
}

async fn event_messages(world: &World, name: &str) -> Vec<String> {
    let events = world.admin.list::<Event>("default", &ListOptions::default()).await.expect("lists").items;
    let about = events.into_iter().filter(|event| {
        event.involved_object.name.as_deref() == Some(name)
            && event.reason.as_deref() == Some("DeviceTaintManagerEviction")
    });
    about.filter_map(|event| event.message).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tainted_device_evicts_its_pods() -> Result<()> {
    let mut world = World::outside().await?;
    world
        .admin
        .create(
            "default",
            &serde_json::from_value::<ServiceAccount>(json!({"metadata": {"name": "default"}}))?,
        )
        .await?;
    let forever = json!([{"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute"}]);
    let long = json!([{"key": "example.com/broken", "operator": "Equal", "value": "yes", "effect": "NoExecute",
        "tolerationSeconds": 100_000}]);
    let other_effect = json!([{"operator": "Exists", "effect": "NoSchedule"}]);
    user(&world, "first", "n1", "gpu0", json!([])).await?;
    user(&world, "noschedule", "n1", "gpu0", other_effect).await?;
    user(&world, "forever", "n1", "gpu0", forever).await?;
    user(&world, "long", "n1", "gpu0", long).await?;
    user(&world, "unscheduled", "", "gpu0", json!([])).await?;
    user(&world, "healthy", "n1", "gpu1", json!([])).await?;
    user(&world, "second", "n1", "gpu2", json!([])).await?;

    let devices = |first: bool, third: bool| [("gpu0", first), ("gpu1", false), ("gpu2", third)];
    let old: ResourceSlice = serde_json::from_value(slice("old", 1, &devices(false, false)))?;
    world.admin.create("", &old).await?;
    world.start_loops(LOOP)?;
    let taint = Patch::Merge(slice("old", 1, &devices(true, false)));
    world.admin.patch::<ResourceSlice>("", "old", None, &taint).await?;
    let evicted = |name: &str| (name.to_owned(), "DeletionByDeviceTaintManager".to_owned());
    let seen = async || leaving(&world).await;
    let want = [evicted("first"), evicted("noschedule")];
    eventually("intolerant pods are evicted", PATIENCE, seen, |seen| *seen == want).await;
    eventually(
        "deletion events are recorded",
        PATIENCE,
        async || event_messages(&world, "first").await,
        |event_messages| event_messages.iter().any(|text| text == "Marking for deletion"),
    )
    .await;

    // The loop is killed; meanwhile the pool is republished: one device loses its taint, another gets one.
    world.kill_loops();
    let new: ResourceSlice = serde_json::from_value(slice("new", 2, &devices(false, true)))?;
    world.admin.create("", &new).await?;
    user(&world, "late", "n1", "gpu0", json!([])).await?;
    world.start_loops(LOOP)?;
    let seen = async || leaving(&world).await;
    let want = [evicted("first"), evicted("noschedule"), evicted("second")];
    eventually("the newest generation takes effect", PATIENCE, seen, |seen| *seen == want).await;

    // A pod with a pending eviction stays if the taint is removed in time.
    let taint = Patch::Merge(slice("new", 2, &devices(true, true)));
    world.admin.patch::<ResourceSlice>("", "new", None, &taint).await?;
    let seen = async || leaving(&world).await.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    eventually("the delayed eviction happens", PATIENCE, seen, |seen| seen.contains(&"late".to_owned()))
        .await;
    let well = Patch::Merge(slice("new", 2, &devices(false, true)));
    let is_well = std::cell::Cell::new(false);
    let cancelled = async || {
        // The loop may or may not see both: the device is tainted and untainted repeatedly.
        let change = if is_well.replace(!is_well.get()) { &taint } else { &well };
        world.admin.patch::<ResourceSlice>("", "new", None, change).await.expect("patched");
        event_messages(&world, "long").await
    };
    eventually("the cancellation event is recorded", PATIENCE, cancelled, |event_messages| {
        event_messages.iter().any(|text| text == "Cancelling deletion")
    })
    .await;
    let left = leaving(&world).await.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(left, ["first", "late", "noschedule", "second"]);
    world.stop().await
}
