//! Feeds the zone from the API: watches services, endpoint slices and namespaces, and keeps the names up to date.

use std::net::IpAddr;
use std::sync::Arc;

use objects::core::v1 as core;
use objects::discovery::v1::EndpointSlice;
use runtime::{Cache, Change, Informers};

use crate::records::{Endpoint, Port, Service, Target};
use crate::zone::Zone;

/// Label of a slice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const BY_SERVICE: &str = "service";

/// The caches that feed the zone.
#[derive(Clone)]
pub struct Feed {
    zone: Arc<Zone>,
    services: Cache<core::Service>,
    slices: Cache<EndpointSlice>,
    namespaces: Cache<core::Namespace>,
}

impl Feed {
    /// Starts the watches.
    #[must_use]
    pub fn start(zone: Arc<Zone>, informers: &Informers) -> Self {
        let feed =
            Self { zone, services: informers.of(), slices: informers.of(), namespaces: informers.of() };
        feed.slices.add_index(BY_SERVICE, |slice| service_of(slice).into_iter().collect());
        let own = feed.clone();
        feed.services.on_event(move |change| {
            let meta = &change.object().metadata;
            own.refresh(
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            );
        });
        let own = feed.clone();
        feed.slices.on_event(move |change| {
            for slice in change.old().into_iter().chain([change.object()]) {
                if let Some((namespace, name)) =
                    service_of(slice).as_deref().and_then(|key| key.split_once('/'))
                {
                    own.refresh(namespace, name);
                }
            }
        });
        let zone = Arc::clone(&feed.zone);
        feed.namespaces.on_event(move |change| {
            let name = change.object().metadata.name.as_deref().unwrap_or_default();
            match change {
                Change::Deleted(_) => zone.remove_namespace(name),
                _ => zone.set_namespace(name),
            }
        });
        feed
    }

    /// Waits until the caches have synced.
    pub async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.namespaces.synced().await;
    }

    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.services.is_synced() && self.slices.is_synced() && self.namespaces.is_synced()
    }

    fn refresh(&self, namespace: &str, name: &str) {
        let Some(service) = self.services.get(namespace, name) else {
            return self.zone.remove_service(namespace, name);
        };
        let slices = self.slices.indexed(BY_SERVICE, &format!("{namespace}/{name}"));
        let Some(target) = target(&service, &slices) else {
            return self.zone.remove_service(namespace, name);
        };
        let named = Service { namespace: namespace.to_owned(), name: name.to_owned(), target };
        if let Err(error) = self.zone.set_service(&named) {
            tracing::warn!(namespace, name, %error, "service has no valid DNS name, skipping it");
            self.zone.remove_service(namespace, name);
        }
    }
}

/// `namespace/name` of the service that a slice belongs to.
fn service_of(slice: &EndpointSlice) -> Option<String> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(format!("{}/{name}", slice.metadata.namespace.as_deref().unwrap_or_default()))
}

/// Addresses of a service's name; none while it has no address.
fn target(service: &core::Service, slices: &[Arc<EndpointSlice>]) -> Option<Target> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return Some(Target::External { name: spec.external_name.clone()? });
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        return Some(Target::Headless {
            endpoints: slices.iter().flat_map(|slice| endpoints(slice)).collect(),
        });
    }
    let single = spec.cluster_ip.as_slice();
    let texts = spec.cluster_ips.as_deref().unwrap_or(single);
    let addresses: Vec<IpAddr> = texts.iter().filter_map(|text| text.parse().ok()).collect();
    let port = |port: &core::ServicePort| Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: protocol(port.protocol.as_deref()),
        number: u16::try_from(port.port).unwrap_or_default(),
    };
    let ports = spec.ports.iter().flatten().map(port).collect();
    (!addresses.is_empty()).then_some(Target::ClusterIps { addresses, ports })
}

fn protocol(name: Option<&str>) -> &'static str {
    match name {
        Some("UDP") => "udp",
        Some("SCTP") => "sctp",
        _ => "tcp",
    }
}

/// The usable endpoints of a slice; with `publishNotReadyAddresses` all of them count as ready.
fn endpoints(slice: &EndpointSlice) -> Vec<Endpoint> {
    let ports: Vec<Port> = slice
        .ports
        .iter()
        .flatten()
        .filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                protocol: protocol(port.protocol.as_deref()),
                number: u16::try_from(port.port?).ok()?,
            })
        })
        .collect();
    let ready = |endpoint: &&objects::discovery::v1::Endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
    };
    slice
        .endpoints
        .iter()
        .flatten()
        .filter(ready)
        .flat_map(|endpoint| {
            endpoint.addresses.iter().filter_map(|address| {
                Some(Endpoint {
                    address: address.parse().ok()?,
                    hostname: endpoint.hostname.clone(),
                    ports: ports.clone(),
                })
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn service(spec: Value) -> core::Service {
        from_value(json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec}))
            .expect("a service")
    }

    #[test]
    fn service_type_determines_target() {
        let ports = json!([{"name": "dns", "protocol": "UDP", "port": 53}]);
        let port = Port { name: "dns".to_owned(), protocol: "udp", number: 53 };
        for (spec, want) in [
            (
                json!({"type": "ExternalName", "externalName": "example.org"}),
                Some(Target::External { name: "example.org".to_owned() }),
            ),
            (json!({"ports": ports}), None),
            (
                json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00::9"], "ports": ports}),
                Some(Target::ClusterIps {
                    addresses: vec!["10.96.0.9".parse().expect("v4"), "fd00::9".parse().expect("v6")],
                    ports: vec![port.clone()],
                }),
            ),
            (json!({"clusterIP": "None", "ports": ports}), Some(Target::Headless { endpoints: vec![] })),
        ] {
            assert_eq!(target(&service(spec.clone()), &[]), want, "{spec}");
        }
    }

    #[test]
    fn endpoints_that_may_be_used() {
        let slice: EndpointSlice = from_value(json!({
            "addressType": "IPv4",
            "metadata": {"name": "web-1", "namespace": "default", "labels": {SERVICE_NAME: "web"}},
            "ports": [{"name": "http", "port": 80}],
            "endpoints": [
                {"addresses": ["10.1.0.1"], "hostname": "web-0", "conditions": {"ready": true}},
                {"addresses": ["10.1.0.2"], "conditions": {"ready": false, "serving": true}},
                {"addresses": ["10.1.0.3"]},
            ],
        }))
        .expect("a slice");
        assert_eq!(service_of(&slice).as_deref(), Some("default/web"));
        let got: Vec<String> = endpoints(&slice)
            .iter()
            .map(|e| format!("{} {:?} {}", e.address, e.hostname, e.ports.len()))
            .collect();
        assert_eq!(got, ["10.1.0.1 Some(\"web-0\") 1", "10.1.0.3 None 1"]);
    }
}
