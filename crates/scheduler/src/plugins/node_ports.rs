//! NodePorts: each host port of a node has at most one user.

use crate::framework::{Actions, Changed, Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::{Cluster, HostPort, NodeInfo, PodInfo};

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

pub struct NodePorts;

#[derive(Clone)]
struct NodePortsFilter<'a>(&'a [HostPort]);

fn collide(wanted: &[HostPort], used: &[HostPort]) -> bool {
    wanted.iter().any(|want| used.iter().any(|used| want.collides(used)))
}

impl<'a> Filter<'a> for NodePortsFilter<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Rejection> {
        if collide(self.0, &node.ports) { Err(Rejection::unschedulable(REASON)) } else { Ok(()) }
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for NodePorts {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if cycle.pod.host_ports.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Check(Box::new(NodePortsFilter(&cycle.pod.host_ports)))
    }

    fn interests(&self) -> Actions {
        Actions::NODE_ADD.or(Actions::POD_DELETE)
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        match changed {
            Changed::Pod { old: Some(gone), .. } => collide(&pod.host_ports, &gone.host_ports),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::reasons;
    use crate::testing::{PodBuilder, cluster, node, pod};
    use serde_json::json;

    fn with_port(name: &str, port: serde_json::Value) -> PodBuilder {
        pod(name).spec(json!({"containers": [{"name": "c", "ports": [port]}]}))
    }

    #[test]
    fn host_port_in_use_rejects_node() {
        let used =
            with_port("used", json!({"containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.1"})).on("a");
        let cluster = cluster([node("a"), node("b")], [used]);
        for (port, taken) in [
            (json!({"containerPort": 80, "hostPort": 80}), true),
            (json!({"containerPort": 80, "hostPort": 80, "protocol": "UDP"}), false),
            (json!({"containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.2"}), false),
            (json!({"containerPort": 80, "hostPort": 81}), false),
            (json!({"containerPort": 80}), false),
        ] {
            let expected = if taken { format!("a: {REASON}") } else { "a: ".to_owned() };
            assert_eq!(reasons(&NodePorts, &cluster, with_port("p", port.clone()))[0], expected, "{port}");
        }
    }
}
