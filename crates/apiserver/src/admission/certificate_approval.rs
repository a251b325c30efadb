//! CertificateApproval: approving a signing request needs the verb `approve` on its signer.

use super::{Attributes, Operation, Plugin, signers};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::Result;

pub struct CertificateApproval;

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.is_subresource(signers::GROUP, signers::REQUESTS, "approval")
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        _object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(request) = old else { return Ok(()) };
        let signer = request.field("spec").text("signerName");
        if signers::may(registry, attributes.context.user, "approve", signer).await? {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(attributes.forbidden(why))
    }
}
