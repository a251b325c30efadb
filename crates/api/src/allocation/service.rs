//! Allocation and release of addresses and ports by writes of a Service.
//!
//! [`plan`] runs before the service is prepared and validated: it fills in families, addresses and ports and
//! reserves them. When the write is stored, [`Allocators::commit`] releases what the service no longer needs; when it
//! fails, [`Allocators::revert`] releases what was reserved for it.

pub use super::allocators::{Allocators, Holdings, holdings};
use super::allocators::{cluster_ips, node_ports};
use super::families::{
    init_ip_families, is_settled_dual_stack, normalize_cluster_ips, patch_allocated_values,
};
use super::ip::{Family, IpError};
use super::port::PortError;
use crate::validation::service::{needs_health_check, ports, service_type};
use crate::value::{Fields, texts};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta, names};
use serde_json::json;
use std::net::IpAddr;

/// Result of [`plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationPlan {
    /// Reserved for the new service; each address needs an IPAddress object ([`ip_address`]).
    pub reserved: Holdings,
    /// Allocations of the old service that are released once the write is stored.
    pub released: Holdings,
}

impl Allocators {
    /// Releases what the stored service no longer needs.
    pub fn commit(&mut self, plan: &AllocationPlan) {
        self.release(&plan.released);
    }

    /// Releases what was reserved for the failed write.
    pub fn revert(&mut self, plan: &AllocationPlan) {
        self.release(&plan.reserved);
    }
}

/// Allocation error of a service.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocationError {
    #[error("invalid service fields")]
    Invalid(ErrorList),
    #[error("{0}")]
    Internal(String),
}

/// IPAddress object of a service's cluster IP.
pub fn ip_address(service: &Value, ip: IpAddr) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": ip.to_string(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": Family::of(ip).as_str(),
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {
            "resource": "services",
            "namespace": meta::namespace(service),
            "name": meta::name(service),
        }},
    })
}

/// Completes a service that is created (`old` is `None`) or updated, and reserves its addresses and ports. A dry run
/// reserves nothing and sets placeholders. On errors nothing remains reserved.
pub fn plan(
    new: &mut Value,
    old: Option<&Value>,
    allocators: &mut Allocators,
    dry_run: bool,
) -> Result<AllocationPlan, AllocationError> {
    if let Some(old) = old {
        patch_allocated_values(new, old);
    }
    normalize_cluster_ips(new, old);
    init_ip_families(new, old, allocators)?;
    let mut planner = Planner { allocators, dry_run, plan: AllocationPlan::default() };
    let outcome = match old {
        None => planner.create(new),
        Some(old) => planner.update(new, old),
    };
    let Planner { plan, .. } = planner;
    match outcome {
        Ok(()) if dry_run => Ok(AllocationPlan::default()),
        Ok(()) => Ok(plan),
        Err(error) => {
            if !dry_run {
                allocators.revert(&plan);
            }
            Err(error)
        }
    }
}

/// State of one [`plan`] call.
struct Planner<'a> {
    allocators: &'a mut Allocators,
    dry_run: bool,
    plan: AllocationPlan,
}

impl Planner<'_> {
    fn create(&mut self, new: &mut Value) -> Result<(), AllocationError> {
        self.allocate_cluster_ips(new)?;
        if matches!(service_type(new), "NodePort" | "LoadBalancer") {
            self.init_node_ports(new)?;
        }
        if needs_health_check(new) {
            self.allocate_health_check_port(new)?;
        }
        Ok(())
    }

    fn update(&mut self, new: &mut Value, old: &Value) -> Result<(), AllocationError> {
        self.update_cluster_ips(new, old)?;
        let exposed = |service: &Value| matches!(service_type(service), "NodePort" | "LoadBalancer");
        if exposed(old) && !exposed(new) {
            self.plan.released.ports.extend(node_ports(old));
        }
        if exposed(new) {
            self.update_node_ports(new, old)?;
        }
        match (needs_health_check(old), needs_health_check(new)) {
            (false, true) => self.allocate_health_check_port(new)?,
            (true, false) => self.plan.released.ports.push(old.field("spec").int("healthCheckNodePort")),
            _ => {}
        }
        Ok(())
    }

    fn update_cluster_ips(&mut self, new: &mut Value, old: &Value) -> Result<(), AllocationError> {
        if is_settled_dual_stack(new, old) {
            return Ok(());
        }
        let external = |service: &Value| service_type(service) == "ExternalName";
        if external(old) && !external(new) {
            return self.allocate_cluster_ips(new);
        }
        if old.field("spec").items("clusterIPs").first().is_some_and(|ip| ip == "None") {
            return Ok(());
        }
        if !external(old) && external(new) {
            self.plan.released.ips.extend(cluster_ips(old));
            return Ok(());
        }
        let families = |service: &Value| service.field("spec").items("ipFamilies").len();
        match (families(old), families(new)) {
            (1, 2) => self.allocate_ip(new, 1),
            (2, 1) => {
                self.plan.released.ips.extend(cluster_ips(old).get(1));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn allocate_cluster_ips(&mut self, new: &mut Value) -> Result<(), AllocationError> {
        let headless = new.field("spec").items("clusterIPs").first().is_some_and(|ip| ip == "None");
        if headless || service_type(new) == "ExternalName" {
            return Ok(());
        }
        for i in 0..new.field("spec").items("ipFamilies").len() {
            self.allocate_ip(new, i)?;
        }
        Ok(())
    }

    /// The service's i-th cluster IP: the requested one, or any.
    fn allocate_ip(&mut self, service: &mut Value, i: usize) -> Result<(), AllocationError> {
        let spec = service.field("spec");
        let path = Path::new("spec");
        let ips_path = path.child("clusterIPs");
        let mut ips: Vec<String> = texts(spec.items("clusterIPs")).map(str::to_owned).collect();
        ips.resize(ips.len().max(i + 1), String::new());
        let reject = |ips: &[String], detail: String| {
            AllocationError::Invalid(vec![FieldError::invalid(&ips_path, &json!(ips), detail)])
        };
        let family = texts(spec.items("ipFamilies")).nth(i).and_then(Family::parse);
        let Some(allocator) = family.and_then(|family| self.allocators.of_mut(family)) else {
            return Err(AllocationError::Internal("the service's IP family has no allocator".to_owned()));
        };
        let requested = ips[i].clone();
        let ip = if requested.is_empty() {
            let chosen = if self.dry_run { allocator.placeholder() } else { allocator.allocate_next() };
            match chosen {
                Ok(ip) => ip,
                Err(IpError::Full) => {
                    let name = meta::name(service);
                    let text =
                        format!("failed to allocate a serviceIP for Service {name:?}: {}", IpError::Full);
                    return Err(AllocationError::Internal(text));
                }
                Err(error) => return Err(reject(&ips, format!("failed to allocate IP: {error}"))),
            }
        } else {
            let Some(ip) = names::parse_ip_sloppy(&requested) else {
                let text = format!("failed to parse service IP {requested:?}");
                return Err(AllocationError::Internal(text));
            };
            let taken = if self.dry_run { allocator.check(ip) } else { allocator.allocate(ip) };
            taken.map_err(|error| reject(&ips, format!("failed to allocate IP {requested}: {error}")))?;
            ip
        };
        if !self.dry_run {
            self.plan.reserved.ips.push(ip);
        }
        if requested.is_empty() {
            ips[i] = ip.to_string();
        }
        let spec = service.child_mut("spec");
        if i == 0 {
            spec.set("clusterIP", ips[0].as_str());
        }
        spec.set("clusterIPs", json!(ips));
        Ok(())
    }

    /// Ports of one number under several protocols share a node port.
    fn init_node_ports(&mut self, service: &mut Value) -> Result<(), AllocationError> {
        let automatic = allocates_node_ports(service);
        let mut chosen: Vec<(i64, i64)> = Vec::new();
        for i in 0..ports(service).len() {
            let port = &ports(service)[i];
            let (number, requested) = (port.int("port"), port.int("nodePort"));
            if requested == 0 && !automatic {
                continue;
            }
            match chosen.iter().find(|(each, _)| *each == number).map(|(_, node_port)| *node_port) {
                None => {
                    let wanted = ports(service).iter().filter(|port| port.int("port") == number);
                    let node_port = match wanted.map(|port| port.int("nodePort")).find(|port| *port != 0) {
                        Some(wanted) => {
                            self.take_port(wanted).map_err(|error| port_error(i, wanted, error))?
                        }
                        None => self.next_port().map_err(failed_node_port)?,
                    };
                    set_node_port(service, i, node_port);
                    chosen.push((number, node_port));
                }
                Some(shared) if requested == 0 => set_node_port(service, i, shared),
                Some(shared) if requested != shared => {
                    self.take_port(requested).map_err(|error| port_error(i, requested, error))?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn update_node_ports(&mut self, new: &mut Value, old: &Value) -> Result<(), AllocationError> {
        let before = node_ports(old);
        let automatic = allocates_node_ports(new);
        let mut seen: Vec<(String, i64)> = Vec::new();
        let mut taken: Vec<i64> = Vec::new();
        for i in 0..ports(new).len() {
            let port = &ports(new)[i];
            let protocol = port.text("protocol").to_owned();
            let mut node_port = port.int("nodePort");
            if node_port == 0 && !automatic {
                continue;
            }
            if node_port == 0 {
                node_port = self.next_port().map_err(failed_node_port)?;
                set_node_port(new, i, node_port);
            } else if !before.contains(&node_port) && !taken.contains(&node_port) {
                self.take_port(node_port).map_err(|error| port_error(i, node_port, error))?;
                taken.push(node_port);
            }
            let key = (protocol, node_port);
            if seen.contains(&key) {
                let text = format!("duplicate nodePort: {{{} {}}}", key.0, key.1);
                return Err(AllocationError::Internal(text));
            }
            seen.push(key);
        }
        let now = node_ports(new);
        self.plan.released.ports.extend(before.into_iter().filter(|port| !now.contains(port)));
        Ok(())
    }

    fn allocate_health_check_port(&mut self, service: &mut Value) -> Result<(), AllocationError> {
        let failed = |text: String| AllocationError::Internal(text);
        match service.field("spec").int("healthCheckNodePort") {
            0 => {
                let port = self.next_port().map_err(|error| {
                    failed(format!("failed to allocate a HealthCheck NodePort 0: {error}"))
                })?;
                service.child_mut("spec").set("healthCheckNodePort", port);
            }
            port => {
                self.take_port(port).map_err(|error| {
                    failed(format!("failed to allocate requested HealthCheck NodePort {port}: {error}"))
                })?;
            }
        }
        Ok(())
    }

    /// A dry run checks only existing allocations, not the range.
    fn take_port(&mut self, port: i64) -> Result<i64, PortError> {
        if !self.dry_run {
            self.allocators.node_ports.allocate(port)?;
        } else if self.allocators.node_ports.has(port) || self.plan.reserved.ports.contains(&port) {
            return Err(PortError::Allocated);
        }
        self.plan.reserved.ports.push(port);
        Ok(port)
    }

    /// A dry run sets numbers outside of every usual range.
    fn next_port(&mut self) -> Result<i64, PortError> {
        const PLACEHOLDER: i64 = 32768;
        let port = if self.dry_run {
            self.plan.reserved.ports.iter().max().copied().unwrap_or(PLACEHOLDER) + 1
        } else {
            self.allocators.node_ports.allocate_next()?
        };
        self.plan.reserved.ports.push(port);
        Ok(port)
    }
}

pub(super) fn invalid_if_any(errors: ErrorList) -> Result<(), AllocationError> {
    if errors.is_empty() { Ok(()) } else { Err(AllocationError::Invalid(errors)) }
}

fn port_error(i: usize, port: i64, error: PortError) -> AllocationError {
    let path = Path::new("spec");
    let path = path.child("ports");
    let path = path.index(i);
    let error = FieldError::invalid_shown(&path.child("nodePort"), port.to_string(), error.to_string());
    AllocationError::Invalid(vec![error])
}

fn failed_node_port(error: PortError) -> AllocationError {
    AllocationError::Internal(format!("failed to allocate a nodePort: {error}"))
}

fn set_node_port(service: &mut Value, i: usize, node_port: i64) {
    if let Some(port) = service.child_mut("spec").items_mut("ports").get_mut(i) {
        port.set("nodePort", node_port);
    }
}

fn allocates_node_ports(service: &Value) -> bool {
    let spec = service.field("spec");
    spec.text("type") == "NodePort" || spec.flag("allocateLoadBalancerNodePorts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::ip::{IpAllocator, IpRange};
    use crate::allocation::port::PortRange;

    fn cluster(cidrs: &[&str]) -> Allocators {
        let ranges = cidrs.iter().map(|cidr| IpRange::parse(cidr).expect("a valid CIDR")).collect();
        Allocators::new(ranges, PortRange::DEFAULT, 11)
    }

    fn service(spec: Value) -> Value {
        json!({"metadata": {"name": "x", "namespace": "n"}, "spec": spec})
    }

    fn error_messages(error: AllocationError) -> Vec<String> {
        match error {
            AllocationError::Invalid(errors) => errors.iter().map(ToString::to_string).collect(),
            AllocationError::Internal(text) => vec![text],
        }
    }

    #[test]
    fn create_allocates_address_and_delete_releases_it() {
        let mut allocators = cluster(&["10.0.0.0/24"]);
        let mut new = service(json!({"type": "ClusterIP", "ports": [{"port": 80}], "selector": {"a": "b"}}));
        let plan = plan(&mut new, None, &mut allocators, false).expect("addresses are left");
        let spec = &new["spec"];
        assert_eq!(spec["clusterIPs"], json!([spec["clusterIP"]]));
        assert_eq!((&spec["ipFamilies"], &spec["ipFamilyPolicy"]), (&json!(["IPv4"]), &json!("SingleStack")));
        assert_eq!(plan.reserved.ips.len(), 1);
        assert_eq!(ip_address(&new, plan.reserved.ips[0])["metadata"]["name"], spec["clusterIP"]);
        allocators.commit(&plan);
        assert_eq!(allocators.of(Family::V4).map(IpAllocator::used), Some(1));
        allocators.release(&holdings(&new));
        assert_eq!(allocators.of(Family::V4).map(IpAllocator::used), Some(0));
    }

    #[test]
    fn plan_rejects_collisions_and_missing_families() {
        let mut allocators = cluster(&["10.0.0.0/16"]);
        let named = json!({"type": "ClusterIP", "clusterIP": "10.0.3.3"});
        plan(&mut service(named.clone()), None, &mut allocators, false).expect("the address is free");
        let cases = [
            (
                named,
                r#"spec.clusterIPs: Invalid value: ["10.0.3.3"]: failed to allocate IP 10.0.3.3: provided IP is already allocated"#,
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "11.0.0.1"}),
                r#"spec.clusterIPs: Invalid value: ["11.0.0.1"]: failed to allocate IP 11.0.0.1: the provided network does not match the current range"#,
            ),
            (
                json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"}),
                r#"spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services"#,
            ),
            (
                json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]}),
                r#"spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster"#,
            ),
            (
                json!({"type": "ClusterIP", "clusterIP": "fd00::1"}),
                r#"spec.clusterIPs[0]: Invalid value: ["fd00::1"]: IPv6 is not configured on this cluster"#,
            ),
            (
                json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 22}]}),
                "spec.ports[0].nodePort: Invalid value: 22: provided port is not in the valid range. The range of valid ports is 30000-32767",
            ),
        ];
        for (spec, want) in cases {
            let before = (allocators.of(Family::V4).map(IpAllocator::used), allocators.node_ports.free());
            let error = plan(&mut service(spec), None, &mut allocators, false).expect_err(want);
            assert_eq!(error_messages(error), [want]);
            let after = (allocators.of(Family::V4).map(IpAllocator::used), allocators.node_ports.free());
            assert_eq!(before, after, "nothing remains reserved");
        }
    }

    #[test]
    fn dry_run_sets_placeholders() {
        let mut allocators = cluster(&["10.0.0.0/16"]);
        let mut new = service(json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": true,
            "ports": [{"port": 80}],
        }));
        assert_eq!(plan(&mut new, None, &mut allocators, true), Ok(AllocationPlan::default()));
        let spec = &new["spec"];
        assert_eq!((&spec["clusterIP"], &spec["healthCheckNodePort"]), (&json!("10.0.0.0"), &json!(32770)));
        assert_eq!(spec["ports"][0]["nodePort"], 32769);
        assert_eq!(allocators.node_ports.free(), 2768);
    }

    #[test]
    fn dual_stack_upgrade_and_downgrade_adjust_addresses() {
        let mut allocators = cluster(&["10.0.0.0/16", "fd00::/112"]);
        let mut one = service(json!({"type": "ClusterIP", "selector": {"a": "b"}}));
        plan(&mut one, None, &mut allocators, false).expect("addresses are left");
        let mut two = one.clone();
        two["spec"]["ipFamilyPolicy"] = "PreferDualStack".into();
        plan(&mut two, Some(&one), &mut allocators, false).expect("addresses are left");
        assert_eq!(two["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
        assert_eq!(two["spec"]["clusterIPs"][0], one["spec"]["clusterIP"]);
        assert_eq!(allocators.of(Family::V6).map(IpAllocator::used), Some(1));
        let mut back = two.clone();
        back["spec"]["ipFamilyPolicy"] = "SingleStack".into();
        let plan = plan(&mut back, Some(&two), &mut allocators, false).expect("a release needs nothing");
        allocators.commit(&plan);
        assert_eq!(back["spec"], one["spec"]);
        assert_eq!(allocators.of(Family::V6).map(IpAllocator::used), Some(0));
    }

    #[test]
    fn update_keeps_and_releases_node_ports() {
        let mut allocators = cluster(&["10.0.0.0/16"]);
        let mut old = service(json!({
            "type": "NodePort",
            "ports": [{"port": 53, "protocol": "TCP", "name": "t"}, {"port": 53, "protocol": "UDP", "name": "u"}],
        }));
        plan(&mut old, None, &mut allocators, false).expect("ports are left");
        let shared = old["spec"]["ports"][0]["nodePort"].clone();
        assert_eq!(old["spec"]["ports"][1]["nodePort"], shared);
        assert_eq!(allocators.node_ports.free(), 2767);

        // Applying the same manifest again keeps all allocations.
        let mut again = service(json!({
            "type": "NodePort",
            "ports": [{"port": 53, "protocol": "TCP", "name": "t"}, {"port": 53, "protocol": "UDP", "name": "u"}],
        }));
        assert_eq!(plan(&mut again, Some(&old), &mut allocators, false), Ok(AllocationPlan::default()));
        assert_eq!(again, old);

        let mut inner = old.clone();
        inner["spec"]["type"] = "ClusterIP".into();
        let released = plan(&mut inner, Some(&old), &mut allocators, false).expect("a release needs nothing");
        allocators.commit(&released);
        assert_eq!(allocators.node_ports.free(), 2768);
    }

    #[test]
    fn headless_service_allocates_nothing() {
        let mut allocators = cluster(&["10.0.0.0/16"]);
        let mut new = service(json!({"type": "ClusterIP", "clusterIP": "None"}));
        assert_eq!(plan(&mut new, None, &mut allocators, false), Ok(AllocationPlan::default()));
        assert_eq!(
            new["spec"],
            json!({
                "type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            })
        );
        assert_eq!(holdings(&new), Holdings::default());
    }

    #[test]
    fn stored_services_are_adopted_at_start() {
        let mut allocators = cluster(&["10.0.0.0/16"]);
        let stored = service(json!({
            "type": "NodePort", "clusterIPs": ["10.0.0.9"], "ports": [{"port": 1, "nodePort": 30000}],
        }));
        assert_eq!(allocators.adopt(&stored), Holdings::default());
        assert_eq!(allocators.adopt(&stored), holdings(&stored), "already allocated");
    }
}
