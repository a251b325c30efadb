//! The allocator: checks the requests of claims, searches devices for them, and composes the results.

use std::sync::Arc;
use std::time::Instant;

use objects::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};

use super::counters::Available;
use super::inventory::Inventory;
use super::pools::{self, Pool, PoolState};
use super::request::{RequestView, key, requests};
use super::search::{Alternative, ClaimRequests, Search};
use super::selector::SelectorCache;
use super::{RESULTS_MAX, constraint::Constraint, result};
use crate::state::Labels;

/// The node for which devices are searched.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub name: &'a str,
    pub labels: &'a Labels,
}

/// Reason why a search ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error("timed out trying to allocate devices")]
    Timeout,
    /// Concerns this node only.
    #[error("{0}")]
    Node(String),
    /// Concerns the claim or a class, and thereby every node.
    #[error("{0}")]
    Claim(String),
}

/// Searches devices for the claims of one pod. Used for all nodes of an attempt.
pub struct Allocator<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) selectors: &'a SelectorCache,
    /// Time when searches end.
    deadline: Option<Instant>,
    pub(super) available: Available,
}

impl<'a> Allocator<'a> {
    #[must_use]
    pub fn new(inventory: &'a Inventory, selectors: &'a SelectorCache, deadline: Option<Instant>) -> Self {
        Self { inventory, selectors, deadline, available: Available::default() }
    }

    /// Results for the claims on a node, in their order; `None` if it lacks devices for them.
    pub fn allocate(
        &self,
        node: &Target<'_>,
        claims: &[&ResourceClaim],
    ) -> Result<Option<Vec<AllocationResult>>, AllocationError> {
        self.time_left()?;
        let pools = pools::gather(&self.inventory.slices, node);
        let mut search = Search::new(self, &pools, node);
        for claim in claims {
            let prepared = self.prepare(&mut search, claim)?;
            let constraints =
                claim.spec.devices.iter().flat_map(|devices| devices.constraints.iter().flatten());
            let constraints = constraints.enumerate().map(|(index, constraint)| {
                Constraint::of(constraint).ok_or_else(|| {
                    let problem = "empty constraint (unsupported constraint type?)";
                    AllocationError::Claim(format!("claim {}, constraint #{index}: {problem}", key(claim)))
                })
            });
            let constraints = constraints.collect::<Result<Vec<_>, _>>()?;
            search.add_claim(prepared, constraints);
        }
        if search.run()? {
            return result::compose(&search, claims, node).map(Some);
        }
        if pools.iter().any(|pool| pool.state == PoolState::Invalid) {
            return Err(AllocationError::Node("invalid resource pools were encountered".to_owned()));
        }
        Ok(None)
    }

    pub(super) fn time_left(&self) -> Result<(), AllocationError> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(AllocationError::Timeout),
            _ => Ok(()),
        }
    }

    /// Checks the requests of a claim, and determines how many devices each of them needs.
    fn prepare<'s>(
        &'s self,
        search: &mut Search<'s>,
        claim: &'s ResourceClaim,
    ) -> Result<ClaimRequests, AllocationError> {
        let mut prepared = ClaimRequests::default();
        let mut least_in_claim: usize = 0;
        for request in requests(claim) {
            let views = RequestView::of(request);
            let mut least = usize::MAX;
            let mut alternatives = Vec::with_capacity(views.len());
            for view in views {
                let alternative = self.alternative(search, claim, view)?;
                least = least.min(alternative.devices);
                alternatives.push(search.add_alternative(alternative));
            }
            if alternatives.is_empty() {
                return Err(AllocationError::Claim(format!(
                    "claim {}, request {}: unknown request type",
                    key(claim),
                    request.name
                )));
            }
            least_in_claim = least_in_claim.saturating_add(least);
            prepared.push(alternatives, request.first_available.is_some() && request.exactly.is_none());
        }
        if least_in_claim > RESULTS_MAX {
            return Err(AllocationError::Claim(format!(
                "claim {}: number of requested devices {least_in_claim} exceeds the claim limit of {RESULTS_MAX}",
                key(claim)
            )));
        }
        Ok(prepared)
    }

    fn alternative<'s>(
        &'s self,
        search: &mut Search<'s>,
        claim: &'s ResourceClaim,
        view: RequestView<'s>,
    ) -> Result<Alternative<'s>, AllocationError> {
        let failed = |problem: String| {
            AllocationError::Claim(format!("claim {}, request {}: {problem}", key(claim), view.name))
        };
        if let Some(index) = view.selectors.iter().position(|selector| selector.cel.is_none()) {
            let problem = "CEL expression empty (unsupported selector type?)";
            return Err(AllocationError::Claim(format!(
                "claim {}, request {}, selector #{index}: {problem}",
                key(claim),
                view.name
            )));
        }
        if view.class.is_empty() {
            return Err(failed("missing device class name (unsupported request type?)".to_owned()));
        }
        let class: &'s Arc<DeviceClass> = self.inventory.classes.get("", view.class).ok_or_else(|| {
            failed(format!(
                "could not retrieve device class {0}: deviceclass.resource.k8s.io \"{0}\" not found",
                view.class
            ))
        })?;
        let selectors = search.selector_set(class, &view);
        let mut alternative = Alternative { view, class, selectors, devices: 0, all: None, claim };
        match view.mode {
            "ExactCount" => {
                alternative.devices = usize::try_from(view.count)
                    .map_err(|_| failed(format!("exact count {} is too large", view.count)))?;
            }
            "All" => {
                if let Some(pool) = search.pools().iter().find(|pool| pool.state != PoolState::Usable) {
                    return Err(failed(unusable(pool)));
                }
                let all = search.all_devices(&alternative)?;
                alternative.devices = all.len();
                alternative.all = Some(all);
            }
            other => return Err(failed(format!("unsupported count mode {other}"))),
        }
        Ok(alternative)
    }
}

fn unusable(pool: &Pool<'_>) -> String {
    let state = if pool.state == PoolState::Invalid { "invalid" } else { "being updated" };
    format!("asks for all devices, but resource pool {} is currently {state}", pool.id)
}
