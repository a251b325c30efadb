//! The TTL loop. Watches nodes; annotates each with the time for which its kubelet may cache secrets and config maps,
//! which grows with the cluster.

use async_trait::async_trait;
use client::Patch;
use objects::core::v1::Node;
use parking_lot::Mutex;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ttl-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:ttl-controller",
    workers: 2,
};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// Minimum and maximum number of nodes, and the TTL in seconds. The ranges overlap to avoid flapping.
const STEPS: [(usize, usize, u32); 5] =
    [(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

struct Ttl {
    nodes: Cache<Node>,
    step: Mutex<usize>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let annotation =
        |node: &Node| node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION).cloned());
    let nodes = ctx.watch::<Node>(move |change| match change {
        Change::Updated { old, new } if annotation(old) == annotation(new) => Vec::new(),
        _ => vec![Key::of(&**change.object())],
    });
    Box::new(Ttl { nodes, step: Mutex::new(0) })
}

#[async_trait]
impl Loop for Ttl {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let wanted = self.wanted(ctx);
        let Some(node) = self.nodes.get_key(key) else { return Ok(Action::Done) };
        let known = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION));
        if known == Some(&wanted) {
            return Ok(Action::Done);
        }
        let patch = Patch::Strategic(json!({ "metadata": { "annotations": { ANNOTATION: wanted } } }));
        ctx.client.patch::<Node>("", &key.name, None, &patch).await?;
        Ok(Action::Done)
    }
}

impl Ttl {
    /// TTL for a cluster of this size; when it changes, all nodes are requeued.
    fn wanted(&self, ctx: &Context) -> String {
        let mut step = self.step.lock();
        let next = next_step(*step, self.nodes.count());
        if next != *step {
            *step = next;
            self.nodes.all().iter().for_each(|node| ctx.queue.add(Key::of(&**node)));
        }
        STEPS[next].2.to_string()
    }
}

/// Step for this number of nodes, starting from the current one.
fn next_step(mut step: usize, nodes: usize) -> usize {
    while nodes > STEPS[step].1 {
        step += 1;
    }
    while nodes < STEPS[step].0 {
        step -= 1;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_steps_do_not_flap() {
        for (step, nodes, expected) in
            [(0, 100, 0), (0, 101, 1), (1, 95, 1), (1, 89, 0), (0, 5000, 4), (4, 1, 0)]
        {
            assert_eq!(next_step(step, nodes), expected, "{step} {nodes}");
        }
    }
}
