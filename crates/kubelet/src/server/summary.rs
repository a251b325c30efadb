//! `/stats/summary`, the source of `kubectl top` and autoscalers.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cri::v1::{LinuxPodSandboxStats, NetworkInterfaceUsage};
use http::StatusCode;
use jiff::Timestamp;
use objects::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::machine::{self, Rate};
use super::usage::{self, Cpu, Memory, Sample, Usage};
use super::{Reply, text, typed};
use crate::configure::sandbox::log_directory;
use crate::lifecycle::status::seconds;
use crate::node;
use crate::pods::Workers;
use crate::shared::Shared;
use crate::volumes::{DiskUsage, VolumeStats, disk_usage};

/// Time in API format; `now` if it was not measured.
fn time(nanoseconds: i64, now: Timestamp) -> String {
    let time = Timestamp::from_nanosecond(nanoseconds.into()).ok().filter(|_| nanoseconds > 0);
    seconds(time.unwrap_or(now)).0.to_string()
}

/// Start time of a container of the pod.
pub fn started(pod: &Pod, container: &str) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|status| status.name == container)?;
    found.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(|time| time.0)
}

fn cpu(sample: Sample<Cpu>, now: Timestamp) -> Value {
    json!({
        "time": time(sample.at, now),
        "usageNanoCores": sample.value.nano_cores,
        "usageCoreNanoSeconds": sample.value.nanoseconds,
    })
}

fn memory(sample: Sample<Memory>, now: Timestamp) -> Value {
    let memory = sample.value;
    let mut shown = json!({
        "time": time(sample.at, now),
        "workingSetBytes": memory.working_set,
        "usageBytes": memory.usage,
        "rssBytes": memory.rss,
        "pageFaults": memory.page_faults,
        "majorPageFaults": memory.major_page_faults,
    });
    if let Some(available) = memory.available {
        shown["availableBytes"] = json!(available);
    }
    shown
}

/// File system stats with the given usage.
fn part(around: node::FileSystem, used: DiskUsage, now: Timestamp) -> Value {
    let ((capacity, available), (inodes, free)) = (around.bytes, around.inodes);
    json!({
        "time": time(0, now),
        "capacityBytes": capacity,
        "availableBytes": available,
        "usedBytes": used.bytes,
        "inodes": inodes,
        "inodesFree": free,
        "inodesUsed": used.inodes,
    })
}

fn whole(found: node::FileSystem, now: Timestamp) -> Value {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    let bytes = count(found.bytes.0.saturating_sub(found.bytes.1));
    let inodes = count(found.inodes.0.saturating_sub(found.inodes.1));
    part(found, DiskUsage { bytes, inodes }, now)
}

/// File systems of the node: kubelet and logs, images, writable layers.
#[derive(Clone, Copy)]
struct Disks {
    node: node::FileSystem,
    images: node::FileSystem,
    /// Disk usage of images.
    of_images: DiskUsage,
}

impl Disks {
    async fn measure_disks(shared: &Shared) -> Self {
        let node = node::file_system_of(&shared.config.directory);
        let reported = shared.engine.image_file_system().await.ok().flatten().unwrap_or_default();
        let mount_point = reported.fs_id.map(|id| id.mountpoint).unwrap_or_default();
        let images = node::file_system_of(Path::new(&mount_point));
        let value = |number: Option<cri::v1::UInt64Value>| number.map_or(0, |number| number.value);
        Self {
            node,
            images: if images.bytes.0 > 0 { images } else { node },
            of_images: DiskUsage { bytes: value(reported.used_bytes), inodes: value(reported.inodes_used) },
        }
    }
}

/// File stats of a container: its logs.
struct Files<'a> {
    disks: &'a Disks,
    logs: DiskUsage,
}

fn container(usage: &Usage, pod: &Pod, files: Option<&Files<'_>>, now: Timestamp) -> Value {
    let begun = started(pod, &usage.container).unwrap_or(now);
    let mut shown = json!({"name": usage.container, "startTime": seconds(begun).0.to_string()});
    if let Some(sample) = usage.cpu {
        shown["cpu"] = cpu(sample, now);
    }
    if let Some(sample) = usage.memory {
        shown["memory"] = memory(sample, now);
    }
    if let Some(swap) = usage.swap {
        shown["swap"] = json!({
            "time": time(swap.at, now),
            "swapAvailableBytes": swap.value.available,
            "swapUsageBytes": swap.value.usage,
        });
    }
    let Some(files) = files else { return shown };
    if let Some(disk) = usage.disk {
        shown["rootfs"] = part(files.disks.images, written(disk.value), now);
    }
    shown["logs"] = part(files.disks.node, files.logs, now);
    shown
}

fn written(disk: usage::Disk) -> DiskUsage {
    DiskUsage { bytes: disk.bytes, inodes: disk.inodes }
}

fn volume(stats: &VolumeStats, pod: &Pod) -> Value {
    let amounts = &stats.amounts;
    let mut shown = json!({
        "name": stats.name,
        "time": seconds(stats.at).0.to_string(),
        "availableBytes": amounts.available,
        "capacityBytes": amounts.capacity,
        "usedBytes": amounts.used,
        "inodesFree": amounts.inodes_free,
        "inodes": amounts.inodes,
        "inodesUsed": amounts.inodes_used,
    });
    if let Some(claim) = &stats.claim {
        shown["pvcRef"] = json!({"name": claim, "namespace": pod.metadata.namespace});
    }
    shown
}

/// Returns true if a volume is local ephemeral storage of the pod.
fn is_local(pod: &Pod, name: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| {
        let on_disk = volume
            .empty_dir
            .as_ref()
            .is_some_and(|source| source.medium.as_deref().unwrap_or_default().is_empty());
        volume.name == name && (on_disk || volume.config_map.is_some())
    })
}

/// Ephemeral storage usage of a pod: writable layers, logs, ephemeral volumes.
fn ephemeral<'a>(
    containers: impl Iterator<Item = DiskUsage>,
    volumes: impl Iterator<Item = &'a VolumeStats>,
) -> DiskUsage {
    let of_volumes =
        volumes.map(|one| DiskUsage { bytes: one.amounts.used, inodes: one.amounts.inodes_used });
    containers.chain(of_volumes).fold(DiskUsage::default(), |sum, one| DiskUsage {
        bytes: sum.bytes.saturating_add(one.bytes),
        inodes: sum.inodes.saturating_add(one.inodes),
    })
}

fn interface(one: &NetworkInterfaceUsage) -> Map<String, Value> {
    let mut shown = Map::from_iter([("name".to_owned(), json!(one.name))]);
    for (name, value) in [
        ("rxBytes", &one.rx_bytes),
        ("rxErrors", &one.rx_errors),
        ("txBytes", &one.tx_bytes),
        ("txErrors", &one.tx_errors),
    ] {
        if let Some(value) = value {
            shown.insert(name.to_owned(), json!(value.value));
        }
    }
    shown
}

/// Adds sandbox stats: network traffic and process count.
fn of_sandbox(shown: &mut Value, stats: &LinuxPodSandboxStats, now: Timestamp) {
    if let Some(network) = &stats.network
        && let Some(default) = &network.default_interface
    {
        let all: Vec<_> = std::iter::once(default).chain(&network.interfaces).map(interface).collect();
        let mut reported = interface(default);
        reported.insert("time".to_owned(), json!(time(network.timestamp, now)));
        reported.insert("interfaces".to_owned(), json!(all));
        shown["network"] = Value::Object(reported);
    }
    if let Some(count) = stats.process.as_ref().and_then(|process| process.process_count.as_ref()) {
        shown["process_stats"] = json!({"process_count": count.value});
    }
}

fn of_machine(rate: &Rate, now: Timestamp) -> Value {
    let used = machine::processor_time();
    let mut shown = json!({
        "startTime": seconds(machine::booted().unwrap_or(now)).0.to_string(),
        "cpu": {"time": time(0, now), "usageCoreNanoSeconds": used},
        "memory": memory(Sample { at: 0, value: machine::memory() }, now),
    });
    if let Some(rate) = rate.of(used, Instant::now()) {
        shown["cpu"]["usageNanoCores"] = json!(rate);
    }
    shown
}

fn traffic_of_machine(now: Timestamp) -> Option<Value> {
    let shown: Vec<Value> = machine::interfaces()
        .iter()
        .map(|one| {
            json!({
                "name": one.name,
                "rxBytes": one.received.0, "rxErrors": one.received.1,
                "txBytes": one.sent.0, "txErrors": one.sent.1,
            })
        })
        .collect();
    let mut reported = shown.first()?.clone();
    reported["time"] = json!(time(0, now));
    reported["interfaces"] = json!(shown);
    Some(reported)
}

/// System containers: the kubelet process, and all pods together.
fn system(pods: (Cpu, Memory), now: Timestamp) -> Value {
    let own = machine::own();
    let row = |name: &str, since: Option<Timestamp>, used: Cpu, held: Memory| {
        json!({
            "name": name,
            "startTime": seconds(since.unwrap_or(now)).0.to_string(),
            "cpu": cpu(Sample { at: 0, value: used }, now),
            "memory": memory(Sample { at: 0, value: held }, now),
        })
    };
    json!([row("kubelet", own.started, own.cpu, own.memory), row("pods", own.started, pods.0, pods.1)])
}

/// Builds the summary; without file stats if only CPU and memory are requested.
pub async fn summary(shared: &Shared, workers: &Arc<Workers>, rate: &Rate, only_computing: bool) -> Reply {
    let now = shared.clock.now();
    let all = match usage::of_containers(shared).await {
        Ok(all) => all,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    };
    let grouped = usage::by_pod(&all);
    let sandboxes = if only_computing { Default::default() } else { usage::of_sandboxes(shared).await };
    let disks = Disks::measure_disks(shared).await;
    let mut pods = Vec::new();
    for pod in workers.pods() {
        let Some(uid) = pod.metadata.uid.as_deref() else { continue };
        let Some(own) = grouped.get(uid) else { continue };
        let (used, held) = usage::together(own);
        let mut shown = json!({
            "podRef": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": uid},
            "startTime": pod.status.as_ref().and_then(|status| status.start_time.clone()),
            "cpu": cpu(Sample { at: 0, value: used }, now),
            "memory": memory(Sample { at: 0, value: held }, now),
        });
        if only_computing {
            shown["containers"] = own.iter().map(|one| container(one, &pod, None, now)).collect();
            pods.push(shown);
            continue;
        }
        let logs = logs_of(shared, &pod, own).await;
        shown["containers"] = own
            .iter()
            .zip(&logs)
            .map(|(one, &logs)| container(one, &pod, Some(&Files { disks: &disks, logs }), now))
            .collect();
        let record = |source: &'static str, begun| shared.metrics.pods.volume_measured(source, begun);
        let volumes = shared.volumes.measure(uid, &shared.drivers, now, &record).await;
        let layers = own.iter().filter_map(|one| one.disk.map(|disk| written(disk.value)));
        let local = volumes.iter().filter(|one| is_local(&pod, &one.name));
        let total = ephemeral(layers.chain(logs.iter().copied()), local);
        shown["ephemeral-storage"] = part(disks.node, total, now);
        if !volumes.is_empty() {
            shown["volume"] = volumes.iter().map(|one| volume(one, &pod)).collect();
        }
        if let Some(stats) = sandboxes.get(uid) {
            of_sandbox(&mut shown, stats, now);
        }
        pods.push(shown);
    }
    let mut node = of_machine(rate, now);
    node["nodeName"] = json!(shared.config.node_name);
    node["systemContainers"] = system(usage::together(&all.iter().collect::<Vec<_>>()), now);
    if !only_computing {
        let (most, running) = node::processes();
        node["fs"] = whole(disks.node, now);
        node["runtime"] = json!({
            "imageFs": part(disks.images, disks.of_images, now),
            "containerFs": whole(disks.images, now),
        });
        node["rlimit"] = json!({"time": time(0, now), "maxpid": most, "curproc": running});
        if let Some(traffic) = traffic_of_machine(now) {
            node["network"] = traffic;
        }
    }
    typed(StatusCode::OK, "application/json", json!({"node": node, "pods": pods}).to_string())
}

/// Disk usage of container logs, in the order of the containers.
async fn logs_of(shared: &Shared, pod: &Pod, containers: &[&Usage]) -> Vec<DiskUsage> {
    let directory = log_directory(&shared.settings.logs, pod);
    let paths: Vec<_> = containers.iter().map(|one| directory.join(&one.container)).collect();
    let count = paths.len();
    tokio::task::spawn_blocking(move || paths.iter().map(|mount_point| disk_usage(mount_point)).collect())
        .await
        .unwrap_or_else(|_| vec![DiskUsage::default(); count])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::Amounts;

    #[test]
    fn pod_ephemeral_storage_sums_layers_logs_volumes() {
        let text = br#"{"metadata": {"namespace": "n"}, "spec": {"containers": [], "volumes": [
            {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "map", "configMap": {"name": "m"}}, {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "claimed", "persistentVolumeClaim": {"claimName": "c"}}]}}"#;
        let pod: Pod = serde_json::from_slice(text).expect("a pod");
        let local: Vec<bool> = ["disk", "memory", "map", "secret", "claimed", "none"]
            .iter()
            .map(|name| is_local(&pod, name))
            .collect();
        assert_eq!(local, [true, false, true, false, false, false]);
        let stats = VolumeStats {
            name: "claimed".to_owned(),
            claim: Some("c".to_owned()),
            at: Timestamp::UNIX_EPOCH,
            amounts: Amounts { used: 5, inodes_used: 2, capacity: 9, ..Amounts::default() },
        };
        let shown = volume(&stats, &pod);
        assert_eq!(shown["pvcRef"], json!({"name": "c", "namespace": "n"}));
        assert_eq!((&shown["usedBytes"], &shown["capacityBytes"]), (&json!(5), &json!(9)));
        let one = DiskUsage { bytes: 10, inodes: 1 };
        let sum = ephemeral([one, one].into_iter(), std::iter::once(&stats));
        assert_eq!(sum, DiskUsage { bytes: 25, inodes: 4 });
    }
}
