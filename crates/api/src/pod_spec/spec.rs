//! Validation of a whole pod spec.

use super::containers::{self, Surroundings};
use super::options::Options;
use super::{
    affinity, dns, env, for_each_container, operating_system, resources, security_context, tolerations,
    topology_spread, volumes, windows,
};
use crate::pod_spec::checks::{dns_label, dns_subdomain, qualified_name, required_one_of};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// Validates a pod spec. `metadata` is the pod's; [`Value::Null`] for the spec of a template.
pub fn validate_pod_spec(
    spec: &Value,
    metadata: &Value,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if !spec.has("terminationGracePeriodSeconds") {
        errors.push(FieldError::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let pod_name = metadata.text("name");
    let volumes_path = path.child("volumes");
    let claims = spec.items("resourceClaims");
    let around = Surroundings {
        spec,
        volumes: volumes::validate_volumes(spec.items("volumes"), pod_name, options, &volumes_path, errors),
        claims: claims.iter().map(|claim| claim.text("name")).filter(|name| !name.is_empty()).collect(),
        options,
        host_users: spec.opt_flag("hostUsers") != Some(false),
    };
    let is_static = metadata.field("annotations").has(super::annotations::MIRROR_POD);
    resources::validate_pod_claims(claims, is_static, &path.child("resourceClaims"), errors);
    containers::validate_containers(&around, path, errors);
    containers::validate_init_containers(&around, path, errors);
    containers::validate_ephemeral_containers(&around, path, errors);
    resources::validate_pod_resources(spec, &around.claims, options, path, errors);
    validate_host_network_ports(spec, options, path, errors);
    let policies = ["Always", "OnFailure", "Never"];
    required_one_of(spec.text("restartPolicy"), &policies, &path.child("restartPolicy"), errors);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    required_one_of(spec.text("dnsPolicy"), &policies, &path.child("dnsPolicy"), errors);
    if let Some(selector) = spec.entries("nodeSelector") {
        errors.extend(names::validate_labels(selector, &path.child("nodeSelector")));
    }
    security_context::validate_pod_security_context(spec, options, path, errors);
    if spec.has("affinity") {
        affinity::validate_affinity(spec.field("affinity"), options, &path.child("affinity"), errors);
    }
    dns::validate_dns_config(spec, path, errors);
    validate_gates(spec, path, errors);
    let constraints = spec.items("topologySpreadConstraints");
    topology_spread::validate_spread(constraints, options, &path.child("topologySpreadConstraints"), errors);
    windows::validate_host_process(spec, path, errors);
    validate_user_namespace(spec, options, path, errors);
    dns::validate_hostname_override(spec, path, errors);
    validate_names(spec, path, errors);
    tolerations::validate_tolerations(spec.items("tolerations"), options, &path.child("tolerations"), errors);
    dns::validate_host_aliases(spec.items("hostAliases"), &path.child("hostAliases"), errors);
    validate_scheduling(spec, options, path, errors);
    operating_system::validate_os(spec, path, errors);
    validate_scheduling_group(spec, path, errors);
    env::validate_file_key_volumes(spec, path, errors);
}

/// With host networking, host port and container port must be equal; a template may omit one.
fn validate_host_network_ports(spec: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    if !spec.flag("hostNetwork") {
        return;
    }
    let path = path.child("containers");
    for (index, container) in spec.items("containers").iter().enumerate() {
        let item = path.index(index);
        let ports = item.child("ports");
        for (index, port) in container.items("ports").iter().enumerate() {
            let host = port.int("hostPort");
            if (options.is_pod || host != 0) && host != port.int("containerPort") {
                let item = ports.index(index);
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&item.child("hostPort"), &Value::from(host), detail));
            }
        }
    }
}

fn validate_gates(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let readiness = path.child("readinessGates");
    for (index, gate) in spec.items("readinessGates").iter().enumerate() {
        let item = readiness.index(index);
        qualified_name(gate.text("conditionType"), &item.child("conditionType"), errors);
    }
    let gates = spec.items("schedulingGates");
    let scheduling = path.child("schedulingGates");
    for (index, gate) in gates.iter().enumerate() {
        let name = gate.text("name");
        let item = scheduling.index(index);
        qualified_name(name, &item, errors);
        if gates[..index].iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&item, &Value::from(name)));
        }
    }
}

/// A pod with a user namespace may not share other namespaces with the host.
fn validate_user_namespace(spec: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    const DETAIL: &str = "when `hostUsers` is false";
    if spec.opt_flag("hostUsers") != Some(false) {
        return;
    }
    for (name, complaint) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
    {
        if spec.flag(name) {
            errors.push(FieldError::forbidden(&path.child(complaint), DETAIL));
        }
    }
    if options.user_namespace_devices {
        return;
    }
    for_each_container(spec, path, |container, path| {
        if !container.items("volumeDevices").is_empty() {
            errors.push(FieldError::forbidden(&path.child("volumeDevices"), DETAIL));
        }
    });
}

fn validate_names(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for name in ["serviceAccountName", "nodeName"] {
        if !spec.text(name).is_empty() {
            dns_subdomain(spec.text(name), &path.child(name), errors);
        }
    }
    if let Some(seconds) = spec.opt_int("activeDeadlineSeconds") {
        let max = i64::from(i32::MAX);
        if !(1..=max).contains(&seconds) {
            let path = path.child("activeDeadlineSeconds");
            errors.push(FieldError::invalid(&path, &Value::from(seconds), names::range_error(1, max)));
        }
    }
    for name in ["hostname", "subdomain"] {
        if !spec.text(name).is_empty() {
            dns_label(spec.text(name), &path.child(name), errors);
        }
    }
}

fn validate_scheduling(spec: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    let class = spec.text("priorityClassName");
    if !class.is_empty() {
        dns_subdomain(class, &path.child("priorityClassName"), errors);
    }
    if let Some(class) = spec.opt_text("runtimeClassName") {
        dns_subdomain(class, &path.child("runtimeClassName"), errors);
    }
    if let Some(policy) = spec.opt_text("preemptionPolicy") {
        let policies = ["PreemptLowerPriority", "Never"];
        required_one_of(policy, &policies, &path.child("preemptionPolicy"), errors);
    }
    resources::validate_overhead(spec.field("overhead"), options, &path.child("overhead"), errors);
}

fn validate_scheduling_group(spec: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let group = spec.field("schedulingGroup");
    if group.is_null() {
        return;
    }
    let path = path.child("schedulingGroup");
    let path = path.child("podGroupName");
    match group.opt_text("podGroupName") {
        Some(name) => dns_subdomain(name, &path, errors),
        None => {
            let detail = "must specify one of: `podGroupName`";
            errors.push(FieldError::invalid(&path, &Value::Null, detail));
        }
    }
}
