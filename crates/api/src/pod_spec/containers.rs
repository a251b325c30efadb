//! The lists of containers of a pod spec.

use super::options::Options;
use super::{env, is_sidecar, mounts, probes, resources, security_context};
use crate::pod_spec::checks::{
    dns_label, invalid_number, invalid_texts, one_of, required_one_of, required_text,
};
use crate::value::{Fields, is_zero};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};

/// Context for the checks of a container.
pub struct Surroundings<'a> {
    pub spec: &'a Value,
    /// Volumes that are valid.
    pub volumes: Vec<&'a Value>,
    /// Names of the pod's resource claims.
    pub claims: Vec<&'a str>,
    pub options: &'a Options,
    /// The pod shares the host's user namespace.
    pub host_users: bool,
}

pub fn validate_containers(around: &Surroundings<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let containers = around.spec.items("containers");
    let path = path.child("containers");
    if containers.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    let grace = around.spec.opt_int("terminationGracePeriodSeconds");
    for (index, container) in containers.iter().enumerate() {
        let item = path.index(index);
        validate_common(container, around, &item, errors);
        let name = container.text("name");
        if containers[..index].iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&item.child("name"), &Value::from(name)));
        }
        probes::validate_lifecycle(around.spec, container, &item, errors);
        probes::validate_probes(container, grace, &item, errors);
        validate_restart_policy(container, false, &item, errors);
    }
    validate_host_ports(containers, &path, errors);
}

pub fn validate_init_containers(around: &Surroundings<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let containers = around.spec.items("initContainers");
    let path = path.child("initContainers");
    let grace = around.spec.opt_int("terminationGracePeriodSeconds");
    for (index, container) in containers.iter().enumerate() {
        let item = path.index(index);
        validate_common(container, around, &item, errors);
        validate_restart_policy(container, true, &item, errors);
        let name = container.text("name");
        let taken = |other: &Value| other.text("name") == name;
        let earlier = !name.is_empty() && containers[..index].iter().any(taken);
        if earlier || around.spec.items("containers").iter().any(taken) {
            errors.push(FieldError::duplicate(&item.child("name"), &Value::from(name)));
        }
        // Init containers run one by one; the path has the index of the first, as in Kubernetes.
        validate_host_ports(std::slice::from_ref(container), &path, errors);
        let sidecar = is_sidecar(container);
        if sidecar {
            probes::validate_lifecycle(around.spec, container, &item, errors);
            probes::validate_probes(container, grace, &item, errors);
        } else {
            for name in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if container.has(name) {
                    let detail = "may not be set for init containers without restartPolicy=Always";
                    errors.push(FieldError::forbidden(&item.child(name), detail));
                }
            }
        }
        if sidecar || around.options.restart_container_on_init {
            continue;
        }
        let policies = item.child("resizePolicy");
        for (index, policy) in container.items("resizePolicy").iter().enumerate() {
            if policy.text("restartPolicy") == "RestartContainer" {
                let policy = policies.index(index);
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.push(FieldError::invalid_str(
                    &policy.child("restartPolicy"),
                    "RestartContainer",
                    detail,
                ));
            }
        }
    }
}

/// Fields that an ephemeral container may not have, in their order.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

pub fn validate_ephemeral_containers(around: &Surroundings<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let containers = around.spec.items("ephemeralContainers");
    let path = path.child("ephemeralContainers");
    let is_other = |name: &str| {
        let lists = ["containers", "initContainers"];
        lists.iter().any(|list| around.spec.items(list).iter().any(|other| other.text("name") == name))
    };
    for (index, container) in containers.iter().enumerate() {
        let item = path.index(index);
        validate_common(container, around, &item, errors);
        validate_only_for_pod(container, &item, errors);
        let name = container.text("name");
        if is_other(name) || containers[..index].iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&item.child("name"), &Value::from(name)));
        }
        let target = container.text("targetContainerName");
        if !target.is_empty() && !is_other(target) {
            let path = item.child("targetContainerName");
            errors.push(FieldError::not_found(&path, &Value::from(target)));
        }
        const DETAIL: &str = "cannot be set for an Ephemeral Container";
        for name in NOT_EPHEMERAL {
            // An empty lifecycle, probe or policy counts as present.
            let there = container.entries(name).is_some() || container.opt_text(name).is_some();
            if !is_zero(container.field(name)) || (name != "resources" && there) {
                errors.push(FieldError::forbidden(&item.child(name), DETAIL));
            }
        }
        let mounts = item.child("volumeMounts");
        for (index, mount) in container.items("volumeMounts").iter().enumerate() {
            let mount_path = mounts.index(index);
            for name in ["subPath", "subPathExpr"] {
                if !mount.text(name).is_empty() {
                    errors.push(FieldError::forbidden(&mount_path.child(name), DETAIL));
                }
            }
        }
    }
}

/// Rules of all kinds of containers.
fn validate_common(container: &Value, around: &Surroundings<'_>, path: &Path<'_>, errors: &mut ErrorList) {
    let name = container.text("name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        dns_label(name, &path.child("name"), errors);
    }
    required_text(container, "image", path, errors);
    let policies = ["File", "FallbackToLogsOnError"];
    let policy = container.text("terminationMessagePolicy");
    required_one_of(policy, &policies, &path.child("terminationMessagePolicy"), errors);
    validate_ports(container.items("ports"), &path.child("ports"), errors);
    env::validate_env(container.items("env"), &path.child("env"), errors);
    env::validate_env_from(container.items("envFrom"), &path.child("envFrom"), errors);
    mounts::validate_mounts(container, &around.volumes, path, errors);
    mounts::validate_devices(container, &around.volumes, path, errors);
    validate_pull_policy(container.text("imagePullPolicy"), &path.child("imagePullPolicy"), errors);
    let resources_path = path.child("resources");
    let requirements = container.field("resources");
    resources::validate_container_resources(
        requirements,
        &around.claims,
        around.options,
        &resources_path,
        errors,
    );
    let restart = around.spec.text("restartPolicy");
    let policy_path = path.child("resizePolicy");
    resources::validate_resize_policy(container.items("resizePolicy"), restart, &policy_path, errors);
    let context = container.field("securityContext");
    let context_path = path.child("securityContext");
    security_context::validate_security_context(context, around.host_users, &context_path, errors);
}

pub fn validate_pull_policy(policy: &str, path: &Path<'_>, errors: &mut ErrorList) {
    required_one_of(policy, &["Always", "IfNotPresent", "Never"], path, errors);
}

fn validate_ports(ports: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = port.text("name");
        if !name.is_empty() {
            let problems = names::port_name(name);
            let name_path = path.child("name");
            let taken = |other: &Value| other.text("name") == name;
            if problems.is_empty() && ports[..index].iter().any(taken) {
                errors.push(FieldError::duplicate(&name_path, &Value::from(name)));
            }
            invalid_texts(problems, name, &name_path, errors);
        }
        let (number, host) = (port.int("containerPort"), port.int("hostPort"));
        if number == 0 {
            errors.push(FieldError::required(&path.child("containerPort"), ""));
        } else {
            invalid_number(names::port_number(number), number, &path.child("containerPort"), errors);
        }
        if host != 0 {
            invalid_number(names::port_number(host), host, &path.child("hostPort"), errors);
        }
        required_one_of(port.text("protocol"), &["SCTP", "TCP", "UDP"], &path.child("protocol"), errors);
    }
}

/// Host ports with the same number, protocol and address conflict.
fn validate_host_ports(containers: &[Value], path: &Path<'_>, errors: &mut ErrorList) {
    let mut taken: Vec<(&str, &str, i64)> = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let item = path.index(index);
        let ports = item.child("ports");
        for (index, port) in container.items("ports").iter().enumerate() {
            let key = (port.text("protocol"), port.text("hostIP"), port.int("hostPort"));
            if key.2 == 0 {
                continue;
            }
            if taken.contains(&key) {
                let shown = Value::from(format!("{}/{}/{}", key.0, key.1, key.2));
                let port_path = ports.index(index);
                errors.push(FieldError::duplicate(&port_path.child("hostPort"), &shown));
            } else {
                taken.push(key);
            }
        }
    }
}

/// `restartPolicy` and `restartPolicyRules` of one container. Rules of an init container without a policy are not
/// validated further.
fn validate_restart_policy(container: &Value, init: bool, path: &Path<'_>, errors: &mut ErrorList) {
    let rules = container.items("restartPolicyRules");
    let policy_path = path.child("restartPolicy");
    match container.opt_text("restartPolicy") {
        None if rules.is_empty() => return,
        None => {
            let detail = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(&policy_path, detail));
            if init {
                return;
            }
        }
        Some(policy) => one_of(policy, &["Always", "Never", "OnFailure"], &policy_path, errors),
    }
    let rules_path = path.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.push(FieldError::too_many(&rules_path, rules.len(), 20));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = rules_path.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        one_of(rule.text("action"), &actions, &path.child("action"), errors);
        let codes = rule.field("exitCodes");
        let path = path.child("exitCodes");
        if codes.is_null() {
            errors.push(FieldError::required(&path, "must be specified"));
            continue;
        }
        one_of(codes.text("operator"), &["In", "NotIn"], &path.child("operator"), errors);
        let values = codes.items("values").len();
        if values > 255 {
            errors.push(FieldError::too_many(&path.child("values"), values, 255));
        }
    }
}

/// Fields allowed in templates but not in pods.
pub fn validate_only_for_pod(container: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let image = container.text("image");
    if image.trim().len() != image.len() {
        let detail = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid_str(&path.child("image"), image, detail));
    }
}
