//! Connections to the members of the cluster: failover, backoff and classification of failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Request, Response, Status};

use super::EtcdOptions;
use super::pauses::Pauses;
use crate::error::{Result, StoreError};

/// Time limit of one attempt of a read; the rest of the deadline is for other members.
const ATTEMPT: Duration = Duration::from_secs(3);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// All members; one of them is in use until it fails.
pub(super) struct Connections {
    channels: Vec<Channel>,
    current: AtomicUsize,
    timeout: Duration,
}

/// Retry policy for requests with an unknown outcome.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    /// Idempotent: the request is retried on any failure.
    Repeatable,
    /// Not idempotent: the request is retried only if it had no effect.
    Once,
}

/// Classification of a failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request had no effect; another member may succeed.
    NotApplied,
    /// The request may have had an effect.
    Ambiguous,
    Compacted,
    FutureRevision,
    LeaseNotFound,
    TooLarge,
    NoSpace,
    Refused,
}

impl Failure {
    fn of(status: &Status) -> Self {
        let message = status.message();
        let mut source = std::error::Error::source(status);
        while let Some(error) = source {
            if error.is::<ConnectError>() {
                return Self::NotApplied;
            }
            source = error.source();
        }
        match status.code() {
            Code::OutOfRange if message.contains("compacted") => Self::Compacted,
            Code::OutOfRange if message.contains("future revision") => Self::FutureRevision,
            Code::NotFound if message.contains("lease not found") => Self::LeaseNotFound,
            Code::InvalidArgument if message.contains("too large") => Self::TooLarge,
            Code::ResourceExhausted if message.contains("larger than max") => Self::TooLarge,
            Code::ResourceExhausted if message.contains("space exceeded") => Self::NoSpace,
            Code::ResourceExhausted if message.contains("too many requests") => Self::NotApplied,
            Code::Unavailable if message.contains("no leader") => Self::NotApplied,
            Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Aborted
            | Code::DataLoss => Self::Ambiguous,
            _ => Self::Refused,
        }
    }
}

/// A failed call: classification and message.
pub(super) struct Failed {
    pub failure: Failure,
    pub reason: Arc<str>,
}

impl Connections {
    pub fn new(options: &EtcdOptions) -> Result<Self> {
        let refused = |reason: String| StoreError::Refused { reason: reason.into() };
        if options.endpoints.is_empty() {
            return Err(refused("no etcd endpoints specified".to_owned()));
        }
        let mut channels = Vec::new();
        for address in &options.endpoints {
            let address = match (address.contains("://"), &options.tls) {
                (true, _) => address.clone(),
                (false, Some(_)) => format!("https://{address}"),
                (false, None) => format!("http://{address}"),
            };
            let invalid = |error| refused(format!("etcd endpoint {address}: {}", chain(&error)));
            let mut endpoint = Endpoint::from_shared(address.clone())
                .map_err(invalid)?
                .connect_timeout(options.connect_timeout)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(5))
                .keep_alive_while_idle(true);
            if let Some(tls) = &options.tls {
                let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
                if let Some((certificate, key)) = &tls.identity {
                    config = config.identity(Identity::from_pem(certificate, key));
                }
                endpoint = endpoint.tls_config(config).map_err(invalid)?;
            }
            channels.push(endpoint.connect_lazy());
        }
        Ok(Self { channels, current: AtomicUsize::new(0), timeout: options.request_timeout })
    }

    /// The member in use, and its number for [`Self::give_up_on`].
    pub fn current(&self) -> (usize, Grpc<Channel>) {
        let number = self.current.load(Ordering::Relaxed);
        let channel = self.channels[number % self.channels.len()].clone();
        // Ranges can be large; they are bounded by what the store holds.
        (number, Grpc::new(channel).max_decoding_message_size(usize::MAX))
    }

    /// Switches to the next member, unless another task already has.
    pub fn give_up_on(&self, number: usize) {
        let next = number.wrapping_add(1);
        let _ = self.current.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Calls a member, and other members if a retry is safe, until the deadline.
    pub async fn call<T, F>(&self, effect: Effect, attempt: impl Fn(Grpc<Channel>) -> F) -> Result<T, Failed>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + self.timeout;
        let mut pauses = Pauses::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let (number, grpc) = self.current();
            let left = deadline.saturating_duration_since(Instant::now());
            let patience = match effect {
                Effect::Repeatable => left.min(ATTEMPT),
                Effect::Once => left,
            };
            let (failure, reason) = match timeout(patience, attempt(grpc)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => (Failure::of(&status), chain(&status)),
                Err(_) => (Failure::Ambiguous, format!("no response within {patience:?}")),
            };
            let again = match failure {
                Failure::NotApplied => true,
                Failure::Ambiguous => matches!(effect, Effect::Repeatable),
                _ => false,
            };
            if matches!(failure, Failure::NotApplied | Failure::Ambiguous) {
                self.give_up_on(number);
            }
            let pause = pauses.advance();
            if !again || Instant::now() + pause >= deadline {
                return Err(Failed { failure, reason: reason.into() });
            }
            tracing::debug!(%reason, "etcd call failed, trying another member");
            sleep(pause).await;
        }
    }
}

/// The message with those of its sources.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = match error.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    };
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

/// A request that a member without a leader rejects immediately instead of queueing it.
pub(super) fn request<T>(message: T) -> Request<T> {
    with_leader(Request::new(message))
}

pub(super) fn with_leader<T>(mut request: Request<T>) -> Request<T> {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_code_determines_retry_of_failed_call() {
        for (code, message, expected) in [
            (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", "Compacted"),
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", "FutureRevision"),
            (Code::NotFound, "etcdserver: requested lease not found", "LeaseNotFound"),
            (Code::InvalidArgument, "etcdserver: request is too large", "TooLarge"),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "NoSpace"),
            (Code::Unavailable, "etcdserver: no leader", "NotApplied"),
            (Code::Unavailable, "etcdserver: leader changed", "Ambiguous"),
            (Code::Unavailable, "etcdserver: request timed out", "Ambiguous"),
            (Code::Unknown, "transport error", "Ambiguous"),
            (Code::InvalidArgument, "etcdserver: key is not provided", "Refused"),
            (Code::PermissionDenied, "etcdserver: permission denied", "Refused"),
        ] {
            assert_eq!(format!("{:?}", Failure::of(&Status::new(code, message))), expected, "{message}");
        }
    }
}
