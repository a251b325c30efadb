//! The downward API: fields and resources of a pod, as text.

use std::collections::BTreeMap;

use machinery::field::show_str;
use machinery::quantity::Quantity;
use objects::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::lifecycle::members::members;

/// Failure to resolve a downward API field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("container {0} not found")]
    Container(String),
}

/// Pod facts only available on the node.
#[derive(Clone, Debug, Default)]
pub struct PodFacts<'a> {
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node_name: &'a str,
    /// Default limits of a container without its own: the node's allocatable resources.
    pub allocatable: Option<&'a BTreeMap<String, i64>>,
}

/// Labels or annotations in file format: sorted `key="value"` lines.
#[must_use]
pub fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", show_str(value))).collect();
    lines.join("\n")
}

/// Returns the value of a pod field.
pub fn field(pod: &Pod, path: &str, facts: &PodFacts<'_>) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return Err(DownwardError::Field(path.to_owned())),
        };
        return Ok(map.and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let spec = pod.spec.as_ref();
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => facts.node_name.to_owned(),
        "spec.serviceAccountName" => spec.map(|spec| text(&spec.service_account_name)).unwrap_or_default(),
        "status.podIP" => facts.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_ips.join(","),
        "status.hostIP" => facts.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => facts.host_ips.join(","),
        _ => return Err(DownwardError::Field(path.to_owned())),
    })
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// Returns a request or limit of a container, divided and rounded up.
pub fn resource(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    facts: &PodFacts<'_>,
) -> Result<String, DownwardError> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let all = pod.spec.as_ref().map(members).unwrap_or_default();
    let container = match named {
        Some(name) => all
            .iter()
            .find(|member| member.name() == name)
            .map(|member| &member.container)
            .ok_or_else(|| DownwardError::Container(name.to_owned()))?,
        None => own.ok_or_else(|| DownwardError::Container(String::new()))?,
    };
    let unsupported = || DownwardError::Resource(selector.resource.clone());
    let (kind, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let resources = container.resources.as_ref();
    let list = match kind {
        "limits" => resources.and_then(|own| own.limits.as_ref()),
        "requests" => resources.and_then(|own| own.requests.as_ref()),
        _ => return Err(unsupported()),
    };
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !known {
        return Err(unsupported());
    }
    let milli = list
        .and_then(|list| list.get(name))
        .and_then(|text| Quantity::parse(&text.0).ok())
        .map(|quantity| i128::from(quantity.milli_value()))
        .filter(|value| *value > 0 || kind == "requests");
    let milli = match (milli, kind) {
        (Some(milli), _) => milli,
        (None, "limits") => facts.allocatable.and_then(|all| all.get(name)).copied().map_or(0, i128::from),
        (None, _) => 0,
    };
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|divisor| Quantity::parse(&divisor.0).ok())
        .map(|quantity| i128::from(quantity.milli_value()))
        .filter(|divisor| *divisor > 0)
        .unwrap_or(1000);
    Ok(((milli + divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::Quantity as Text;
    use objects::core::v1::{PodSpec, ResourceRequirements};

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.labels =
            Some(BTreeMap::from([("b".to_owned(), "2\n".to_owned()), ("a".to_owned(), "1".to_owned())]));
        let limits = BTreeMap::from([
            ("cpu".to_owned(), Text("1500m".to_owned())),
            ("memory".to_owned(), Text("64Mi".to_owned())),
        ]);
        pod.spec = Some(PodSpec {
            containers: vec![Container {
                name: "c".to_owned(),
                resources: Some(ResourceRequirements { limits: Some(limits), ..Default::default() }),
                ..Container::default()
            }],
            ..PodSpec::default()
        });
        pod
    }

    #[test]
    fn downward_fields_resolve() {
        let (ips, hosts) = (["10.0.0.1".to_owned(), "fd00::1".to_owned()], ["192.0.2.1".to_owned()]);
        let facts = PodFacts { pod_ips: &ips, host_ips: &hosts, node_name: "n", allocatable: None };
        for (path, want) in [
            ("metadata.name", Ok("p".to_owned())),
            ("metadata.labels", Ok("a=\"1\"\nb=\"2\\n\"".to_owned())),
            ("metadata.labels['a']", Ok("1".to_owned())),
            ("metadata.annotations['x']", Ok(String::new())),
            ("status.podIPs", Ok("10.0.0.1,fd00::1".to_owned())),
            ("spec.nodeName", Ok("n".to_owned())),
            ("status.phase", Err(DownwardError::Field("status.phase".to_owned()))),
        ] {
            assert_eq!(field(&pod(), path, &facts), want, "{path}");
        }
    }

    #[test]
    fn downward_resources_divide_and_round_up() {
        let pod = pod();
        let allocatable = BTreeMap::from([("cpu".to_owned(), 4000)]);
        let facts = PodFacts { allocatable: Some(&allocatable), ..PodFacts::default() };
        let own = pod.spec.as_ref().map(|spec| &spec.containers[0]);
        for (name, divisor, want) in [
            ("limits.cpu", None, "2"),
            ("limits.cpu", Some("1m"), "1500"),
            ("limits.memory", Some("1Mi"), "64"),
            ("limits.memory", None, "67108864"),
            ("requests.cpu", None, "0"),
        ] {
            let selector = ResourceFieldSelector {
                container_name: None,
                divisor: divisor.map(|text: &str| Text(text.to_owned())),
                resource: name.to_owned(),
            };
            assert_eq!(resource(&pod, own, &selector, &facts).as_deref(), Ok(want), "{name} {divisor:?}");
        }
    }
}
