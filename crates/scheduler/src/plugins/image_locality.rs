//! ImageLocality: prefers nodes that already hold a pod's images, the more so the larger the images and the more
//! nodes hold them.

use crate::framework::{Cycle, MAX_NODE_SCORE, Plugin};
use crate::state::NodeInfo;

const MIB: i64 = 1024 * 1024;
const LEAST: i64 = 23 * MIB;
const MOST_PER_CONTAINER: i64 = 1000 * MIB;

pub struct ImageLocality;

impl Plugin for ImageLocality {
    fn score(&self, cycle: Cycle<'_>, nodes: &[&NodeInfo], scores: &mut [i64]) -> bool {
        let all = cycle.cluster.order().len() as f64;
        let known: Vec<(&str, f64)> = cycle
            .pod
            .images
            .iter()
            .map(|image| (&**image, cycle.cluster.nodes_with_image(image) as f64 / all))
            .filter(|(_, share)| *share > 0.0)
            .collect();
        if known.is_empty() {
            return false;
        }
        let most = MOST_PER_CONTAINER * i64::try_from(cycle.pod.containers).unwrap_or(i64::MAX);
        for (node, score) in nodes.iter().zip(scores.iter_mut()) {
            let held = known
                .iter()
                .filter_map(|(image, share)| Some((*node.images.get(*image)? as f64 * share) as i64));
            let sum = held.sum::<i64>().clamp(LEAST, most.max(LEAST));
            *score = if most > LEAST { MAX_NODE_SCORE * (sum - LEAST) / (most - LEAST) } else { 0 };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::tests::scores;
    use crate::testing::{NodeBuilder, cluster, node, pod};
    use serde_json::json;

    fn holding(name: &str, images: &[(&str, i64)]) -> NodeBuilder {
        let list: Vec<_> =
            images.iter().map(|(name, size)| json!({"names": [name], "sizeBytes": size * MIB})).collect();
        node(name).status(json!({"images": list}))
    }

    #[test]
    fn image_locality_prefers_large_widespread_images() {
        let pod_with = |images: &[&str]| {
            let containers: Vec<_> =
                images.iter().map(|image| json!({"name": "c", "image": image})).collect();
            pod("p").spec(json!({"containers": containers}))
        };
        let nodes =
            || [holding("a", &[("big:latest", 2000), ("small:1", 10)]), holding("b", &[("mid:latest", 400)])];
        let two = cluster(nodes(), []);
        for (images, expected) in [
            // Half of the nodes hold each image, so half of its size counts.
            (&["big"][..], Some(vec![100, 0])),
            (&["mid"][..], Some(vec![0, 18])),
            (&["small:1"][..], Some(vec![0, 0])),
            (&["big", "mid"][..], Some(vec![49, 8])),
            (&["nowhere"][..], None),
        ] {
            assert_eq!(scores(&ImageLocality, &two, pod_with(images)), expected, "{images:?}");
        }
    }
}
