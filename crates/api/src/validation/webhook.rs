//! Admission webhooks, and client configurations of all webhooks (also conversion and API services).

use super::admission_rule::{self, FAILURE_POLICIES, REINVOCATION_POLICIES, match_policy};
use super::checks::{invalid_each, one_of};
use super::label_selector::validate_label_selector;
use super::values::strings;
use crate::value::Fields;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names;
use std::collections::BTreeSet;

const NO_SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun"];
const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];
const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];

/// Rules that are not enforced on an update because the old object violates them.
struct Relaxations {
    side_effects: bool,
    review_versions: bool,
    duplicate_names: bool,
    match_conditions: bool,
    label_values: bool,
}

/// Validates a new configuration, validating or mutating.
pub fn configuration(configuration: &Value, mutating: bool) -> ErrorList {
    let relaxations = Relaxations {
        side_effects: false,
        review_versions: false,
        duplicate_names: false,
        match_conditions: false,
        label_values: false,
    };
    hooks(configuration, mutating, &relaxations)
}

pub fn configuration_update(new: &Value, old: &Value, mutating: bool) -> ErrorList {
    let (new_hooks, old_hooks) = (new.items("webhooks"), old.items("webhooks"));
    let recognized = |hook: &Value| {
        let versions = hook.items("admissionReviewVersions");
        versions.is_empty() || strings(versions).any(|version| REVIEW_VERSIONS.contains(&version))
    };
    let names: BTreeSet<&str> = old_hooks.iter().map(|hook| hook.text("name")).collect();
    let bad_selector = |selector: &Value| !validate_label_selector(selector, false, &Path::ROOT).is_empty();
    let relaxations = Relaxations {
        side_effects: !old_hooks.iter().all(|hook| NO_SIDE_EFFECTS.contains(&hook.text("sideEffects"))),
        review_versions: !old_hooks.iter().all(recognized),
        duplicate_names: names.len() != old_hooks.len(),
        match_conditions: new_hooks.len() == old_hooks.len()
            && new_hooks
                .iter()
                .zip(old_hooks)
                .all(|(new, old)| new.items("matchConditions") == old.items("matchConditions")),
        label_values: old_hooks.iter().any(|hook| {
            bad_selector(hook.field("namespaceSelector")) || bad_selector(hook.field("objectSelector"))
        }),
    };
    hooks(new, mutating, &relaxations)
}

fn hooks(configuration: &Value, mutating: bool, relaxations: &Relaxations) -> ErrorList {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    let hooks_path = Path::new("webhooks");
    for (index, entry) in configuration.items("webhooks").iter().enumerate() {
        let path = hooks_path.index(index);
        errors.extend(hook(entry, mutating, relaxations, &path));
        errors.extend(review_versions(
            entry.field("admissionReviewVersions"),
            relaxations.review_versions,
            &path.child("admissionReviewVersions"),
        ));
        let name = entry.text("name");
        if !relaxations.duplicate_names && !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), &name.into()));
        }
    }
    errors
}

fn hook(hook: &Value, mutating: bool, relaxations: &Relaxations, path: &Path<'_>) -> ErrorList {
    let mut errors = names::fully_qualified_name(&path.child("name"), hook.text("name"));
    let rules_path = path.child("rules");
    for (index, rule) in hook.items("rules").iter().enumerate() {
        errors.extend(admission_rule::rule_with_operations(rule, &rules_path.index(index)));
    }
    if let Some(policy) = hook.opt_text("failurePolicy") {
        errors.extend(one_of(&path.child("failurePolicy"), policy, FAILURE_POLICIES));
    }
    if let Some(policy) = hook.opt_text("matchPolicy") {
        errors.extend(match_policy(&path.child("matchPolicy"), policy));
    }
    let allowed = if relaxations.side_effects { SIDE_EFFECTS } else { NO_SIDE_EFFECTS };
    let side_effects_path = path.child("sideEffects");
    match hook.opt_text("sideEffects") {
        Some(side_effects) => errors.extend(one_of(&side_effects_path, side_effects, allowed)),
        None => {
            let detail = format!("must specify one of {}", allowed.join(", "));
            errors.push(FieldError::required(&side_effects_path, detail));
        }
    }
    if let Some(seconds) = hook.opt_int("timeoutSeconds").filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(&path.child("timeoutSeconds"), &seconds.into(), detail));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        errors.extend(validate_label_selector(
            hook.field(field),
            relaxations.label_values,
            &path.child(field),
        ));
    }
    if mutating && let Some(policy) = hook.opt_text("reinvocationPolicy") {
        errors.extend(one_of(&path.child("reinvocationPolicy"), policy, REINVOCATION_POLICIES));
    }
    errors.extend(client_config(hook.field("clientConfig"), &path.child("clientConfig")));
    if !relaxations.match_conditions {
        errors.extend(admission_rule::match_conditions(hook, &path.child("matchConditions")));
    }
    errors
}

fn review_versions(versions: &Value, excused: bool, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    let items = versions.as_array().map_or(&[][..], Vec::as_slice);
    if items.is_empty() {
        let detail = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        return vec![FieldError::required(path, detail)];
    }
    let mut seen = BTreeSet::new();
    for (index, version) in strings(items).enumerate() {
        let path = path.index(index);
        if seen.insert(version) {
            errors.extend(invalid_each(&path, version, names::dns1035_label(version, false)));
        } else {
            errors.push(FieldError::invalid_str(&path, version, "duplicate version"));
        }
    }
    if !excused && !seen.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path, versions, detail));
    }
    errors
}

/// Requires either a URL or a service.
pub fn client_config(config: &Value, path: &Path<'_>) -> ErrorList {
    match (config.opt_text("url"), config.has("service")) {
        (Some(text), false) => url(text, &path.child("url")),
        (None, true) => {
            let service = config.field("service");
            // Kubernetes passes the two in the wrong order, so that errors name the wrong field.
            let (name, namespace) = (service.text("namespace"), service.text("name"));
            self::service(
                name,
                namespace,
                service.opt_text("path"),
                service.int("port"),
                &path.child("service"),
            )
        }
        _ => vec![FieldError::required(path, "exactly one of url or service is required")],
    }
}

/// The URL of a webhook: `https`, a host, and neither user, query nor fragment.
pub fn url(text: &str, path: &Path<'_>) -> ErrorList {
    const FORM: &str = "; desired format: https://host[/path]";
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    if rest.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        let shown = machinery::field::show_str(text);
        let detail = format!(
            "url must be a valid URL: parse {shown}: net/url: invalid control character in URL{FORM}"
        );
        return vec![FieldError::required(path, detail)];
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let scheme_end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    let (scheme, rest) = match scheme_end {
        Some(0) if rest.starts_with(':') => {
            let shown = machinery::field::show_str(text);
            let detail = format!("url must be a valid URL: parse {shown}: missing protocol scheme{FORM}");
            return vec![FieldError::required(path, detail)];
        }
        Some(end) if rest[end..].starts_with(':') && rest.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            (rest[..end].to_ascii_lowercase(), &rest[end + 1..])
        }
        _ if rest.split('/').next().is_some_and(|segment| segment.contains(':')) => {
            let shown = machinery::field::show_str(text);
            let detail = format!(
                "url must be a valid URL: parse {shown}: first path segment in URL cannot contain colon{FORM}"
            );
            return vec![FieldError::required(path, detail)];
        }
        _ => (String::new(), rest),
    };
    let authority = rest.strip_prefix("//").map_or("", |rest| rest.split('/').next().unwrap_or(""));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let mut errors = Vec::new();
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid_str(path, &scheme, detail));
    }
    if host.is_empty() {
        errors.push(FieldError::invalid_str(path, host, format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(FieldError::invalid_str(path, user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(FieldError::invalid_str(path, fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(FieldError::invalid_str(path, query, "query parameters are not permitted in the URL"));
    }
    errors
}

/// The service of a webhook.
pub fn service(name: &str, namespace: &str, url_path: Option<&str>, port: i64, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for (field, value) in [("name", name), ("namespace", namespace)] {
        if value.is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        }
    }
    let bad_port = names::port_number(port);
    if !bad_port.is_empty() {
        let detail = format!("port is not valid: {}", bad_port.join(", "));
        errors.push(FieldError::invalid(&path.child("port"), &port.into(), detail));
    }
    if let Some(url_path) = url_path {
        errors.extend(service_path(url_path, &path.child("path")));
    }
    errors
}

fn service_path(url_path: &str, path: &Path<'_>) -> ErrorList {
    let invalid = |detail: String| FieldError::invalid_str(path, url_path, detail);
    match url_path {
        "" | "/" => return Vec::new(),
        "//" => return vec![invalid("segment[0] may not be empty".to_owned())],
        _ => {}
    }
    let mut errors = Vec::new();
    if !url_path.starts_with('/') {
        errors.push(invalid("must start with a '/'".to_owned()));
    }
    // The first character is not checked, as in Kubernetes.
    let mut rest = url_path.chars();
    rest.next();
    let rest = rest.as_str();
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.push(invalid(format!("segment[{index}] may not be empty")));
            continue;
        }
        let problems = names::dns_subdomain(step, false).into_iter();
        errors.extend(problems.map(|problem| invalid(format!("segment[{index}]: {problem}"))));
    }
    errors
}

/// Sets defaults of webhooks.
pub fn default_configuration(configuration: &mut Value, mutating: bool) {
    for hook in configuration.items_mut("webhooks") {
        hook.default_to("failurePolicy", "Fail");
        hook.default_to("matchPolicy", "Equivalent");
        hook.default_to("namespaceSelector", Value::Object(Default::default()));
        hook.default_to("objectSelector", Value::Object(Default::default()));
        hook.default_to("timeoutSeconds", 10);
        if mutating {
            hook.default_to("reinvocationPolicy", "Never");
        }
        if let Some(service) = hook.at_mut("clientConfig.service") {
            service.default_to("port", 443);
        }
        admission_rule::default_scopes(hook, "rules");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_urls_and_paths_are_validated() {
        let path = Path::new("p");
        let texts = |errors: ErrorList| -> Vec<String> { errors.iter().map(FieldError::body).collect() };
        let form = "; desired format: https://host[/path]";
        let cases = [
            ("https://h/p", vec![]),
            (
                "https://u@h",
                vec!["Invalid value: \"u\": user information is not permitted in the URL".to_owned()],
            ),
            ("https://h#f", vec!["Invalid value: \"f\": fragments are not permitted in the URL".to_owned()]),
            (
                " https://h",
                vec![format!(
                    "Required value: url must be a valid URL: parse \" https://h\": first path segment in URL \
                     cannot contain colon{form}"
                )],
            ),
            (
                "h/p",
                vec![
                    format!("Invalid value: \"\": 'https' is the only allowed URL scheme{form}"),
                    format!("Invalid value: \"\": host must be specified{form}"),
                ],
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(texts(url(text, &path)), expected, "{text}");
        }
        assert_eq!(
            texts(service_path("/a//b", &path)),
            ["Invalid value: \"/a//b\": segment[1] may not be empty"]
        );
        assert!(service_path("/a/b/", &path).is_empty());
    }
}
