//! ServiceCIDR: a range for the allocation of cluster IPs.

use crate::kind::renamed_version;
use crate::value::{Fields, texts};
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    prepare_create: |range| range.set("status", json!({})),
    prepare_update: crate::kind::keep_status,
    prepare_status_update: crate::kind::keep_metadata_and_spec,
    validate: validate_spec,
    validate_update,
    reset_fields: crate::kind::METADATA_RESET_FIELDS,
    table: &crate::tables::networking::SERVICE_CIDR,
    ..Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", Scope::Cluster)
};

pub static KIND_V1BETA1: Kind = renamed_version!(
    KIND,
    "networking.k8s.io",
    "v1",
    "v1beta1",
    Some("networking.k8s.io/v1beta1 ServiceCIDR is deprecated in v1.34+, unavailable in v1.37+")
);

fn validate_spec(range: &Value) -> ErrorList {
    let spec = range.field("spec");
    let cidrs: Vec<&str> = texts(spec.items("cidrs")).collect();
    let path = Path::new("spec");
    let path = path.child("cidrs");
    if cidrs.is_empty() {
        return vec![FieldError::required(&path, "at least one CIDR required")];
    }
    if cidrs.len() > 2 {
        let shown = format!(r#"{{"CIDRs":{}}}"#, spec.field("cidrs"));
        return vec![FieldError::invalid_shown(&path, shown, "may only hold up to 2 values")];
    }
    let mut errors = Vec::new();
    for (i, cidr) in cidrs.iter().enumerate() {
        errors.extend(names::valid_cidr(&path.index(i), cidr));
    }
    let family = |cidr: &str| names::parse_cidr_sloppy(cidr).map(|cidr| cidr.network().is_ipv6());
    if let [first, second] = cidrs[..]
        && family(first).is_some()
        && family(first) == family(second)
    {
        let detail =
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid(&path, spec.field("cidrs"), detail));
    }
    errors
}

/// Ranges are immutable; a second one of the other family may be added.
fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let (cidrs, before) = (new.field("spec").items("cidrs"), old.field("spec").items("cidrs"));
    let path = Path::new("spec");
    let path = path.child("cidrs");
    let reject = |i: usize| FieldError::invalid(&path.index(i), &cidrs[i], "field is immutable");
    match (before, cidrs) {
        (old, new) if old.len() == new.len() => {
            (0..old.len()).filter(|i| old[*i] != new[*i]).map(reject).collect()
        }
        ([old], [first, _]) => {
            let mut errors: ErrorList = if first == old { Vec::new() } else { vec![reject(0)] };
            errors.extend(validate_spec(new));
            errors
        }
        _ => vec![FieldError::invalid(&path, new.field("spec").field("cidrs"), "field is immutable")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_can_only_be_added() {
        let range = |cidrs: Value| json!({"spec": {"cidrs": cidrs}});
        let old = range(json!(["10.0.0.0/24"]));
        let cases = [
            (range(json!(["10.0.0.0/24"])), 0),
            (range(json!(["10.0.0.0/24", "fd00::/112"])), 0),
            (range(json!(["10.0.0.0/24", "10.1.0.0/24"])), 1),
            (range(json!(["10.1.0.0/24"])), 1),
            (range(Value::Null), 1),
        ];
        for (new, errors) in cases {
            assert_eq!(validate_update(&new, &old).len(), errors, "{new}");
        }
        assert_eq!(validate_update(&range(Value::Null), &old)[0].value.as_deref(), Some("null"));
        assert_eq!(validate_spec(&range(json!(["10.0.0.1/24"]))).len(), 1);
        assert_eq!(validate_spec(&range(json!([]))).len(), 1);
    }
}
