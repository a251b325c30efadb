//! The cleaner of certificate signing requests. Watches them; deletes approved, denied, failed and pending ones after
//! their time limits.

use async_trait::async_trait;
use client::delete_options;
use jiff::{SignedDuration, Timestamp};
use objects::certificates::v1::CertificateSigningRequest;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use x509_parser::prelude::FromDer;

use super::{IDENTITY, is_issued};
use crate::requeue;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "certificatesigningrequest-cleaner-controller",
    resource: "certificatesigningrequests.certificates.k8s.io",
    identity: IDENTITY,
    workers: 1,
};

/// Retention of decided requests, and of pending ones.
const SETTLED: SignedDuration = SignedDuration::from_hours(1);
const UNSETTLED: SignedDuration = SignedDuration::from_hours(24);

struct Cleaner {
    requests: Cache<CertificateSigningRequest>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Cleaner { requests: ctx.watch_self() })
}

#[async_trait]
impl Loop for Cleaner {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(request) = self.requests.get_key(key) else { return Ok(Action::Done) };
        let Some(end) = plan(&request) else { return Ok(Action::Done) };
        let left = end.duration_since(ctx.clock.now());
        if left.is_positive() {
            return Ok(requeue(Some(left)));
        }
        let options = delete_options(request.metadata.uid.as_deref(), None);
        match ctx.client.delete::<CertificateSigningRequest>("", &key.name, &options).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::Done),
        }
    }
}

/// Deletion time of the request.
fn plan(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let conditions =
        request.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    if conditions.is_empty() {
        let created = request.metadata.creation_timestamp.as_ref()?.0;
        return created.checked_add(UNSETTLED).ok();
    }
    let settled = conditions.iter().filter_map(|condition| {
        let stay = match condition.type_.as_str() {
            "Denied" | "Failed" => SETTLED,
            "Approved" if is_issued(request) => SETTLED,
            "Approved" => UNSETTLED,
            _ => return None,
        };
        condition.last_update_time.as_ref()?.0.checked_add(stay).ok()
    });
    settled.chain(expiry(request)).min()
}

/// Expiry of the certificate.
fn expiry(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let pem = request.status.as_ref()?.certificate.as_ref()?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem.0).ok()?;
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(&block.contents).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{at, meta, time};
    use objects::ByteString;
    use objects::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};

    #[test]
    fn decided_requests_expire_after_hour_pending_after_day() {
        let request = |kind: Option<&str>, issued: bool| {
            let mut metadata = meta("r");
            metadata.creation_timestamp = Some(time(0));
            let condition = |kind: &str| CertificateSigningRequestCondition {
                type_: kind.into(),
                status: "True".into(),
                last_update_time: Some(time(1000)),
                ..Default::default()
            };
            CertificateSigningRequest {
                metadata,
                status: Some(CertificateSigningRequestStatus {
                    conditions: kind.map(|kind| vec![condition(kind)]),
                    certificate: issued.then(|| ByteString(b"x".to_vec())),
                }),
                ..Default::default()
            }
        };
        for (kind, issued, expected) in [
            (None, false, 86_400),
            (Some("Denied"), false, 4600),
            (Some("Failed"), false, 4600),
            (Some("Approved"), true, 4600),
            (Some("Approved"), false, 87_400),
        ] {
            assert_eq!(plan(&request(kind, issued)), Some(at(expected)), "{kind:?}");
        }
    }
}
