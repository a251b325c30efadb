//! Devices of device plugins, with a plugin of this test.

mod plugin;

use cri::pod_resources::{ListPodResourcesRequest, PodResourcesListerClient};
use tonic::client::Grpc;

use super::machine::Machine;
use plugin::Plugin;

const RESOURCE: &str = "example.com/thing";

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: docker.io/test/busybox:1
    command: [/bin/sleep, "1000"]
    resources: {limits: {example.com/thing: COUNT}}
"#;

pub fn run(machine: Machine) -> Machine {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let plugin = Plugin::serve(&machine, &["a", "b"]);
    runtime.block_on(plugin.register(&machine));
    devices_are_allocated(&machine, &plugin);
    runtime.block_on(agents_see_devices(&machine));
    excess_devices_are_refused(&machine);
    devices_survive_restart(machine, &runtime, &plugin)
}

fn allocatable(machine: &Machine, wanted: &str) {
    machine.wait_for(
        "node/n1",
        r"{.status.capacity.example\.com/thing} {.status.allocatable.example\.com/thing}",
        wanted,
    );
}

fn pod(name: &str, count: u32) -> String {
    POD.replace("NAME", name).replace("COUNT", &format!("\"{count}\""))
}

fn devices_are_allocated(machine: &Machine, plugin: &Plugin) {
    allocatable(machine, "2 2");
    machine.apply(&pod("one", 1));
    machine.wait_for("pod/one", "{.status.phase}", "Running");
    let seen = machine.kubectl(&[
        "exec",
        "one",
        "--",
        "sh",
        "-c",
        "echo $THINGS; ls /opt/thing; echo x > /dev/thing && echo written",
    ]);
    assert_eq!(seen, "a\nfile\nwritten\n");
    let health =
        "{.status.containerStatuses[0].allocatedResourcesStatus[0].resources[0]['resourceID','health']}";
    machine.wait_for("pod/one", health, "a Healthy");
    plugin.set_health("a", false);
    machine.wait_for("pod/one", health, "a Unhealthy");
    allocatable(machine, "2 1");
    plugin.set_health("a", true);
    allocatable(machine, "2 2");
}

async fn agents_see_devices(machine: &Machine) {
    let socket = machine.data().join("kubelet/pod-resources/kubelet.sock");
    let channel = cri::client::channel(&socket.display().to_string()).expect("an address");
    let mut client = PodResourcesListerClient::new(Grpc::new(channel));
    let list = client.list(ListPodResourcesRequest {}).await.expect("a list").into_inner();
    let pod = list.pod_resources.iter().find(|pod| pod.name == "one").expect("the pod");
    let devices = &pod.containers[0].devices;
    assert_eq!(
        (devices[0].resource_name.as_str(), &devices[0].device_ids[..]),
        (RESOURCE, &["a".to_owned()][..])
    );
}

/// A pod that is bound to the node without the scheduler.
fn excess_devices_are_refused(machine: &Machine) {
    machine.apply(&pod("excess", 2).replace("spec:\n", "spec:\n  nodeName: n1\n"));
    machine.wait_for("pod/excess", "{.status.phase} {.status.reason}", "Failed UnexpectedAdmissionError");
    let message = machine.kubectl(&["get", "pod", "excess", "-o", "jsonpath={.status.message}"]);
    let wanted = "Pod was rejected: Allocate failed due to requested number of devices unavailable for \
                  example.com/thing. Requested: 2, Available: 1, which is unexpected";
    assert_eq!(message, wanted);
    machine.kubectl(&["delete", "pod", "excess"]);
}

/// The kubelet restarts while the plugin is away; it returns with fewer devices.
fn devices_survive_restart(
    mut machine: Machine,
    runtime: &tokio::runtime::Runtime,
    plugin: &Plugin,
) -> Machine {
    machine.kill();
    machine.up(&[]);
    allocatable(&machine, "0 0");
    assert_eq!(machine.kubectl(&["exec", "one", "--", "sh", "-c", "echo $THINGS"]), "a\n", "it still runs");
    machine.apply(&pod("waiting", 1).replace("spec:\n", "spec:\n  nodeName: n1\n"));
    machine.wait_for("pod/waiting", "{.status.reason}", "UnexpectedAdmissionError");
    machine.kubectl(&["delete", "pod", "waiting"]);
    let later = Plugin::serve(&machine, &["a"]);
    runtime.block_on(later.register(&machine));
    allocatable(&machine, "1 1");
    machine.apply(&pod("two", 1));
    machine.wait_for("pod/two", "{.status.conditions[?(@.type==\"PodScheduled\")].reason}", "Unschedulable");
    machine.kubectl(&["delete", "pod", "one", "--timeout=60s"]);
    machine.wait_for("pod/two", "{.status.phase}", "Running");
    assert_eq!(plugin.allocations() + later.allocations(), 2, "one each");
    machine.kubectl(&["delete", "pod", "two", "--timeout=60s"]);
    machine
}
