//! Node addresses, from those of the provider and the kubelet.

use std::net::IpAddr;

use objects::core::v1::{Node, NodeAddress};

/// Node IPs that the kubelet was configured with: one, or one per family.
const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    #[error("failed to parse node IP {0:?}")]
    Unreadable(String),
    #[error("failed to get node address from cloud provider that matches ip: {0}")]
    Unknown(IpAddr),
}

/// Addresses of the provider in Kubernetes' order: the kubelet's configured address is first and the only one of its
/// type; the hostname is the kubelet's unless the provider has one.
pub fn arrange(node: &Node, reported: &[NodeAddress]) -> Result<Vec<NodeAddress>, AddressError> {
    let mut all = reported.to_vec();
    if !all.is_empty() && !all.iter().any(|address| address.type_ == "Hostname") {
        all.extend(current(node).iter().filter(|address| address.type_ == "Hostname").cloned());
    }
    let annotations = node.metadata.annotations.as_ref();
    let Some(provided) = annotations.and_then(|all| all.get(PROVIDED)) else { return Ok(all) };
    let mut first = Vec::new();
    for text in provided.split(',') {
        let ip: IpAddr = text.trim().parse().map_err(|_| AddressError::Unreadable(provided.clone()))?;
        let matching = all.iter().filter(|address| address.address.parse() == Ok(ip));
        let before = first.len();
        first.extend(matching.cloned());
        if first.len() == before {
            return Err(AddressError::Unknown(ip));
        }
    }
    let others = all.into_iter().filter(|address| !first.iter().any(|known| known.type_ == address.type_));
    let others: Vec<NodeAddress> = others.collect();
    first.extend(others);
    Ok(first)
}

#[must_use]
pub fn current(node: &Node) -> &[NodeAddress] {
    node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn address((kind, address): (&str, &str)) -> NodeAddress {
        NodeAddress { type_: kind.to_owned(), address: address.to_owned() }
    }

    #[test]
    fn node_addresses_are_ordered_by_node_ip() {
        let node = |provided: Option<&str>| -> Node {
            let mut node = json!({ "metadata": { "name": "n" },
                "status": { "addresses": [{ "type": "Hostname", "address": "host" }] } });
            if let Some(provided) = provided {
                node["metadata"]["annotations"] = json!({ PROVIDED: provided });
            }
            serde_json::from_value(node).expect("a node")
        };
        let reported = [("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2"), ("ExternalIP", "192.0.2.1")];
        let reported: Vec<NodeAddress> = reported.into_iter().map(address).collect();
        let texts = |provided| {
            let all = arrange(&node(provided), &reported)?;
            Ok(all.into_iter().map(|address| address.address).collect::<Vec<_>>())
        };
        let plain = ["10.0.0.1", "10.0.0.2", "192.0.2.1", "host"].map(str::to_owned).to_vec();
        assert_eq!(texts(None), Ok(plain));
        let chosen = ["10.0.0.2", "192.0.2.1", "host"].map(str::to_owned).to_vec();
        assert_eq!(texts(Some("10.0.0.2")), Ok(chosen));
        assert_eq!(texts(Some("10.0.0.3")), Err(AddressError::Unknown([10, 0, 0, 3].into())));
        assert_eq!(texts(Some("x")), Err(AddressError::Unreadable("x".to_owned())));
        assert_eq!(arrange(&node(None), &[]), Ok(vec![]));
    }
}
