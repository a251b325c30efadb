//! The embedded backend: the battery, restarts, bounds, snapshots.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use store::{Embedded, EmbeddedOptions, RangeRequest, Store, StoreError};

use crate::battery::{CASES, Ctx};
use crate::recorder::Recorder;

pub fn open(directory: &Path) -> Arc<Embedded> {
    Arc::new(Embedded::open(EmbeddedOptions::new(directory)).expect("open"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn battery() {
    for (name, case) in CASES {
        println!("case {name}");
        let directory = tempfile::tempdir().unwrap();
        case(Ctx::new(open(directory.path()), name)).await;
    }
}

/// The same cases on one store, one after the other, as backends that are shared run them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn battery_on_one_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    for (name, case) in CASES {
        println!("case {name}");
        case(Ctx::new(store.clone(), name)).await;
    }
}

#[tokio::test]
async fn a_new_store_starts_at_one_and_is_held_by_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(store.revision(), 1);
    assert_eq!(Ctx::new(store.clone(), "x").put("a", "1").await, 2);
    let second = Embedded::open(EmbeddedOptions::new(directory.path()));
    assert!(matches!(second, Err(StoreError::Locked { .. })));
    store.close().await;
    assert!(matches!(store.compact(1).await, Err(StoreError::Closed)));
    assert_eq!(open(directory.path()).revision(), 2);
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let ctx = Ctx::new(store.clone(), "x");
    let lease = store.grant_lease(Duration::from_secs(1)).await.unwrap();
    ctx.put("a", "1").await;
    ctx.put("b", "1").await;
    let compacted = ctx.put("a", "2").await;
    ctx.put("a", "3").await;
    let last = ctx.delete("b").await;
    store.compact(compacted).await.unwrap();
    let before = ctx.get("a").await.unwrap();
    drop((ctx, store));

    let store = open(directory.path());
    let ctx = Ctx::new(store.clone(), "x");
    assert_eq!(store.revision(), last);
    assert_eq!(store.compacted().await.unwrap(), compacted);
    assert_eq!(ctx.get("a").await.unwrap(), before);
    assert!(ctx.get("b").await.is_none());
    // History, too.
    let recorder = Recorder::default();
    let _watch = store.watch("/", compacted, recorder.sink()).await.unwrap();
    assert_eq!(recorder.told.lock().events.len(), 2);
    let then = RangeRequest { start: "/".into(), end: "0".into(), limit: 0, revision: Some(compacted) };
    assert_eq!(store.range(then).await.unwrap().count, 2);
    store.keep_alive(lease).await.unwrap();
    assert_eq!(ctx.put("c", "1").await, last + 1);
}

#[tokio::test]
async fn a_sink_is_told_before_the_writer_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let ctx = Ctx::new(store.clone(), "x");
    let recorder = Recorder::default();
    let _watch = store.watch("/x/", 1, recorder.sink()).await.unwrap();
    for nth in 0..100 {
        let revision = ctx.put("a", &nth.to_string()).await;
        assert_eq!(recorder.told.lock().events.last().map(store::Event::revision), Some(revision));
        assert_eq!(store.revision(), revision);
    }
    store.close().await;
    assert!(matches!(recorder.told.lock().closed, Some(StoreError::Closed)));
}
