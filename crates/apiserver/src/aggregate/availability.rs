//! The `Available` condition of an APIService, as far as the Service and its EndpointSlices decide it.

use super::target::Target;
use api::value::Fields;
use machinery::Value;

/// Value of the condition, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    pub available: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Availability {
    pub fn passed() -> Self {
        Self { available: true, reason: "Passed", message: "all checks passed".to_owned() }
    }

    pub fn unavailable(reason: &'static str, message: String) -> Self {
        Self { available: false, reason, message }
    }
}

/// Checks that the service exists, has the port and has ready endpoints. `None`: only a request to the server can
/// decide.
pub fn unavailable(target: &Target, service: Option<&Value>, slices: &[Value]) -> Option<Availability> {
    let (name, namespace, port) = (&target.service.name, &target.service.namespace, target.service.port);
    let Some(service) = service else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Some(Availability::unavailable("ServiceNotFound", message));
    };
    let spec = service.field("spec");
    if spec.text("type") != "ClusterIP" {
        return None;
    }
    let Some(port_name) = port_name(spec, port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(Availability::unavailable("ServicePortError", message));
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Availability::unavailable("EndpointsNotFound", message));
    }
    let ready =
        |slice: &&Value| slice_port(slice, port_name).is_some() && ready_endpoints(slice).next().is_some();
    if !slices.iter().any(|slice| ready(&slice)) {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return Some(Availability::unavailable("MissingEndpoints", message));
    }
    None
}

/// Name of the service's port with this number.
pub fn port_name(spec: &Value, port: u16) -> Option<&str> {
    let ports = spec.items("ports").iter();
    let mut found = ports.filter(|known| known.field("port").as_u64() == Some(u64::from(port)));
    found.next().map(|known| known.text("name"))
}

/// Number of the slice's port with this name.
pub fn slice_port(slice: &Value, name: &str) -> Option<u16> {
    let mut ports = slice.items("ports").iter().filter(|port| port.text("name") == name);
    ports.find_map(|port| u16::try_from(port.field("port").as_u64()?).ok())
}

/// First addresses of the slice's ready endpoints.
pub fn ready_endpoints(slice: &Value) -> impl Iterator<Item = &str> {
    let is_ready = |endpoint: &&Value| endpoint.field("conditions").field("ready").as_bool().unwrap_or(true);
    slice
        .items("endpoints")
        .iter()
        .filter(is_ready)
        .filter_map(|endpoint| endpoint.items("addresses").first()?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn target() -> Target {
        Target::new(&json!({
            "metadata": {"name": "v1.example.com"},
            "spec": {"group": "example.com", "version": "v1", "service": {"namespace": "ns", "name": "api", "port": 444}},
        }))
        .expect("a service")
    }

    #[test]
    fn availability_reflects_service_and_endpoints() {
        let service =
            |port: u16| json!({"spec": {"type": "ClusterIP", "ports": [{"name": "web", "port": port}]}});
        let slice = |name: &str, ready: bool| {
            json!({"ports": [{"name": name, "port": 8443}],
                   "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": ready}}]})
        };
        let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
        let cases = [
            (None, vec![], Some(("ServiceNotFound", r#"service/api in "ns" is not present"#))),
            (
                Some(service(443)),
                vec![],
                Some(("ServicePortError", r#"service/api in "ns" is not listening on port 444"#)),
            ),
            (
                Some(service(444)),
                vec![],
                Some(("EndpointsNotFound", r#"cannot find endpointslices for service/api in "ns""#)),
            ),
            (
                Some(service(444)),
                vec![slice("web", false), slice("other", true)],
                Some((
                    "MissingEndpoints",
                    r#"endpointslices for service/api in "ns" have no addresses with port name "web""#,
                )),
            ),
            (Some(service(444)), vec![slice("other", true), slice("web", true)], None),
            (Some(external), vec![], None),
        ];
        for (service, slices, want) in cases {
            let found = unavailable(&target(), service.as_ref(), &slices);
            let found = found.as_ref().map(|found| (found.reason, found.message.as_str()));
            assert_eq!(found, want, "{service:?} {slices:?}");
        }
    }
}
