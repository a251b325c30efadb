//! Validation of a Service's `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`, and of their changes.
//! Allocation runs the same checks before it fills in missing values.

use super::checks::{legacy_ip, one_of};
use super::service::{is_headless, service_type};
use crate::value::{Fields, texts};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;

const FAMILIES: &[&str] = &["IPv4", "IPv6"];
const POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];

/// Validates the four fields against each other.
pub fn validate(service: &Value, old: Option<&Value>) -> ErrorList {
    if service_type(service) == "ExternalName" {
        return Vec::new();
    }
    let spec = service.field("spec");
    let path = Path::new("spec");
    let ips_path = path.child("clusterIPs");
    let ips: Vec<&str> = texts(spec.items("clusterIPs")).collect();
    let families: Vec<&str> = texts(spec.items("ipFamilies")).collect();
    let reject = |detail: &str| FieldError::invalid(&ips_path, spec.field("clusterIPs"), detail);
    let mut errors = Vec::new();

    match (spec.text("clusterIP"), ips.first()) {
        ("", Some(_)) => errors.push(reject("must be empty when `clusterIP` is not specified")),
        ("", None) => {}
        (_, None) => errors.push(FieldError::required(&ips_path, "")),
        (first, Some(other)) if first != *other => errors.push(reject("first value must match `clusterIP`")),
        _ => {}
    }

    let families_path = path.child("ipFamilies");
    for (i, family) in families.iter().enumerate() {
        let path = families_path.index(i);
        errors.extend(one_of(&path, family, FAMILIES));
        if families[..i].contains(family) {
            errors.push(FieldError::duplicate(&path, &Value::from(*family)));
        }
    }
    if let Some(policy) = spec.opt_text("ipFamilyPolicy") {
        errors.extend(one_of(&path.child("ipFamilyPolicy"), policy, POLICIES));
    }

    let known: Vec<&str> =
        old.map(|old| texts(old.field("spec").items("clusterIPs")).collect()).unwrap_or_default();
    let mut unreadable = false;
    for (i, ip) in ips.iter().enumerate() {
        if i == 0 && *ip == "None" {
            if ips.len() > 1 {
                unreadable = true;
                errors.push(reject("'None' must be the first and only value"));
            }
            continue;
        }
        let problems = legacy_ip(&ips_path.index(i), ip, &known);
        unreadable |= !problems.is_empty();
        errors.extend(problems);
    }
    if ips.len() > 2 {
        errors.push(reject("may only hold up to 2 values"));
    }
    if unreadable {
        return errors;
    }
    if ips.len() > 1 && !(ips.iter().any(|ip| is_v6(ip)) && ips.iter().any(|ip| !is_v6(ip))) {
        errors.push(reject("may specify no more than one IP for each IP family"));
    }
    if !is_headless(service) {
        for (i, (ip, family)) in ips.iter().zip(&families).enumerate() {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            let wrong = match *family {
                "IPv4" => is_v6(ip),
                "IPv6" => !is_v6(ip),
                _ => false,
            };
            if wrong {
                errors.push(FieldError::invalid_str(&ips_path.index(i), ip, detail));
            }
        }
    }
    errors
}

/// The first cluster IP is immutable; a second one may be added, and removed by changing the policy.
pub fn validate_cluster_ips_change(service: &Value, old: &Value) -> ErrorList {
    if service_type(service) == "ExternalName" || service_type(old) == "ExternalName" {
        return Vec::new();
    }
    if is_headless(old) && is_headless(service) {
        return Vec::new();
    }
    let path = Path::new("spec");
    let ips_path = path.child("clusterIPs");
    let shown = service.field("spec").field("clusterIPs");
    let ips = service.field("spec").items("clusterIPs");
    let before = old.field("spec").items("clusterIPs");
    let changed = |i: usize| FieldError::invalid(&ips_path.index(i), shown, "may not change once set");
    let mut errors = Vec::new();
    if before.len() == ips.len() {
        let differing = before.iter().zip(ips).enumerate().filter(|(_, (old, new))| old != new);
        errors.extend(differing.map(|(i, _)| changed(i)));
        return errors;
    }
    if ips.is_empty() {
        let detail = "primary clusterIP can not be unset";
        errors.push(FieldError::invalid(&ips_path.index(0), shown, detail));
    } else if !before.is_empty() && ips[0] != before[0] {
        errors.push(changed(0));
    }
    if before.len() > ips.len() && ips.len() == 1 {
        errors.extend(policy_of_release(
            service,
            "must be set to 'SingleStack' when releasing the secondary clusterIP",
        ));
    }
    errors
}

/// Same for families. Those of headless services may change.
pub fn validate_families_change(service: &Value, old: &Value) -> ErrorList {
    if service_type(service) == "ExternalName" || service_type(old) == "ExternalName" {
        return Vec::new();
    }
    if is_headless(service) || is_headless(old) {
        return Vec::new();
    }
    let path = Path::new("spec");
    let families_path = path.child("ipFamilies");
    let first_path = families_path.index(0);
    let spec = service.field("spec");
    let families = spec.items("ipFamilies");
    let before = old.field("spec").items("ipFamilies");
    let mut errors = Vec::new();
    if before.len() == families.len() {
        for _ in before.iter().zip(families).filter(|(old, new)| old != new) {
            let detail = "may not change once set";
            errors.push(FieldError::invalid(&first_path, spec.field("ipFamilies"), detail));
        }
        return errors;
    }
    let released = before.len() > families.len();
    if released && spec.items("clusterIPs").is_empty() {
        let detail = "primary ipFamily can not be unset";
        errors.push(FieldError::invalid(&first_path, spec.field("ipFamilies"), detail));
    }
    if let (Some(new), Some(old)) = (families.first(), before.first())
        && new != old
    {
        errors.push(FieldError::invalid(&first_path, spec.field("clusterIPs"), "may not change once set"));
    }
    if released && families.len() == 1 {
        errors.extend(policy_of_release(
            service,
            "must be set to 'SingleStack' when releasing the secondary ipFamily",
        ));
    }
    errors
}

fn policy_of_release(service: &Value, detail: &str) -> Option<FieldError> {
    let policy = service.field("spec").field("ipFamilyPolicy");
    let path = Path::new("spec");
    (policy != "SingleStack").then(|| FieldError::invalid(&path.child("ipFamilyPolicy"), policy, detail))
}

/// Kubernetes' test for IPv6: the text has a colon and parses.
fn is_v6(ip: &str) -> bool {
    names::parse_ip_sloppy(ip).is_some_and(|ip| ip.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(errors: ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn address_fields_must_be_consistent() {
        let cases = [
            (json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}), vec![]),
            (json!({"clusterIP": "10.0.0.1"}), vec!["spec.clusterIPs: Required value"]),
            (
                json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]}),
                vec![r#"spec.clusterIPs: Invalid value: ["10.0.0.2"]: first value must match `clusterIP`"#],
            ),
            (
                json!({"clusterIP": "None", "clusterIPs": ["None", "10.0.0.2"]}),
                vec![
                    r#"spec.clusterIPs: Invalid value: ["None","10.0.0.2"]: 'None' must be the first and only value"#,
                ],
            ),
            (
                json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv6"]}),
                vec![
                    r#"spec.clusterIPs[0]: Invalid value: "10.0.0.1": expected an IPv6 value as indicated by `ipFamilies[0]`"#,
                ],
            ),
            (
                json!({"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "x"}),
                vec![
                    r#"spec.ipFamilies[1]: Duplicate value: "IPv4""#,
                    r#"spec.ipFamilyPolicy: Unsupported value: "x": supported values: "PreferDualStack", "RequireDualStack", "SingleStack""#,
                ],
            ),
        ];
        for (spec, want) in cases {
            assert_eq!(messages(validate(&json!({"spec": spec}), None)), want);
        }
    }

    #[test]
    fn cluster_ips_are_immutable() {
        let service = |ips: Value, policy: &str| json!({"spec": {"type": "ClusterIP", "clusterIPs": ips, "ipFamilyPolicy": policy}});
        let old = service(json!(["10.0.0.1", "fd00::1"]), "RequireDualStack");
        let cases = [
            (service(json!(["10.0.0.1", "fd00::1"]), "RequireDualStack"), vec![]),
            (service(json!(["10.0.0.1"]), "SingleStack"), vec![]),
            (
                service(json!(["10.0.0.1"]), "PreferDualStack"),
                vec![
                    r#"spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be set to 'SingleStack' when releasing the secondary clusterIP"#,
                ],
            ),
            (
                service(json!(["10.0.0.2"]), "SingleStack"),
                vec![r#"spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set"#],
            ),
            (
                service(Value::Null, "SingleStack"),
                vec!["spec.clusterIPs[0]: Invalid value: null: primary clusterIP can not be unset"],
            ),
        ];
        for (new, want) in cases {
            assert_eq!(messages(validate_cluster_ips_change(&new, &old)), want);
        }
    }
}
