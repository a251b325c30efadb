//! The etcd backend: an etcd cluster of version 3.4 or later through its v3 API.
//!
//! [`connections`] selects a responding member and classifies failures; [`watches`] multiplexes all watches onto one
//! watch of etcd and resumes them after a failure; [`rpc`] is generated.

mod connections;
mod convert;
mod pauses;
#[expect(clippy::enum_variant_names, reason = "generated; the names are the protocol's")]
pub(crate) mod rpc;
mod watches;

use futures_util::future::BoxFuture;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use tokio::io::AsyncWriteExt as _;
use tonic::client::Grpc;
use tonic::transport::Channel;

use self::connections::{Connections, Effect, Failed, Failure, request};
use self::convert::{key_value, txn_outcome, txn_request};
use self::watches::Watches;
use crate::contract::{
    KeyValue, LeaseId, Op, Outcome, RangeRequest, RangeResponse, Revision, Store, Txn, WatchHandle, WatchSink,
};
use crate::error::{Result, StoreError};

/// etcd's default limit of a request.
const LARGEST: usize = 3 << 19;

/// A key that is never written, read to obtain the revision. It sorts outside of any path.
const PROBE: &str = "ferry.probe";

/// Settings of the etcd backend.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// `host:port` or URLs of the members.
    pub endpoints: Vec<String>,
    pub tls: Option<EtcdTls>,
    /// Time for connecting to a member.
    pub connect_timeout: Duration,
    /// Time for a request, attempts on several members included.
    pub request_timeout: Duration,
}

impl EtcdOptions {
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(10),
        }
    }
}

/// Certificates, PEM encoded.
#[derive(Clone)]
pub struct EtcdTls {
    /// Authorities of the members' certificates.
    pub ca: Vec<u8>,
    /// Certificate chain and key to authenticate with.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// A store in an etcd cluster.
pub struct Etcd {
    cluster: Arc<Cluster>,
    watches: Watches,
}

/// State shared by requests and watches.
struct Cluster {
    connections: Connections,
    /// The latest revision seen in any answer.
    revision: AtomicU64,
    /// A compacted revision, or the oldest retained one.
    compacted: AtomicU64,
    request_timeout: Duration,
}

impl Etcd {
    /// Connects to the cluster; fails if no member answers in time.
    ///
    /// ```no_run
    /// use store::{Etcd, EtcdOptions};
    ///
    /// # async fn connect() -> store::Result<()> {
    /// let store = Etcd::connect(EtcdOptions::new(["https://10.0.0.1:2379"])).await?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(options: EtcdOptions) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let cluster = Arc::new(Cluster {
                connections: Connections::new(&options)?,
                revision: AtomicU64::new(1),
                compacted: AtomicU64::new(1),
                request_timeout: options.request_timeout,
            });
            cluster.current_revision().await?;
            let watches = Watches::start(cluster.clone());
            Ok(Self { cluster, watches })
        })
    }

    /// Rejects a compacted or future starting revision; returns the store's revision.
    async fn check_revision(&self, revision: Revision) -> Result<Revision> {
        let probe = self.cluster.probe(Some(revision)).await;
        match probe {
            Ok(now) => Ok(now),
            Err(failed) => Err(self.cluster.read_error(failed, revision).await),
        }
    }
}

impl Cluster {
    /// Records the revision of a response header.
    fn saw(&self, header: Option<&rpc::ResponseHeader>) -> Revision {
        let revision = header.map_or(0, |header| header.revision as Revision);
        self.revision.fetch_max(revision, Ordering::AcqRel);
        revision
    }

    async fn range(&self, message: rpc::RangeRequest) -> Result<rpc::RangeResponse, Failed> {
        let message = &message;
        let attempt = |grpc| async move { rpc::KvClient::new(grpc).range(request(message.clone())).await };
        let response = self.connections.call(Effect::Repeatable, attempt).await?;
        self.saw(response.header.as_ref());
        Ok(response)
    }

    /// A linearizable read of a missing key; returns the store's revision.
    async fn probe(&self, revision: Option<Revision>) -> Result<Revision, Failed> {
        let revision = revision.unwrap_or(0) as i64;
        let message =
            rpc::RangeRequest { key: PROBE.into(), revision, count_only: true, ..Default::default() };
        let response = self.range(message).await?;
        Ok(response.header.map_or(0, |header| header.revision as Revision))
    }

    async fn current_revision(&self) -> Result<Revision> {
        match self.probe(None).await {
            Ok(revision) => Ok(revision),
            Err(failed) => Err(self.read_error(failed, 0).await),
        }
    }

    async fn txn(&self, txn: &Txn) -> Result<Outcome> {
        let message = &txn_request(txn);
        let attempt = |grpc| async move { rpc::KvClient::new(grpc).txn(request(message.clone())).await };
        match self.connections.call(Effect::Once, attempt).await {
            Ok(response) => {
                self.saw(response.header.as_ref());
                txn_outcome(response)
            }
            Err(failed) => Err(write_error(failed, txn)),
        }
    }

    /// The error for a failed read at a revision.
    async fn read_error(&self, failed: Failed, requested: Revision) -> StoreError {
        match failed.failure {
            Failure::Compacted => {
                // Best effort: the error is the same without the exact bound.
                let compacted = Box::pin(self.find_compacted()).await.unwrap_or(requested + 1);
                StoreError::Compacted { requested, compacted }
            }
            Failure::FutureRevision => {
                let current = self.revision.load(Ordering::Acquire);
                StoreError::FutureRevision { requested, current }
            }
            Failure::NotApplied | Failure::Ambiguous => StoreError::Unavailable { reason: failed.reason },
            Failure::NoSpace => StoreError::NoSpace,
            Failure::Refused | Failure::LeaseNotFound | Failure::TooLarge => {
                StoreError::Refused { reason: failed.reason }
            }
        }
    }

    /// etcd does not report its compacted revision, but accepts a read at any revision: binary search.
    async fn find_compacted(&self) -> Result<Revision> {
        let mut gone = self.compacted.load(Ordering::Acquire) - 1;
        let mut retained = self.current_revision().await?;
        while gone + 1 < retained {
            // Usually nothing has changed since the last call.
            let known = self.compacted.load(Ordering::Acquire);
            let middle = if gone + 1 == known { known } else { gone + (retained - gone) / 2 };
            match self.probe(Some(middle)).await {
                Ok(_) => retained = middle,
                Err(Failed { failure: Failure::Compacted, .. }) => gone = middle,
                Err(failed) => return Err(Box::pin(self.read_error(failed, middle)).await),
            }
        }
        self.compacted.fetch_max(retained, Ordering::AcqRel);
        Ok(retained)
    }
}

/// The error for a failed write.
fn write_error(failed: Failed, txn: &Txn) -> StoreError {
    let Failed { failure, reason } = failed;
    let (value, lease) = match &txn.op {
        Op::Put { value, lease } => (value.len(), *lease),
        Op::Delete => (0, None),
    };
    match failure {
        Failure::NotApplied => StoreError::Unavailable { reason },
        Failure::Ambiguous => StoreError::OutcomeUnknown { key: txn.key.clone(), reason },
        Failure::LeaseNotFound => StoreError::LeaseNotFound(lease.unwrap_or(LeaseId(0))),
        Failure::TooLarge => {
            StoreError::TooLarge { key: txn.key.clone(), size: txn.key.len() + value, limit: LARGEST }
        }
        Failure::NoSpace => StoreError::NoSpace,
        Failure::Refused | Failure::Compacted | Failure::FutureRevision => StoreError::Refused { reason },
    }
}

fn lease_error(failed: Failed, lease: LeaseId) -> StoreError {
    match failed.failure {
        Failure::LeaseNotFound => StoreError::LeaseNotFound(lease),
        Failure::NotApplied | Failure::Ambiguous => StoreError::Unavailable { reason: failed.reason },
        Failure::NoSpace => StoreError::NoSpace,
        _ => StoreError::Refused { reason: failed.reason },
    }
}

#[async_trait]
impl Store for Etcd {
    async fn get(&self, key: &str) -> Result<(Option<KeyValue>, Revision)> {
        let message = rpc::RangeRequest { key: key.into(), ..Default::default() };
        match self.cluster.range(message).await {
            Ok(response) => {
                let revision = self.cluster.saw(response.header.as_ref());
                Ok((response.kvs.into_iter().next().map(key_value).transpose()?, revision))
            }
            Err(failed) => Err(self.cluster.read_error(failed, 0).await),
        }
    }

    async fn range(&self, range: RangeRequest) -> Result<RangeResponse> {
        let RangeRequest { start, end, limit, revision } = range;
        let requested = revision.unwrap_or(0);
        if start >= end {
            let probe = self.cluster.probe(revision).await;
            return match probe {
                Ok(revision) => Ok(RangeResponse { kvs: Vec::new(), more: false, count: 0, revision }),
                Err(failed) => Err(self.cluster.read_error(failed, requested).await),
            };
        }
        let message = rpc::RangeRequest {
            // etcd has no empty key.
            key: if start.is_empty() { vec![0] } else { start.into_bytes() },
            range_end: end.into_bytes(),
            limit: i64::try_from(limit).unwrap_or(0),
            revision: requested as i64,
            ..Default::default()
        };
        match self.cluster.range(message).await {
            Ok(response) => Ok(RangeResponse {
                more: response.more,
                count: response.count as u64,
                revision: self.cluster.saw(response.header.as_ref()),
                kvs: response.kvs.into_iter().map(key_value).collect::<Result<_>>()?,
            }),
            Err(failed) => Err(self.cluster.read_error(failed, requested).await),
        }
    }

    async fn txn(&self, txn: Txn) -> Result<Outcome> {
        self.cluster.txn(&txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision, sink: Box<dyn WatchSink>) -> Result<WatchHandle> {
        let now = self.check_revision(after).await?;
        self.watches.watch(prefix, after, now, sink).await
    }

    async fn barrier(&self) -> Result<Revision> {
        let revision = self.cluster.current_revision().await?;
        self.watches.wait_for(revision).await?;
        Ok(revision)
    }

    fn revision(&self) -> Revision {
        self.cluster.revision.load(Ordering::Acquire)
    }

    async fn compact(&self, revision: Revision) -> Result<()> {
        let message = &rpc::CompactionRequest { revision: revision as i64, physical: false };
        let attempt = |grpc| async move { rpc::KvClient::new(grpc).compact(request(message.clone())).await };
        match self.cluster.connections.call(Effect::Repeatable, attempt).await {
            Ok(response) => {
                self.cluster.saw(response.header.as_ref());
                self.cluster.compacted.fetch_max(revision, Ordering::AcqRel);
                Ok(())
            }
            // Already compacted.
            Err(Failed { failure: Failure::Compacted, .. }) => Ok(()),
            Err(failed) => Err(self.cluster.read_error(failed, revision).await),
        }
    }

    async fn compacted(&self) -> Result<Revision> {
        self.cluster.find_compacted().await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<LeaseId> {
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let message = &rpc::LeaseGrantRequest { ttl: seconds, id: 0 };
        let attempt =
            |grpc| async move { rpc::LeaseClient::new(grpc).lease_grant(request(message.clone())).await };
        // If the first of two attempts succeeded, its lease expires unused.
        match self.cluster.connections.call(Effect::Repeatable, attempt).await {
            Ok(response) => Ok(LeaseId(response.id)),
            Err(failed) => Err(lease_error(failed, LeaseId(0))),
        }
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        let message = &rpc::LeaseRevokeRequest { id: lease.0 };
        let attempt =
            |grpc| async move { rpc::LeaseClient::new(grpc).lease_revoke(request(message.clone())).await };
        match self.cluster.connections.call(Effect::Repeatable, attempt).await {
            Ok(response) => {
                self.cluster.saw(response.header.as_ref());
                Ok(())
            }
            Err(failed) => Err(lease_error(failed, lease)),
        }
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<()> {
        let attempt = |grpc: Grpc<Channel>| async move {
            let once = stream::iter([rpc::LeaseKeepAliveRequest { id: lease.0 }]);
            let mut answers = rpc::LeaseClient::new(grpc).lease_keep_alive(request(once)).await?.into_inner();
            let answer = answers.message().await?;
            Ok(tonic::Response::new(answer.unwrap_or_default()))
        };
        match self.cluster.connections.call(Effect::Repeatable, attempt).await {
            Ok(response) if response.ttl > 0 => Ok(()),
            Ok(_) => Err(StoreError::LeaseNotFound(lease)),
            Err(failed) => Err(lease_error(failed, lease)),
        }
    }

    async fn snapshot(&self, to: &Path) -> Result<Revision> {
        let revision = self.cluster.current_revision().await?;
        let (_, grpc) = self.cluster.connections.current();
        let unavailable =
            |status: tonic::Status| StoreError::Unavailable { reason: connections::chain(&status).into() };
        let mut maintenance = rpc::MaintenanceClient::new(grpc);
        let answer = maintenance.snapshot(request(rpc::SnapshotRequest {})).await;
        let mut parts = answer.map_err(unavailable)?.into_inner();
        let unnamed = to.with_extension("tmp");
        let failed = |operation| StoreError::io(operation, &unnamed);
        let mut file = tokio::fs::File::create(&unnamed).await.map_err(failed("create"))?;
        while let Some(part) = parts.message().await.map_err(unavailable)? {
            file.write_all(&part.blob).await.map_err(failed("write"))?;
        }
        file.flush().await.map_err(failed("write"))?;
        file.sync_all().await.map_err(failed("sync"))?;
        tokio::fs::rename(&unnamed, to).await.map_err(failed("rename"))?;
        Ok(revision)
    }

    async fn close(&self) {
        self.watches.close().await;
    }
}
