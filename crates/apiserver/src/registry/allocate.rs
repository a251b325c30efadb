//! Services take cluster IPs and node ports when they are written, and give them back when they go.
//!
//! What is taken is kept in memory, filled from the stored services at first use, and anew when nothing seems left: other
//! servers give back, too. Each cluster IP also is an IPAddress object and each node port a claim (`node_ports`), made
//! before the service is stored: several servers on one store cannot hand out the same.

use super::node_ports::Owner;
use super::{Registry, Served, Warnings, WriteContext, store_error};
use crate::options::DeleteOptions;
use crate::user::UserInfo;
use api::allocation::ip::{IpRange, RangeError};
use api::allocation::port::PortRange;
use api::allocation::service::{self, AllocationError, Allocators, Holdings, Plan};
use api::value::{Fields, texts};
use jiff::{SignedDuration, Timestamp};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use parking_lot::Mutex;
use rand::Rng;
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub(super) const SERVICES: (&str, &str, &str) = ("", "v1", "services");
pub(super) const ADDRESSES: (&str, &str, &str) = ("networking.k8s.io", "v1", "ipaddresses");
const RANGES: (&str, &str, &str) = ("networking.k8s.io", "v1", "servicecidrs");
/// How long memory is trusted when it says that something cannot be had.
const FRESH: Duration = Duration::from_secs(2);
/// How often another address is tried when another server was faster.
const ATTEMPTS: usize = 16;
/// An IPAddress without its service is an orphan after this time; before, the service may be on its way.
pub(super) const ORPHAN_AGE: SignedDuration = SignedDuration::from_secs(60);

/// Where cluster IPs and node ports come from.
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
    /// Takes ranges such as `10.0.0.0/16`.
    pub fn set_cidrs<'a>(&mut self, cidrs: impl IntoIterator<Item = &'a str>) -> Result<(), RangeError> {
        self.cidrs = cidrs.into_iter().map(IpRange::parse).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The first address of the default range: the API server's own.
    pub fn first_address(&self) -> Option<IpAddr> {
        let range = self.cidrs.first()?.to_string();
        match range.split('/').next()?.parse().ok()? {
            IpAddr::V4(network) => Some(IpAddr::V4((u32::from(network).checked_add(1)?).into())),
            IpAddr::V6(network) => Some(IpAddr::V6((u128::from(network).checked_add(1)?).into())),
        }
    }
}

/// What the cluster's services hold.
pub struct Services {
    pub config: ServiceConfig,
    state: Mutex<Option<State>>,
    filling: tokio::sync::Mutex<()>,
}

struct State {
    allocators: Allocators,
    /// Revision of the ServiceCIDRs whose ranges are in use.
    ranges_at: u64,
    /// When the stored services were looked at.
    filled: Instant,
}

/// Addresses and ports that are taken for a write: kept once it is stored, given back when this is dropped.
#[must_use]
pub struct Reservation<'a> {
    services: &'a Services,
    plan: Plan,
    owner: Owner,
}

/// Reports whether a write reached the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Stored,
    NotStored,
    /// The store failed after it was sent the write.
    Unknown,
}

impl WriteOutcome {
    pub(super) fn of(stored: bool, context: &WriteContext<'_>) -> Self {
        match stored {
            true => Self::Stored,
            false if context.warnings.is_outcome_unknown() => Self::Unknown,
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

    /// Whether other servers may have changed enough since memory was filled to look again.
    fn may_be_stale(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|state| state.filled.elapsed() > FRESH)
    }

    /// Plans the write and takes what it needs, in memory.
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
    /// Completes a service that is about to be written, and takes the addresses and ports it needs. Other kinds
    /// and subresources need none.
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
        let mut asked_for = None;
        for _ in 0..ATTEMPTS {
            let mut reservation = match self.services.plan(new, old, context.dry_run) {
                Err(_) if self.services.may_be_stale() => {
                    self.refill_services().await?;
                    new.clone_from(&original);
                    continue;
                }
                Err(status) => {
                    // No service has it, so memory forgets it: its IPAddress may go at any time.
                    self.services
                        .release(&Holdings { ips: asked_for.into_iter().collect(), ..Holdings::default() });
                    return Err(status);
                }
                Ok(planned) => planned,
            };
            // What another server has stays taken, and the plan is made anew.
            match self.claim(new, &reservation.plan.reserved.ips).await? {
                Some(taken) => {
                    reservation.plan.reserved.ips.retain(|ip| *ip != taken);
                    asked_for = asks_for(&original, taken).then_some(taken);
                }
                None => match self.claim_ports(&reservation.owner, &reservation.plan.reserved.ports).await {
                    Ok(None) => return Ok(Some(reservation)),
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

    /// Releases what a write no longer holds: what it gave up if it was stored, what it reserved if it was not. After an
    /// unknown outcome both stay allocated until services are repaired from what is stored.
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

    /// A service is gone: what it held is free.
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

    /// Makes sure that memory knows what the stored services hold and which ranges there are.
    pub async fn fill_services(&self) -> Result<()> {
        let ranges = &self.builtin(RANGES.0, RANGES.1, RANGES.2)?.storage.cache;
        ranges.ready().await.map_err(|e| store_error(&e))?;
        let ranges_at = ranges.revision();
        let known = self.services.state.lock().as_ref().map(|state| state.ranges_at);
        if known == Some(ranges_at) {
            return Ok(());
        }
        self.fill(ranges_at, false).await
    }

    /// Looks at the stored services again. What is on its way meanwhile is safe: it is claimed in the store.
    async fn refill_services(&self) -> Result<()> {
        let ranges_at = self.builtin(RANGES.0, RANGES.1, RANGES.2)?.storage.cache.revision();
        self.fill(ranges_at, true).await
    }

    async fn fill(&self, ranges_at: u64, anew: bool) -> Result<()> {
        let _turn = self.services.filling.lock().await;
        if anew && !self.services.may_be_stale() {
            return Ok(());
        }
        let mut cidrs = self.services.config.cidrs.clone();
        for range in self.find_all(RANGES, "", "").await? {
            let more = ready_ranges(&range).into_iter().filter(|more| !cidrs.contains(more));
            let more: Vec<_> = more.collect();
            cidrs.extend(more);
        }
        let seed: u64 = rand::rng().random();
        if let Some(state) = self.services.state.lock().as_mut().filter(|_| !anew) {
            state.allocators.set_ranges(cidrs, seed);
            state.ranges_at = ranges_at;
            return Ok(());
        }
        let mut allocators = Allocators::new(cidrs, self.services.config.node_ports, seed);
        for service in self.find_all(SERVICES, "", "").await? {
            let lost = allocators.adopt(&service);
            if lost != Holdings::default() {
                let (namespace, name) = (meta::namespace(&service), meta::name(&service));
                tracing::warn!(namespace, name, ?lost, "a service holds what is not its own");
            }
        }
        *self.services.state.lock() = Some(State { allocators, ranges_at, filled: Instant::now() });
        Ok(())
    }

    /// Makes the IPAddress objects of a service; gives the address that is somebody else's, if one is.
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

    pub(super) async fn claim_one(&self, service: &Value, ip: IpAddr) -> Result<bool> {
        for _ in 0..2 {
            let served = self.builtin(ADDRESSES.0, ADDRESSES.1, ADDRESSES.2)?;
            let (user, warnings) = (UserInfo::server(), Warnings::default());
            let context = WriteContext::server(&user, &warnings, "");
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

    /// Whether the service of an IPAddress is gone, or has other addresses.
    pub(super) async fn is_orphan(&self, address: &Value, ip: IpAddr) -> Result<bool> {
        let created = meta::text(address, "creationTimestamp").parse::<Timestamp>();
        if created.is_ok_and(|created| Timestamp::now().duration_since(created) < ORPHAN_AGE) {
            return Ok(false);
        }
        let parent = address.at("spec.parentRef");
        if parent.text("resource") != "services" {
            return Ok(false);
        }
        let service = self.find(SERVICES, parent.text("namespace"), parent.text("name")).await?;
        Ok(service.is_none_or(|service| !service::holdings(&service).ips.contains(&ip)))
    }

    pub(super) async fn unclaim(&self, ip: IpAddr) {
        let Ok(served) = self.builtin(ADDRESSES.0, ADDRESSES.1, ADDRESSES.2) else { return };
        let (user, warnings) = (UserInfo::server(), Warnings::default());
        let context = WriteContext::server(&user, &warnings, "");
        let (name, options) = (ip.to_string(), DeleteOptions::default());
        match Box::pin(self.delete(served, &name, &options, &context)).await {
            Err(status) if status.code != 404 => {
                tracing::warn!(%ip, error = %status, "an IPAddress without a service stays behind");
            }
            _ => {}
        }
    }
}

/// Whether a service names the address itself.
fn asks_for(service: &Value, ip: IpAddr) -> bool {
    let spec = service.field("spec");
    let named = std::iter::once(spec.text("clusterIP")).chain(texts(spec.items("clusterIPs")));
    named.filter_map(|text| text.parse().ok()).any(|named: IpAddr| named == ip)
}

/// The ranges of a ServiceCIDR that is in service, as all are that nobody says otherwise of: without the loop that looks
/// after them they can be used, too.
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
    fn ranges_are_in_service_unless_somebody_says_otherwise() {
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
    fn a_service_asks_for_the_addresses_it_names() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let service = json!({"spec": {"clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9", "fd00:0::1"]}});
        assert!(asks_for(&service, ip("10.0.0.9")) && asks_for(&service, ip("fd00::1")));
        assert!(!asks_for(&service, ip("10.0.0.8")));
        assert!(!asks_for(&json!({"spec": {"clusterIP": "None"}}), ip("10.0.0.9")));
    }
}
