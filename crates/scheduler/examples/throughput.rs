//! Cost of a scheduling cycle, without an API server: `cargo run --release -p scheduler --example throughput`.
//! Arguments: number of nodes, number of pods (default 1000 and 5000).

use std::sync::Arc;

use objects::core::v1::{Node, Pod};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use scheduler::cycle::{choose, search};
use scheduler::profile::Profile;
use scheduler::state::{Cluster, PodInfo};
use serde_json::{Value, json};

fn node(number: usize) -> Arc<Node> {
    let name = format!("node-{number}");
    let object = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone-{}", number % 3)}},
        "status": {"allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"}},
    });
    Arc::new(serde_json::from_value(object).expect("a node"))
}

fn pod(number: usize, variant: &str) -> Arc<Pod> {
    let group = format!("g{}", number % 10);
    let selector = json!({"matchLabels": {"group": group}});
    let spec: Value = match variant {
        "spread" => {
            json!({"topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]})
        }
        "anti-affinity" => json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}}),
        _ => json!({}),
    };
    let mut object = json!({
        "metadata": {"name": format!("p{number}"), "namespace": "default", "uid": format!("u{number}"),
            "labels": {"group": group}},
        "spec": spec,
    });
    object["spec"]["containers"] = json!([{"name": "c", "image": "pause", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}]);
    Arc::new(serde_json::from_value(object).expect("a pod"))
}

/// CPU seconds of this process; other load on the machine does not count.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel's statistics");
    let nanoseconds: f64 =
        text.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number");
    nanoseconds / 1e9
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let nodes: usize = arguments.next().unwrap_or(1000);
    let pods: usize = arguments.next().unwrap_or(5000);
    let profile = Profile::default_named("default-scheduler").expect("the default profile");
    println!("| {nodes} nodes, {pods} pods | CPU µs per pod | pods per CPU second |\n|---|---|---|");
    for variant in ["basic", "spread", "anti-affinity"] {
        let mut cluster = Cluster::new();
        (0..nodes).for_each(|number| cluster.set_node(node(number)));
        cluster.refresh();
        let mut rng = SmallRng::seed_from_u64(1);
        let mut start = 0;
        let mut unplaced = 0;
        let objects: Vec<Arc<Pod>> = (0..pods).map(|number| pod(number, variant)).collect();
        let begin = cpu();
        for object in objects {
            let info = Arc::new(PodInfo::new(object));
            let found = search(&profile, &cluster, &info, &mut start);
            let chosen = choose(&profile, &cluster, &info, &found.feasible, None, &mut rng);
            drop(found);
            match chosen {
                Some(slot) => {
                    let name = Arc::clone(&cluster.node_at(slot).name);
                    cluster.assume(info, &name);
                }
                None => unplaced += 1,
            }
        }
        let each = (cpu() - begin) * 1e6 / pods as f64;
        println!("| {variant} | {each:.1} | {:.0} |", 1e6 / each);
        assert_eq!(unplaced, 0, "every pod has a node");
    }
}
