//! Certificate signing requests: one loop approves those of kubelets, one signs what was approved, one clears away.

pub mod approving;
pub mod cleaner;
pub mod request;
pub mod signing;
mod subject;

use objects::certificates::v1::CertificateSigningRequest;

/// The user that all three loops are.
const IDENTITY: &str = "system:serviceaccount:kube-system:certificate-controller";

/// The request has a condition of this kind that holds.
fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}
