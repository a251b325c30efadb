//! Certificate signing requests: one loop approves those of kubelets, one signs approved ones, one deletes old ones.

pub mod approving;
pub mod cleaner;
pub mod request;
pub mod signing;
mod subject;

use objects::certificates::v1::CertificateSigningRequest;

/// User of all three loops.
const IDENTITY: &str = "system:serviceaccount:kube-system:certificate-controller";

/// True if the condition of this type is `True`.
fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}
