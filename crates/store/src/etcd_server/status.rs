//! Health, version and status of the store.

use http::StatusCode;
use tonic::body::Body;

use super::{Server, header, signed};
use crate::etcd::rpc;

/// The version in responses, by which clients enable features. Every served part of the API behaves as in this version.
pub const VERSION: &str = "3.6.0";

/// `etcdserverpb.StatusRequest`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct StatusRequest {}

/// `etcdserverpb.StatusResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<rpc::ResponseHeader>,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(int64, tag = "3")]
    db_size: i64,
    #[prost(uint64, tag = "4")]
    leader: u64,
    #[prost(uint64, tag = "5")]
    raft_index: u64,
    #[prost(uint64, tag = "6")]
    raft_term: u64,
    #[prost(uint64, tag = "7")]
    raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    errors: Vec<String>,
    #[prost(int64, tag = "9")]
    db_size_in_use: i64,
}

impl Server {
    pub(super) fn status(&self) -> StatusResponse {
        let (health, revision) = (self.store.health(), self.store.revision());
        let size = health.size_bytes.map_or(0, signed);
        StatusResponse {
            header: header(revision),
            version: VERSION.to_owned(),
            db_size: size,
            db_size_in_use: size,
            leader: 1,
            raft_index: revision,
            raft_applied_index: revision,
            raft_term: 1,
            errors: health.failure.into_iter().collect(),
        }
    }

    /// `GET /health` in etcd's form.
    pub(super) fn health(&self) -> http::Response<Body> {
        match self.store.health().failure {
            None => json(StatusCode::OK, r#"{"health":"true","reason":""}"#.to_owned()),
            Some(reason) => {
                tracing::warn!(%reason, "health check of the store failed");
                json(
                    StatusCode::SERVICE_UNAVAILABLE,
                    r#"{"health":"false","reason":"STORE FAILED"}"#.to_owned(),
                )
            }
        }
    }
}

/// `GET /version` in etcd's form.
pub(super) fn version() -> http::Response<Body> {
    json(StatusCode::OK, format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"3.6.0","storage":"3.6.0"}}"#))
}

fn json(code: StatusCode, body: String) -> http::Response<Body> {
    let mut response = http::Response::new(Body::new(body));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
