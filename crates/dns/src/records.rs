//! Records of a service and its endpoints. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::names::endpoint_label;
use crate::wire::{Name, NameError};

/// A service with its endpoints, reduced to the data of DNS records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub target: Target,
}

/// Target of the service's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Virtual addresses.
    ClusterIps { addresses: Vec<IpAddr>, ports: Vec<Port> },
    /// No virtual address: the name resolves to the endpoints that may be used.
    Headless { endpoints: Vec<Endpoint> },
    /// Another name, in the cluster or outside (`ExternalName`).
    External { name: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Empty for the only port of a service, if that is unnamed.
    pub name: String,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    pub number: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub hostname: Option<String>,
    pub ports: Vec<Port>,
}

/// Records of one name. A name without records exists, with an empty answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub ipv4: Vec<Ipv4Addr>,
    pub ipv6: Vec<Ipv6Addr>,
    pub srv: Vec<Srv>,
    pub cname: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Srv {
    pub port: u16,
    pub target: Name,
}

impl Records {
    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) if !self.ipv4.contains(&address) => self.ipv4.push(address),
            IpAddr::V6(address) if !self.ipv6.contains(&address) => self.ipv6.push(address),
            _ => {}
        }
    }

    fn service(&mut self, port: u16, target: &Name) {
        let srv = Srv { port, target: target.clone() };
        if !self.srv.contains(&srv) {
            self.srv.push(srv);
        }
    }
}

/// All names of a service, and the names of its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contribution {
    pub names: BTreeMap<Name, Records>,
    pub addresses: Vec<(IpAddr, Name)>,
}

/// Records of `service` under `services`, the domain of services (`svc.cluster.local`).
pub fn contribution(service: &Service, services: &Name) -> Result<Contribution, NameError> {
    let own = services.under([service.name.as_str(), service.namespace.as_str()])?;
    let mut out = Contribution::default();
    out.names.entry(own.clone()).or_default();
    match &service.target {
        Target::External { name } => {
            out.names.entry(own).or_default().cname = Some(Name::parse(name)?);
        }
        Target::ClusterIps { addresses, ports } => {
            for &address in addresses {
                out.names.entry(own.clone()).or_default().address(address);
                out.addresses.push((address, own.clone()));
            }
            for port in ports {
                out.port(&own, port, &own)?;
            }
        }
        Target::Headless { endpoints } => {
            for endpoint in endpoints {
                let label = endpoint_label(endpoint.hostname.as_deref(), endpoint.address);
                let host = own.under([label.as_str()])?;
                out.names.entry(own.clone()).or_default().address(endpoint.address);
                out.names.entry(host.clone()).or_default().address(endpoint.address);
                out.addresses.push((endpoint.address, host.clone()));
                for port in &endpoint.ports {
                    out.port(&own, port, &host)?;
                }
            }
        }
    }
    Ok(out)
}

impl Contribution {
    /// SRV records of a port: under `_name._protocol` of the service, and with those of all other ports at the service
    /// itself.
    fn port(&mut self, service: &Name, port: &Port, target: &Name) -> Result<(), NameError> {
        self.names.entry(service.clone()).or_default().service(port.number, target);
        if port.name.is_empty() {
            return Ok(());
        }
        let protocol = service.under([format!("_{}", port.protocol).as_str()])?;
        let named = protocol.under([format!("_{}", port.name).as_str()])?;
        self.names.entry(protocol).or_default();
        self.names.entry(named).or_default().service(port.number, target);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(service: &Service) -> Vec<String> {
        let zone = Name::parse("svc.cluster.local").expect("a zone");
        let out = contribution(service, &zone).expect("names");
        let mut lines: Vec<String> = Vec::new();
        for (name, records) in &out.names {
            let name = name.to_string().replace(".svc.cluster.local.", "");
            lines.extend(records.ipv4.iter().map(|a| format!("{name} {a}")));
            lines.extend(records.ipv6.iter().map(|a| format!("{name} {a}")));
            lines.extend(records.srv.iter().map(|s| {
                format!("{name} {}:{}", s.target.to_string().replace(".svc.cluster.local.", ""), s.port)
            }));
            lines.extend(records.cname.iter().map(|c| format!("{name} -> {c}")));
        }
        lines.sort();
        lines
    }

    fn service(target: Target) -> Service {
        Service { namespace: "default".into(), name: "web".into(), target }
    }

    fn http() -> Port {
        Port { name: "http".into(), protocol: "tcp", number: 80 }
    }

    #[test]
    fn virtual_addresses_have_names_and_ports() {
        let addresses = vec!["10.96.0.9".parse().expect("v4"), "fd00::9".parse().expect("v6")];
        let got = names(&service(Target::ClusterIps { addresses, ports: vec![http()] }));
        let want = [
            "_http._tcp.web.default web.default:80",
            "web.default 10.96.0.9",
            "web.default fd00::9",
            "web.default web.default:80",
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn endpoints_of_headless_services_have_names_of_their_own() {
        let endpoint = |address: &str, hostname: Option<&str>| Endpoint {
            address: address.parse().expect("an address"),
            hostname: hostname.map(str::to_owned),
            ports: vec![http()],
        };
        let endpoints = vec![endpoint("10.1.0.1", Some("web-0")), endpoint("10.1.0.2", None)];
        let got = names(&service(Target::Headless { endpoints }));
        let want = [
            "10-1-0-2.web.default 10.1.0.2",
            "_http._tcp.web.default 10-1-0-2.web.default:80",
            "_http._tcp.web.default web-0.web.default:80",
            "web-0.web.default 10.1.0.1",
            "web.default 10-1-0-2.web.default:80",
            "web.default 10.1.0.1",
            "web.default 10.1.0.2",
            "web.default web-0.web.default:80",
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn external_names_are_aliases() {
        let got = names(&service(Target::External { name: "Example.org".into() }));
        assert_eq!(got, ["web.default -> example.org."]);
    }
}
