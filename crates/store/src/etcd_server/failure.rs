//! Store errors as etcd's codes and messages, which clients match on.

use tonic::Status;

use crate::error::StoreError;

/// Converts a store error to etcd's status.
pub(super) fn failure(error: &StoreError) -> Status {
    match error {
        StoreError::Compacted { .. } => {
            Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
        }
        StoreError::FutureRevision { .. } => {
            Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
        }
        StoreError::LeaseNotFound(_) => Status::not_found("etcdserver: requested lease not found"),
        StoreError::TooLarge { .. } => Status::invalid_argument("etcdserver: request is too large"),
        StoreError::NoSpace | StoreError::QuotaExceeded => {
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded")
        }
        other => Status::unavailable(other.to_string()),
    }
}
