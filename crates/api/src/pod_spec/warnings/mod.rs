//! Warnings about pods and pod templates that are valid but probably mistaken.

mod containers;
mod volumes;

use crate::pod::app_armor::profile_of;
use crate::pod_spec::annotations::APP_ARMOR_PREFIX;
use crate::pod_spec::for_each_container;
use crate::pod_spec::resources::quantity;
use crate::value::{Fields, texts};
use machinery::field::Path;
use machinery::{Value, names};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";
const USE_SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;

const DEPRECATED_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        r#"non-functional in v1.11+; use the "sysctls" field instead"#,
    ),
];

/// Warning about the use of a node label.
pub fn deprecated_node_label(key: &str) -> Option<&'static str> {
    Some(match key {
        "beta.kubernetes.io/arch" => r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
        "beta.kubernetes.io/os" => r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
        "failure-domain.beta.kubernetes.io/region" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#
        }
        "beta.kubernetes.io/instance-type" => {
            r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => r#"use "node-role.kubernetes.io/control-plane" instead"#,
        _ => return None,
    })
}

/// Warnings for `holder`, a pod or a template with `metadata` and `spec`. `path` is a template's; the root for pods.
pub fn warnings_for(holder: &Value, is_template: bool, path: &Path<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let spec = holder.field("spec");
    let annotations = holder.at("metadata.annotations");
    let spec_path = path.child("spec");
    let metadata_path = path.child("metadata");
    let annotations_path = metadata_path.child("annotations");
    warn_labels(spec, &spec_path, &mut warnings);
    for (key, message) in DEPRECATED_ANNOTATIONS {
        if annotations.has(key) {
            warnings.push(format!("{}: {message}", annotations_path.key(key)));
        }
    }
    volumes::warn_volumes(spec, &spec_path, &mut warnings);
    warn_duplicates(spec, &spec_path, &mut warnings);
    let overhead_path = spec_path.child("overhead");
    for name in ["memory", "ephemeral-storage"] {
        warn_fraction(spec.field("overhead").field(name), &overhead_path.key(name), &mut warnings);
    }
    let context = spec.field("securityContext");
    if annotations.has(SECCOMP_POD) && !context.has("seccompProfile") {
        warnings.push(format!("{}: {USE_SECCOMP}", annotations_path.key(SECCOMP_POD)));
    }
    for_each_container(spec, &spec_path, |container, path| {
        if annotations.is_object() {
            let own = container.field("securityContext");
            let key = format!("{SECCOMP_CONTAINER_PREFIX}{}", container.text("name"));
            if annotations.has(&key) && !own.has("seccompProfile") {
                warnings.push(format!("{}: {USE_SECCOMP}", annotations_path.key(&key)));
            }
        }
        if is_template {
            warn_app_armor(container, holder, &annotations_path, &mut warnings);
        }
        containers::warn_container(container, path, &mut warnings);
    });
    containers::warn_ports(spec, &spec_path, &mut warnings);
    if spec.opt_int("terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        let path = spec_path.child("terminationGracePeriodSeconds");
        warnings.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    warn_selectors(spec, &spec_path, &mut warnings);
    warn_addresses(spec, &spec_path, &mut warnings);
    warnings
}

/// Warnings about AppArmor annotations of a new pod that differ from its fields.
pub fn warn_app_armor_annotations(pod: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let spec = pod.field("spec");
    if spec.field("os").text("name") == "windows" || !pod.field("metadata").has("annotations") {
        return warnings;
    }
    let metadata_path = Path::new("metadata");
    let annotations_path = metadata_path.child("annotations");
    for_each_container(spec, &Path::new("spec"), |container, _| {
        warn_app_armor(container, pod, &annotations_path, &mut warnings);
    });
    warnings
}

fn warn_app_armor(container: &Value, holder: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let key = format!("{APP_ARMOR_PREFIX}{}", container.text("name"));
    let Some(annotation) = holder.at("metadata.annotations").opt_text(&key) else { return };
    let of_pod = holder.at("spec.securityContext").field("appArmorProfile");
    let has_field = container.field("securityContext").has("appArmorProfile")
        || !of_pod.is_null() && profile_of(annotation).as_ref() == Some(of_pod);
    if !has_field {
        let message = r#"deprecated since v1.30; use the "appArmorProfile" field instead"#;
        warnings.push(format!("{}: {message}", path.key(&key)));
    }
}

fn warn_labels(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let selector_path = path.child("nodeSelector");
    for (key, _) in spec.entries("nodeSelector").into_iter().flatten() {
        if let Some(message) = deprecated_node_label(key) {
            warnings.push(format!("{}: {message}", selector_path.key(key)));
        }
    }
    let nodes = spec.at("affinity.nodeAffinity");
    let affinity_path = path.child("affinity");
    let nodes_path = affinity_path.child("nodeAffinity");
    let required_path = nodes_path.child(REQUIRED);
    let terms_path = required_path.child("nodeSelectorTerms");
    for (index, term) in nodes.field(REQUIRED).items("nodeSelectorTerms").iter().enumerate() {
        warn_term(term, false, &terms_path.index(index), warnings);
    }
    let preferred_path = nodes_path.child(PREFERRED);
    for (index, term) in nodes.items(PREFERRED).iter().enumerate() {
        let item = preferred_path.index(index);
        warn_term(term.field("preference"), true, &item.child("preference"), warnings);
    }
    let spread_path = path.child("topologySpreadConstraints");
    for (index, constraint) in spec.items("topologySpreadConstraints").iter().enumerate() {
        let item = spread_path.index(index);
        let key = constraint.text("topologyKey");
        if let Some(message) = deprecated_node_label(key) {
            warnings.push(format!("{}: {key} is {message}", item.child("topologyKey")));
        }
        if !constraint.has("labelSelector") {
            warnings.push(format!("{}: {NULL_SELECTOR}", item.child("labelSelector")));
        }
    }
}

const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

fn warn_term(term: &Value, check_values: bool, path: &Path<'_>, warnings: &mut Vec<String>) {
    let path = path.child("matchExpressions");
    for (index, expression) in term.items("matchExpressions").iter().enumerate() {
        let item = path.index(index);
        let key = expression.text("key");
        if let Some(message) = deprecated_node_label(key) {
            warnings.push(format!("{}: {key} is {message}", item.child("key")));
        }
        if !check_values {
            continue;
        }
        let values = item.child("values");
        for (index, value) in texts(expression.items("values")).enumerate() {
            for message in names::label_value(value) {
                warnings.push(format!("{}: {value} is invalid, {message}", values.index(index)));
            }
        }
    }
}

fn warn_duplicates(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    for (list, name) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let items = spec.items(list);
        let path = path.child(list);
        for (index, item) in items.iter().enumerate() {
            let text = item.text(name);
            if items[..index].iter().any(|other| other.text(name) == text) {
                let item = path.index(index);
                warnings.push(format!("{}: duplicate {name} {text:?}", item.child(name)));
            }
        }
    }
    let path = path.child("imagePullSecrets");
    for (index, secret) in spec.items("imagePullSecrets").iter().enumerate() {
        if secret.text("name").is_empty() {
            let item = path.index(index);
            warnings.push(format!("{}: invalid empty name \"\"", item.child("name")));
        }
    }
}

/// Warns about fractional byte amounts.
fn warn_fraction(value: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    if value.is_null() {
        return;
    }
    let amount = quantity(value);
    if amount.milli_value() % 1000 != 0 {
        let text = amount.to_string();
        warnings.push(format!("{path}: fractional byte value {text:?} is invalid, must be an integer"));
    }
}

/// Warns about the spec of a claim or claim template.
pub fn warn_claim_spec(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let resources = path.child("resources");
    for list in ["requests", "limits"] {
        let path = resources.child(list);
        warn_fraction(spec.field("resources").field(list).field("storage"), &path.key("storage"), warnings);
    }
}

fn warn_selectors(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let affinity_path = path.child("affinity");
    for name in ["podAffinity", "podAntiAffinity"] {
        let pods = spec.field("affinity").field(name);
        let pods_path = affinity_path.child(name);
        let required = pods_path.child(REQUIRED);
        for (index, term) in pods.items(REQUIRED).iter().enumerate() {
            if !term.has("labelSelector") {
                let item = required.index(index);
                warnings.push(format!("{}: {NULL_SELECTOR}", item.child("labelSelector")));
            }
        }
        let preferred = pods_path.child(PREFERRED);
        for (index, term) in pods.items(PREFERRED).iter().enumerate() {
            if !term.field("podAffinityTerm").has("labelSelector") {
                let item = preferred.index(index);
                let term = item.child("podAffinityTerm");
                warnings.push(format!("{}: {NULL_SELECTOR}", term.child("labelSelector")));
            }
        }
    }
}

fn warn_addresses(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let config = path.child("dnsConfig");
    let servers = config.child("nameservers");
    for (index, server) in texts(spec.field("dnsConfig").items("nameservers")).enumerate() {
        warnings.extend(names::warnings_for_ip(&servers.index(index), server));
    }
    let aliases = path.child("hostAliases");
    for (index, alias) in spec.items("hostAliases").iter().enumerate() {
        let item = aliases.index(index);
        warnings.extend(names::warnings_for_ip(&item.child("ip"), alias.text("ip")));
    }
}

/// Warnings about a name that becomes part of host names.
pub fn warn_name(object: &Value, usage: &str) -> Vec<String> {
    let problems = names::dns_label(machinery::meta::name(object), false);
    if problems.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: this is used in {usage}, which can result in surprising behavior; a DNS label is recommended: [{}]",
        problems.join(" ")
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn app_armor_annotations_that_differ_from_fields_return_warnings() {
        let key = format!("{APP_ARMOR_PREFIX}c");
        let default = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        for (annotation, of_pod, of_container, warns) in [
            ("runtime/default", json!({}), json!({}), true),
            ("runtime/default", default.clone(), json!({}), false),
            ("unconfined", default.clone(), json!({}), true),
            ("rubbish", default.clone(), json!({}), true),
            ("runtime/default", json!({}), default, false),
        ] {
            let pod = json!({
                "metadata": {"annotations": {&key: annotation}},
                "spec": {
                    "securityContext": of_pod,
                    "containers": [{"name": "c", "securityContext": of_container}, {"name": "d"}],
                },
            });
            assert_eq!(warn_app_armor_annotations(&pod).len(), usize::from(warns), "{pod}");
        }
    }

    #[test]
    fn pod_fields_return_warnings() {
        let pod = json!({
            "metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}},
            "spec": {
                "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "imagePullSecrets": [{"name": "a"}, {"name": "a"}],
                "containers": [{
                    "name": "c",
                    "resources": {"requests": {"memory": "1500m"}},
                    "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
                    "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}],
                }],
            },
        });
        assert_eq!(
            warnings_for(&pod, false, &Path::ROOT),
            [
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.imagePullSecrets[1].name: duplicate name \"a\"",
                "metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
                "spec.containers[0].resources.requests[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
            ]
        );
    }
}
