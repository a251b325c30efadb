//! Services and the endpoints behind them.

use super::cell::{NONE, UNSET, age, get, int, joined, labels_text, list, name, or, text, with_more};
use super::{AGE, NAME, column, doc, plain, wide};
use crate::kind::Table;
use machinery::Value;
use std::collections::BTreeSet;

/// Maximum number of addresses, ports or hosts in a cell before the number of further ones.
pub(super) const SHOWN: usize = 3;

pub(crate) static SERVICE: Table = plain(
    &[
        NAME,
        column("Type", "string", doc::SERVICE_SPEC_TYPE),
        column("Cluster-IP", "string", doc::SERVICE_SPEC_CLUSTER_IP),
        column("External-IP", "string", doc::SERVICE_SPEC_EXTERNAL_IPS),
        column("Port(s)", "string", doc::SERVICE_SPEC_PORTS),
        AGE,
        wide("Selector", "string", doc::SERVICE_SPEC_SELECTOR),
    ],
    |service, context| {
        let cluster_ip =
            list(service, &["spec", "clusterIPs"]).first().and_then(Value::as_str).unwrap_or(NONE);
        vec![
            name(service),
            text(service, &["spec", "type"]).into(),
            cluster_ip.into(),
            external_ip(service).into(),
            or(&ports(service), NONE).into(),
            age(service, context),
            labels_text(get(service, &["spec", "selector"])).into(),
        ]
    },
);

fn external_ip(service: &Value) -> String {
    let external = joined(list(service, &["spec", "externalIPs"]), ",");
    match text(service, &["spec", "type"]) {
        "ClusterIP" | "NodePort" => or(&external, NONE).to_owned(),
        "LoadBalancer" => match (load_balancer(service), external) {
            (assigned, external) if assigned.is_empty() => or(&external, "<pending>").to_owned(),
            (assigned, external) if external.is_empty() => assigned,
            (assigned, external) => format!("{assigned},{external}"),
        },
        "ExternalName" => text(service, &["spec", "externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Addresses assigned by a load balancer, sorted.
pub(super) fn load_balancer(object: &Value) -> String {
    let addresses: BTreeSet<&str> = list(object, &["status", "loadBalancer", "ingress"])
        .iter()
        .map(|ingress| or(text(ingress, &["ip"]), text(ingress, &["hostname"])))
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}

fn ports(service: &Value) -> String {
    let ports: Vec<String> = list(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            let (number, protocol) = (int(port, &["port"]), text(port, &["protocol"]));
            match int(port, &["nodePort"]) {
                node_port if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    ports.join(",")
}

pub(crate) static ENDPOINTS: Table =
    plain(&[NAME, column("Endpoints", "string", doc::ENDPOINTS_SUBSETS), AGE], |object, context| {
        vec![name(object), subsets(object).into(), age(object, context)]
    });

fn subsets(endpoints: &Value) -> String {
    let subsets = list(endpoints, &["subsets"]);
    let (mut shown, mut total) = (Vec::new(), 0);
    for subset in subsets {
        let addresses = list(subset, &["addresses"]);
        let ports = list(subset, &["ports"]);
        let mut add = |port: Option<&Value>| {
            total += addresses.len();
            let remaining = SHOWN.saturating_sub(shown.len());
            shown.extend(addresses.iter().take(remaining).map(|address| {
                let ip = text(address, &["ip"]);
                match port.map(|port| int(port, &["port"])) {
                    None => ip.to_owned(),
                    Some(port) if ip.contains(':') => format!("[{ip}]:{port}"),
                    Some(port) => format!("{ip}:{port}"),
                }
            }));
        };
        // A headless service may have no ports at all.
        if ports.is_empty() {
            add(None);
        }
        ports.iter().for_each(|port| add(Some(port)));
    }
    with_more(&shown, total, if subsets.is_empty() { NONE } else { "" })
}

pub(crate) static ENDPOINT_SLICE: Table = plain(
    &[
        NAME,
        column("AddressType", "string", doc::ENDPOINT_SLICE_ADDRESS_TYPE),
        column("Ports", "string", doc::ENDPOINT_SLICE_PORTS),
        column("Endpoints", "string", doc::ENDPOINT_SLICE_ENDPOINTS),
        AGE,
    ],
    |slice, context| {
        let ports = list(slice, &["ports"]);
        let shown_ports: Vec<String> = ports
            .iter()
            .take(SHOWN)
            .map(|port| match get(port, &["port"]).and_then(Value::as_i64) {
                Some(number) => number.to_string(),
                None => get(port, &["name"]).and_then(Value::as_str).unwrap_or("*").to_owned(),
            })
            .collect();
        let addresses: Vec<&Value> =
            list(slice, &["endpoints"]).iter().flat_map(|endpoint| list(endpoint, &["addresses"])).collect();
        let shown_addresses: Vec<String> =
            addresses.iter().take(SHOWN).map(|address| address.as_str().unwrap_or("").to_owned()).collect();
        vec![
            name(slice),
            text(slice, &["addressType"]).into(),
            with_more(&shown_ports, ports.len(), UNSET).into(),
            with_more(&shown_addresses, addresses.len(), UNSET).into(),
            age(slice, context),
        ]
    },
);
