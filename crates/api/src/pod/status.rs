//! The status subresource of pods, written by kubelets.

use super::update::{restore, validate_annotation_changes};
use crate::pod_spec::checks::{
    dns_label, dns_subdomain, invalid_number, one_of, qualified_name, required_text,
};
use crate::pod_spec::{disabled, layout, relaxed};
use crate::value::{Fields, is_zero};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

const STATUS_LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// Restores the old spec, owners and, if the new status omits them, QoS class and observed generations.
pub fn prepare(new: &mut Value, old: &Value) {
    restore(new, old, "spec");
    let metadata = new.child_mut("metadata");
    metadata.unset("deletionTimestamp");
    restore(metadata, old.field("metadata"), "ownerReferences");
    let old_status = old.field("status");
    let status = new.child_mut("status");
    if status.text("qosClass").is_empty() {
        restore(status, old_status, "qosClass");
    }
    if status.int("observedGeneration") == 0 {
        restore(status, old_status, "observedGeneration");
    }
    keep_condition_generations(status, old_status);
    disabled::drop_disabled_status_fields(status, old_status);
}

/// Several conditions may share a type, so they are matched one by one in order.
fn keep_condition_generations(status: &mut Value, old: &Value) {
    let mut old_conditions: Vec<&Value> = old.items("conditions").iter().collect();
    for condition in status.items_mut("conditions") {
        let kind = condition.text("type");
        let Some(position) = old_conditions.iter().position(|old| old.text("type") == kind) else { continue };
        let generation = old_conditions.remove(position).int("observedGeneration");
        if condition.int("observedGeneration") == 0 && generation != 0 {
            condition.set("observedGeneration", generation);
        }
    }
}

pub fn validate(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let old_pod = Some((old.field("spec"), old.at("metadata.annotations")));
    relaxed::with_old(true, old_pod, &mut errors, |options, errors| {
        validate_annotation_changes(new, old, options, errors);
    });
    let path = Path::new("status");
    let (status, old_status) = (new.field("status"), old.field("status"));
    let (spec, old_spec) = (new.field("spec"), old.field("spec"));
    validate_conditions(status.items("conditions"), &path.child("conditions"), &mut errors);
    validate_nomination(status, old_status, old_spec, &path, &mut errors);
    let generation = status.int("observedGeneration");
    if generation < 0 {
        let path = path.child("observedGeneration");
        errors.push(FieldError::invalid(&path, &Value::from(generation), "must be a non-negative integer"));
    }
    let class = status.text("qosClass");
    if class != old_status.text("qosClass") {
        errors.push(FieldError::invalid_str(&path.child("qosClass"), class, "field is immutable"));
    }
    for (list, containers) in [
        ("containerStatuses", Some("containers")),
        ("initContainerStatuses", Some("initContainers")),
        ("ephemeralContainerStatuses", None),
    ] {
        validate_transitions(status, old_status, list, old_spec, containers, &path, &mut errors);
    }
    validate_claim_statuses(status, spec, &path, &mut errors);
    validate_extended_claim(status, spec, &path, &mut errors);
    validate_addresses(status, old_status, "podIPs", &path, &mut errors);
    validate_host_ip(status, &path, &mut errors);
    validate_addresses(status, old_status, "hostIPs", &path, &mut errors);
    for list in STATUS_LISTS {
        validate_users(status.items(list), spec, &path.child(list), &mut errors);
    }
    validate_allocated(status, spec, &path, &mut errors);
    errors
}

fn validate_conditions(conditions: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let generation = condition.int("observedGeneration");
        if generation < 0 {
            let path = path.child("observedGeneration");
            errors.push(FieldError::invalid(
                &path,
                &Value::from(generation),
                "must be a non-negative integer",
            ));
        }
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            qualified_name(kind, &path.child("Type"), errors);
        }
    }
}

fn validate_nomination(
    status: &Value,
    old: &Value,
    old_spec: &Value,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let name = status.text("nominatedNodeName");
    if name.is_empty() || name == old.text("nominatedNodeName") {
        return;
    }
    let path = path.child("nominatedNodeName");
    dns_subdomain(name, &path, errors);
    if !old_spec.text("nodeName").is_empty() {
        let detail = "may not be set on pods that are already bound to a node";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// A terminated container may not restart unless its policy allows it. Without `containers`, none may.
fn validate_transitions(
    status: &Value,
    old: &Value,
    list: &str,
    spec: &Value,
    containers: Option<&str>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if containers.is_some() && all_may_restart(spec) {
        return;
    }
    let path = path.child(list);
    for (index, old) in old.items(list).iter().enumerate() {
        let ended = old.field("state").field("terminated");
        if ended.is_null() {
            continue;
        }
        let name = old.text("name");
        let revived = |new: &Value| new.text("name") == name && !new.field("state").has("terminated");
        if !status.items(list).iter().any(revived) {
            continue;
        }
        let container = containers.and_then(|containers| {
            spec.items(containers).iter().find(|container| container.text("name") == name)
        });
        if !container.is_some_and(|container| should_restart(container, spec, ended.int("exitCode"))) {
            let item = path.index(index);
            let detail = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(&item.child("state"), detail));
        }
    }
}

/// A rule that restarts all containers allows any of them to restart.
fn all_may_restart(spec: &Value) -> bool {
    ["initContainers", "containers"].iter().any(|list| {
        spec.items(list).iter().any(|container| {
            let mut rules = container.items("restartPolicyRules").iter();
            rules.any(|rule| rule.text("action") == "RestartAllContainers")
        })
    })
}

fn should_restart(container: &Value, spec: &Value, exit_code: i64) -> bool {
    if container.has("restartPolicy") {
        let matches = |rule: &&Value| {
            let codes = rule.field("exitCodes");
            let listed = codes.items("values").iter().any(|code| code.as_i64() == Some(exit_code));
            match codes.text("operator") {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        };
        let rule = container.items("restartPolicyRules").iter().find(matches);
        if rule.is_some_and(|rule| matches!(rule.text("action"), "Restart" | "RestartAllContainers")) {
            return true;
        }
        match container.text("restartPolicy") {
            "Always" => return true,
            "OnFailure" => return exit_code != 0,
            "Never" => return false,
            _ => {}
        }
    }
    match spec.text("restartPolicy") {
        "OnFailure" => exit_code != 0,
        "Never" => false,
        _ => true,
    }
}

fn validate_claim_statuses(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let path = path.child("resourceClaimStatuses");
    let statuses = status.items("resourceClaimStatuses");
    for (index, claim) in statuses.iter().enumerate() {
        let path = path.index(index);
        let name = claim.text("name");
        let named = |other: &Value| other.text("name") == name;
        if !spec.items("resourceClaims").iter().any(named) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid_str(&path.child("name"), name, detail));
        }
        if statuses[..index].iter().any(named) {
            errors.push(FieldError::duplicate(&path.child("name"), &Value::from(name)));
        }
        if let Some(name) = claim.opt_text("resourceClaimName") {
            dns_subdomain(name, &path.child("resourceClaimName"), errors);
        }
    }
}

fn validate_extended_claim(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let claim = status.field("extendedResourceClaimStatus");
    if claim.is_null() {
        return;
    }
    let path = path.child("extendedResourceClaimStatus");
    let mappings = claim.items("requestMappings");
    let mappings_path = path.child("requestMappings");
    if mappings.is_empty() {
        errors.push(FieldError::required(&mappings_path, "at least one request mapping is required"));
    }
    for (index, mapping) in mappings.iter().enumerate() {
        let item = mappings_path.index(index);
        let (name, resource) = (mapping.text("containerName"), mapping.text("resourceName"));
        let mut containers = spec.items("containers").iter().chain(spec.items("initContainers"));
        match containers.find(|container| container.text("name") == name) {
            None => {
                let detail =
                    "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.push(FieldError::invalid_str(&item.child("containerName"), name, detail));
            }
            Some(container) if !container.at("resources.requests").has(resource) => {
                let detail = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.push(FieldError::invalid_str(&item.child("resourceName"), resource, detail));
            }
            Some(_) => {}
        }
        dns_label(mapping.text("requestName"), &path.child("requestName"), errors);
        if mappings[..index].contains(mapping) {
            for name in ["containerName", "resourceName", "requestName"] {
                errors.push(FieldError::duplicate(&item.child(name), &Value::from(mapping.text(name))));
            }
        }
    }
    required_text(claim, "resourceClaimName", &path, errors);
    if !claim.text("resourceClaimName").is_empty() {
        dns_subdomain(claim.text("resourceClaimName"), &path.child("resourceClaimName"), errors);
    }
}

/// `podIPs` or `hostIPs`: valid unless unchanged, and at most one of each family.
fn validate_addresses(status: &Value, old: &Value, list: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let addresses = status.items(list);
    let path = path.child(list);
    let known: Vec<&str> = old.items(list).iter().map(|address| address.text("ip")).collect();
    for (index, address) in addresses.iter().enumerate() {
        errors.extend(names::valid_ip_legacy(&path.index(index), address.text("ip"), true, &known));
    }
    if addresses.len() < 2 {
        return;
    }
    let parsed: Vec<_> = addresses.iter().map(|address| names::parse_ip_sloppy(address.text("ip"))).collect();
    if let Some(bad) = parsed.iter().position(Option::is_none) {
        let text = addresses[bad].text("ip");
        let detail = format!("failed to check for dual stack with error:invalid IP[{bad}]: {text}");
        errors.push(FieldError::internal(&path, detail));
    }
    let any = |v4: bool| parsed.iter().flatten().any(|address| address.is_ipv4() == v4);
    let dual = parsed.iter().all(Option::is_some) && any(true) && any(false);
    if !dual || addresses.len() > 2 {
        let kind = if list == "podIPs" { "PodIP" } else { "HostIP" };
        let shown: Vec<String> = addresses.iter().map(|ip| layout::internal_json(kind, ip)).collect();
        let detail = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid_shown(&path, format!("[{}]", shown.join(",")), detail));
    }
}

fn validate_host_ip(status: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let Some(first) = status.items("hostIPs").first() else { return };
    let ip = first.text("ip");
    if ip != status.text("hostIP") {
        let list = path.child("hostIPs");
        let item = list.index(0);
        errors.push(FieldError::invalid_str(&item.child("ip"), ip, "must be equal to `hostIP`"));
    }
}

fn validate_users(statuses: &[Value], spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, status) in statuses.iter().enumerate() {
        let user = status.field("user").field("linux");
        if user.is_null() {
            continue;
        }
        let item = path.index(index);
        let user_path = item.child("user");
        let path = user_path.child("linux");
        match spec.field("os").text("name") {
            "windows" => errors.push(FieldError::forbidden(&path, "cannot be set for a windows pod")),
            "linux" | "" => {
                for name in ["uid", "gid"] {
                    let id = user.int(name);
                    invalid_number(names::user_id(id), id, &path.child(name), errors);
                }
                let groups = path.child("supplementalGroups");
                for (index, group) in user.items("supplementalGroups").iter().enumerate() {
                    let group = group.as_i64().unwrap_or(0);
                    invalid_number(names::user_id(group), group, &groups.index(index), errors);
                }
            }
            _ => {}
        }
    }
}

/// Allocated devices of containers, and their health.
fn validate_allocated(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (list, containers) in
        [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")]
    {
        let path = path.child(list);
        for (index, status) in status.items(list).iter().enumerate() {
            let item = path.index(index);
            let path = item.child("allocatedResourcesStatus");
            let named = |container: &&Value| container.text("name") == status.text("name");
            let container = spec.items(containers).iter().find(named);
            for (index, allocated) in status.items("allocatedResourcesStatus").iter().enumerate() {
                validate_allocated_resource(allocated, container, &path.index(index), errors);
            }
        }
    }
    let path = path.child("ephemeralContainerStatuses");
    for (index, status) in status.items("ephemeralContainerStatuses").iter().enumerate() {
        if !is_zero(status.field("allocatedResourcesStatus")) {
            let item = path.index(index);
            let detail = "must not be specified in container status";
            errors.push(FieldError::forbidden(&item.child("allocatedResourcesStatus"), detail));
        }
    }
}

fn validate_allocated_resource(
    allocated: &Value,
    container: Option<&Value>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let name = allocated.text("name");
    if let Some(container) = container {
        let container_resources = container.field("resources");
        let (found, detail) = match name.strip_prefix("claim:") {
            Some(claim) => {
                let (claim, request) = claim.split_once('/').unwrap_or((claim, ""));
                let same = |c: &Value| c.text("name") == claim && c.text("request") == request;
                (
                    container_resources.items("claims").iter().any(same),
                    "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
                )
            }
            None => (
                container_resources.field("requests").has(name),
                "must match one of the container's resource requests",
            ),
        };
        if !found {
            errors.push(FieldError::invalid_str(&path.child("name"), name, detail));
        }
    }
    let resources = allocated.items("resources");
    let path = path.child("resources");
    for (index, resource) in resources.iter().enumerate() {
        let path = path.index(index);
        one_of(resource.text("health"), &["Healthy", "Unhealthy", "Unknown"], &path.child("health"), errors);
        match resource.opt_text("message") {
            Some("") => {
                errors.push(FieldError::required(&path.child("message"), "must be non-empty if specified"));
            }
            Some(message) if message.len() > 1024 => {
                errors.push(FieldError::too_long(&path.child("message"), 1024));
            }
            _ => {}
        }
        let id = resource.text("resourceID");
        if resources[..index].iter().any(|other| other.text("resourceID") == id) {
            errors.push(FieldError::duplicate(&path.child("resourceID"), &Value::from(id)));
        }
    }
}
