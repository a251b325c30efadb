//! SchedulingGates: a pod waits until all its scheduling gates are removed.

use crate::framework::{Actions, Changed, Plugin, Reason};
use crate::state::{Cluster, PodInfo};

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn pre_enqueue(&self, _: &Cluster, pod: &PodInfo) -> Result<(), Reason> {
        let gates = pod.spec().and_then(|spec| spec.scheduling_gates.as_deref()).unwrap_or_default();
        if gates.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
        Err(format!("waiting for scheduling gates: [{}]", names.join(" ")).into())
    }

    fn interests(&self) -> Actions {
        Actions::POD_GATES
    }

    fn helps(&self, _: &Cluster, pod: &PodInfo, _: Actions, changed: Changed<'_>) -> bool {
        matches!(changed, Changed::Pod { new: Some(new), .. } if new.uid == pod.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;
    use serde_json::json;

    #[test]
    fn gated_pod_is_not_enqueued() {
        assert!(SchedulingGates.pre_enqueue(&Cluster::new(), &pod("p").info()).is_ok());
        let gated = pod("p").spec(json!({"schedulingGates": [{"name": "a"}, {"name": "b"}]})).info();
        let verdict = SchedulingGates.pre_enqueue(&Cluster::new(), &gated);
        assert_eq!(verdict, Err("waiting for scheduling gates: [a b]".into()));
    }
}
