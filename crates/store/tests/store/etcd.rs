//! The etcd backend against Debian's etcd: the battery, TLS, failover, restarts during requests.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use store::{Etcd, EtcdOptions, EtcdTls, Event, Expect, Op, Outcome, RangeRequest, Store, StoreError, Txn};
use tempfile::TempDir;

use crate::battery::{self, Ctx};
use crate::recorder::Recorder;

/// A member that is killed with the test.
struct Member {
    process: Option<Child>,
    directory: TempDir,
    name: String,
    client: u16,
    peer: u16,
    /// All members with their peer addresses, in etcd's flag syntax.
    cluster: String,
    tls: Option<Certificates>,
}

/// Certificate files for etcd, PEM for the client.
#[derive(Clone)]
struct Certificates {
    directory: PathBuf,
    ours: EtcdTls,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn no_etcd() -> bool {
    let missing = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err();
    if missing {
        println!("skipped: no etcd binary");
    }
    missing
}

impl Member {
    fn start(tls: Option<Certificates>) -> Self {
        let mut member = Self::new("m0", tls);
        member.cluster = member.address();
        member.run();
        member
    }

    fn new(name: &str, tls: Option<Certificates>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (name, cluster) = (name.to_owned(), String::new());
        Self { process: None, directory, name, client: free_port(), peer: free_port(), cluster, tls }
    }

    /// Three members of one cluster.
    fn start_three() -> Vec<Self> {
        let mut members: Vec<_> = ["m0", "m1", "m2"].into_iter().map(|name| Self::new(name, None)).collect();
        let cluster = members.iter().map(Self::address).collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.cluster.clone_from(&cluster);
            member.run();
        }
        members
    }

    fn address(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.peer)
    }

    fn run(&mut self) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client);
        let peer = format!("http://127.0.0.1:{}", self.peer);
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(self.directory.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--name", &self.name, "--initial-cluster", &self.cluster])
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(certificates) = &self.tls {
            let file = |name: &str| certificates.directory.join(name);
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.pem"));
            command.arg("--cert-file").arg(file("server.pem")).arg("--key-file").arg(file("server.key"));
        }
        self.process = Some(command.spawn().expect("start etcd"));
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn options(&self) -> EtcdOptions {
        let mut options = EtcdOptions::new([format!("127.0.0.1:{}", self.client)]);
        options.tls = self.tls.as_ref().map(|certificates| certificates.ours.clone());
        options
    }

    async fn connect(&self) -> Arc<Etcd> {
        match Etcd::connect(self.options()).await {
            Ok(store) => Arc::new(store),
            Err(error) => {
                let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                panic!("{error}\n{log}");
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn certificates(directory: &Path) -> Certificates {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "test CA");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let issue = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![SanType::IpAddress("127.0.0.1".parse().unwrap())];
        (params.signed_by(&key, &ca).unwrap().pem(), key.serialize_pem())
    };
    let (server, server_key) = issue("server");
    let (client, client_key) = issue("client");
    for (name, text) in [("ca.pem", &ca.pem()), ("server.pem", &server), ("server.key", &server_key)] {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let identity = Some((client.into_bytes(), client_key.into_bytes()));
    Certificates { directory: directory.to_owned(), ours: EtcdTls { ca: ca.pem().into_bytes(), identity } }
}

pub async fn pass_battery(store: Arc<dyn Store>) {
    battery::run_all(|name| Ctx::new(store.clone(), name)).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_store_without_tls_passes_battery() {
    if no_etcd() {
        return;
    }
    let member = Member::start(None);
    pass_battery(member.connect().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_store_with_mutual_tls_passes_battery() {
    if no_etcd() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let member = Member::start(Some(certificates(directory.path())));
    pass_battery(member.connect().await).await;

    let mut anonymous = member.options();
    anonymous.request_timeout = Duration::from_secs(1);
    if let Some(tls) = &mut anonymous.tls {
        tls.identity = None;
    }
    let result = Etcd::connect(anonymous).await.map(|_| ());
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
}

#[tokio::test]
async fn missing_cluster_is_unavailable() {
    let mut options = EtcdOptions::new([format!("127.0.0.1:{}", free_port())]);
    options.request_timeout = Duration::from_millis(300);
    let result = Etcd::connect(options).await.map(|_| ());
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
    let nowhere = Etcd::connect(EtcdOptions::new(Vec::<String>::new())).await.map(|_| ());
    assert!(matches!(nowhere, Err(StoreError::Refused { .. })), "{nowhere:?}");
}

#[tokio::test]
async fn dead_member_is_skipped() {
    if no_etcd() {
        return;
    }
    let member = Member::start(None);
    let mut options = member.options();
    options.endpoints.insert(0, format!("127.0.0.1:{}", free_port()));
    let store: Arc<dyn Store> = Arc::new(Etcd::connect(options).await.unwrap());
    let ctx = Ctx::new(store, "failover");
    ctx.put("a", "1").await;
    assert!(ctx.get("a").await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_resume_after_an_etcd_restart() {
    if no_etcd() {
        return;
    }
    let mut member = Member::start(None);
    let store = member.connect().await;
    let ctx = Ctx::new(store.clone(), "restart");
    let start = ctx.put("start", "x").await;
    let (busy, quiet) = (Recorder::default(), Recorder::default());
    let _busy = store.watch("/restart/", start, busy.sink()).await.unwrap();
    let _quiet = store.watch("/elsewhere/", start, quiet.sink()).await.unwrap();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let (mut acknowledged, mut unknown) = (Vec::new(), 0);
                for nth in 0..150 {
                    let key = format!("/restart/{writer}/{}", nth % 10).into();
                    let value = Bytes::from(nth.to_string());
                    let txn = Txn { key, expect: Expect::Any, op: Op::Put { value, lease: None } };
                    match store.txn(txn).await {
                        Ok(Outcome::Committed { revision, .. }) => acknowledged.push(revision),
                        Err(StoreError::OutcomeUnknown { .. }) => unknown += 1,
                        Err(StoreError::Unavailable { .. }) => {}
                        other => panic!("unexpected {other:?}"),
                    }
                    tokio::time::sleep(Duration::from_millis(4)).await;
                }
                (acknowledged, unknown)
            })
        })
        .collect();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        member.kill();
        member.run();
    }
    let (mut acknowledged, mut unknown) = (Vec::new(), 0);
    for writer in writers {
        let (revisions, lost) = writer.await.unwrap();
        acknowledged.extend(revisions);
        unknown += lost;
    }
    acknowledged.sort_unstable();
    let end = store.barrier().await.unwrap();
    let everything =
        RangeRequest { start: "/restart/0".into(), end: "/restart/9".into(), ..Default::default() };
    let found = store.range(everything).await.unwrap();
    let calls = busy.calls.lock();
    let revisions: Vec<_> = calls.events.iter().map(Event::revision).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b), "in order and without duplicates");
    let missing: Vec<_> = acknowledged.iter().filter(|r| revisions.binary_search(r).is_err()).collect();
    assert!(missing.is_empty(), "acknowledged but not told: {missing:?}");
    assert!(revisions.len() <= acknowledged.len() + unknown, "no events out of nothing");
    assert!(quiet.calls.lock().progress >= end);
    // The events add up to the current state.
    let mut state = std::collections::BTreeMap::new();
    for event in &calls.events {
        if let Event::Put { kv, .. } = event {
            state.insert(kv.key.clone(), kv.clone());
        }
    }
    assert_eq!(found.kvs, state.into_values().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_behind_a_compaction_ends_with_an_error() {
    if no_etcd() {
        return;
    }
    let mut member = Member::start(None);
    let store = member.connect().await;
    let ctx = Ctx::new(store.clone(), "missed");
    let start = ctx.put("a", "1").await;
    let recorder = Recorder::default();
    let _watch = store.watch("/missed/", start, recorder.sink()).await.unwrap();
    member.kill();
    member.run();
    // Another client writes and compacts before the watch resumes, in most runs.
    let other = member.connect().await;
    let other_ctx = Ctx::new(other.clone(), "missed");
    for nth in 0..5 {
        other_ctx.put("a", &nth.to_string()).await;
    }
    let last = other.revision();
    other.compact(last).await.unwrap();
    recorder
        .wait("the end of the watch or all events", |calls| calls.closed.is_some() || calls.events.len() == 5)
        .await;
    let calls = recorder.calls.lock();
    if let Some(error) = &calls.closed {
        assert!(matches!(error, StoreError::Compacted { compacted, .. } if *compacted == last), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_is_written() {
    if no_etcd() {
        return;
    }
    let member = Member::start(None);
    let store = member.connect().await;
    let revision = Ctx::new(store.clone(), "snapshot").put("a", "1").await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("etcd.snapshot");
    assert_eq!(store.snapshot(&path).await.unwrap(), revision);
    assert!(std::fs::metadata(&path).unwrap().len() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_survives_a_lost_member_but_not_a_lost_majority() {
    if no_etcd() {
        return;
    }
    let mut members = Member::start_three();
    let mut options = EtcdOptions::new(members.iter().map(|member| format!("127.0.0.1:{}", member.client)));
    options.request_timeout = Duration::from_secs(30);
    let store = Arc::new(Etcd::connect(options.clone()).await.unwrap());
    let ctx = Ctx::new(store.clone(), "cluster");
    let start = ctx.put("start", "x").await;
    let recorder = Recorder::default();
    let _watch = store.watch("/cluster/", start, recorder.sink()).await.unwrap();
    let mut acknowledged = Vec::new();
    for nth in 0..60 {
        if nth == 20 {
            // The member in use.
            members[0].kill();
        }
        let op = Op::Put { value: Bytes::from(nth.to_string()), lease: None };
        let txn = Txn { key: ctx.key("a"), expect: Expect::Any, op };
        match store.txn(txn).await {
            Ok(Outcome::Committed { revision, .. }) => acknowledged.push(revision),
            Err(StoreError::OutcomeUnknown { .. } | StoreError::Unavailable { .. }) => {}
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(acknowledged.len() >= 50, "{} of 60", acknowledged.len());
    store.barrier().await.unwrap();
    {
        let calls = recorder.calls.lock();
        let revisions: Vec<_> = calls.events.iter().map(Event::revision).collect();
        assert!(revisions.is_sorted_by(|a, b| a < b), "in order and without duplicates");
        assert!(acknowledged.iter().all(|revision| revisions.binary_search(revision).is_ok()), "a gap");
    }

    members[1].kill();
    options.request_timeout = Duration::from_secs(2);
    let result = Etcd::connect(options).await.map(|_| ());
    assert!(matches!(&result, Err(StoreError::Unavailable { .. } | StoreError::NoSpace)), "{result:?}");
}

/// Many watches, a reader that is slow at times, large values: etcd then delivers to some watches later than to
/// others, and no event may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watches_under_load_lose_no_event() {
    const PREFIXES: usize = 20;
    if no_etcd() {
        return;
    }
    let member = Member::start(None);
    let store = member.connect().await;
    let start = Ctx::new(store.clone(), "many").put("start", "x").await;
    let recorders: Vec<_> = (0..PREFIXES).map(|_| Recorder::default()).collect();
    let mut handles = Vec::new();
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for nth in 0..200 {
                    let prefix = (writer * 7 + nth) % PREFIXES;
                    let op = Op::Put { value: Bytes::from(vec![b'v'; 20_000]), lease: None };
                    let key = format!("/many/{prefix:02}/{writer}").into();
                    match store.txn(Txn { key, expect: Expect::Any, op }).await.unwrap() {
                        Outcome::Committed { revision, .. } => acknowledged.push((prefix, revision)),
                        conflict @ Outcome::Conflict { .. } => panic!("{conflict:?}"),
                    }
                }
                acknowledged
            })
        })
        .collect();
    // While writes continue: each watch starts in the past and has to catch up.
    for (prefix, recorder) in recorders.iter().enumerate() {
        let watch = store.watch(&format!("/many/{prefix:02}/"), start, recorder.sink()).await.unwrap();
        handles.push(watch);
        store.barrier().await.unwrap();
        // Blocks the runtime's threads, and with them the stream.
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut acknowledged = vec![Vec::new(); PREFIXES];
    for writer in writers {
        for (prefix, revision) in writer.await.unwrap() {
            acknowledged[prefix].push(revision);
        }
    }
    let end = store.barrier().await.unwrap();
    for (recorder, mut wanted) in recorders.iter().zip(acknowledged) {
        wanted.sort_unstable();
        let calls = recorder.calls.lock();
        assert_eq!(calls.events.iter().map(Event::revision).collect::<Vec<_>>(), wanted);
        assert!(calls.progress >= end || wanted.last() == Some(&end), "{} of {end}", calls.progress);
    }
}
