//! Service ports: resolves to one of the ready endpoints.

use super::pod::allowed;
use super::upstream::{Trust, Upstream};
use super::{items, split_name, text};
use crate::context::Context;
use crate::registry::OrStatus;
use crate::rest::Rest;
use machinery::Value;
use machinery::status::{Result, Status};
use rand::seq::IndexedRandom;

impl Rest {
    pub(super) async fn service_address(&self, context: &Context) -> Result<Upstream> {
        let info = &context.info;
        let Some((scheme, name, port)) = split_name(&info.name) else {
            return Err(Status::bad_request(format!("invalid service request {:?}", info.name)));
        };
        let service = self.object("services", &info.namespace, name).await?;
        let wanted = match wanted_port(&service, port) {
            Some(wanted) => wanted,
            None if port.parse::<i64>().is_ok() => {
                return Err(Status::service_unavailable(format!(
                    "no service port {port} found for service {name:?}"
                )));
            }
            // A name that no endpoint has.
            None => port.to_owned(),
        };
        let served = self.registry.builtin("discovery.k8s.io", "v1", "endpointslices")?;
        let cache = &served.storage.cache;
        let scope = served.scope_key(&info.namespace);
        let now = cache.fresh(&scope).await.or_status()?;
        let slices = cache.list(&scope, None, 0, now, |_| true);
        let (mut found, mut any) = (Vec::new(), false);
        for entry in slices.entries {
            let slice = entry.value();
            if text(&slice, &["metadata", "labels", "kubernetes.io/service-name"]) != name {
                continue;
            }
            any = true;
            found.extend(endpoints(&slice, &wanted));
        }
        if !any {
            // No EndpointSlice exists yet; Kubernetes returns the same error.
            return Err(Status::not_found("", "services", name));
        }
        let Some((host, port)) = found.choose(&mut rand::rng()).cloned() else {
            return Err(Status::service_unavailable(format!("no endpoints available for service {name:?}")));
        };
        allowed(&host)?;
        Ok(Upstream { host, port, tls: scheme == "https", trust: Trust::Unverified, node: String::new() })
    }
}

/// Name of the requested port: by name, by number, or the only one.
fn wanted_port(service: &Value, requested: &str) -> Option<String> {
    let ports = items(service, &["spec", "ports"]);
    let name = |port: &Value| text(port, &["name"]).to_owned();
    if requested.is_empty() {
        return match ports {
            [only] => Some(name(only)),
            _ => ports.iter().find(|port| text(port, &["name"]).is_empty()).map(name),
        };
    }
    ports
        .iter()
        .find(|port| {
            text(port, &["name"]) == requested
                || port.get("port").and_then(Value::as_u64).is_some_and(|port| port.to_string() == requested)
        })
        .map(name)
}

/// Addresses and port of the ready endpoints of a slice.
fn endpoints(slice: &Value, port_name: &str) -> Vec<(String, u16)> {
    let port = items(slice, &["ports"])
        .iter()
        .find(|port| text(port, &["name"]) == port_name)
        .and_then(|port| port.get("port")?.as_u64())
        .and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else { return Vec::new() };
    items(slice, &["endpoints"])
        .iter()
        .filter(|endpoint| {
            let ready = endpoint.get("conditions").and_then(|conditions| conditions.get("ready"));
            ready.and_then(Value::as_bool).unwrap_or(true)
        })
        .filter_map(|endpoint| items(endpoint, &["addresses"]).first()?.as_str())
        .map(|address| (address.to_owned(), port))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: serde_json::Value) -> Value {
        serde_json::from_value(json).expect("a value")
    }

    #[test]
    fn service_port_resolves_to_ready_endpoints() {
        let service = value(
            serde_json::json!({"spec": {"ports": [{"name": "web", "port": 80}, {"name": "x", "port": 81}]}}),
        );
        assert_eq!(wanted_port(&service, "web").as_deref(), Some("web"));
        assert_eq!(wanted_port(&service, "81").as_deref(), Some("x"));
        assert_eq!(wanted_port(&service, ""), None);
        let slice = value(serde_json::json!({
            "ports": [{"name": "web", "port": 8080}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"]}]}));
        let found = endpoints(&slice, "web");
        assert_eq!(found, [("10.0.0.1".to_owned(), 8080), ("10.0.0.3".to_owned(), 8080)]);
        assert!(endpoints(&slice, "x").is_empty());
    }
}
