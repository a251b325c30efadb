//! The cluster's names, updated per service. Readers wait for at most one service's update.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::names;
use crate::records::{Contribution, Records, Service, contribution};
use crate::wire::{Name, NameError};

/// The names of one cluster.
#[derive(Debug)]
pub struct Zone {
    /// The cluster's domain, `cluster.local`.
    domain: Name,
    services: Name,
    pub(crate) soa_primary: Name,
    pub(crate) soa_mailbox: Name,
    pub(crate) ttl: u32,
    /// Address of this server, for the zone's NS record.
    pub(crate) own_addresses: Vec<IpAddr>,
    serial: AtomicU32,
    turn: AtomicUsize,
    contents: RwLock<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    names: HashMap<Name, Arc<Records>>,
    addresses: HashMap<IpAddr, Vec<Name>>,
    services: HashMap<(String, String), Contribution>,
    namespaces: HashSet<Box<[u8]>>,
}

/// Result of a lookup in the zone.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Not a name of this cluster: forwarded.
    Elsewhere,
    /// The name does not exist: NXDOMAIN, not forwarded.
    Missing,
    Records(Arc<Records>),
    /// A pod by its address.
    Pod(IpAddr),
    /// An address of the cluster, by its reverse name.
    Reverse(Vec<Name>),
    /// The domain itself.
    Apex,
    /// The name of the zone's name server.
    Server,
    /// The version of the specification.
    Version,
}

impl Zone {
    pub fn new(domain: &str, ttl: u32, own_addresses: Vec<IpAddr>) -> Result<Self, NameError> {
        let domain = Name::parse(domain)?;
        Ok(Self {
            services: domain.under(["svc"])?,
            soa_primary: domain.under(["ns", "dns"])?,
            soa_mailbox: domain.under(["hostmaster"])?,
            domain,
            ttl,
            own_addresses,
            serial: AtomicU32::new(1),
            turn: AtomicUsize::new(0),
            contents: RwLock::default(),
        })
    }

    #[must_use]
    pub fn domain(&self) -> &Name {
        &self.domain
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed)
    }

    /// A counter, so that replies with several addresses start with a different one each time.
    pub(crate) fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Replaces a service's names.
    pub fn set_service(&self, service: &Service) -> Result<(), NameError> {
        let new = contribution(service, &self.services)?;
        let key = (service.namespace.clone(), service.name.clone());
        let mut contents = self.contents.write();
        if contents.services.get(&key) == Some(&new) {
            return Ok(());
        }
        contents.remove(&key);
        contents.add(key, new);
        self.changed();
        Ok(())
    }

    pub fn remove_service(&self, namespace: &str, name: &str) {
        if self.contents.write().remove(&(namespace.to_owned(), name.to_owned())) {
            self.changed();
        }
    }

    pub fn set_namespace(&self, name: &str) {
        self.contents.write().namespaces.insert(name.as_bytes().into());
    }

    pub fn remove_namespace(&self, name: &str) {
        self.contents.write().namespaces.remove(name.as_bytes());
    }

    fn changed(&self) {
        self.serial.fetch_add(1, Ordering::Relaxed);
    }

    /// The records of a name of the cluster, in wire form and lower case.
    #[must_use]
    pub fn records(&self, name: &[u8]) -> Option<Arc<Records>> {
        self.contents.read().names.get(name).cloned()
    }

    /// Looks up `name`, in wire form and lower case.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Found {
        let mut labels = [&[][..]; 128];
        let mut count = 0;
        for label in crate::wire::labels(name) {
            labels[count] = label;
            count += 1;
        }
        let labels = &labels[..count];
        let domain = crate::wire::labels(self.domain.wire()).count();
        if !name.ends_with(self.domain.wire()) || count < domain || !self.is_under(labels, domain) {
            return self.find_reverse(labels);
        }
        let relative = &labels[..count - domain];
        match relative {
            [] => Found::Apex,
            [b"svc" | b"pod"] | [b"dns"] => Found::Records(Arc::default()),
            [b"ns", b"dns"] => Found::Server,
            [b"dns-version"] => Found::Version,
            [namespace, b"svc" | b"pod"] if self.has_namespace(namespace) => Found::Records(Arc::default()),
            [.., b"svc"] => self.records(name).map_or(Found::Missing, Found::Records),
            [address, namespace, b"pod"] if self.has_namespace(namespace) => {
                names::dashed(address).map_or(Found::Missing, Found::Pod)
            }
            _ => Found::Missing,
        }
    }

    /// A label may end in the bytes of the domain; count labels to be sure.
    fn is_under(&self, labels: &[&[u8]], domain: usize) -> bool {
        labels[labels.len() - domain..].iter().copied().eq(crate::wire::labels(self.domain.wire()))
    }

    fn has_namespace(&self, name: &[u8]) -> bool {
        self.contents.read().namespaces.contains(name)
    }

    fn find_reverse(&self, labels: &[&[u8]]) -> Found {
        let Some(address) = names::reverse(labels) else { return Found::Elsewhere };
        match self.contents.read().addresses.get(&address) {
            Some(names) => Found::Reverse(names.clone()),
            None => Found::Elsewhere,
        }
    }
}

impl Contents {
    fn add(&mut self, key: (String, String), new: Contribution) {
        for (name, records) in &new.names {
            self.names.insert(name.clone(), Arc::new(records.clone()));
        }
        for (address, name) in &new.addresses {
            self.addresses.entry(*address).or_default().push(name.clone());
        }
        self.services.insert(key, new);
    }

    fn remove(&mut self, key: &(String, String)) -> bool {
        let Some(old) = self.services.remove(key) else { return false };
        for name in old.names.keys() {
            self.names.remove(name.wire());
        }
        for (address, name) in &old.addresses {
            if let Some(names) = self.addresses.get_mut(address) {
                names.retain(|other| other != name);
                if names.is_empty() {
                    self.addresses.remove(address);
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Endpoint, Target};

    fn zone() -> Zone {
        let zone = Zone::new("cluster.local", 30, vec!["10.96.0.10".parse().expect("v4")]).expect("a zone");
        zone.set_namespace("default");
        zone
    }

    fn find(zone: &Zone, name: &str) -> Found {
        zone.find(Name::parse(name).expect("a name").wire())
    }

    fn headless(addresses: &[&str]) -> Service {
        let endpoint = |address: &&str| Endpoint {
            address: address.parse().expect("an address"),
            hostname: None,
            ports: vec![],
        };
        let target = Target::Headless { endpoints: addresses.iter().map(endpoint).collect() };
        Service { namespace: "default".into(), name: "db".into(), target }
    }

    #[test]
    fn changed_service_removes_its_old_names() {
        let zone = zone();
        zone.set_service(&headless(&["10.1.0.1", "10.1.0.2"])).expect("names");
        assert!(matches!(find(&zone, "10-1-0-1.db.default.svc.cluster.local"), Found::Records(_)));
        assert!(matches!(find(&zone, "1.0.1.10.in-addr.arpa"), Found::Reverse(_)));
        zone.set_service(&headless(&["10.1.0.2"])).expect("names");
        assert_eq!(find(&zone, "10-1-0-1.db.default.svc.cluster.local"), Found::Missing);
        assert_eq!(find(&zone, "1.0.1.10.in-addr.arpa"), Found::Elsewhere);
        zone.remove_service("default", "db");
        assert_eq!(find(&zone, "db.default.svc.cluster.local"), Found::Missing);
        assert_eq!(find(&zone, "2.0.1.10.in-addr.arpa"), Found::Elsewhere);
        assert_eq!(zone.contents.read().names.len(), 0);
        assert_eq!(zone.contents.read().addresses.len(), 0);
    }

    #[test]
    fn name_is_classified_by_its_shape() {
        let zone = zone();
        let pod = Found::Pod("10.1.0.7".parse().expect("v4"));
        for (name, want) in [
            ("cluster.local", Found::Apex),
            ("svc.cluster.local", Found::Records(Arc::default())),
            ("default.svc.cluster.local", Found::Records(Arc::default())),
            ("other.svc.cluster.local", Found::Missing),
            ("10-1-0-7.default.pod.cluster.local", pod),
            ("10-1-0-7.other.pod.cluster.local", Found::Missing),
            ("web.default.svc.cluster.local.default.svc.cluster.local", Found::Missing),
            ("ns.dns.cluster.local", Found::Server),
            ("dns-version.cluster.local", Found::Version),
            ("example.org", Found::Elsewhere),
            ("notcluster.local", Found::Elsewhere),
            ("", Found::Elsewhere),
        ] {
            assert_eq!(find(&zone, name), want, "{name}");
        }
        // A label that ends in the bytes of the domain is not under the domain.
        let tricky = b"\x0fa\x07cluster\x05local\x00";
        assert_eq!(zone.find(tricky), Found::Elsewhere);
    }
}
