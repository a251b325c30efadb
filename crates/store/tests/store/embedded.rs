//! The embedded backend: the battery, restarts, bounds, snapshots.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{Embedded, EmbeddedOptions, Expect, Op, RangeRequest, Store, StoreError, Txn};

use crate::battery::{self, Ctx};
use crate::recorder::Recorder;

pub fn open(directory: &Path) -> Arc<Embedded> {
    Arc::new(Embedded::open(EmbeddedOptions::new(directory)).expect("open"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_store_passes_battery() {
    let mut directories = Vec::new();
    let mut ctx = |name: &str| {
        let directory = tempfile::tempdir().unwrap();
        let ctx = Ctx::new(open(directory.path()), name);
        directories.push(directory);
        ctx
    };
    battery::run_all(&mut ctx).await;
}

/// The same cases sequentially on one store, as for shared backends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_embedded_store_passes_battery() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    battery::run_all(|name| Ctx::new(store.clone(), name)).await;
}

#[tokio::test]
async fn new_store_starts_at_one_and_is_locked() {
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
async fn restart_preserves_keys_history_and_leases() {
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
    // History survives, too.
    let recorder = Recorder::default();
    let _watch = store.watch("/", compacted, recorder.sink()).await.unwrap();
    assert_eq!(recorder.calls.lock().events.len(), 2);
    let then = RangeRequest { start: "/".into(), end: "0".into(), limit: 0, revision: Some(compacted) };
    assert_eq!(store.range(then).await.unwrap().count, 2);
    store.keep_alive(lease).await.unwrap();
    assert_eq!(ctx.put("c", "1").await, last + 1);
}

#[tokio::test]
async fn sink_receives_the_event_before_the_writer_its_response() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let ctx = Ctx::new(store.clone(), "x");
    let recorder = Recorder::default();
    let _watch = store.watch("/x/", 1, recorder.sink()).await.unwrap();
    for nth in 0..100 {
        let revision = ctx.put("a", &nth.to_string()).await;
        assert_eq!(recorder.calls.lock().events.last().map(store::Event::revision), Some(revision));
        assert_eq!(store.revision(), revision);
    }
    store.close().await;
    assert!(matches!(recorder.calls.lock().closed, Some(StoreError::Closed)));
}

#[tokio::test]
async fn history_is_bounded_by_bytes_and_by_age() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EmbeddedOptions::new(directory.path());
    options.history_bytes = 64 << 10;
    let store = Arc::new(Embedded::open(options.clone()).unwrap());
    let ctx = Ctx::new(store.clone(), "x");
    let value = "v".repeat(4096);
    let mut last = 0;
    for nth in 0..100 {
        last = ctx.put(&format!("{}", nth % 3), &value).await;
    }
    let compacted = store.compacted().await.unwrap();
    assert!(compacted > last - 20 && compacted < last - 10, "{compacted} of {last}");
    let at =
        |revision| RangeRequest { start: "/".into(), end: "0".into(), limit: 0, revision: Some(revision) };
    assert_eq!(store.range(at(compacted)).await.unwrap().count, 3);
    assert!(matches!(store.range(at(compacted - 1)).await, Err(StoreError::Compacted { .. })));
    drop((ctx, store));

    options.history_age = Duration::from_millis(30);
    options.history_bytes = 1 << 30;
    let store = Arc::new(Embedded::open(options).unwrap());
    let ctx = Ctx::new(store.clone(), "x");
    let first = ctx.put("0", &value).await;
    // Every write drops the history that is older than the limit.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let last = ctx.put("1", &value).await;
        if store.compacted().await.unwrap() >= first {
            break;
        }
        assert!(std::time::Instant::now() < until, "{first} of {last} is not compacted");
    }
}

#[tokio::test]
async fn checkpoints_replace_the_log_and_keep_history() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = EmbeddedOptions::new(directory.path());
    options.checkpoint_bytes = 1 << 20;
    let store = Arc::new(Embedded::open(options.clone()).unwrap());
    let ctx = Ctx::new(store.clone(), "x");
    let lease = store.grant_lease(Duration::from_secs(1)).await.unwrap();
    let leased = Txn {
        key: ctx.key("leased"),
        expect: Expect::Any,
        op: Op::Put { value: Bytes::from_static(b"1"), lease: Some(lease) },
    };
    store.txn(leased).await.unwrap();
    let value = "v".repeat(100_000);
    for nth in 0..400 {
        ctx.put(&format!("{}", nth % 5), &value).await;
        store.keep_alive(lease).await.unwrap();
    }
    let names = |extension: &str| {
        let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|found| found == extension)).count()
    };
    assert!(names("checkpoint") <= 2 && names("log") + names("spare") <= 6, "old files stay");
    let (revision, compacted) = (store.revision(), store.compacted().await.unwrap());
    let recorder = Recorder::default();
    let watch = store.watch("/", compacted, recorder.sink()).await.unwrap();
    drop((watch, ctx, store));
    assert!(names("checkpoint") >= 1);

    let store = Arc::new(Embedded::open(options).unwrap());
    let ctx = Ctx::new(store.clone(), "x");
    assert_eq!((store.revision(), store.compacted().await.unwrap()), (revision, compacted));
    let again = Recorder::default();
    let _watch = store.watch("/", compacted, again.sink()).await.unwrap();
    assert_eq!(again.calls.lock().events, recorder.calls.lock().events);
    // The lease was restored as well: it expires and deletes its key.
    assert!(ctx.get("leased").await.is_some());
    again
        .wait("the end of the lease", |calls| {
            calls.summary().last().is_some_and(|(_, key)| key == "-/x/leased")
        })
        .await;
    assert!(ctx.get("leased").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_a_running_store_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("first"));
    let ctx = Ctx::new(store.clone(), "x");
    let writer = tokio::spawn({
        let ctx = ctx.clone();
        async move {
            for nth in 0..300 {
                ctx.put(&format!("{}", nth % 50), &nth.to_string()).await;
            }
        }
    });
    let path = directory.path().join("saved");
    let revision = store.snapshot(&path).await.unwrap();
    writer.await.unwrap();
    let at = RangeRequest { start: "/".into(), end: "0".into(), limit: 0, revision: Some(revision) };
    let expected = store.range(at).await.unwrap().kvs;

    let restored = directory.path().join("second");
    assert_eq!(Embedded::restore(&path, &restored, 0).unwrap(), revision);
    let second = open(&restored);
    let everything = RangeRequest { start: "/".into(), end: "0".into(), ..Default::default() };
    let found = second.range(everything.clone()).await.unwrap();
    assert_eq!((found.revision, found.kvs), (revision, expected.clone()));
    second.close().await;
    drop(second);
    let occupied = Embedded::restore(&path, &restored, 0);
    assert!(matches!(occupied, Err(StoreError::Refused { .. })), "{occupied:?}");

    let skipped = directory.path().join("third");
    assert_eq!(Embedded::restore(&path, &skipped, 1000).unwrap(), revision + 1000);
    let third = open(&skipped);
    assert_eq!(third.range(everything).await.unwrap().kvs, expected);
    assert_eq!(third.compacted().await.unwrap(), revision + 1000);
    assert_eq!(Ctx::new(third.clone(), "x").put("new", "1").await, revision + 1001);
    drop(third);
    assert_eq!(open(&skipped).revision(), revision + 1001);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_directory_with_wide_mode_is_corrected() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("store");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let store = store::Embedded::open(store::EmbeddedOptions::new(&directory)).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    drop(store);
}
