//! Pods and containers that logs, exec and attach name.

use serde_json::Value;

use crate::error::{CliError, fail};
use crate::printer::now;
use crate::resource::{Selection, Target};
use crate::session::Session;

/// Annotation with the name of the container that is meant if none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Time in which a pod of a workload has to appear.
const POD_RUNNING: i64 = 20;

impl Session {
    /// The pod that an argument names: `web-1`, `pod/web-1`, or the first of `deploy/web`.
    pub async fn pod(&mut self, operand: &str) -> Result<(Target, Value), CliError> {
        let operands = match operand.contains('/') {
            true => vec![operand.to_owned()],
            false => vec!["pods".to_owned(), operand.to_owned()],
        };
        let selection = Selection { operands, ..Selection::default() };
        let targets = self.targets(&selection).await?;
        let Some(target) = targets.first() else { return fail("expected a resource") };
        let object = self.read(&target.path()).await?;
        if target.resource.kind == "Pod" {
            return Ok((target.clone(), object));
        }
        let selector = selector_of(&object);
        if selector.is_empty() {
            return fail(format!(
                "cannot attach to *{}: selector for {} not implemented",
                target.resource.kind,
                target.title()
            ));
        }
        let resource = self.resource("pods").await?;
        let pods = Target { resource, ns: target.ns.clone(), name: String::new() };
        let selection = Selection { selector, ..Selection::default() };
        let begun = now();
        loop {
            let mut found = self.objects_of(&pods, &selection).await?;
            found.sort_by_key(|(_, pod)| pod["status"]["phase"] != "Running");
            if !found.is_empty() {
                return Ok(found.remove(0));
            }
            if now().saturating_sub(begun) >= POD_RUNNING {
                return fail("timed out waiting for the condition");
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    }
}

/// The selector of a workload's pods.
pub fn selector_of(object: &Value) -> String {
    let spec = &object["spec"]["selector"];
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let labels = spec["matchLabels"]
        .as_object()
        .or_else(|| spec.as_object().filter(|map| map.values().all(Value::is_string)));
    let mut parts: Vec<String> = labels.into_iter().flatten().map(pair).collect();
    for term in spec["matchExpressions"].as_array().into_iter().flatten() {
        let key = term["key"].as_str().unwrap_or_default();
        let values: Vec<&str> =
            term["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        parts.push(match term["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    parts.join(",")
}

/// Names of a pod's containers, with or without init and ephemeral ones.
pub fn container_names(pod: &Value, lists: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    for list in lists {
        let containers = pod["spec"][*list].as_array().into_iter().flatten();
        names.extend(containers.filter_map(|container| container["name"].as_str().map(str::to_owned)));
    }
    names
}

/// The container that is meant, and the message about a choice that was not made.
pub fn default_container(pod: &Value) -> (String, Option<String>) {
    let names = container_names(pod, &["containers"]);
    if let Some(name) = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str()
        && names.iter().any(|known| known == name)
    {
        return (name.to_owned(), None);
    }
    let all = container_names(pod, &["containers", "initContainers", "ephemeralContainers"]);
    let first = names.first().cloned().unwrap_or_default();
    let note = (all.len() > 1).then(|| {
        format!("Defaulted container {} out of: {}", machinery::field::show_str(&first), listed(pod))
    });
    (first, note)
}

/// All containers with the roles of init and ephemeral ones.
pub fn listed(pod: &Value) -> String {
    let mut shown = container_names(pod, &["containers"]);
    shown.extend(container_names(pod, &["initContainers"]).into_iter().map(|name| format!("{name} (init)")));
    shown.extend(
        container_names(pod, &["ephemeralContainers"]).into_iter().map(|name| format!("{name} (ephem)")),
    );
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_and_default_containers() {
        let object = json!({"spec": {"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d", "e"]}]}}});
        assert_eq!(selector_of(&object), "a=b,c in (d,e)");
        assert_eq!(selector_of(&json!({"spec": {"selector": {"x": "y"}}})), "x=y");
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        let (name, note) = default_container(&pod);
        assert_eq!(
            (name.as_str(), note.as_deref()),
            ("a", Some("Defaulted container \"a\" out of: a, b, i (init)"))
        );
    }
}
