//! The service CIDR loop. Watches service CIDRs and IP addresses; sets each CIDR ready, and removes the finalizer of
//! a deleted one when no address depends on it alone.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;
use objects::networking::v1::{IPAddress, ServiceCIDR};
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};

use crate::node_ipam::parse_cidr;
use crate::shared::condition;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "service-cidr-controller",
    resource: "servicecidrs.networking.k8s.io",
    identity: "system:serviceaccount:kube-system:service-cidrs-controller",
    workers: 1,
};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

struct ServiceCidrs {
    cidrs: Cache<ServiceCIDR>,
    addresses: Cache<IPAddress>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let cidrs = ctx.cache::<ServiceCIDR>();
    let all = cidrs.clone();
    // Another CIDR may cover the addresses of a terminating one.
    ctx.watch::<ServiceCIDR>(move |_| all.all().iter().map(|cidr| Key::of(&**cidr)).collect());
    let all = cidrs.clone();
    let addresses = ctx.watch::<IPAddress>(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            return Vec::new();
        }
        let going = all.all().into_iter().filter(|cidr| cidr.metadata.deletion_timestamp.is_some());
        going.map(|cidr| Key::of(&*cidr)).collect()
    });
    Box::new(ServiceCidrs { cidrs, addresses })
}

#[async_trait]
impl Loop for ServiceCidrs {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(cidr) = self.cidrs.get_key(key) else { return Ok(Action::Done) };
        let held = cidr.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
        let mut updated = cidr.as_ref().clone();
        let now = ctx.clock.now();
        if cidr.metadata.deletion_timestamp.is_none() {
            if !held {
                updated.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
                updated = ctx.client.update(&updated).await?;
            }
            let status = updated.status.get_or_insert_default();
            let message = "Kubernetes Service CIDR is ready";
            if !condition::holds(status.conditions.as_ref(), "Ready")
                && condition::set(&mut status.conditions, "Ready", true, "", message, now)
            {
                ctx.client.update_status(&updated).await?;
            }
            return Ok(Action::Done);
        }
        if !held {
            return Ok(Action::Done);
        }
        if plan(&cidr, &self.cidrs.all(), &self.addresses.all()) {
            updated.metadata.finalizers.get_or_insert_default().retain(|finalizer| finalizer != FINALIZER);
            return match ctx.client.update(&updated).await {
                Err(error) if !error.is_not_found() => Err(error.into()),
                _ => Ok(Action::Done),
            };
        }
        let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        let status = updated.status.get_or_insert_default();
        if condition::set(&mut status.conditions, "Ready", false, "Terminating", message, now) {
            ctx.client.update_status(&updated).await?;
        }
        Ok(Action::Done)
    }
}

/// True if another CIDR covers every address of this one.
fn plan(going: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>]) -> bool {
    let ranges = |cidr: &ServiceCIDR| -> Vec<IpNet> {
        let texts = cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
        texts.into_iter().filter_map(|text| parse_cidr(text).ok()).collect()
    };
    let own = ranges(going);
    let others: Vec<IpNet> = all
        .iter()
        .filter(|other| {
            other.metadata.uid != going.metadata.uid && other.metadata.deletion_timestamp.is_none()
        })
        .flat_map(|other| ranges(other))
        .collect();
    let addresses = addresses.iter().filter_map(|address| address.metadata.name.as_deref()?.parse().ok());
    addresses.into_iter().all(|address: IpAddr| {
        let within = |ranges: &[IpNet]| ranges.iter().any(|range| range.contains(&address));
        !within(&own) || within(&others)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::meta;
    use objects::networking::v1::ServiceCIDRSpec;

    #[test]
    fn cidr_is_released_when_other_cidrs_cover_addresses() {
        let cidr = |name: &str, range: &str| {
            let spec = Some(ServiceCIDRSpec { cidrs: Some(vec![range.into()]) });
            Arc::new(ServiceCIDR { metadata: meta(name), spec, status: None })
        };
        let address = |ip: &str| Arc::new(IPAddress { metadata: meta(ip), ..IPAddress::default() });
        let (a, b) = (cidr("a", "10.0.0.0/24"), cidr("b", "10.0.0.0/16"));
        assert!(plan(&a, std::slice::from_ref(&a), &[address("10.1.0.1")]));
        assert!(!plan(&a, std::slice::from_ref(&a), &[address("10.0.0.1")]));
        assert!(plan(&a, &[a.clone(), b], &[address("10.0.0.1")]));
    }
}
