//! Repair of services, the IPAddress objects of their cluster IPs and the claims on their node ports, after a crash
//! or a restored backup; services that share a node port get an event.

use super::{ADDRESSES, SERVICES};
use crate::registry::{Registry, WriteContext, WriteRecord, metadata};
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
    /// Creates missing IPAddress objects, replaces those with a wrong reference, deletes orphans.
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
                    self.record_event(service, "ClusterIPAlreadyAllocated", &why).await;
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
                    let why = format!("IPAddress {ip} refers to another object; repairing");
                    self.record_event(service, "IPAddressWrongReference", &why).await;
                    self.unclaim(*ip).await;
                    self.claim_one(service, *ip).await?;
                }
                None => {
                    let why = format!("Cluster IP {ip} is not allocated; repairing");
                    self.record_event(service, "ClusterIPNotAllocated", &why).await;
                    self.claim_one(service, *ip).await?;
                }
            }
        }
        for (ip, address) in &addresses {
            // A recent one may belong to a service that another server is creating.
            if !owners.contains_key(ip) && self.is_orphan(address, *ip).await? {
                tracing::warn!(%ip, "deleting IPAddress without a service");
                self.unclaim(*ip).await;
            }
        }
        Ok(())
    }

    /// Node ports by service, including health check ports. Duplicates and ports outside of the range are reported,
    /// since only the user can resolve them.
    async fn check_node_ports<'a>(&self, services: &'a [Value]) -> HashMap<i64, &'a Value> {
        let range = self.services.config.node_ports;
        let allowed = i64::from(range.first)..=i64::from(range.last);
        let mut taken = HashMap::new();
        for service in services {
            for port in service::holdings(service).ports {
                if !allowed.contains(&port) {
                    let why =
                        format!("Port {port} is not within the port range {range}; please recreate service");
                    self.record_event(service, "PortOutOfRange", &why).await;
                } else if let Entry::Vacant(free) = taken.entry(port) {
                    free.insert(service);
                } else {
                    let why =
                        format!("Port {port} was assigned to multiple services; please recreate service");
                    self.record_event(service, "PortAlreadyAllocated", &why).await;
                }
            }
        }
        taken
    }

    /// Creates an event on the service and logs it. A failure is not fatal.
    async fn record_event(&self, service: &Value, reason: &str, message: &str) {
        let (namespace, name) = (meta::namespace(service), meta::name(service));
        tracing::warn!(namespace, name, reason, message, "service repaired");
        let now = metadata::now();
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
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let context = WriteContext::server(&user, &record, namespace);
        let Ok(served) = self.builtin("", "v1", "events") else { return };
        if let Err(status) = self.create(served, event, &context).await {
            tracing::debug!(error = %status, "failed to create event");
        }
    }
}

/// Reports whether an IPAddress refers to this service.
fn is_of(address: &Value, service: &Value) -> bool {
    let parent = address.at("spec.parentRef");
    parent.text("resource") == "services"
        && parent.text("namespace") == meta::namespace(service)
        && parent.text("name") == meta::name(service)
}
