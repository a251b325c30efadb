//! Devices in use, by the allocation results of claims.

use std::collections::{BTreeMap, HashMap};

use machinery::quantity::Quantity;
use objects::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

use super::{PoolId, quantity};

/// Consumed capacity by name.
pub type Consumed = BTreeMap<String, Quantity>;

/// Use of one device by all claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// Allocations to one claim only. More than one are a conflict, which must not free the device early.
    pub exclusive: u32,
    /// Allocations of a device that allows several.
    pub shares: u32,
    /// Sum of the shares.
    pub capacity: Consumed,
}

impl DeviceUsage {
    fn is_empty(&self) -> bool {
        self.exclusive == 0 && self.shares == 0
    }
}

/// Use of all devices.
#[derive(Debug, Default)]
pub struct Usage {
    pools: HashMap<PoolId, HashMap<Box<str>, DeviceUsage>>,
}

/// Allocation results of a claim.
pub fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.iter().filter_map(|status| status.allocation.as_ref());
    let devices = allocation.filter_map(|allocation| allocation.devices.as_ref());
    devices.flat_map(|devices| devices.results.iter().flatten())
}

impl Usage {
    pub fn add(&mut self, claim: &ResourceClaim) {
        for result in in_use(claim) {
            let pool = self.pools.entry(PoolId::new(&result.driver, &result.pool)).or_default();
            let usage = pool.entry(result.device.as_str().into()).or_default();
            if result.share_id.is_none() {
                usage.exclusive = usage.exclusive.saturating_add(1);
                continue;
            }
            usage.shares = usage.shares.saturating_add(1);
            for (name, amount) in result.consumed_capacity.iter().flatten() {
                *usage.capacity.entry(name.clone()).or_default() += quantity(amount);
            }
        }
    }

    pub fn remove(&mut self, claim: &ResourceClaim) {
        for result in in_use(claim) {
            let id = PoolId::new(&result.driver, &result.pool);
            let Some(pool) = self.pools.get_mut(&id) else { continue };
            let Some(usage) = pool.get_mut(&*result.device) else { continue };
            if result.share_id.is_none() {
                usage.exclusive = usage.exclusive.saturating_sub(1);
            } else {
                usage.shares = usage.shares.saturating_sub(1);
                for (name, amount) in result.consumed_capacity.iter().flatten() {
                    if let Some(consumed) = usage.capacity.get_mut(name) {
                        *consumed -= quantity(amount);
                    }
                }
            }
            if usage.is_empty() {
                pool.remove(&*result.device);
            }
            if pool.is_empty() {
                self.pools.remove(&id);
            }
        }
    }

    /// Devices in use of one pool.
    #[must_use]
    pub fn pool(&self, id: &PoolId) -> Option<&HashMap<Box<str>, DeviceUsage>> {
        self.pools.get(id)
    }
}

/// Results that keep others from a device; administrative access does not.
fn in_use(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    results(claim).filter(|result| result.admin_access != Some(true))
}
