//! CertificateSubjectRestriction: nobody can ask for a client certificate of the group that may do everything.

use super::{Attributes, Operation, Plugin, signers};
use crate::authorize::MASTERS;
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::status::Result;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && attributes.is(signers::GROUP, signers::REQUESTS)
    }

    fn validate<'a>(
        &'a self,
        _registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(spec) = object.map(|request| request.field("spec")) else { return Ok(()) };
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
        })
    }
}

/// The organizations of a request's subject; `None` if it cannot be read.
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
    fn what_is_no_request_has_no_subject() {
        assert_eq!(organizations("???"), None);
        assert_eq!(organizations(&STANDARD.encode("no PEM")), None);
    }
}
