//! A kubelet's own Node object: every field except those that would attract workloads.

use super::Write;
use crate::admission::Operation;
use api::value::Fields;
use machinery::status::Result;
use machinery::{Map, Value, meta};
use std::collections::BTreeSet;

/// Labels in Kubernetes' own domains that a kubelet may set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESTRICTED_DOMAIN: &str = "node-restriction.kubernetes.io";

pub fn check(write: &Write<'_>) -> Result<()> {
    let (node, name, new, old) = (write.node, write.name(), write.object, write.old);
    if name != node {
        return write.refuse(format_args!("node {node:?} is not allowed to modify node {name:?}"));
    }
    let source = new.field("spec").field("configSource");
    match write.operation() {
        Operation::Create => {
            if !source.is_null() {
                return write.refuse(format_args!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            let labels = forbidden_labels(new, &Value::Null);
            if !labels.is_empty() {
                let labels = labels.join(", ");
                return write.refuse(format_args!(
                    "node {node:?} is not allowed to set the following labels: {labels}"
                ));
            }
        }
        Operation::Update => {
            if !source.is_null() && source != old.field("spec").field("configSource") {
                return write.refuse(format_args!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            if new.field("spec").items("taints") != old.field("spec").items("taints") {
                return write.refuse(format_args!("node {node:?} is not allowed to modify taints"));
            }
            let owners = |node: &'_ Value| node.field("metadata").items("ownerReferences").to_vec();
            if owners(new) != owners(old) {
                return write.refuse(format_args!("node {node:?} is not allowed to modify ownerReferences"));
            }
            let labels = forbidden_labels(new, old);
            if !labels.is_empty() {
                return write.refuse(format_args!("is not allowed to modify labels: {}", labels.join(", ")));
            }
        }
        Operation::Delete | Operation::Connect => {}
    }
    Ok(())
}

/// Changed labels that a kubelet may not set, sorted.
fn forbidden_labels<'a>(new: &'a Value, old: &'a Value) -> Vec<&'a str> {
    let empty = Map::new();
    let (new, old) = (meta::labels(new), meta::labels(old));
    let keys: BTreeSet<&str> =
        [new, old].into_iter().flatten().flat_map(|labels| labels.keys().map(String::as_str)).collect();
    let (new, old) = (new.unwrap_or(&empty), old.unwrap_or(&empty));
    keys.into_iter().filter(|key| new.get(*key) != old.get(*key) && is_forbidden(key)).collect()
}

fn is_forbidden(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let is_in =
        |parent: &str| domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if is_in(RESTRICTED_DOMAIN) {
        return true;
    }
    let of_kubernetes = is_in("kubernetes.io") || is_in("k8s.io");
    let of_kubelets = KUBELET_LABELS.contains(&label) || KUBELET_DOMAINS.iter().any(|parent| is_in(parent));
    of_kubernetes && !of_kubelets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_may_not_set_restricted_labels() {
        for (label, forbidden) in [
            ("kubernetes.io/hostname", false),
            ("foo.kubelet.kubernetes.io/x", false),
            ("node.kubernetes.io/x", false),
            ("example.com/x", false),
            ("x", false),
            ("notkubernetes.io/x", false),
            ("kubernetes.io/x", true),
            ("a.k8s.io/x", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("node-role.kubernetes.io/master", true),
        ] {
            assert_eq!(is_forbidden(label), forbidden, "{label}");
        }
    }
}
