//! CertificateSigning: writing the certificate of a signing request needs the verb `sign` on its signer.

use super::{Attributes, Operation, Plugin, signers};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::Value;
use machinery::status::Result;

pub struct CertificateSigning;

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.is_subresource(signers::GROUP, signers::REQUESTS, "status")
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let (Some(new), Some(old)) = (object, old) else { return Ok(()) };
        let same = |field: &str| new.field("status").field(field) == old.field("status").field(field);
        if same("certificate") && same("conditions") {
            return Ok(());
        }
        let signer = old.field("spec").text("signerName");
        if signers::may(registry, attributes.context.user, "sign", signer).await? {
            return Ok(());
        }
        let why = format!("user not permitted to sign requests with signerName {signer:?}");
        Err(attributes.forbidden(why))
    }
}
