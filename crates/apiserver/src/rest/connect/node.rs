//! Addresses of nodes and their kubelets.

use super::pod::allowed;
use super::upstream::{Trust, Upstream};
use super::{items, split_name, text};
use crate::context::Context;
use crate::rest::Rest;
use machinery::Value;
use machinery::status::{Result, Status};

/// Node address types in order of preference.
const PREFERRED: [&str; 5] = ["InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP"];
const KUBELET_PORT: u16 = 10250;

fn address(node: &Value) -> Option<&str> {
    let addresses = items(node, &["status", "addresses"]);
    PREFERRED.iter().find_map(|kind| {
        addresses.iter().find(|one| text(one, &["type"]) == *kind).map(|one| text(one, &["address"]))
    })
}

fn kubelet_port(node: &Value) -> u16 {
    node.get("status")
        .and_then(|status| status.get("daemonEndpoints")?.get("kubeletEndpoint")?.get("Port")?.as_u64())
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .unwrap_or(KUBELET_PORT)
}

/// Address of a node that callers may reach through this server: every address the name resolves to must be allowed,
/// and the returned one is dialed.
async fn proxyable(host: &str) -> Result<String> {
    if host.parse::<std::net::IpAddr>().is_ok() {
        allowed(host)?;
        return Ok(host.to_owned());
    }
    let found = tokio::net::lookup_host((host, 0)).await;
    let found: Vec<_> =
        found.map(Iterator::collect).map_err(|error| Status::bad_request(error.to_string()))?;
    let mut first = None;
    for address in found {
        let ip = address.ip().to_canonical().to_string();
        allowed(&ip)?;
        first.get_or_insert(ip);
    }
    first.ok_or_else(|| Status::bad_request(format!("no addresses found for node host {host:?}")))
}

impl Rest {
    /// Kubelet of a node.
    pub(super) async fn kubelet(&self, node: &str) -> Result<Upstream> {
        let object = self.object("nodes", "", node).await?;
        let host = address(&object).ok_or_else(|| {
            Status::internal(format!("no preferred addresses found; known addresses: [] of node {node}"))
        })?;
        Ok(Upstream {
            host: host.to_owned(),
            port: kubelet_port(&object),
            tls: true,
            trust: Trust::Kubelet,
            node: node.to_owned(),
        })
    }

    /// Kubelet, or another port of the node.
    pub(super) async fn node_address(&self, context: &Context) -> Result<Upstream> {
        let id = &context.info.name;
        let Some((scheme, name, port)) = split_name(id) else {
            return Err(Status::bad_request(format!("invalid node request {id:?}")));
        };
        let kubelet = self.kubelet(name).await?;
        let host = proxyable(&kubelet.host).await?;
        let kubelet = Upstream { host, ..kubelet };
        match port.parse::<u16>() {
            _ if port.is_empty() => Ok(kubelet),
            Ok(port) if port == kubelet.port => Ok(kubelet),
            Ok(port) => Ok(Upstream { port, tls: scheme == "https", trust: Trust::Unverified, ..kubelet }),
            Err(_) => Err(Status::bad_request(format!("invalid node request {id:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_address_and_port_are_selected() {
        let node = serde_json::json!({"status": {
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "192.0.2.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 12345}}}});
        let node: Value = serde_json::from_value(node).expect("a value");
        assert_eq!(address(&node), Some("192.0.2.1"));
        assert_eq!(kubelet_port(&node), 12345);
        assert_eq!(kubelet_port(&Value::Null), KUBELET_PORT);
    }

    #[tokio::test]
    async fn proxyable_loopback_or_link_local_returns_400() {
        for host in [
            "127.0.0.1",
            "127.1.2.3",
            "169.254.169.254",
            "0.0.0.0",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "fe80::1",
            "224.0.0.1",
            "localhost",
        ] {
            let outcome = proxyable(host).await;
            assert_eq!(
                outcome.map_err(|status| (status.code, status.message)),
                Err((400, "address not allowed".to_owned())),
                "{host}"
            );
        }
        assert_eq!(proxyable("192.0.2.1").await.ok().as_deref(), Some("192.0.2.1"));
        assert_eq!(proxyable("fd00::1").await.ok().as_deref(), Some("fd00::1"));
    }
}
