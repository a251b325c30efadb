//! Endpoints.

use crate::validation::checks::{
    PROTOCOLS, dns_label, dns_subdomain, endpoint_ip, legacy_ip, port_number, qualified_name, required_one_of,
};
use crate::value::Fields;
use crate::{Kind, MetadataCheck, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};

pub static KIND: Kind = Kind {
    default,
    validate: |endpoints| validate_subsets(endpoints.items("subsets")),
    validate_update: |new, old| match new.items("subsets") {
        // Values accepted by older rules are tolerated.
        same if same == old.items("subsets") => Vec::new(),
        changed => validate_subsets(changed),
    },
    warnings: |new, _| warnings(new),
    create_on_update: true,
    metadata_on_update: &[MetadataCheck::Update, MetadataCheck::New],
    deprecation: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    storage_path: "services/endpoints",
    table: &crate::tables::service::ENDPOINTS,
    ..Kind::new("", "v1", "Endpoints", "endpoints", Scope::Namespaced)
};

fn default(endpoints: &mut Value) {
    for subset in endpoints.items_mut("subsets") {
        for port in subset.items_mut("ports") {
            port.default_if_zero("protocol", "TCP");
        }
    }
}

const ADDRESS_LISTS: [&str; 2] = ["addresses", "notReadyAddresses"];

fn validate_subsets(subsets: &[Value]) -> ErrorList {
    let subsets_path = Path::new("subsets");
    let mut errors = Vec::new();
    for (i, subset) in subsets.iter().enumerate() {
        let path = subsets_path.index(i);
        if ADDRESS_LISTS.iter().all(|list| subset.items(list).is_empty()) {
            errors.push(FieldError::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in ADDRESS_LISTS {
            let list_path = path.child(list);
            for (i, address) in subset.items(list).iter().enumerate() {
                errors.extend(validate_address(address, &list_path.index(i)));
            }
        }
        let ports = subset.items("ports");
        let ports_path = path.child("ports");
        for (i, port) in ports.iter().enumerate() {
            errors.extend(validate_port(port, ports.len() > 1, &ports_path.index(i)));
        }
    }
    errors
}

fn validate_address(address: &Value, path: &Path<'_>) -> ErrorList {
    let ip_path = path.child("ip");
    let ip = address.text("ip");
    let mut errors = legacy_ip(&ip_path, ip, &[]);
    let hostname = address.text("hostname");
    if !hostname.is_empty() {
        errors.extend(dns_label(&path.child("hostname"), hostname));
    }
    if let Some(node) = address.opt_text("nodeName") {
        errors.extend(dns_subdomain(&path.child("nodeName"), node));
    }
    errors.extend(endpoint_ip(&ip_path, ip));
    errors
}

fn validate_port(port: &Value, name_required: bool, path: &Path<'_>) -> ErrorList {
    let name_path = path.child("name");
    let mut errors = match port.text("name") {
        "" if name_required => vec![FieldError::required(&name_path, "")],
        "" => Vec::new(),
        name => dns_label(&name_path, name),
    };
    errors.extend(port_number(&path.child("port"), port.int("port")));
    errors.extend(required_one_of(&path.child("protocol"), port.text("protocol"), PROTOCOLS));
    if let Some(protocol) = port.opt_text("appProtocol") {
        errors.extend(qualified_name(&path.child("appProtocol"), protocol));
    }
    errors
}

fn warnings(endpoints: &Value) -> Vec<String> {
    let labels = meta::labels(endpoints);
    let managed_by = labels.and_then(|labels| labels.get("endpoints.kubernetes.io/managed-by"));
    if managed_by.is_some_and(|by| by == "endpoint-controller") {
        return Vec::new();
    }
    let subsets_path = Path::new("subsets");
    let mut warnings = Vec::new();
    for (i, subset) in endpoints.items("subsets").iter().enumerate() {
        let path = subsets_path.index(i);
        for list in ADDRESS_LISTS {
            let list_path = path.child(list);
            for (i, address) in subset.items(list).iter().enumerate() {
                let path = list_path.index(i);
                warnings.extend(names::warnings_for_ip(&path.child("ip"), address.text("ip")));
            }
        }
    }
    warnings
}
