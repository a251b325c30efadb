//! Environment variables with service addresses.

use std::collections::BTreeMap;

use objects::core::v1::Service;

/// Variables for services with a cluster IP, named as in Kubernetes and docker links.
#[must_use]
pub fn variables<'a>(services: impl IntoIterator<Item = &'a Service>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for service in services {
        let Some(spec) = &service.spec else { continue };
        let ip = spec.cluster_ip.as_deref().unwrap_or("");
        let ports = spec.ports.as_deref().unwrap_or_default();
        if ip.is_empty() || ip == "None" {
            continue;
        }
        let name = service.metadata.name.as_deref().unwrap_or("").to_uppercase().replace('-', "_");
        let joined = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        out.insert(format!("{name}_SERVICE_HOST"), ip.to_owned());
        for (index, port) in ports.iter().enumerate() {
            let number = port.port;
            if index == 0 {
                out.insert(format!("{name}_SERVICE_PORT"), number.to_string());
            }
            if let Some(named) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let named = named.to_uppercase().replace('-', "_");
                out.insert(format!("{name}_SERVICE_PORT_{named}"), number.to_string());
            }
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{joined}:{number}", protocol.to_lowercase());
            if index == 0 {
                out.insert(format!("{name}_PORT"), url.clone());
            }
            let prefix = format!("{name}_PORT_{number}_{}", protocol.to_uppercase());
            out.insert(prefix.clone(), url);
            out.insert(format!("{prefix}_PROTO"), protocol.to_lowercase());
            out.insert(format!("{prefix}_PORT"), number.to_string());
            out.insert(format!("{prefix}_ADDR"), ip.to_owned());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::core::v1::{ServicePort, ServiceSpec};

    #[test]
    fn service_environment_variables() {
        let service = |ip: &str| {
            let mut service = Service::default();
            service.metadata.name = Some("my-db".to_owned());
            service.spec = Some(ServiceSpec {
                cluster_ip: Some(ip.to_owned()),
                ports: Some(vec![ServicePort {
                    name: Some("sql".to_owned()),
                    port: 5432,
                    protocol: Some("TCP".to_owned()),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            });
            service
        };
        let got = variables([&service("10.0.0.7")]);
        let want = [
            ("MY_DB_PORT", "tcp://10.0.0.7:5432"),
            ("MY_DB_PORT_5432_TCP", "tcp://10.0.0.7:5432"),
            ("MY_DB_PORT_5432_TCP_ADDR", "10.0.0.7"),
            ("MY_DB_PORT_5432_TCP_PORT", "5432"),
            ("MY_DB_PORT_5432_TCP_PROTO", "tcp"),
            ("MY_DB_SERVICE_HOST", "10.0.0.7"),
            ("MY_DB_SERVICE_PORT", "5432"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
        ];
        assert_eq!(got.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), want);
        assert!(variables([&service("None")]).is_empty());
    }
}
