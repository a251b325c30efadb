//! ServiceAccount.

use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::Value;
use machinery::meta;
use serde_json::json;

pub static KIND: Kind = Kind {
    prepare_create: clean_secret_references,
    prepare_update: |new, _| clean_secret_references(new),
    warnings,
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    table: &crate::tables::config::SERVICE_ACCOUNT,
    returns_deleted: true,
    ..Kind::new("", "v1", "ServiceAccount", "serviceaccounts", Scope::Namespaced)
};

const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// Drops all fields of secret references but the name: the namespace is always that of the account.
fn clean_secret_references(account: &mut Value) {
    for secret in account.items_mut("secrets") {
        *secret = match secret.text("name") {
            "" => json!({}),
            name => json!({"name": name}),
        };
    }
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let enforces = |account: &Value| meta::annotation(account, ENFORCE_MOUNTABLE_SECRETS).is_some();
    if !enforces(new) || old.is_some_and(enforces) {
        return Vec::new();
    }
    vec![format!(
        "metadata.annotations[{ENFORCE_MOUNTABLE_SECRETS}]: deprecated in v1.32+; \
         prefer separate namespaces to isolate access to mounted secrets"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_references_retain_only_name() {
        let mut account = json!({"secrets": [{"name": "a", "namespace": "b", "uid": "c"}, {"kind": "x"}]});
        clean_secret_references(&mut account);
        assert_eq!(account, json!({"secrets": [{"name": "a"}, {}]}));
    }
}
