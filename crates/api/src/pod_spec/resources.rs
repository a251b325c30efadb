//! Resource requests and limits of containers and pods.

use super::options::Options;
use crate::pod_spec::checks::{dns_label, invalid_texts};
use crate::value::Fields;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::quantity::Quantity;
use machinery::{Value, names};

/// Standard resource names without a domain.
const STANDARD: [&str; 20] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];

/// Resources with integer quantities.
const INTEGER: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// A quantity of an object; a malformed one was rejected before, and counts as zero.
pub fn quantity(value: &Value) -> Quantity {
    match value {
        Value::String(text) => Quantity::parse(text).unwrap_or_default(),
        Value::Number(number) => Quantity::parse(&number.to_string()).unwrap_or_default(),
        _ => Quantity::default(),
    }
}

pub fn is_negative(text: &str) -> bool {
    text.starts_with('-') && Quantity::parse(text).is_ok_and(|quantity| quantity.sign() < 0)
}

pub fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// True for names in Kubernetes' own domain, or in none.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// An extended resource, as provided by device plugins.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Naming rule of a resource list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Container,
    Pod,
}

/// `resources` of a container; `claims` are the names of the pod's resource claims.
pub fn validate_container_resources(
    resources: &Value,
    claims: &[&str],
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    validate(resources, claims, Scope::Container, options, path, errors);
}

/// `overhead` of a pod: rules and paths of a container's limits.
pub fn validate_overhead(overhead: &Value, options: &Options, path: &Path<'_>, errors: &mut ErrorList) {
    if overhead.is_object() {
        let mut resources = Value::Null;
        resources.set("limits", overhead.clone());
        validate(&resources, &[], Scope::Container, options, path, errors);
    }
}

fn validate(
    resources: &Value,
    claims: &[&str],
    scope: Scope,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if !resources.is_object() {
        return;
    }
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let limits = resources.field("limits");
    let (mut compute, mut huge_pages) = (false, false);
    let mut note = |name: &str| {
        compute |= matches!(name, "cpu" | "memory");
        huge_pages |= is_huge_page(name);
    };
    for (name, value) in resources.entries("limits").into_iter().flatten() {
        validate_amount(name, quantity(value), scope, options, &limits_path.key(name), errors);
        note(name);
    }
    for (name, value) in resources.entries("requests").into_iter().flatten() {
        let request = quantity(value);
        validate_name_and_value(name, request, scope, &requests_path.key(name), errors);
        let overcommit = is_overcommit_allowed(name);
        if limits.has(name) {
            let limit = quantity(limits.field(name));
            if request != limit && !overcommit {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid_str(&requests_path, &request.to_string(), detail));
            } else if request > limit {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid_str(&requests_path, &request.to_string(), detail));
            }
        } else if !overcommit {
            let detail = "Limit must be set for non overcommitable resources";
            errors.push(FieldError::required(&limits_path, detail));
        }
        validate_huge_page(name, request, options, &requests_path.key(name), errors);
        note(name);
    }
    if huge_pages && !compute {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
    validate_claims(resources.items("claims"), claims, &path.child("claims"), errors);
}

fn validate_amount(
    name: &str,
    amount: Quantity,
    scope: Scope,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    validate_name_and_value(name, amount, scope, path, errors);
    validate_huge_page(name, amount, options, path, errors);
}

fn validate_name_and_value(
    name: &str,
    amount: Quantity,
    scope: Scope,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    match scope {
        Scope::Container => validate_container_resource_name(name, path, errors),
        Scope::Pod => {
            let before = errors.len();
            validate_resource_name(name, path, errors);
            if errors.len() == before && !is_pod_level(name) {
                let supported = ["cpu", "hugepages-", "memory"];
                errors.push(FieldError::not_supported(path, &Value::from(name), &supported));
            }
        }
    }
    validate_quantity_value(name, amount, path, errors);
}

/// Requires non-negative amounts, and integers for integer resources.
pub fn validate_quantity_value(name: &str, amount: Quantity, path: &Path<'_>, errors: &mut ErrorList) {
    if amount.sign() < 0 {
        errors.push(FieldError::invalid_str(path, &amount.to_string(), crate::pod_spec::checks::NEGATIVE));
    }
    let counted = INTEGER.contains(&name) || (name.contains('/') && is_extended(name));
    if counted && amount.milli_value() % 1000 != 0 {
        errors.push(FieldError::invalid_str(path, &amount.to_string(), "must be an integer"));
    }
}

fn validate_huge_page(
    name: &str,
    amount: Quantity,
    options: &Options,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    if !options.indivisible_huge_pages && is_huge_page(name) && !is_divisible(name, amount) {
        let detail = format!("{amount} is not positive integer multiple of {name}");
        errors.push(FieldError::invalid_str(path, &amount.to_string(), detail));
    }
}

/// True if the amount is a multiple of the page size in the resource's name.
pub fn is_divisible(name: &str, amount: Quantity) -> bool {
    let Some(Ok(page)) = name.strip_prefix("hugepages-").map(Quantity::parse) else { return false };
    page.sign() > 0
        && page.milli_value() % 1000 == 0
        && amount.value().checked_rem(page.value()).is_some_and(|rest| rest == 0)
}

fn validate_resource_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    let problems = names::qualified_name(name);
    if !problems.is_empty() {
        invalid_texts(problems, name, path, errors);
    } else if !name.contains('/') && !is_standard(name) {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid_str(path, name, detail));
    }
}

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-")
}

/// Name of a resource of containers.
pub fn validate_container_resource_name(name: &str, path: &Path<'_>, errors: &mut ErrorList) {
    if matches!(name, "cpu" | "memory" | "ephemeral-storage") {
        return;
    }
    validate_resource_name(name, path, errors);
    if !name.contains('/') {
        if !is_huge_page(name) {
            errors.push(FieldError::invalid_str(path, name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        let detail = "doesn't follow extended resource name standard";
        errors.push(FieldError::invalid_str(path, name, detail));
    }
}

/// Resources supported at the pod level.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

fn validate_claims(claims: &[Value], of_pod: &[&str], path: &Path<'_>, errors: &mut ErrorList) {
    let mut taken: Vec<String> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let path = path.index(index);
        let (name, request) = (claim.text("name"), claim.text("request"));
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        if taken.iter().any(|key| key == name) {
            errors.push(FieldError::duplicate(&path, &Value::from(name)));
        } else {
            let mut key = name.to_owned();
            if !request.is_empty() {
                dns_label(request, &path.child("request"), errors);
                key = format!("{name}/{request}");
            }
            if taken.contains(&key) {
                errors.push(FieldError::duplicate(&path, &Value::from(key.as_str())));
            } else if request.is_empty() {
                let overlapping = taken.iter().filter(|k| k.split_once('/').is_some_and(|(n, _)| n == name));
                errors.extend(overlapping.map(|_| FieldError::duplicate(&path, &Value::from(name))));
            }
            taken.push(key);
        }
        if !of_pod.contains(&name) {
            let mut sorted = of_pod.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            let which = if sorted.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", sorted.join(", "))
            };
            let error = FieldError::not_found(&path, &Value::from(name));
            let detail = format!("must be one of the names in pod.spec.resourceClaims{which}");
            errors.push(FieldError { detail, ..error });
        }
    }
}

/// `spec.resources`: pod-level resources.
pub fn validate_pod_resources(
    spec: &Value,
    claims: &[&str],
    options: &Options,
    spec_path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let resources = spec.field("resources");
    if resources.is_null() {
        return;
    }
    let path = spec_path.child("resources");
    if spec.field("os").text("name") == "windows" {
        errors.push(FieldError::forbidden(&path, "may not be set for a windows pod"));
        return;
    }
    if resources.has("claims") {
        let detail = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(&path.child("claims"), detail));
    }
    validate(resources, claims, Scope::Pod, options, &path, errors);
    validate_consistency(spec, resources, &path, errors);
}

/// The sum of container requests may not exceed the pod's request, nor a container's limit the pod's limit.
fn validate_consistency(spec: &Value, resources: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    for (list, only_huge_pages) in [("requests", false), ("limits", true)] {
        let list_path = path.child(list);
        for (name, total) in super::totals::container_totals(spec, list) {
            let of_pod = resources.field(list);
            if !of_pod.has(&name) || (only_huge_pages && !is_huge_page(&name)) {
                continue;
            }
            let of_pod = quantity(of_pod.field(&name));
            if total > of_pod {
                let detail =
                    format!("must be greater than or equal to aggregate container {list} of {total}");
                errors.push(FieldError::invalid_str(&list_path.key(&name), &of_pod.to_string(), detail));
            }
        }
    }
    let containers = path.child("containers");
    for (index, container) in spec.items("containers").iter().enumerate() {
        let item = containers.index(index);
        for (name, value) in container.field("resources").entries("limits").into_iter().flatten() {
            let of_pod = resources.field("limits");
            if !of_pod.has(name) {
                continue;
            }
            let (limit, of_pod) = (quantity(value), quantity(of_pod.field(name)));
            if limit > of_pod {
                let key = item.key(name);
                let detail = format!("must be less than or equal to pod limits of {of_pod}");
                errors.push(FieldError::invalid_str(&key.child("limits"), &limit.to_string(), detail));
            }
        }
    }
}

/// `resizePolicy` of a container.
pub fn validate_resize_policy(
    policies: &[Value],
    pod_restart_policy: &str,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    use crate::pod_spec::checks::required_one_of;
    for (index, policy) in policies.iter().enumerate() {
        let (name, restart) = (policy.text("resourceName"), policy.text("restartPolicy"));
        if policies[..index].iter().any(|other| other.text("resourceName") == name) {
            errors.push(FieldError::duplicate(&path.index(index), &Value::from(name)));
        }
        required_one_of(name, &["cpu", "memory"], path, errors);
        required_one_of(restart, &["NotRequired", "RestartContainer"], path, errors);
        if pod_restart_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid_str(path, restart, detail));
        }
    }
}

/// `spec.resourceClaims`; `is_static` pods may have none.
pub fn validate_pod_claims(claims: &[Value], is_static: bool, path: &Path<'_>, errors: &mut ErrorList) {
    for (index, claim) in claims.iter().enumerate() {
        if is_static {
            errors.push(FieldError::forbidden(&Path::new(""), "static pods do not support resource claims"));
            continue;
        }
        let path = path.index(index);
        let name = claim.text("name");
        let name_path = path.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&name_path, ""));
        } else if claims[..index].iter().any(|other| other.text("name") == name) {
            errors.push(FieldError::duplicate(&name_path, &Value::from(name)));
        } else {
            dns_label(name, &name_path, errors);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let problem = match sources.iter().filter(|source| claim.has(source)).count() {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            1 => "",
            _ => "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
        };
        if !problem.is_empty() {
            let shown = super::layout::internal_json("PodResourceClaim", claim);
            errors.push(FieldError::invalid_shown(&path, shown, problem));
        }
        for source in sources {
            if let Some(name) = claim.opt_text(source) {
                invalid_texts(names::dns_subdomain(name, false), name, &path.child(source), errors);
            }
        }
    }
}
