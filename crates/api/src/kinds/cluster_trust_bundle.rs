//! ClusterTrustBundle: CA certificates that pods may trust.

use crate::field_selectors::{LabelError, Selectable};
use crate::kind::{SelectableField, renamed_version};
use crate::validation::certificates::{signer_name, trust_bundle};
use crate::validation::checks::{immutable, invalid_each};
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};

pub static KIND: Kind = Kind {
    // The name depends on the signer: see `validate`.
    validate_name: |_, _| Vec::new(),
    validate: |bundle| validate(bundle, true),
    validate_update: |new, old| {
        let text = |object: &Value| object.field("spec").text("trustBundle").to_owned();
        let mut errors = validate(new, text(new) != text(old));
        let (new, old) = (new.at("spec.signerName"), old.at("spec.signerName"));
        errors.extend(immutable(&Path::new("spec").child("signerName"), new, old));
        errors
    },
    unconditional_update: false,
    selectable: Selectable::new(SELECTABLE, LabelError::Label),
    table: &crate::tables::certificates::CLUSTER_TRUST_BUNDLE,
    ..Kind::new("certificates.k8s.io", "v1beta1", "ClusterTrustBundle", "clustertrustbundles", Scope::Cluster)
};

pub static KIND_V1ALPHA1: Kind = renamed_version!(
    KIND,
    "certificates.k8s.io",
    "v1beta1",
    "v1alpha1",
    Some("certificates.k8s.io/v1alpha1 ClusterTrustBundle is deprecated in v1.34+, unavailable in v1.37+")
);

const SELECTABLE: &[SelectableField] = {
    use crate::field_selectors::{NAME, field, text};
    &[NAME, field("spec.signerName", |bundle| text(bundle, "/spec/signerName"))]
};

/// An unchanged bundle is not parsed again.
fn validate(bundle: &Value, parse: bool) -> ErrorList {
    let (path, spec) = (Path::new("spec"), bundle.field("spec"));
    let signer = spec.text("signerName");
    let metadata = Path::new("metadata");
    let name = meta::name(bundle);
    let mut errors = invalid_each(&metadata.child("name"), name, name_problems(name, signer));
    if !signer.is_empty() {
        errors.extend(signer_name(signer, &path.child("signerName")));
    }
    if parse {
        let path = path.child("trustBundle");
        let text = spec.text("trustBundle");
        match text.len() > MAX_BYTES {
            true => errors.push(FieldError::too_long(&path, MAX_BYTES)),
            false => errors.extend(
                trust_bundle(text)
                    .into_iter()
                    .map(|detail| FieldError::invalid_str(&path, "<value omitted>", detail)),
            ),
        }
    }
    errors
}

const MAX_BYTES: usize = 1 << 20;

/// Bundles of a signer have its name as prefix, others no colon.
fn name_problems(name: &str, signer: &str) -> Vec<String> {
    if signer.is_empty() {
        return match name.contains(':') {
            true => vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()],
            false => names::dns_subdomain(name, false),
        };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::dns_subdomain(rest, false),
        None => {
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn name_follows_the_signer() {
        let errors = |name: &str, signer: &str| {
            let object = json!({"metadata": {"name": name}, "spec": {"signerName": signer}});
            validate(&object, false).len()
        };
        assert_eq!(errors("plain", ""), 0);
        assert_eq!(errors("a:b", ""), 1);
        assert_eq!(errors("example.com:s:x", "example.com/s"), 0);
        assert_eq!(errors("x", "example.com/s"), 1);
    }

    #[test]
    fn bundle_without_certificates_is_rejected_unless_unchanged() {
        let object = json!({"metadata": {"name": "x"}, "spec": {"trustBundle": "nothing"}});
        let errors: Vec<String> = validate(&object, true).iter().map(FieldError::to_string).collect();
        assert_eq!(
            errors,
            [
                "spec.trustBundle: Invalid value: \"<value omitted>\": at least one trust anchor must be provided"
            ]
        );
        assert_eq!((KIND.validate_update)(&object, &object), Vec::new());
        let large = json!({"metadata": {"name": "x"}, "spec": {"trustBundle": "x".repeat(MAX_BYTES + 1)}});
        assert_eq!(validate(&large, true).len(), 1);
    }
}
