//! CertificateSigning: who writes the certificate of a signing request has to be allowed to sign for its signer.

use super::{Attributes, Operation, Plugin, signers};
use crate::registry::Registry;
use api::value::Fields;
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::status::Result;

pub struct CertificateSigning;

impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Update
            && attributes.is_subresource(signers::GROUP, signers::REQUESTS, "status")
    }

    fn validate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
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
        })
    }
}
