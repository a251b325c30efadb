//! Ingresses and their classes, network policies, service address ranges, allocated addresses.

use super::cell::{NONE, age, get, joined, label_selector_cell, list, name, or, text};
use super::service::{SHOWN, load_balancer};
use super::{AGE, NAME, column, doc, plain};
use crate::kind::Table;
use machinery::{Value, meta};

pub(crate) static INGRESS: Table = plain(
    &[
        NAME,
        column(
            "Class",
            "string",
            "The name of the IngressClass resource that should be used for additional configuration",
        ),
        column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
        column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
        column("Ports", "string", "Ports of TLS configurations that open"),
        AGE,
    ],
    |ingress, context| {
        let class = get(ingress, &["spec", "ingressClassName"]).and_then(Value::as_str).unwrap_or(NONE);
        let ports = if list(ingress, &["spec", "tls"]).is_empty() { "80" } else { "80, 443" };
        vec![
            name(ingress),
            class.into(),
            hosts(ingress).into(),
            load_balancer(ingress).into(),
            ports.into(),
            age(ingress, context),
        ]
    },
);

/// The first hosts. The number of further ones counts rules, even those without a host.
fn hosts(ingress: &Value) -> String {
    let rules = list(ingress, &["spec", "rules"]);
    let mut shown = Vec::new();
    let mut more = false;
    for rule in rules {
        more = more || shown.len() == SHOWN;
        let host = text(rule, &["host"]);
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match shown.join(",") {
        hosts if hosts.is_empty() => "*".to_owned(),
        hosts if more => format!("{hosts} + {} more...", rules.len() - SHOWN),
        hosts => hosts,
    }
}

pub(crate) static INGRESS_CLASS: Table = plain(
    &[
        NAME,
        column("Controller", "string", "Controller that is responsible for handling this class"),
        column("Parameters", "string", "A reference to a resource with additional parameters"),
        AGE,
    ],
    |class, context| {
        let default = meta::annotation(class, "ingressclass.kubernetes.io/is-default-class") == Some("true");
        let suffix = if default { " (default)" } else { "" };
        vec![
            format!("{}{suffix}", meta::name(class)).into(),
            text(class, &["spec", "controller"]).into(),
            parameters(class).into(),
            age(class, context),
        ]
    },
);

fn parameters(class: &Value) -> String {
    let Some(parameters) = get(class, &["spec", "parameters"]) else { return NONE.to_owned() };
    let (kind, name) = (text(parameters, &["kind"]), text(parameters, &["name"]));
    match get(parameters, &["apiGroup"]).and_then(Value::as_str) {
        Some(group) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

pub(crate) static NETWORK_POLICY: Table = plain(
    &[NAME, column("Pod-Selector", "string", doc::NETWORK_POLICY_SPEC_POD_SELECTOR), AGE],
    |policy, context| {
        vec![name(policy), label_selector_cell(get(policy, &["spec", "podSelector"])), age(policy, context)]
    },
);

pub(crate) static SERVICE_CIDR: Table =
    plain(&[NAME, column("CIDRs", "string", doc::SERVICE_CIDR_SPEC_CIDRS), AGE], |object, context| {
        vec![name(object), joined(list(object, &["spec", "cidrs"]), ",").into(), age(object, context)]
    });

/// Rows have one cell more than there are columns: Kubernetes prints the age without a column for it.
pub(crate) static IP_ADDRESS: Table =
    plain(&[NAME, column("ParentRef", "string", doc::IP_ADDRESS_SPEC_PARENT_REF)], |object, context| {
        vec![name(object), parent(object).into(), age(object, context)]
    });

fn parent(address: &Value) -> String {
    let Some(parent) = get(address, &["spec", "parentRef"]) else { return NONE.to_owned() };
    let mut path = text(parent, &["resource"]).to_lowercase();
    let group = text(parent, &["group"]);
    if !group.is_empty() {
        path = format!("{path}.{}", group.to_lowercase());
    }
    let namespace = text(parent, &["namespace"]);
    let separator = if namespace.is_empty() { "" } else { "/" };
    format!("{path}{separator}{namespace}/{}", or(text(parent, &["name"]), ""))
}
