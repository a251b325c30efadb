//! Allocation of cluster IPs and node ports when services are written, and their release on deletion.
//!
//! Allocations are cached in memory, filled from the stored services at first use and again when the ranges seem
//! exhausted, since other servers also release. Each cluster IP also is an IPAddress object and each node port a
//! claim (`node_ports`), created before the service is stored, so that several servers on one store cannot allocate
//! the same.

mod node_ports;
mod repair;

use super::{OrStatus, Registry, Served, WriteContext, WriteRecord};
use crate::metrics;
use crate::user::UserInfo;
use crate::wire::options::DeleteOptions;
use api::allocation::ip::{IpRange, RangeError};
use api::allocation::port::PortRange;
use api::allocation::service::{self, AllocationError, AllocationPlan, Allocators, Holdings};
use api::value::{Fields, texts};
use base::clock::Clock;
use base::metrics::IntGaugeVec;
use jiff::{SignedDuration, Timestamp};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use node_ports::Owner;
use parking_lot::Mutex;
use rand::Rng;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const SERVICES: (&str, &str, &str) = ("", "v1", "services");
const ADDRESSES: (&str, &str, &str) = ("networking.k8s.io", "v1", "ipaddresses");
const RANGES: (&str, &str, &str) = ("networking.k8s.io", "v1", "servicecidrs");
/// Time for which a failed allocation from memory is trusted.
const FRESH: Duration = Duration::from_secs(2);
/// Attempts with other addresses after conflicts with other servers.
const ATTEMPTS: usize = 16;
/// Age from which an IPAddress without a service is an orphan; before, the service may still be written.
const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

/// Ranges of cluster IPs and node ports.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// One range, or one of each family; the first one's family is the default.
    pub cidrs: Vec<IpRange>,
    pub node_ports: PortRange,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self { cidrs: IpRange::parse("10.0.0.0/16").into_iter().collect(), node_ports: PortRange::DEFAULT }
    }
}

impl ServiceConfig {
    /// Parses ranges such as `10.0.0.0/16`.
    pub fn set_cidrs<'a>(&mut self, cidrs: impl IntoIterator<Item = &'a str>) -> Result<(), RangeError> {
        self.cidrs = cidrs.into_iter().map(IpRange::parse).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// First address of the default range: that of the service `kubernetes`.
    pub fn first_address(&self) -> Option<IpAddr> {
        let range = self.cidrs.first()?.to_string();
        match range.split('/').next()?.parse().ok()? {
            IpAddr::V4(network) => Some(IpAddr::V4((u32::from(network).checked_add(1)?).into())),
            IpAddr::V6(network) => Some(IpAddr::V6((u128::from(network).checked_add(1)?).into())),
        }
    }
}

/// Allocation state of the cluster's services.
pub struct Services {
    pub config: ServiceConfig,
    state: Mutex<Option<State>>,
    filling: tokio::sync::Mutex<()>,
}

struct State {
    allocators: Allocators,
    /// Revision of the ServiceCIDRs whose ranges are in use.
    ranges_at: u64,
    /// Time of the last fill from the stored services.
    filled: Instant,
}

/// Addresses and ports reserved for a write; dropping it releases them unless the write was stored.
#[must_use]
pub struct Reservation<'a> {
    services: &'a Services,
    plan: AllocationPlan,
    owner: Owner,
}

/// Result of a write in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Stored,
    NotStored,
    /// The store failed after receiving the write.
    Unknown,
}

impl WriteOutcome {
    pub(super) fn of(stored: bool, context: &WriteContext<'_>) -> Self {
        match stored {
            true => Self::Stored,
            false if context.record.is_outcome_unknown() => Self::Unknown,
            false => Self::NotStored,
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.services.release(&self.plan.reserved);
    }
}

impl Services {
    pub fn new(config: ServiceConfig) -> Self {
        Self { config, state: Mutex::new(None), filling: tokio::sync::Mutex::default() }
    }

    fn release(&self, holdings: &Holdings) {
        if let Some(state) = self.state.lock().as_mut() {
            state.allocators.release(holdings);
        }
    }

    /// Shows allocated and available addresses by service CIDR, and node ports; nothing before the first service.
    pub fn show(&self, addresses: [&IntGaugeVec; 2], ports: [&IntGaugeVec; 2]) {
        let state = self.state.lock();
        let Some(allocators) = state.as_ref().map(|state| &state.allocators) else { return };
        let number = |count: u128| i64::try_from(count).unwrap_or(i64::MAX);
        for (range, used, size) in allocators.usage() {
            let cidr = range.to_string();
            addresses[0].with_label_values(&[&cidr]).set(number(used as u128));
            addresses[1].with_label_values(&[&cidr]).set(number(size.saturating_sub(used as u128)));
        }
        let node_ports = &allocators.node_ports;
        for (gauges, count) in ports.into_iter().zip([node_ports.used(), node_ports.free()]) {
            gauges.with_label_values::<&str>(&[]).set(number(count as u128));
        }
    }

    /// Counts the addresses and ports of a reservation.
    fn count(&self, reservation: &Reservation<'_>, original: &Value) {
        let Some(metrics) = metrics::process() else { return };
        let state = self.state.lock();
        let Some(allocators) = state.as_ref().map(|state| &state.allocators) else { return };
        for ip in &reservation.plan.reserved.ips {
            let usage = allocators.usage();
            let Some((range, ..)) = usage.iter().find(|(range, ..)| range.includes(*ip)) else { continue };
            let scope = if requests_address(original, *ip) { "static" } else { "dynamic" };
            metrics.address_allocations.with_label_values(&[&*range.to_string(), scope]).inc();
        }
        let requested = service::holdings(original).ports;
        for port in &reservation.plan.reserved.ports {
            let scope = if requested.contains(port) { "static" } else { "dynamic" };
            metrics.port_allocations.with_label_values(&[scope]).inc();
        }
    }

    /// Reports whether the state is old enough to be refilled.
    fn may_be_stale(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|state| state.filled.elapsed() > FRESH)
    }

    /// Plans the write and reserves its addresses and ports in memory.
    fn plan(&self, new: &mut Value, old: Option<&Value>, dry_run: bool) -> Result<Reservation<'_>> {
        let mut state = self.state.lock();
        let state = state.as_mut().ok_or_else(|| Status::internal("the service allocators are not ready"))?;
        match service::plan(new, old, &mut state.allocators, dry_run) {
            Ok(plan) => Ok(Reservation { services: self, plan, owner: Owner::of(new) }),
            Err(AllocationError::Invalid(errors)) => {
                Err(Status::invalid("", "Service", meta::name(new), &errors))
            }
            Err(AllocationError::Internal(text)) => Err(Status::internal(text)),
        }
    }
}

fn is_service(served: &Served) -> bool {
    (served.kind.group(), served.kind.resource()) == ("", "services")
}

impl Registry {
    /// Completes a service before it is written, and reserves its addresses and ports. Other kinds and subresources
    /// need none.
    pub(super) async fn reserve(
        &self,
        served: &Served,
        new: &mut Value,
        old: Option<&Value>,
        context: &WriteContext<'_>,
    ) -> Result<Option<Reservation<'_>>> {
        if !is_service(served) || !context.subresource.is_empty() {
            return Ok(None);
        }
        self.fill_services().await?;
        let original = new.clone();
        let mut requested = None;
        for _ in 0..ATTEMPTS {
            let mut reservation = match self.services.plan(new, old, context.dry_run) {
                Err(_) if self.services.may_be_stale() => {
                    self.refill_services().await?;
                    new.clone_from(&original);
                    continue;
                }
                Err(status) => {
                    // No service has the requested address, so it is released: its IPAddress may be deleted at any
                    // time.
                    self.services
                        .release(&Holdings { ips: requested.into_iter().collect(), ..Holdings::default() });
                    return Err(status);
                }
                Ok(planned) => planned,
            };
            // Allocations of other servers stay reserved, and the plan is recomputed.
            match self.claim(new, &reservation.plan.reserved.ips).await? {
                Some(taken) => {
                    reservation.plan.reserved.ips.retain(|ip| *ip != taken);
                    requested = requests_address(&original, taken).then_some(taken);
                }
                None => match self.claim_ports(&reservation.owner, &reservation.plan.reserved.ports).await {
                    Ok(None) => {
                        self.services.count(&reservation, &original);
                        return Ok(Some(reservation));
                    }
                    other => {
                        for ip in &reservation.plan.reserved.ips {
                            self.unclaim(*ip).await;
                        }
                        let taken = other?;
                        reservation.plan.reserved.ports.retain(|port| Some(*port) != taken);
                    }
                },
            }
            new.clone_from(&original);
        }
        Err(Status::internal(
            "no cluster IP and node port could be claimed: other servers were always faster",
        ))
    }

    /// Releases the old allocations of a stored write, or the reserved ones of a failed write. After an unknown
    /// outcome both stay allocated until the next repair.
    pub(super) async fn settle(&self, reservation: Option<Reservation<'_>>, outcome: WriteOutcome) {
        let Some(mut reservation) = reservation else { return };
        match outcome {
            WriteOutcome::Stored => {
                reservation.plan.reserved = std::mem::take(&mut reservation.plan.released);
            }
            WriteOutcome::NotStored => {}
            WriteOutcome::Unknown => {
                reservation.plan.reserved = Holdings::default();
                return;
            }
        }
        for ip in &reservation.plan.reserved.ips {
            self.unclaim(*ip).await;
        }
        self.unclaim_ports(&reservation.owner, &reservation.plan.reserved.ports).await;
    }

    /// Releases the allocations of a deleted service.
    pub(super) async fn release(&self, served: &Served, last: &Value) {
        if !is_service(served) {
            return;
        }
        let holdings = service::holdings(last);
        for ip in &holdings.ips {
            self.unclaim(*ip).await;
        }
        self.unclaim_ports(&Owner::of(last), &holdings.ports).await;
        self.services.release(&holdings);
    }

    /// Ensures that the state contains the stored services and the current ranges.
    pub async fn fill_services(&self) -> Result<()> {
        let ranges = &self.builtin(RANGES.0, RANGES.1, RANGES.2)?.storage.cache;
        ranges.ready().await.or_status()?;
        let ranges_at = ranges.revision();
        let known = self.services.state.lock().as_ref().map(|state| state.ranges_at);
        if known == Some(ranges_at) {
            return Ok(());
        }
        self.fill(ranges_at, false).await
    }

    /// Refills the state from the stored services. Concurrent writes are safe: they are claimed in the store.
    async fn refill_services(&self) -> Result<()> {
        let ranges_at = self.builtin(RANGES.0, RANGES.1, RANGES.2)?.storage.cache.revision();
        self.fill(ranges_at, true).await
    }

    async fn fill(&self, ranges_at: u64, force: bool) -> Result<()> {
        let _turn = self.services.filling.lock().await;
        if force && !self.services.may_be_stale() {
            return Ok(());
        }
        let mut cidrs = self.services.config.cidrs.clone();
        for range in self.find_all(RANGES, "", "").await? {
            let more = ready_ranges(&range).into_iter().filter(|more| !cidrs.contains(more));
            let more: Vec<_> = more.collect();
            cidrs.extend(more);
        }
        let seed: u64 = rand::rng().random();
        if let Some(state) = self.services.state.lock().as_mut().filter(|_| !force) {
            state.allocators.set_ranges(cidrs, seed);
            state.ranges_at = ranges_at;
            return Ok(());
        }
        let mut allocators = Allocators::new(cidrs, self.services.config.node_ports, seed);
        for service in self.find_all(SERVICES, "", "").await? {
            let lost = allocators.adopt(&service);
            if lost != Holdings::default() {
                let (namespace, name) = (meta::namespace(&service), meta::name(&service));
                tracing::warn!(namespace, name, ?lost, "service uses addresses or ports of another service");
            }
        }
        *self.services.state.lock() = Some(State { allocators, ranges_at, filled: Instant::now() });
        Ok(())
    }

    /// Creates the IPAddress objects of a service; returns an address that has another owner, if any.
    async fn claim(&self, service: &Value, ips: &[IpAddr]) -> Result<Option<IpAddr>> {
        for (done, ip) in ips.iter().enumerate() {
            match self.claim_one(service, *ip).await {
                Ok(true) => continue,
                outcome => {
                    for claimed in &ips[..done] {
                        self.unclaim(*claimed).await;
                    }
                    return outcome.map(|_| Some(*ip));
                }
            }
        }
        Ok(None)
    }

    async fn claim_one(&self, service: &Value, ip: IpAddr) -> Result<bool> {
        for _ in 0..2 {
            let served = self.builtin(ADDRESSES.0, ADDRESSES.1, ADDRESSES.2)?;
            let (user, record) = (UserInfo::server(), WriteRecord::default());
            let context = WriteContext::server(&user, &record, "");
            let object = service::ip_address(service, ip);
            match Box::pin(self.create(served, object, &context)).await {
                Ok(_) => return Ok(true),
                Err(status) if status.reason == "AlreadyExists" => {}
                Err(status) => return Err(status),
            }
            let Some(present) = self.find(ADDRESSES, "", &ip.to_string()).await? else { continue };
            if !self.is_orphan(&present, ip).await? {
                return Ok(false);
            }
            self.unclaim(ip).await;
        }
        Ok(false)
    }

    /// Reports whether the service of an IPAddress is missing or has other addresses.
    async fn is_orphan(&self, address: &Value, ip: IpAddr) -> Result<bool> {
        let created = meta::text(address, "creationTimestamp").parse::<Timestamp>();
        if created.is_ok_and(|created| Clock::system().now().duration_since(created) < ORPHAN_AGE) {
            return Ok(false);
        }
        let parent = address.at("spec.parentRef");
        if parent.text("resource") != "services" {
            return Ok(false);
        }
        let service = self.find(SERVICES, parent.text("namespace"), parent.text("name")).await?;
        Ok(service.is_none_or(|service| !service::holdings(&service).ips.contains(&ip)))
    }

    async fn unclaim(&self, ip: IpAddr) {
        let Ok(served) = self.builtin(ADDRESSES.0, ADDRESSES.1, ADDRESSES.2) else { return };
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let context = WriteContext::server(&user, &record, "");
        let (name, options) = (ip.to_string(), DeleteOptions::default());
        match Box::pin(self.delete(served, &name, &options, &context)).await {
            Err(status) if status.code != 404 => {
                tracing::warn!(%ip, error = %status, "failed to delete IPAddress without a service");
            }
            _ => {}
        }
    }
}

/// Reports whether a service requests this address.
fn requests_address(service: &Value, ip: IpAddr) -> bool {
    let spec = service.field("spec");
    let named = std::iter::once(spec.text("clusterIP")).chain(texts(spec.items("clusterIPs")));
    named.filter_map(|text| text.parse().ok()).any(|named: IpAddr| named == ip)
}

/// The ranges of a ServiceCIDR unless it is deleted or not ready. A missing `Ready` condition counts as ready, so
/// that ranges work without the ServiceCIDR controller.
fn ready_ranges(object: &Value) -> Vec<IpRange> {
    let conditions = object.field("status").items("conditions");
    let ready = conditions
        .iter()
        .find(|condition| condition.text("type") == "Ready")
        .is_none_or(|condition| condition.text("status") == "True");
    if !ready || meta::deletion_timestamp(object).is_some() {
        return Vec::new();
    }
    texts(object.field("spec").items("cidrs")).filter_map(|cidr| IpRange::parse(cidr).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn service_cidr_is_usable_unless_not_ready_or_deleted() {
        let range = |conditions: Value, deleted: bool| {
            let mut object = json!({
                "metadata": {"name": "r"},
                "spec": {"cidrs": ["10.50.0.0/24"]},
                "status": {"conditions": conditions},
            });
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            ready_ranges(&object).len()
        };
        for (conditions, deleted, expected) in [
            (json!([]), false, 1),
            (Value::Null, false, 1),
            (json!([{"type": "Other", "status": "False"}]), false, 1),
            (json!([{"type": "Ready", "status": "True"}]), false, 1),
            (json!([{"type": "Ready", "status": "False"}]), false, 0),
            (json!([{"type": "Ready", "status": "Unknown"}]), false, 0),
            (json!([]), true, 0),
        ] {
            assert_eq!(range(conditions.clone(), deleted), expected, "{conditions} {deleted}");
        }
    }

    #[test]
    fn service_requests_only_its_named_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let service = json!({"spec": {"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00:0::1"]}});
        assert!(requests_address(&service, ip("10.0.0.9")) && requests_address(&service, ip("fd00::1")));
        assert!(!requests_address(&service, ip("10.0.0.8")));
        assert!(!requests_address(&json!({"spec": {"clusterIP": "None"}}), ip("10.0.0.9")));
    }
}
