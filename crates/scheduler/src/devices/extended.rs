//! Extended resources backed by devices: the requests of the claim that the scheduler makes for a pod.

use std::collections::{BTreeMap, BTreeSet};

use objects::core::v1::{Container, ContainerExtendedResourceRequest, Pod};
use objects::resource::v1::{DeviceRequest, ExactDeviceRequest};

use super::CLASS_RESOURCE_PREFIX;
use crate::state::is_extended;

/// Reports whether a resource can be mapped to a device class.
#[must_use]
pub fn is_mappable(resource: &str) -> bool {
    is_extended(resource) || resource.starts_with(CLASS_RESOURCE_PREFIX)
}

/// Requests for devices, and which containers use which of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtendedRequests {
    pub requests: Vec<DeviceRequest>,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// Requests for the devices of a pod. `resources` are the names of the resources and their classes. Init containers that
/// end use the devices of later containers.
#[must_use]
pub fn extended_requests(pod: &Pod, resources: &BTreeMap<&str, &str>) -> ExtendedRequests {
    let Some(spec) = &pod.spec else { return ExtendedRequests::default() };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let containers: Vec<&Container> = init.iter().chain(&spec.containers).collect();
    let ends =
        |index: usize| index < init.len() && containers[index].restart_policy.as_deref() != Some("Always");
    let mut all = ExtendedRequests::default();
    for (resource, class) in resources {
        let mut staying: Vec<Option<DeviceRequest>> = vec![None; containers.len()];
        for index in (0..containers.len()).filter(|index| !ends(*index)) {
            let (request, mappings) = container_request(index, containers[index], resource, class, &[]);
            staying[index] = request;
            all.mappings.extend(mappings);
        }
        let mut largest: Option<DeviceRequest> = None;
        let mut names = BTreeSet::new();
        let mut temporary = Vec::new();
        for index in (0..containers.len()).filter(|index| ends(*index)) {
            let (request, mappings) =
                container_request(index, containers[index], resource, class, &staying[index..]);
            temporary.extend(mappings);
            if let Some(request) = request {
                names.insert(request.name.clone());
                if largest.as_ref().is_none_or(|largest| count(largest) < count(&request)) {
                    largest = Some(request);
                }
            }
        }
        if let Some(largest) = largest {
            // Init containers that end run one after the other, so they share the largest request.
            for mapping in temporary.iter_mut().filter(|mapping| names.contains(&mapping.request_name)) {
                mapping.request_name.clone_from(&largest.name);
            }
            all.requests.push(largest);
        }
        all.requests.extend(staying.into_iter().flatten());
        all.mappings.extend(temporary);
    }
    all.requests.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn count(request: &DeviceRequest) -> i64 {
    request.exactly.as_ref().and_then(|exactly| exactly.count).unwrap_or(0)
}

/// Request of one container for what `reusable` requests do not cover, and its mappings to all of them.
fn container_request(
    index: usize,
    container: &Container,
    resource: &str,
    class: &str,
    reusable: &[Option<DeviceRequest>],
) -> (Option<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let Some(requests) = requests else { return (None, Vec::new()) };
    let wanted = requests.get(resource).and_then(|amount| super::quantity(amount).as_i64()).unwrap_or(0);
    if wanted <= 0 {
        return (None, Vec::new());
    }
    let mapping = |name: &str| ContainerExtendedResourceRequest {
        container_name: container.name.clone(),
        resource_name: resource.to_owned(),
        request_name: name.to_owned(),
    };
    let mut mappings = Vec::new();
    let mut covered = 0i64;
    for request in reusable.iter().flatten() {
        covered = covered.saturating_add(count(request));
        mappings.push(mapping(&request.name));
        if covered >= wanted {
            return (None, mappings);
        }
    }
    let position = requests.keys().position(|name| name == resource).unwrap_or(0);
    let name = format!("container-{index}-request-{position}");
    mappings.push(mapping(&name));
    let exactly = ExactDeviceRequest {
        device_class_name: class.to_owned(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(wanted - covered),
        ..ExactDeviceRequest::default()
    };
    (Some(DeviceRequest { name, exactly: Some(exactly), first_available: None }), mappings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GPU: &str = "example.com/gpu";

    fn container(name: &str, gpus: u32) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": "1", GPU: gpus.to_string()}}})
    }

    fn sidecar(name: &str, gpus: u32) -> Value {
        let mut container = container(name, gpus);
        container["restartPolicy"] = json!("Always");
        container
    }

    type Named<T> = Vec<(String, T)>;

    /// Requests with their counts, and mappings from containers to requests.
    fn made(init: Vec<Value>, containers: Vec<Value>) -> (Named<i64>, Named<String>) {
        let pod =
            json!({"metadata": {"name": "p"}, "spec": {"initContainers": init, "containers": containers}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let all = extended_requests(&pod, &BTreeMap::from([(GPU, "gpus")]));
        let requests = all.requests.iter().map(|request| (request.name.clone(), count(request)));
        let mappings = all.mappings.into_iter().map(|mapping| (mapping.container_name, mapping.request_name));
        (requests.collect(), mappings.collect())
    }

    fn named<T: Clone>(list: &[(&str, T)]) -> Named<T> {
        list.iter().map(|(name, other)| ((*name).to_owned(), other.clone())).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> Named<String> {
        list.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect()
    }

    #[test]
    fn each_container_has_its_own_request() {
        let (requests, mappings) =
            made(vec![], vec![container("a", 1), container("b", 2), container("c", 0)]);
        assert_eq!(requests, named(&[("container-0-request-1", 1), ("container-1-request-1", 2)]));
        assert_eq!(mappings, pairs(&[("a", "container-0-request-1"), ("b", "container-1-request-1")]));
    }

    #[test]
    fn init_container_reuses_devices_of_later_containers() {
        let (requests, mappings) = made(vec![container("i", 2)], vec![container("a", 1), container("b", 1)]);
        assert_eq!(requests, named(&[("container-1-request-1", 1), ("container-2-request-1", 1)]));
        let shared = [("i", "container-1-request-1"), ("i", "container-2-request-1")];
        let own = [("a", "container-1-request-1"), ("b", "container-2-request-1")];
        assert_eq!(mappings, pairs(&[own, shared].concat()));
    }

    #[test]
    fn init_containers_share_largest_request() {
        let init = vec![container("i", 2), sidecar("s", 1), container("j", 4)];
        let (requests, mappings) = made(init, vec![container("a", 1)]);
        let expected =
            [("container-1-request-1", 1), ("container-2-request-1", 3), ("container-3-request-1", 1)];
        assert_eq!(requests, named(&expected));
        assert_eq!(
            mappings,
            pairs(&[
                ("s", "container-1-request-1"),
                ("a", "container-3-request-1"),
                ("i", "container-1-request-1"),
                ("i", "container-3-request-1"),
                ("j", "container-3-request-1"),
                ("j", "container-2-request-1"),
            ])
        );
    }
}
