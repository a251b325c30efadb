use super::*;
use crate::admission::Admission;
use crate::registry::services::{ServiceConfig, Services};
use crate::user::UserInfo;
use objects::{FlowSchema, PriorityLevel};
use serde_json::json;
use std::sync::atomic::AtomicUsize;
use store::{Embedded, EmbeddedOptions};

/// Fairness with one level of this many seats for all users.
fn fairness(directory: &tempfile::TempDir, seats: usize, queue_length: usize) -> Arc<Fairness> {
    let options = EmbeddedOptions::new(directory.path().join("store"));
    let store = Arc::new(Embedded::open(options).expect("a store"));
    let registry = Registry::new(store, Admission::default(), Services::new(ServiceConfig::default()));
    let fairness = Fairness::new(Arc::new(registry), seats);
    let level = json!({
        "metadata": {"name": "all", "uid": "level"},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1000, "limitResponse": {
            "type": "Queue", "queuing": {"queues": 64, "handSize": 4, "queueLengthLimit": queue_length},
        }}},
    });
    let rule = json!({
        "subjects": [{"kind": "Group", "group": {"name": "*"}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}],
    });
    let schema = json!({
        "metadata": {"name": "all", "uid": "schema"},
        "spec": {
            "matchingPrecedence": 1000, "priorityLevelConfiguration": {"name": "all"},
            "distinguisherMethod": {"type": "ByUser"}, "rules": [rule],
        },
    });
    let level: PriorityLevel = serde_json::from_value(level).expect("a level");
    let schema: FlowSchema = serde_json::from_value(schema).expect("a schema");
    let plan = fairness.ledger.lock().digest(vec![level], vec![schema], Instant::now());
    fairness.plan.store(Arc::new(plan));
    Arc::new(fairness)
}

fn context(user: &str, groups: &[&str]) -> Context {
    let request = http::Request::get("/api/v1/namespaces/n/pods/p").body(()).expect("a request");
    let mut context = Context::of_test(request.into_parts().0);
    context.user = Arc::new(UserInfo {
        name: user.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    });
    context
}

const LONG: Duration = Duration::from_secs(30);

async fn enter(fairness: &Arc<Fairness>, user: &str, wait: Duration) -> Result<Seat, Rejected> {
    let now = Instant::now();
    fairness.enter(&context(user, &["system:authenticated"]), now, now + wait).await.1
}

fn totals(fairness: &Fairness) -> queue_set::Totals {
    fairness.ledger.lock().levels["all"].state().set.totals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_one_user_does_not_starve_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let fairness = fairness(&directory, 4, 50);
    let tasks = TaskGroup::new();
    let flooded = Arc::new(AtomicUsize::new(0));
    for _ in 0..150 {
        let (fairness, flooded, stop) = (fairness.clone(), flooded.clone(), tasks.clone());
        tasks.spawn(async move {
            while !stop.is_stopping() {
                if let Ok(_seat) = enter(&fairness, "flood", LONG).await {
                    flooded.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
    }
    while totals(&fairness).waiting < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = flooded.load(Ordering::Relaxed);
    let mut worst = 0;
    for _ in 0..50 {
        let ahead = flooded.load(Ordering::Relaxed);
        let seat = enter(&fairness, "other", LONG).await.expect("served");
        worst = worst.max(flooded.load(Ordering::Relaxed) - ahead);
        tokio::time::sleep(Duration::from_millis(2)).await;
        drop(seat);
    }
    let served = flooded.load(Ordering::Relaxed) - before;
    tasks.stop();
    // One user, one request at a time, four seats: it waits for the next free seat, never for the whole queue.
    assert!(worst < 40, "{worst} requests of the flood went before one");
    assert!(served < 50 * 20, "{served} requests of the flood were served meanwhile");
    assert_eq!(tasks.drain(LONG).await, Ok(()));
    assert_eq!((totals(&fairness).waiting, totals(&fairness).executing), (0, 0));
    assert_eq!(totals(&fairness).seats_in_use, 0);
}

#[tokio::test]
async fn timed_out_or_cancelled_request_leaves_the_queue() {
    let directory = tempfile::tempdir().expect("a directory");
    let fairness = fairness(&directory, 1, 2);
    let seat = enter(&fairness, "a", LONG).await.expect("a seat");
    let refused = enter(&fairness, "a", Duration::from_millis(5)).await.err().expect("no seat in time");
    assert_eq!(refused.retry_after, 1);
    // A disconnecting client: the future is dropped while it waits.
    let left = tokio::time::timeout(Duration::from_millis(5), enter(&fairness, "a", LONG)).await;
    assert!(left.is_err());
    assert_eq!((totals(&fairness).waiting, totals(&fairness).cancelled), (0, 2));
    // Full queues.
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let fairness = fairness.clone();
            tokio::spawn(async move { enter(&fairness, "a", LONG).await.map(drop) })
        })
        .collect();
    while totals(&fairness).waiting < 8 {
        tokio::task::yield_now().await;
    }
    assert!(enter(&fairness, "a", LONG).await.is_err(), "four queues of two are full");
    drop(seat);
    for waiting in waiting {
        waiting.await.expect("no panic").expect("served one after the other");
    }
    assert_eq!(totals(&fairness).seats_in_use, 0);
}

#[tokio::test]
async fn masters_are_exempt_and_classification_has_uids() {
    let directory = tempfile::tempdir().expect("a directory");
    let fairness = fairness(&directory, 1, 2);
    let _taken = enter(&fairness, "a", LONG).await.expect("a seat");
    let now = Instant::now();
    for _ in 0..10 {
        let (_, seat) = fairness.enter(&context("root", &["system:masters"]), now, now).await;
        std::mem::forget(seat.expect("exempt"));
    }
    let (class, refused) = fairness.enter(&context("b", &["system:authenticated"]), now, now).await;
    assert!(refused.is_err());
    let class = class.expect("a schema");
    assert_eq!((class.schema_uid.as_bytes(), class.level_uid.as_bytes()), (&b"schema"[..], &b"level"[..]));
}

#[tokio::test]
async fn requests_beyond_one_turn_start_in_later_turns() {
    let directory = tempfile::tempdir().expect("a directory");
    let fairness = fairness(&directory, 1000, 100);
    let tasks = TaskGroup::new();
    fairness.begin_turns(&tasks);
    tokio::task::yield_now().await;
    // Far more than fit into one turn, and none releases its seat.
    let all = (0..300).map(|_| enter(&fairness, "a", LONG));
    let seats = futures_util::future::join_all(all).await;
    assert!(seats.iter().all(Result::is_ok));
    drop(seats);
    assert_eq!(totals(&fairness).dispatched, 300);
    assert_eq!(tasks.drain(LONG).await, Ok(()));
}

/// Overhead of a request without contention: a few hundred nanoseconds. Printed, not asserted.
#[tokio::test]
async fn seat_overhead_is_printed() {
    let directory = tempfile::tempdir().expect("a directory");
    let fairness = fairness(&directory, 600, 50);
    let context = context("a", &["system:authenticated"]);
    let rounds = 20_000;
    let begin = Instant::now();
    for _ in 0..rounds {
        let now = Instant::now();
        let (_, seat) = fairness.enter(&context, now, now + LONG).await;
        assert!(seat.is_ok());
    }
    println!("{} ns per request", begin.elapsed().as_nanos() / rounds);
}
