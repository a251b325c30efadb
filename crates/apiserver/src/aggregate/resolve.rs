//! Address of a service: one of its ready endpoints, or the service's own.

use super::availability::{port_name, ready_endpoints, slice_port};
use super::target::ServiceReference;
use api::value::Fields;
use machinery::Value;
use rand::seq::{IndexedRandom, SliceRandom};

/// Routing to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Directly to an endpoint: works without a service proxy (`--enable-aggregator-routing`).
    Endpoints,
    /// To the cluster IP, or the host of an ExternalName service.
    Service,
}

/// Host and port.
pub type Address = (String, u16);

/// Chooses an address; the error is the reason for its absence.
pub fn resolve(
    reference: &ServiceReference,
    service: &Value,
    slices: &[Value],
    routing: Routing,
) -> Result<Address, String> {
    let spec = service.field("spec");
    let kind = spec.text("type");
    let ordinary = matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort");
    match routing {
        Routing::Service if kind == "ExternalName" => {
            Ok((spec.text("externalName").to_owned(), reference.port))
        }
        Routing::Service if ordinary && spec.text("clusterIP") == "None" => {
            Err(r#"cannot route to service with ClusterIP "None""#.to_owned())
        }
        Routing::Service if ordinary => match port_name(spec, reference.port) {
            Some(_) => Ok((spec.text("clusterIP").to_owned(), reference.port)),
            None => Err(no_port(reference)),
        },
        Routing::Endpoints if ordinary => {
            let name = port_name(spec, reference.port).ok_or_else(|| no_port(reference))?;
            endpoint(spec, slices, name)
                .ok_or_else(|| format!("no endpoints available for service {:?}", reference.name))
        }
        _ => Err(format!("unsupported service type {kind:?}")),
    }
}

fn no_port(reference: &ServiceReference) -> String {
    format!("no service port {} found for service {:?}", reference.port, reference.name)
}

/// A random ready endpoint, preferably of the service's first address family.
fn endpoint(spec: &Value, slices: &[Value], port: &str) -> Option<Address> {
    let preferred = spec.items("ipFamilies").first().and_then(Value::as_str).unwrap_or("");
    let mut slices: Vec<&Value> = slices.iter().collect();
    slices.shuffle(&mut rand::rng());
    slices.sort_by_key(|slice| slice.text("addressType") != preferred);
    slices.into_iter().find_map(|slice| {
        let number = slice_port(slice, port)?;
        let ready: Vec<&str> = ready_endpoints(slice).collect();
        ready.choose(&mut rand::rng()).map(|address| ((*address).to_owned(), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resolve_returns_address_by_routing_and_service_type() {
        let reference = ServiceReference { namespace: "ns".to_owned(), name: "api".to_owned(), port: 443 };
        let service = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.9", "ipFamilies": ["IPv4"],
            "ports": [{"name": "web", "port": 443}]}});
        let headless = json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"name": "web", "port": 443}]}});
        let external = json!({"spec": {"type": "ExternalName", "externalName": "api.example.com"}});
        let other = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.9", "ports": [{"name": "web", "port": 80}]}});
        let slice = |family: &str, address: &str| {
            json!({"addressType": family, "ports": [{"name": "web", "port": 8443}], "endpoints": [
                {"addresses": ["10.9.9.9"], "conditions": {"ready": false}}, {"addresses": [address]}]})
        };
        let both = [slice("IPv6", "fd00::1"), slice("IPv4", "10.1.0.1")];
        let ok = |host: &str, port| Ok((host.to_owned(), port));
        let err = |text: &str| Err(text.to_owned());
        for (service, slices, routing, want) in [
            (&service, &both[..], Routing::Endpoints, ok("10.1.0.1", 8443)),
            (&headless, &both[..1], Routing::Endpoints, ok("fd00::1", 8443)),
            (&service, &[][..], Routing::Endpoints, err("no endpoints available for service \"api\"")),
            (&other, &both[..], Routing::Endpoints, err("no service port 443 found for service \"api\"")),
            (&external, &[][..], Routing::Endpoints, err("unsupported service type \"ExternalName\"")),
            (&service, &[][..], Routing::Service, ok("10.0.0.9", 443)),
            (&headless, &[][..], Routing::Service, err("cannot route to service with ClusterIP \"None\"")),
            (&external, &[][..], Routing::Service, ok("api.example.com", 443)),
        ] {
            assert_eq!(resolve(&reference, service, slices, routing), want, "{service} {routing:?}");
        }
    }
}
