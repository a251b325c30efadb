//! At each start: services, the IPAddress objects of their cluster IPs and the claims on their node ports are brought back
//! in line, whatever a crash or a restored backup has left, and services are told that share a node port. Kubernetes does this again and again; here
//! nothing else can tear them apart.

use super::allocate::{ADDRESSES, SERVICES};
use super::{Registry, Warnings, WriteContext};
use crate::user::UserInfo;
use api::allocation::service;
use api::value::Fields;
use machinery::status::Result;
use machinery::{Value, meta};
use serde_json::json;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

const COMPONENT: &str = "ipallocator-repair-controller";

impl Registry {
    /// Creates IPAddress objects that are missing, replaces those of others, removes those of nobody.
    pub async fn repair_services(&self) -> Result<()> {
        let services = self.find_all(SERVICES, "", "").await?;
        let ports = self.check_node_ports(&services).await;
        self.repair_claims(&ports).await?;
        let mut owners: HashMap<IpAddr, &Value> = HashMap::new();
        for service in &services {
            for ip in service::holdings(service).ips {
                if let Some(first) = owners.get(&ip) {
                    let (namespace, name) = (meta::namespace(first), meta::name(first));
                    let why = format!(
                        "Cluster IP {ip} was assigned to multiple services, {namespace}/{name} has it; please recreate service"
                    );
                    self.tell(service, "ClusterIPAlreadyAllocated", &why).await;
                    continue;
                }
                owners.insert(ip, service);
            }
        }
        let mut addresses: HashMap<IpAddr, Value> = HashMap::new();
        for address in self.find_all(ADDRESSES, "", "").await? {
            if let Ok(ip) = meta::name(&address).parse() {
                addresses.insert(ip, address);
            }
        }
        for (ip, service) in &owners {
            match addresses.get(ip) {
                Some(address) if is_of(address, service) => {}
                Some(_) => {
                    let why = format!("IPAddress {ip} refers to somebody else; it is made anew");
                    self.tell(service, "IPAddressWrongReference", &why).await;
                    self.unclaim(*ip).await;
                    self.claim_one(service, *ip).await?;
                }
                None => {
                    let why = format!("Cluster IP {ip} is not allocated; repairing");
                    self.tell(service, "ClusterIPNotAllocated", &why).await;
                    self.claim_one(service, *ip).await?;
                }
            }
        }
        for (ip, address) in &addresses {
            // One that is young may be of a service that another server is just making.
            if !owners.contains_key(ip) && self.is_orphan(address, *ip).await? {
                tracing::warn!(%ip, "an IPAddress without a service is removed");
                self.unclaim(*ip).await;
            }
        }
        Ok(())
    }

    /// Who has which port, as the services themselves tell, those for health checks included. Two that have the same one,
    /// or one that has a port it cannot have, need somebody who decides.
    async fn check_node_ports<'a>(&self, services: &'a [Value]) -> HashMap<i64, &'a Value> {
        let range = self.services.config.node_ports;
        let allowed = i64::from(range.first)..=i64::from(range.last);
        let mut taken = HashMap::new();
        for service in services {
            for port in service::holdings(service).ports {
                if !allowed.contains(&port) {
                    let why =
                        format!("Port {port} is not within the port range {range}; please recreate service");
                    self.tell(service, "PortOutOfRange", &why).await;
                } else if let Entry::Vacant(free) = taken.entry(port) {
                    free.insert(service);
                } else {
                    let why =
                        format!("Port {port} was assigned to multiple services; please recreate service");
                    self.tell(service, "PortAlreadyAllocated", &why).await;
                }
            }
        }
        taken
    }

    /// An event on the service, and a line in the log. That it cannot be written is no reason to stop.
    async fn tell(&self, service: &Value, reason: &str, message: &str) {
        let (namespace, name) = (meta::namespace(service), meta::name(service));
        tracing::warn!(namespace, name, reason, message, "service repaired");
        let now = super::metadata::now();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"generateName": format!("{name}."), "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Service", "namespace": namespace, "name": name, "uid": meta::uid(service),
            },
            "type": "Warning", "reason": reason, "message": message, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": COMPONENT}, "reportingComponent": COMPONENT,
        });
        let (user, warnings) = (UserInfo::server(), Warnings::default());
        let context = WriteContext::server(&user, &warnings, namespace);
        let Ok(served) = self.builtin("", "v1", "events") else { return };
        if let Err(status) = self.create(served, event, &context).await {
            tracing::debug!(error = %status, "no event");
        }
    }
}

/// Whether an IPAddress is this service's.
fn is_of(address: &Value, service: &Value) -> bool {
    let parent = address.at("spec.parentRef");
    parent.text("resource") == "services"
        && parent.text("namespace") == meta::namespace(service)
        && parent.text("name") == meta::name(service)
}
