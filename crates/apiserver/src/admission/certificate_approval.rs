//! CertificateApproval: who approves a signing request has to be allowed to approve for its signer.

use super::{Attributes, Operation, Plugin, signers};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::status::Result;

pub struct CertificateApproval;

impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.is_subresource(signers::GROUP, signers::REQUESTS, "approval")
    }

    fn validate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        _object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(request) = old else { return Ok(()) };
            let signer = request.field("spec").text("signerName");
            if signers::may(registry, attributes.context.user, "approve", signer).await? {
                return Ok(());
            }
            let why = format!("user not permitted to approve requests with signerName {signer:?}");
            Err(attributes.forbidden(why))
        })
    }
}
