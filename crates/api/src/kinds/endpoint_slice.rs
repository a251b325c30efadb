//! EndpointSlice.

use crate::validation::checks::{
    PROTOCOLS, dns_label, dns_subdomain, endpoint_ip, immutable, legacy_ip, qualified_name, required_one_of,
};
use crate::value::{Fields, texts};
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    validate: |slice| validate(slice, None),
    validate_update,
    warnings,
    counts_generation: true,
    metadata_on_update: &[MetadataCheck::New],
    table: &crate::tables::service::ENDPOINT_SLICE,
    ..Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", Scope::Namespaced)
};

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

fn default(slice: &mut Value) {
    for port in slice.items_mut("ports") {
        port.default_to("name", "");
        port.default_to("protocol", "TCP");
    }
}

fn prepare_create(slice: &mut Value) {
    drop_deprecated_topology(slice, &[]);
}

fn prepare_update(new: &mut Value, old: &Value) {
    // Labels assign a slice to its service, so a change of them counts as well, and so do fields dropped below.
    if new.at("metadata.labels") != old.at("metadata.labels")
        || new.field("endpoints") != old.field("endpoints")
    {
        meta::metadata_mut(new).insert("generation".to_owned(), (meta::generation(old) + 1).into());
    }
    if new.field("endpoints") == old.field("endpoints") {
        return;
    }
    let known: Vec<&str> = old.items("endpoints").iter().map(topology_node).collect();
    drop_deprecated_topology(new, &known);
}

/// `deprecatedTopology` cannot be written through v1; a node name that an older writer left there moves to
/// `nodeName`, so that partial updates do not lose it.
fn drop_deprecated_topology(slice: &mut Value, known_nodes: &[&str]) {
    for endpoint in slice.items_mut("endpoints") {
        let node = topology_node(endpoint).to_owned();
        endpoint.unset("deprecatedTopology");
        if !node.is_empty()
            && known_nodes.contains(&node.as_str())
            && machinery::names::dns_subdomain(&node, false).is_empty()
        {
            endpoint.default_to("nodeName", node);
        }
    }
}

fn topology_node(endpoint: &Value) -> &str {
    endpoint.field("deprecatedTopology").text(HOSTNAME_LABEL)
}

const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20000;
const MAX_ENDPOINTS: usize = 1000;
const MAX_TOPOLOGY_LABELS: usize = 16;
const MAX_HINTS: usize = 8;

fn validate(slice: &Value, old: Option<&Value>) -> ErrorList {
    let kind = slice.text("addressType");
    let mut errors = required_one_of(&Path::new("addressType"), kind, &["FQDN", "IPv4", "IPv6"]);
    errors.extend(validate_ports(slice.items("ports")));
    // Values accepted by older rules are tolerated.
    if old.is_none_or(|old| old.items("endpoints") != slice.items("endpoints")) {
        errors.extend(validate_endpoints(slice.items("endpoints"), kind));
    }
    errors
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(new, Some(old));
    errors.extend(immutable(&Path::new("addressType"), new.field("addressType"), old.field("addressType")));
    errors
}

fn validate_endpoints(endpoints: &[Value], kind: &str) -> ErrorList {
    let endpoints_path = Path::new("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        return vec![FieldError::too_many(&endpoints_path, endpoints.len(), MAX_ENDPOINTS)];
    }
    let mut errors = Vec::new();
    for (i, endpoint) in endpoints.iter().enumerate() {
        let path = endpoints_path.index(i);
        let addresses = endpoint.items("addresses");
        let addresses_path = path.child("addresses");
        if addresses.is_empty() {
            errors.push(FieldError::required(&addresses_path, "must contain at least 1 address"));
        } else if addresses.len() > MAX_ADDRESSES {
            errors.push(FieldError::too_many(&addresses_path, addresses.len(), MAX_ADDRESSES));
        }
        for (i, address) in texts(addresses).enumerate() {
            errors.extend(validate_address(address, kind, &addresses_path, i));
        }
        if let Some(node) = endpoint.opt_text("nodeName") {
            errors.extend(dns_subdomain(&path.child("nodeName"), node));
        }
        if let Some(topology) = endpoint.entries("deprecatedTopology") {
            let path = path.child("deprecatedTopology");
            if topology.len() > MAX_TOPOLOGY_LABELS {
                errors.push(FieldError::too_many(&path, topology.len(), MAX_TOPOLOGY_LABELS));
            }
            errors.extend(names::validate_labels(topology, &path));
        }
        if let Some(hostname) = endpoint.opt_text("hostname") {
            errors.extend(dns_label(&path.child("hostname"), hostname));
        }
        errors.extend(validate_hints(endpoint.field("hints"), &path.child("hints")));
    }
    errors
}

fn validate_address(address: &str, kind: &str, path: &Path<'_>, i: usize) -> ErrorList {
    let address_path = path.index(i);
    let (problems, v6) = match kind {
        "IPv4" => (legacy_ip(&address_path, address, &[]), false),
        "IPv6" => (names::valid_ip(&address_path, address), true),
        "FQDN" => return names::fully_qualified_domain_name(&address_path, address),
        _ => return Vec::new(),
    };
    if !problems.is_empty() {
        return problems;
    }
    let mut errors = Vec::new();
    if names::parse_ip_sloppy(address).is_some_and(|ip| ip.is_ipv6() != v6) {
        errors.push(FieldError::invalid_str(path, address, format!("must be an {kind} address")));
    }
    errors.extend(endpoint_ip(&address_path, address));
    errors
}

fn validate_ports(ports: &[Value]) -> ErrorList {
    let ports_path = Path::new("ports");
    if ports.len() > MAX_PORTS {
        return vec![FieldError::too_many(&ports_path, ports.len(), MAX_PORTS)];
    }
    let mut errors = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = ports_path.index(i);
        let name_path = path.child("name");
        let name = port.text("name");
        if !name.is_empty() {
            errors.extend(dns_label(&name_path, name));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&name_path, &name.into()));
        }
        errors.extend(required_one_of(&path.child("protocol"), port.text("protocol"), PROTOCOLS));
        if let Some(protocol) = port.opt_text("appProtocol") {
            errors.extend(qualified_name(&path.child("appProtocol"), protocol));
        }
    }
    errors
}

fn validate_hints(hints: &Value, path: &Path<'_>) -> ErrorList {
    let mut errors = Vec::new();
    for (list, rule) in [("forZones", names::label_value as fn(&str) -> _), ("forNodes", node_name)] {
        let items = hints.items(list);
        let list_path = path.child(list);
        if items.len() > MAX_HINTS {
            errors.push(FieldError::too_many(&list_path, items.len(), MAX_HINTS));
            return errors;
        }
        for (i, item) in items.iter().enumerate() {
            let path = list_path.index(i);
            let path = path.child("name");
            let name = item.text("name");
            if items[..i].iter().any(|other| other.text("name") == name) {
                errors.push(FieldError::duplicate(&path, &name.into()));
            }
            errors
                .extend(rule(name).into_iter().map(|message| FieldError::invalid_str(&path, name, message)));
        }
    }
    errors
}

fn node_name(name: &str) -> Vec<String> {
    names::dns_subdomain(name, false)
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings = Vec::new();
    if old.is_none() && new.text("addressType") == "FQDN" {
        warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
    }
    let labels = meta::labels(new);
    let managed_by = labels.and_then(|labels| labels.get("endpointslice.kubernetes.io/managed-by"));
    let ours = ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
    if managed_by.and_then(Value::as_str).is_some_and(|by| ours.contains(&by)) {
        return warnings;
    }
    let endpoints_path = Path::new("endpoints");
    for (i, endpoint) in new.items("endpoints").iter().enumerate() {
        let path = endpoints_path.index(i);
        let path = path.child("addresses");
        for (i, address) in texts(endpoint.items("addresses")).enumerate() {
            warnings.extend(names::warnings_for_ip(&path.index(i), address));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deprecated_topology_moves_node_to_node_name() {
        let old = json!({"endpoints": [{"deprecatedTopology": {"kubernetes.io/hostname": "n1"}}]});
        let mut new = json!({"endpoints": [
            {"addresses": ["1.2.3.4"], "deprecatedTopology": {"kubernetes.io/hostname": "n1"}},
            {"deprecatedTopology": {"kubernetes.io/hostname": "other"}},
        ]});
        prepare_update(&mut new, &old);
        assert_eq!(
            new,
            json!({"metadata": {"generation": 1}, "endpoints": [{"addresses": ["1.2.3.4"], "nodeName": "n1"}, {}]})
        );
    }

    #[test]
    fn label_change_increments_generation() {
        let old = json!({"metadata": {"generation": 4, "labels": {"a": "b"}}});
        let mut new = json!({"metadata": {"generation": 4, "labels": {"a": "c"}}});
        prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 5);
    }

    #[test]
    fn addresses_and_ports_are_validated() {
        let slice = |kind: &str, address: &str| json!({"addressType": kind, "endpoints": [{"addresses": [address]}], "ports": [{"name": "", "protocol": "TCP"}]});
        let cases = [
            (slice("IPv4", "10.1.2.3"), 0),
            (slice("IPv6", "fd00::1"), 0),
            (slice("IPv6", "10.1.2.3"), 1),
            (slice("IPv4", "127.0.0.1"), 1),
            (slice("IPv4", "x"), 1),
            (slice("X", "10.1.2.3"), 1),
            (json!({"addressType": "IPv4", "endpoints": [{}]}), 1),
        ];
        for (slice, errors) in cases {
            assert_eq!(validate(&slice, None).len(), errors, "{slice}");
        }
    }
}
