//! The battery: test cases for every backend. Each case has its own key prefix and counts revisions relative to the
//! store's current one, so that cases can share a store sequentially.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{
    Event, Expect, KeyValue, LeaseId, Op, Outcome, RangeRequest, RangeResponse, Revision, Store, StoreError,
    Txn, prefix_end,
};
use testbase::Scenarios;

use crate::recorder::Recorder;

type Case = (&'static str, fn(Ctx) -> Pin<Box<dyn Future<Output = ()> + Send>>);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        const CASES: &[Case] = &[$((stringify!($name), |ctx| Box::pin($name(ctx)))),*];
    };
}

cases![
    compare_and_swap,
    delete_of_nothing,
    ranges,
    ranges_at_old_revisions,
    future_revisions,
    compaction,
    watch_live,
    watch_from_history,
    watch_under_concurrent_writers,
    watch_cancelled,
    barrier,
    lease_revoked,
    lease_expires,
    unusual_keys_and_values,
    contended_counter,
];

/// Runs every case as a scenario; `ctx` is its environment.
pub async fn run_all(mut ctx: impl FnMut(&str) -> Ctx) {
    let mut scenarios = Scenarios::default();
    for (name, case) in CASES {
        let case = case(ctx(name));
        scenarios
            .run_async(name, async {
                case.await;
                Ok(())
            })
            .await;
    }
    scenarios.finish();
}

/// The store under test and the key prefix of the case.
#[derive(Clone)]
pub struct Ctx {
    pub store: Arc<dyn Store>,
    pub prefix: String,
}

impl Ctx {
    pub fn new(store: Arc<dyn Store>, case: &str) -> Self {
        Self { store, prefix: format!("/{case}/") }
    }

    pub fn key(&self, name: &str) -> Arc<str> {
        format!("{}{name}", self.prefix).into()
    }

    async fn try_txn(&self, name: &str, expect: Expect, op: Op) -> Result<Outcome, StoreError> {
        self.store.txn(Txn { key: self.key(name), expect, op }).await
    }

    /// A put that must succeed; returns its revision.
    pub async fn put(&self, name: &str, value: &str) -> Revision {
        self.put_with(name, value, None).await
    }

    async fn put_with(&self, name: &str, value: &str, lease: Option<LeaseId>) -> Revision {
        let op = Op::Put { value: Bytes::copy_from_slice(value.as_bytes()), lease };
        committed(self.try_txn(name, Expect::Any, op).await.expect("put")).0
    }

    pub async fn delete(&self, name: &str) -> Revision {
        committed(self.try_txn(name, Expect::Any, Op::Delete).await.expect("delete")).0
    }

    pub async fn get(&self, name: &str) -> Option<KeyValue> {
        self.store.get(&self.key(name)).await.expect("get").0
    }

    /// The whole prefix at a revision.
    async fn list(&self, revision: Option<Revision>, limit: usize) -> Result<RangeResponse, StoreError> {
        let (start, end) = (self.prefix.clone(), prefix_end(&self.prefix));
        self.store.range(RangeRequest { start, end, limit, revision }).await
    }

    /// `name=value` of the whole prefix at a revision.
    async fn show(&self, revision: Revision) -> String {
        let found = self.list(Some(revision), 0).await.expect("range");
        assert_eq!(found.count, found.kvs.len() as u64);
        assert!(!found.more);
        show(&self.prefix, &found)
    }
}

fn show(prefix: &str, found: &RangeResponse) -> String {
    let line = |kv: &KeyValue| {
        let name = kv.key.strip_prefix(prefix).unwrap_or(&kv.key);
        format!("{name}={}", String::from_utf8_lossy(&kv.value))
    };
    found.kvs.iter().map(line).collect::<Vec<_>>().join(" ")
}

fn put(value: &str) -> Op {
    Op::Put { value: Bytes::copy_from_slice(value.as_bytes()), lease: None }
}

#[track_caller]
fn committed(outcome: Outcome) -> (Revision, Option<KeyValue>) {
    match outcome {
        Outcome::Committed { revision, prev } => (revision, prev),
        Outcome::Conflict { .. } => panic!("unexpected {outcome:?}"),
    }
}

#[track_caller]
fn conflict(outcome: Outcome) -> (Revision, Option<KeyValue>) {
    match outcome {
        Outcome::Conflict { current, revision } => (revision, current),
        Outcome::Committed { .. } => panic!("unexpected {outcome:?}"),
    }
}

async fn compare_and_swap(ctx: Ctx) {
    let before = ctx.store.barrier().await.unwrap();
    assert!(before >= 1);
    let (created, prev) = committed(ctx.try_txn("a", Expect::Absent, put("1")).await.unwrap());
    assert!(created > before && prev.is_none());
    let first = ctx.get("a").await.unwrap();
    let expected = KeyValue {
        key: ctx.key("a"),
        value: Bytes::from_static(b"1"),
        create_revision: created,
        mod_revision: created,
        version: 1,
    };
    assert_eq!(first, expected);

    let (revision, current) = conflict(ctx.try_txn("a", Expect::Absent, put("2")).await.unwrap());
    assert_eq!((revision, current), (created, Some(first.clone())));
    let stale = ctx.try_txn("a", Expect::Revision(created - 1), put("2")).await.unwrap();
    assert_eq!(conflict(stale).1, Some(first.clone()));
    let missing = ctx.try_txn("b", Expect::Revision(created), put("2")).await.unwrap();
    assert_eq!(conflict(missing).1, None);
    assert_eq!(conflict(ctx.try_txn("b", Expect::Revision(created), Op::Delete).await.unwrap()).1, None);

    let (updated, prev) = committed(ctx.try_txn("a", Expect::Revision(created), put("2")).await.unwrap());
    assert_eq!((updated, prev), (created + 1, Some(first)));
    let second = ctx.get("a").await.unwrap();
    assert_eq!((second.create_revision, second.mod_revision, second.version), (created, updated, 2));

    assert_eq!(conflict(ctx.try_txn("a", Expect::Absent, Op::Delete).await.unwrap()).0, updated);
    let (deleted, prev) = committed(ctx.try_txn("a", Expect::Revision(updated), Op::Delete).await.unwrap());
    assert_eq!((deleted, prev), (updated + 1, Some(second)));
    assert_eq!(ctx.store.get(&ctx.key("a")).await.unwrap(), (None, deleted));
    assert_eq!(ctx.store.revision(), deleted);

    let (again, prev) = committed(ctx.try_txn("a", Expect::Absent, put("3")).await.unwrap());
    assert_eq!((again, prev), (deleted + 1, None));
    let third = ctx.get("a").await.unwrap();
    assert_eq!((third.create_revision, third.version), (again, 1));
}

async fn delete_of_nothing(ctx: Ctx) {
    let revision = ctx.put("other", "x").await;
    for expect in [Expect::Any, Expect::Absent] {
        let outcome = ctx.try_txn("none", expect, Op::Delete).await.unwrap();
        assert_eq!(committed(outcome), (revision, None));
    }
    assert_eq!(ctx.put("other", "y").await, revision + 1);
}

async fn ranges(ctx: Ctx) {
    for name in ["b", "a", "d/1", "c", "e"] {
        ctx.put(name, name).await;
    }
    let revision = ctx.delete("c").await;
    let all = ctx.list(None, 0).await.unwrap();
    assert_eq!(show(&ctx.prefix, &all), "a=a b=b d/1=d/1 e=e");
    assert_eq!((all.more, all.count, all.revision), (false, 4, revision));
    let page = ctx.list(None, 3).await.unwrap();
    assert_eq!(show(&ctx.prefix, &page), "a=a b=b d/1=d/1");
    assert_eq!((page.more, page.count), (true, 4));
    let exact = ctx.list(None, 4).await.unwrap();
    assert_eq!((exact.kvs.len(), exact.more), (4, false));
    for (start, end, expected) in [
        ("b", "e", "b=b d/1=d/1"),
        ("b\0", "d/1\0", "d/1=d/1"),
        ("a", "a", ""),
        ("e", "a", ""),
        ("c", "d", ""),
    ] {
        let (start, end) = (ctx.key(start).to_string(), ctx.key(end).to_string());
        let found = ctx.store.range(RangeRequest { start, end, ..Default::default() }).await.unwrap();
        assert_eq!(show(&ctx.prefix, &found), expected);
        assert_eq!((found.count, found.more), (found.kvs.len() as u64, false));
    }
}

async fn ranges_at_old_revisions(ctx: Ctx) {
    let mut expected = vec![];
    let r = ctx.put("b", "1").await;
    expected.push((r, "b=1"));
    expected.push((ctx.put("a", "1").await, "a=1 b=1"));
    expected.push((ctx.put("b", "2").await, "a=1 b=2"));
    expected.push((ctx.delete("a").await, "b=2"));
    expected.push((ctx.put("c", "1").await, "b=2 c=1"));
    expected.push((ctx.put("a", "2").await, "a=2 b=2 c=1"));
    expected.push((ctx.delete("b").await, "a=2 c=1"));
    assert_eq!(ctx.show(r - 1).await, "");
    for (revision, contents) in &expected {
        assert_eq!(ctx.show(*revision).await, *contents, "at {revision}");
    }
    // The second page of a list belongs to the revision of the first.
    let page = ctx.list(Some(r + 1), 1).await.unwrap();
    assert_eq!((show(&ctx.prefix, &page).as_str(), page.more, page.count), ("a=1", true, 2));
    assert_eq!(page.revision, r + 6);
    let (start, end) = (ctx.key("a\0").to_string(), prefix_end(&ctx.prefix));
    let request = RangeRequest { start, end, limit: 1, revision: Some(r + 1) };
    let page = ctx.store.range(request).await.unwrap();
    assert_eq!((show(&ctx.prefix, &page).as_str(), page.more, page.count), ("b=1", false, 1));
    assert_eq!(page.kvs[0].mod_revision, r);
}

async fn future_revisions(ctx: Ctx) {
    let current = ctx.put("a", "1").await;
    match ctx.list(Some(current + 5), 0).await {
        Err(StoreError::FutureRevision { requested, .. }) => assert_eq!(requested, current + 5),
        other => panic!("unexpected {other:?}"),
    }
    match ctx.store.compact(current + 5).await {
        Err(StoreError::FutureRevision { .. }) => {}
        other => panic!("unexpected {other:?}"),
    }
}

async fn compaction(ctx: Ctx) {
    let first = ctx.put("a", "1").await;
    ctx.put("b", "1").await;
    ctx.put("a", "2").await;
    let at = ctx.delete("b").await;
    ctx.put("c", "1").await;
    ctx.store.compact(at).await.unwrap();
    ctx.store.compact(at).await.unwrap();
    ctx.store.compact(first).await.unwrap();
    assert_eq!(ctx.store.compacted().await.unwrap(), at);
    match ctx.list(Some(at - 1), 0).await {
        Err(StoreError::Compacted { requested, compacted }) => {
            assert_eq!((requested, compacted), (at - 1, at));
        }
        other => panic!("unexpected {other:?}"),
    }
    assert_eq!(ctx.show(at).await, "a=2");
    assert_eq!(ctx.show(at + 1).await, "a=2 c=1");
    let recorder = Recorder::default();
    match ctx.store.watch(&ctx.prefix, first, recorder.sink()).await {
        Err(StoreError::Compacted { requested, compacted }) => {
            assert_eq!((requested, compacted), (first, at));
        }
        other => panic!("unexpected {other:?}"),
    }
    let _watch = ctx.store.watch(&ctx.prefix, at, recorder.sink()).await.unwrap();
    recorder.events(1).await;
    assert_eq!(recorder.calls.lock().summary(), [(at + 1, ctx.key("c").to_string())]);
}

async fn watch_live(ctx: Ctx) {
    let start = ctx.put("before", "x").await;
    let (all, some) = (Recorder::default(), Recorder::default());
    let _all = ctx.store.watch(&ctx.prefix, start, all.sink()).await.unwrap();
    let _some = ctx.store.watch(&ctx.key("a/"), start, some.sink()).await.unwrap();
    let created = ctx.put("a/1", "1").await;
    ctx.put("b/1", "1").await;
    ctx.put("a/1", "2").await;
    let deleted = ctx.delete("a/1").await;
    all.events(4).await;
    some.events(3).await;
    let summary = all.calls.lock().summary();
    let name = |name: &str| ctx.key(name).to_string();
    let expected = [
        (created, name("a/1")),
        (created + 1, name("b/1")),
        (created + 2, name("a/1")),
        (deleted, format!("-{}", ctx.key("a/1"))),
    ];
    assert_eq!(summary, expected);
    let calls = some.calls.lock();
    let [Event::Put { kv: first, prev: None }, Event::Put { kv: second, prev: Some(before) }, last] =
        calls.events.as_slice()
    else {
        panic!("unexpected {calls:?}");
    };
    assert_eq!((first.version, second.version, before), (1, 2, first));
    assert_eq!((&first.value[..], &second.value[..]), (&b"1"[..], &b"2"[..]));
    let gone = Event::Delete { key: ctx.key("a/1"), revision: deleted, prev: Some(second.clone()) };
    assert_eq!(*last, gone);
}

async fn watch_from_history(ctx: Ctx) {
    let first = ctx.put("a", "1").await;
    ctx.put("b", "1").await;
    ctx.put("a", "2").await;
    let last = ctx.delete("b").await;
    for after in first - 1..=last {
        let recorder = Recorder::default();
        let _watch = ctx.store.watch(&ctx.prefix, after, recorder.sink()).await.unwrap();
        let count = (last - after) as usize;
        recorder.events(count).await;
        ctx.store.barrier().await.unwrap();
        let calls = recorder.calls.lock();
        let revisions: Vec<_> = calls.events.iter().map(Event::revision).collect();
        assert_eq!(revisions, (after + 1..=last).collect::<Vec<_>>());
        if after < last {
            assert!(calls.events.last().unwrap().prev().is_some());
        }
    }
}

async fn watch_under_concurrent_writers(ctx: Ctx) {
    const WRITERS: usize = 8;
    const WRITES: usize = 50;
    let start = ctx.put("start", "x").await;
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let ctx = ctx.clone();
        tasks.push(tokio::spawn(async move {
            let mut revisions = Vec::new();
            for nth in 0..WRITES {
                let name = format!("{writer}/{}", nth % 7);
                revisions.push(if nth % 8 == 7 {
                    ctx.delete(&name).await
                } else {
                    ctx.put(&name, &nth.to_string()).await
                });
            }
            revisions
        }));
    }
    // Watches that start during the writes, from the beginning and from now.
    let mut watches = Vec::new();
    for nth in 0..10 {
        let recorder = Recorder::default();
        let after = if nth % 2 == 0 { start } else { ctx.store.revision() };
        let handle = ctx.store.watch(&ctx.prefix, after, recorder.sink()).await.unwrap();
        watches.push((recorder, after, handle));
        // The watches begin at different moments of the writes.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let mut written = Vec::new();
    for task in tasks {
        written.extend(task.await.unwrap());
    }
    written.sort_unstable();
    ctx.store.barrier().await.unwrap();
    for (recorder, after, _handle) in &watches {
        let calls = recorder.calls.lock();
        let revisions: Vec<_> = calls.events.iter().map(Event::revision).collect();
        let expected: Vec<_> = written.iter().copied().filter(|revision| revision > after).collect();
        assert_eq!(revisions, expected, "watch after {after}");
        // The previous value of an event equals the result of the events before it.
        let mut state = std::collections::BTreeMap::new();
        for event in &calls.events {
            if let Some(seen) = state.get(event.key()) {
                assert_eq!(event.prev(), Some(seen));
            }
            match event {
                Event::Put { kv, .. } => state.insert(kv.key.clone(), kv.clone()),
                Event::Delete { key, .. } => state.remove(key),
            };
        }
    }
}

async fn watch_cancelled(ctx: Ctx) {
    let start = ctx.put("a", "1").await;
    let (ended, other) = (Recorder::default(), Recorder::default());
    let handle = ctx.store.watch(&ctx.prefix, start, ended.sink()).await.unwrap();
    let _other = ctx.store.watch(&ctx.prefix, start, other.sink()).await.unwrap();
    ctx.put("a", "2").await;
    ended.events(1).await;
    drop(handle);
    // Events that were under way when the handle was dropped may still arrive: two rounds without one end the wait.
    let mut quiet = 0;
    for round in 0..50 {
        let seen = ended.calls.lock().events.len();
        ctx.put("a", &format!("round {round}")).await;
        other.events(2 + round).await;
        ctx.store.barrier().await.unwrap();
        quiet = if ended.calls.lock().events.len() == seen { quiet + 1 } else { 0 };
        if quiet == 2 {
            return;
        }
    }
    panic!("a dropped watch still received events after 50 writes");
}

async fn barrier(ctx: Ctx) {
    let start = ctx.put("a", "0").await;
    let (busy, quiet) = (Recorder::default(), Recorder::default());
    let _busy = ctx.store.watch(&ctx.prefix, start, busy.sink()).await.unwrap();
    let _quiet = ctx.store.watch(&ctx.key("none/"), start, quiet.sink()).await.unwrap();
    for nth in 1..=20 {
        let written = ctx.put("a", &nth.to_string()).await;
        let revision = ctx.store.barrier().await.unwrap();
        assert!(revision >= written && ctx.store.revision() >= written);
        let calls = busy.calls.lock();
        assert_eq!(calls.events.len(), nth);
        assert_eq!(calls.events.last().map(Event::revision), Some(written));
        assert!(quiet.calls.lock().progress >= revision, "the quiet watch knows how far the store is");
    }
}

async fn lease_revoked(ctx: Ctx) {
    let lease = ctx.store.grant_lease(Duration::from_secs(60)).await.unwrap();
    let other = ctx.store.grant_lease(Duration::from_secs(60)).await.unwrap();
    assert_ne!(lease, other);
    ctx.put_with("goes", "1", Some(lease)).await;
    ctx.put_with("also", "1", Some(lease)).await;
    ctx.put_with("stays", "1", Some(other)).await;
    ctx.put_with("freed", "1", Some(lease)).await;
    ctx.put("freed", "2").await;
    ctx.put_with("moved", "1", Some(lease)).await;
    let start = ctx.put_with("moved", "2", Some(other)).await;
    let recorder = Recorder::default();
    let _watch = ctx.store.watch(&ctx.prefix, start, recorder.sink()).await.unwrap();
    ctx.store.keep_alive(lease).await.unwrap();
    ctx.store.revoke_lease(lease).await.unwrap();
    recorder.events(2).await;
    let mut gone: Vec<_> = recorder.calls.lock().summary().into_iter().map(|(_, key)| key).collect();
    gone.sort();
    assert_eq!(gone, [format!("-{}", ctx.key("also")), format!("-{}", ctx.key("goes"))]);
    assert!(recorder.calls.lock().events.iter().all(|event| event.prev().is_some()));
    let left = ctx.list(None, 0).await.unwrap();
    assert_eq!(show(&ctx.prefix, &left), "freed=2 moved=2 stays=1");
    for result in [ctx.store.revoke_lease(lease).await, ctx.store.keep_alive(lease).await] {
        assert!(matches!(result, Err(StoreError::LeaseNotFound(id)) if id == lease), "{result:?}");
    }
    let op = Op::Put { value: Bytes::new(), lease: Some(lease) };
    let result = ctx.try_txn("new", Expect::Any, op).await;
    assert!(matches!(result, Err(StoreError::LeaseNotFound(id)) if id == lease), "{result:?}");
    ctx.store.revoke_lease(other).await.unwrap();
}

async fn lease_expires(ctx: Ctx) {
    let short = ctx.store.grant_lease(Duration::from_secs(2)).await.unwrap();
    let renewed = ctx.store.grant_lease(Duration::from_secs(2)).await.unwrap();
    ctx.put_with("kept", "1", Some(renewed)).await;
    let start = ctx.put_with("short", "1", Some(short)).await;
    let recorder = Recorder::default();
    let _watch = ctx.store.watch(&ctx.prefix, start, recorder.sink()).await.unwrap();
    let renewing = async {
        loop {
            tokio::time::sleep(Duration::from_millis(400)).await;
            ctx.store.keep_alive(renewed).await.unwrap();
        }
    };
    tokio::select! {
        () = renewing => {}
        () = recorder.events(1) => {}
    }
    assert_eq!(recorder.calls.lock().summary()[0].1, format!("-{}", ctx.key("short")));
    assert!(ctx.get("short").await.is_none());
    assert!(ctx.get("kept").await.is_some());
    ctx.store.revoke_lease(renewed).await.unwrap();
}

async fn unusual_keys_and_values(ctx: Ctx) {
    let big = "x".repeat(1 << 20);
    for (name, value) in [("empty", ""), ("größe/日本", "ü"), ("\u{10ffff}", "last"), ("big", &big)] {
        ctx.put(name, value).await;
        assert_eq!(ctx.get(name).await.unwrap().value, value.as_bytes(), "{name}");
    }
    assert_eq!(ctx.list(None, 0).await.unwrap().count, 4);
    let empty = Txn { key: "".into(), expect: Expect::Any, op: put("x") };
    let result = ctx.store.txn(empty).await;
    assert!(matches!(result, Err(StoreError::Refused { .. })), "{result:?}");
    let huge = "x".repeat(9 << 20);
    let result = ctx.try_txn("huge", Expect::Any, put(&huge)).await;
    assert!(matches!(result, Err(StoreError::TooLarge { .. })), "{:?}", result.map(|_| ()));
    assert!(ctx.get("huge").await.is_none());
}

async fn contended_counter(ctx: Ctx) {
    const TASKS: usize = 8;
    const EACH: usize = 10;
    ctx.put("n", "0").await;
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let ctx = ctx.clone();
        tasks.push(tokio::spawn(async move {
            let mut current = ctx.get("n").await.unwrap();
            for _ in 0..EACH {
                loop {
                    let n: usize = std::str::from_utf8(&current.value).unwrap().parse().unwrap();
                    let next = put(&(n + 1).to_string());
                    match ctx.try_txn("n", Expect::Revision(current.mod_revision), next).await.unwrap() {
                        Outcome::Committed { .. } => {
                            current = ctx.get("n").await.unwrap();
                            break;
                        }
                        Outcome::Conflict { current: found, .. } => current = found.unwrap(),
                    }
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let end = ctx.get("n").await.unwrap();
    assert_eq!(end.value, (TASKS * EACH).to_string());
    assert_eq!(end.version, (TASKS * EACH) as u64 + 1);
}
