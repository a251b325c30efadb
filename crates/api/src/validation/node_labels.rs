//! Deprecated node labels, whose use causes a warning.

use crate::value::Fields;
use machinery::Value;
use machinery::field::Path;

/// Warning about a deprecated label.
pub fn deprecation(label: &str) -> Option<&'static str> {
    Some(match label {
        "beta.kubernetes.io/arch" => "deprecated since v1.14; use \"kubernetes.io/arch\" instead",
        "beta.kubernetes.io/os" => "deprecated since v1.14; use \"kubernetes.io/os\" instead",
        "failure-domain.beta.kubernetes.io/region" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"
        }
        "failure-domain.beta.kubernetes.io/zone" => {
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        }
        "beta.kubernetes.io/instance-type" => {
            "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"
        }
        "app.kubernetes.io/created-by" => "deprecated since v1.9",
        "scheduler.alpha.kubernetes.io/preferAvoidPods" => {
            "deprecated since v1.22; use Taints and Tolerations instead"
        }
        "node-role.kubernetes.io/master" => "use \"node-role.kubernetes.io/control-plane\" instead",
        _ => return None,
    })
}

/// Warnings for a label selector over nodes.
pub fn selector_warnings(selector: &Value, path: &Path<'_>) -> Vec<String> {
    let mut warnings = Vec::new();
    let expressions_path = path.child("matchExpressions");
    for (index, expression) in selector.items("matchExpressions").iter().enumerate() {
        let key = expression.text("key");
        if let Some(text) = deprecation(key) {
            let path = expressions_path.index(index);
            warnings.push(format!("{}: {key} is {text}", path.child("key")));
        }
    }
    let labels_path = path.child("matchLabels");
    for label in selector.entries("matchLabels").into_iter().flat_map(|labels| labels.keys()) {
        if let Some(text) = deprecation(label) {
            warnings.push(format!("{}: {text}", labels_path.child(label)));
        }
    }
    warnings
}
