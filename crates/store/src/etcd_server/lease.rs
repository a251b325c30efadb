//! Leases: grant, revoke and keep alive.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tonic::{Status, Streaming};

use super::failure::failure;
use super::grpc::Messages;
use super::{Server, header};
use crate::contract::LeaseId;
use crate::error::StoreError;
use crate::etcd::rpc;

/// Longest TTL that etcd grants, in seconds.
const LONGEST_TTL: i64 = 9_000_000_000;

/// TTLs of the leases granted since the start. Earlier leases count as having a TTL of one second, so that their
/// clients renew them often enough.
#[derive(Default)]
pub(super) struct Leases(Mutex<HashMap<i64, i64>>);

impl Leases {
    fn ttl(&self, id: i64) -> i64 {
        self.0.lock().get(&id).copied().unwrap_or(1)
    }
}

impl Server {
    pub(super) async fn lease_grant(
        &self,
        request: rpc::LeaseGrantRequest,
    ) -> Result<rpc::LeaseGrantResponse, Status> {
        if request.id != 0 {
            return Err(Status::unimplemented("ferry assigns lease IDs itself"));
        }
        let ttl = request.ttl;
        if ttl > LONGEST_TTL {
            return Err(Status::out_of_range("etcdserver: too large lease TTL"));
        }
        let seconds = u64::try_from(ttl).unwrap_or(0).max(1);
        let lease =
            self.store.grant_lease(Duration::from_secs(seconds)).await.map_err(|error| failure(&error))?;
        self.leases.0.lock().insert(lease.0, ttl.max(1));
        let header = header(self.store.revision());
        Ok(rpc::LeaseGrantResponse { header, id: lease.0, ttl: ttl.max(1), error: String::new() })
    }

    pub(super) async fn lease_revoke(
        &self,
        request: rpc::LeaseRevokeRequest,
    ) -> Result<rpc::LeaseRevokeResponse, Status> {
        self.store.revoke_lease(LeaseId(request.id)).await.map_err(|error| failure(&error))?;
        self.leases.0.lock().remove(&request.id);
        Ok(rpc::LeaseRevokeResponse { header: header(self.store.revision()) })
    }

    async fn renew(&self, id: i64) -> Result<rpc::LeaseKeepAliveResponse, Status> {
        let ttl = match self.store.keep_alive(LeaseId(id)).await {
            Ok(()) => self.leases.ttl(id),
            // etcd reports a missing lease by a TTL of zero.
            Err(StoreError::LeaseNotFound(_)) => {
                self.leases.0.lock().remove(&id);
                0
            }
            Err(error) => return Err(failure(&error)),
        };
        Ok(rpc::LeaseKeepAliveResponse { header: header(self.store.revision()), id, ttl })
    }
}

pub(super) fn keep_alive(
    server: Arc<Server>,
    messages: Streaming<rpc::LeaseKeepAliveRequest>,
) -> Messages<rpc::LeaseKeepAliveResponse> {
    Messages::new(messages.then(move |message| {
        let server = Arc::clone(&server);
        async move { server.renew(message?.id).await }
    }))
}
