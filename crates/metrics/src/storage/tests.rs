//! Points in, usage out: the cases of metrics-server's own storage tests.

use super::*;
use crate::point::UNKNOWN_START;

const SECOND: i64 = 1_000_000_000;

fn point(start: i64, at: i64, cpu_seconds: u64) -> Point {
    Point {
        start: start.saturating_mul(SECOND),
        at: at * SECOND,
        cpu: cpu_seconds * 1_000_000_000,
        memory: 1024,
    }
}

fn batch(containers: &[(&str, Point)]) -> NodeBatch {
    let containers = containers.iter().map(|(name, point)| ((*name).into(), *point)).collect();
    let pod = PodBatch { namespace: "ns".into(), name: "p".into(), containers };
    NodeBatch { node: None, pods: vec![pod] }
}

fn storage() -> Storage {
    Storage::new(Duration::from_secs(60))
}

fn cpu(storage: &Storage, container: &str) -> Option<u64> {
    let pod = storage.pod("n", "ns", "p")?;
    pod.containers.iter().find(|(name, _)| &**name == container).map(|(_, used)| used.cpu)
}

#[test]
fn node_usage_needs_two_points() {
    let storage = storage();
    let store = |at, cpu| {
        let node = Some(point(UNKNOWN_START, at, cpu));
        storage.store("n", Some(NodeBatch { node, pods: Vec::new() }));
    };
    store(100, 10);
    assert_eq!(storage.node("n"), None);
    assert!(!storage.is_ready());
    store(160, 40);
    assert_eq!(storage.node("n").map(|used| used.cpu), Some(500_000_000));
    assert!(storage.is_ready());
    // The node repeats its last point: the window stays.
    store(160, 40);
    assert_eq!(storage.node("n").map(|used| used.window), Some(60 * SECOND));
    // A clock that was set back beyond both points resets the usage.
    store(50, 41);
    assert_eq!(storage.node("n"), None);
    store(110, 41);
    assert_eq!(storage.node("n").map(|used| used.cpu), Some(0));
    // A counter that was reset: no usage until two points of it.
    store(170, 3);
    assert_eq!(storage.node("n"), None);
    store(230, 6);
    assert_eq!(storage.node("n").map(|used| used.cpu), Some(50_000_000));
}

#[test]
fn pod_is_served_when_all_containers_have_two_points() {
    let storage = storage();
    storage.store("n", Some(batch(&[("a", point(0, 100, 10))])));
    assert_eq!(storage.pod("n", "ns", "p"), None);
    storage.store("n", Some(batch(&[("a", point(0, 160, 16)), ("b", point(155, 160, 1))])));
    assert_eq!(storage.pod("n", "ns", "p"), None, "b has one point");
    storage.store("n", Some(batch(&[("a", point(0, 220, 22)), ("b", point(155, 221, 1))])));
    let pod = storage.pod("n", "ns", "p").expect("usage");
    assert_eq!(pod.containers.len(), 2);
    assert_eq!((pod.at, pod.window), (220 * SECOND, 60 * SECOND), "of the container that was measured first");
    // A container that ended is no longer part of the pod's usage.
    storage.store("n", Some(batch(&[("a", point(0, 280, 28))])));
    assert_eq!(storage.pod("n", "ns", "p").map(|pod| pod.containers.len()), Some(1));
}

#[test]
fn restarted_container_has_no_usage_until_second_point() {
    let storage = storage();
    storage.store("n", Some(batch(&[("a", point(0, 100, 50))])));
    storage.store("n", Some(batch(&[("a", point(0, 160, 80))])));
    assert_eq!(cpu(&storage, "a"), Some(500_000_000));
    // Restarted five seconds before the scrape: too fresh for a usage of its own.
    storage.store("n", Some(batch(&[("a", point(215, 220, 5))])));
    assert_eq!(cpu(&storage, "a"), None);
    storage.store("n", Some(batch(&[("a", point(215, 280, 11))])));
    assert_eq!(cpu(&storage, "a"), Some(100_000_000));
    // Restarted twenty seconds before the scrape: usage since its start.
    storage.store("n", Some(batch(&[("a", point(320, 340, 10))])));
    assert_eq!(cpu(&storage, "a"), Some(500_000_000));
}

#[test]
fn node_that_is_down_loses_its_own_rows_only() {
    let storage = storage();
    for at in [100, 160] {
        storage.store("n", Some(batch(&[("a", point(0, at, 10))])));
        storage.store("m", Some(batch(&[("a", point(0, at, 20))])));
    }
    assert!(storage.pod("m", "ns", "p").is_some() && storage.pod("n", "ns", "p").is_some());
    storage.store("m", None);
    assert!(storage.pod("m", "ns", "p").is_none() && storage.pod("n", "ns", "p").is_some());
    storage.retain(|name| name != "n");
    assert!(storage.pod("n", "ns", "p").is_none());
}
