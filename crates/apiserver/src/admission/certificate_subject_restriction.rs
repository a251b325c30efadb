//! CertificateSubjectRestriction: rejects requests for client certificates of the group system:masters, and for those of
//! nodes of other machines.

use super::{Attributes, Operation, Plugin, node_names, signers};
use crate::authorize::MASTERS;
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::Result;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is(signers::GROUP, signers::REQUESTS)
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        let Some(request) = object else { return Ok(()) };
        node_names::check(registry, attributes, request).await?;
        let spec = request.field("spec");
        if spec.text("signerName") != SIGNER {
            return Ok(());
        }
        match organizations(spec.text("request")) {
            None => Err(attributes.forbidden("failed to parse CSR")),
            Some(groups) if groups.iter().any(|group| group == MASTERS) => {
                let why = format!("use of {SIGNER} signer with {MASTERS} group is not allowed");
                Err(attributes.forbidden(why))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Organizations of a request's subject; `None` if it cannot be parsed.
fn organizations(request: &str) -> Option<Vec<String>> {
    signers::subject(request, |subject| {
        subject.iter_organization().map(|name| name.as_str().ok().map(str::to_owned)).collect()
    })?
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn malformed_request_has_no_organizations() {
        assert_eq!(organizations("???"), None);
        assert_eq!(organizations(&STANDARD.encode("no PEM")), None);
    }
}
