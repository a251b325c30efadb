//! PodSecurity: namespace labels select the pod security standard of their pods, and whether violations are rejected,
//! audited or warned of.

mod baseline;
mod checks;
mod finding;
mod policy;
mod restricted;
mod settings;

pub use settings::{PodSecuritySettings, read};

use super::{Attributes, Operation, Plugin};
use crate::registry::Registry;
use api::value::Fields;
use async_trait::async_trait;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use policy::{Level, LevelVersion, Policy};
use std::collections::BTreeMap;

/// Pods that are checked when a namespace gets a stricter policy, at most.
const MAX_PODS: usize = 3000;

/// Path of the pod template, by resource.
const TEMPLATES: [(&str, &str, &str); 8] = [
    ("", "replicationcontrollers", "spec.template"),
    ("", "podtemplates", "template"),
    ("apps", "replicasets", "spec.template"),
    ("apps", "deployments", "spec.template"),
    ("apps", "statefulsets", "spec.template"),
    ("apps", "daemonsets", "spec.template"),
    ("batch", "jobs", "spec.template"),
    ("batch", "cronjobs", "spec.jobTemplate.spec.template"),
];

pub struct PodSecurity;

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        if attributes.operation == Operation::Delete {
            return false;
        }
        ["", "ephemeralcontainers", "resize"]
            .iter()
            .any(|strategy| attributes.is_subresource("", "pods", strategy))
            || attributes.is("", "namespaces")
            || template_path(attributes).is_some()
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(object) = object else { return Ok(()) };
        let settings = &registry.admission.settings.pod_security;
        if attributes.is("", "namespaces") {
            return check_namespace(registry, attributes, object, old).await;
        }
        if settings.is_exempt(attributes.context.user, attributes.context.namespace) {
            exempt(registry, attributes);
            return Ok(());
        }
        let namespaces = ("", "v1", "namespaces");
        let namespace = attributes.context.namespace;
        // Most namespaces have no labels, and then only the defaults apply.
        let mention = if settings.defaults == Policy::default() { policy::PREFIX } else { "" };
        let Some(namespace) = registry.find_if(namespaces, "", namespace, mention).await? else {
            return Ok(());
        };
        let (policy, _) = Policy::of(&namespace, &settings.defaults);
        let pod = template_path(attributes).map_or(object, |path| object.at(path));
        if settings.exempts_class(pod.field("spec").text("runtimeClassName")) {
            exempt(registry, attributes);
            return Ok(());
        }
        let counted = Counted { registry, attributes };
        match template_path(attributes) {
            Some(path) => {
                let template = object.at(path);
                if template.is_object() {
                    annotate(template, &policy, &counted);
                    warn(template, &policy, &counted);
                }
                Ok(())
            }
            None if old.is_some_and(|old| !is_significant(object, old)) => Ok(()),
            None => {
                let note = |key, value| attributes.context.record.annotate(key, value);
                note("pod-security.kubernetes.io/enforce-policy", policy.enforce.to_string());
                annotate(object, &policy, &counted);
                let findings = checks::evaluate(policy.enforce, object);
                counted.evaluation(policy.enforce, "enforce", findings.is_empty());
                if !findings.is_empty() {
                    let why = format!(
                        "violates PodSecurity \"{}\": {}",
                        policy.enforce,
                        finding::details(&findings)
                    );
                    return Err(attributes.forbidden(why));
                }
                warn(object, &policy, &counted);
                Ok(())
            }
        }
    }
}

fn template_path(attributes: &Attributes<'_>) -> Option<&'static str> {
    TEMPLATES.iter().find(|row| attributes.is(row.0, row.1)).map(|row| row.2)
}

/// Labels of a write: operation, kind of resource and subresource.
fn written<'a>(attributes: &'a Attributes<'_>) -> [&'a str; 3] {
    let operation = if attributes.operation == Operation::Create { "create" } else { "update" };
    let resource = match template_path(attributes) {
        Some(_) => "controller",
        None => "pod",
    };
    [operation, resource, attributes.subresource()]
}

fn exempt(registry: &Registry, attributes: &Attributes<'_>) {
    if let Some(metrics) = &registry.admission.metrics {
        metrics.pod_security_exemption(written(attributes));
    }
}

/// A write whose evaluations are counted.
struct Counted<'a> {
    registry: &'a Registry,
    attributes: &'a Attributes<'a>,
}

impl Counted<'_> {
    fn evaluation(&self, policy: LevelVersion, mode: &str, is_allowed: bool) {
        if let Some(metrics) = &self.registry.admission.metrics {
            let [level, version] = policy.labels();
            let decision = if is_allowed { "allow" } else { "deny" };
            metrics.pod_security(decision, [&level, &version, mode], written(self.attributes));
        }
    }
}

/// Adds violations of the audit level to the audit event. As in Kubernetes, only violations are counted.
fn annotate(pod: &Value, policy: &Policy, counted: &Counted<'_>) {
    let attributes = counted.attributes;
    let findings = checks::evaluate(policy.audit, pod);
    if !findings.is_empty() {
        counted.evaluation(policy.audit, "audit", false);
        let why = format!("would violate PodSecurity \"{}\": {}", policy.audit, finding::details(&findings));
        attributes.context.record.annotate("pod-security.kubernetes.io/audit-violations", why);
    }
}

fn warn(pod: &Value, policy: &Policy, counted: &Counted<'_>) {
    let attributes = counted.attributes;
    let findings = checks::evaluate(policy.warn, pod);
    if !findings.is_empty() {
        counted.evaluation(policy.warn, "warn", false);
        attributes.context.record.warn(format!(
            "would violate PodSecurity \"{}\": {}",
            policy.warn,
            finding::details(&findings)
        ));
    }
}

/// Reports whether images or containers changed; no other update can change the result of the checks.
fn is_significant(new: &Value, old: &Value) -> bool {
    let (new, old) = (new.field("spec"), old.field("spec"));
    let differs = |a: &Value, b: &Value| a.text("image") != b.text("image");
    for list in ["containers", "initContainers"] {
        let (new, old) = (new.items(list), old.items(list));
        if new.len() != old.len() || new.iter().zip(old).any(|(a, b)| differs(a, b)) {
            return true;
        }
    }
    new.items("ephemeralContainers").iter().any(|container| {
        let same_name = |other: &&Value| other.text("name") == container.text("name");
        old.items("ephemeralContainers").iter().find(same_name).is_none_or(|other| differs(container, other))
    })
}

/// Validates the labels, and warns of pods that violate a stricter policy.
async fn check_namespace(
    registry: &Registry,
    attributes: &Attributes<'_>,
    new: &Value,
    old: Option<&Value>,
) -> Result<()> {
    let settings = &registry.admission.settings.pod_security;
    let (policy, errors) = Policy::of(new, &settings.defaults);
    let (old_policy, old_errors) = old.map(|old| Policy::of(old, &settings.defaults)).unwrap_or_default();
    if !errors.is_empty() && errors != old_errors {
        return Err(Status::invalid("", "Namespace", meta::name(new), &errors));
    }
    let (wanted, present) = (policy.enforce, old_policy.enforce);
    let relaxed = wanted.version == present.version && wanted.level <= present.level;
    if old.is_none() || wanted.level == Level::Privileged || relaxed {
        return Ok(());
    }
    if settings.is_exempt(attributes.context.user, meta::name(new)) {
        return Ok(());
    }
    let pods = registry.find_all(("", "v1", "pods"), meta::name(new), "").await?;
    for warning in warnings_about(meta::name(new), pods, wanted) {
        attributes.context.record.warn(warning);
    }
    Ok(())
}

/// Warnings about pods that violate the new level; equal ones are counted.
fn warnings_about(namespace: &str, pods: Vec<Value>, wanted: LevelVersion) -> Vec<String> {
    let total = pods.len();
    let mut counts: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in one_per_controller_first(pods).iter().take(MAX_PODS) {
        let findings = checks::evaluate(wanted, pod);
        if findings.is_empty() {
            continue;
        }
        let name = meta::name(pod);
        let (first, count) =
            counts.entry(finding::reasons(&findings)).or_insert_with(|| (name.to_owned(), 0));
        *count += 1;
        if name < first.as_str() {
            name.clone_into(first);
        }
    }
    let mut warnings = Vec::new();
    if total > MAX_PODS {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {MAX_PODS} of {total} existing pods"
        ));
    }
    if !counts.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{wanted}\""
        ));
    }
    let mut about: Vec<String> = counts
        .into_iter()
        .map(|(reasons, (first, count))| match count {
            1 => format!("{first}: {reasons}"),
            2 => format!("{first} (and 1 other pod): {reasons}"),
            more => format!("{first} (and {} other pods): {reasons}", more - 1),
        })
        .collect();
    about.sort();
    warnings.extend(about);
    warnings
}

/// Orders one pod of each controller first, since pods of a controller are alike.
fn one_per_controller_first(pods: Vec<Value>) -> Vec<Value> {
    let mut seen = std::collections::HashSet::new();
    let (mut first, rest): (Vec<Value>, Vec<Value>) = pods.into_iter().partition(|pod| {
        let controller = meta::owner_references(pod).iter().find(|owner| owner.flag("controller"));
        controller.is_none_or(|owner| seen.insert(owner.text("uid").to_owned()))
    });
    first.extend(rest);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn warnings_count_violating_pods() {
        let pod = |name: &str, host: bool| json!({"metadata": {"name": name}, "spec": {"hostPID": host, "containers": [{"name": "c"}]}});
        let pods = vec![pod("c", true), pod("b", true), pod("a", false)];
        let wanted = LevelVersion::parse("baseline:latest").expect("a level and version");
        assert_eq!(
            warnings_about("n", pods, wanted),
            [
                r#"existing pods in namespace "n" violate the new PodSecurity enforce level "baseline:latest""#,
                "b (and 1 other pod): host namespaces",
            ]
        );
    }

    #[test]
    fn update_is_significant_for_images_and_containers_only() {
        let pod = |image: &str| json!({"spec": {"containers": [{"name": "c", "image": image}]}});
        assert!(!is_significant(&pod("a"), &pod("a")));
        assert!(is_significant(&pod("a"), &pod("b")));
        let mut more = pod("a");
        more["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "x"}]);
        assert!(is_significant(&more, &pod("a")));
    }
}
