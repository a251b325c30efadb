//! Allocation results of a solved search.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use objects::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
    ResourceClaim,
};

use super::allocator::{AllocationError, Target};
use super::search::{Alternative, Chosen, Search};

/// Results for all claims, in their order.
pub fn compose(
    search: &Search<'_>,
    claims: &[&ResourceClaim],
    node: &Target<'_>,
) -> Result<Vec<AllocationResult>, AllocationError> {
    let one = |(index, claim): (usize, &&ResourceClaim)| {
        let chosen = search.chosen(index);
        let results: Vec<_> = chosen.iter().map(|chosen| result(search, chosen)).collect();
        let config = configuration(claim, &search.selected(index));
        Ok(AllocationResult {
            devices: Some(DeviceAllocationResult {
                config: Some(config).filter(|config| !config.is_empty()),
                results: Some(results).filter(|results| !results.is_empty()),
            }),
            node_selector: node_selector(search, chosen, node).map_err(|problem| {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                AllocationError::Claim(format!("create NodeSelector for claim {name}: {problem}"))
            })?,
            allocation_timestamp: None,
        })
    };
    claims.iter().enumerate().map(one).collect()
}

fn result(search: &Search<'_>, chosen: &Chosen) -> DeviceRequestAllocationResult {
    let candidate = &search.candidates[chosen.candidate];
    let view = &search.alternatives[chosen.alternative].view;
    let consumed = chosen.consumed.as_ref().filter(|amounts| !amounts.is_empty());
    let amounts = |amounts: &super::usage::Consumed| {
        amounts
            .iter()
            .map(|(name, amount)| (name.clone(), Quantity(amount.to_string())))
            .collect::<BTreeMap<_, _>>()
    };
    DeviceRequestAllocationResult {
        request: view.full_name(),
        driver: candidate.slice.slice.spec.driver.clone(),
        pool: candidate.slice.slice.spec.pool.name.clone(),
        device: candidate.device.name.clone(),
        admin_access: view.has_admin_access.then_some(true),
        tolerations: Some(view.tolerations.to_vec()).filter(|list| !list.is_empty()),
        binding_conditions: candidate.device.binding_conditions.clone(),
        binding_failure_conditions: candidate.device.binding_failure_conditions.clone(),
        share_id: chosen.consumed.is_some().then(|| uuid::Uuid::new_v4().to_string()),
        consumed_capacity: consumed.map(amounts),
    }
}

/// Configuration of the classes, each once, then that of the claim.
fn configuration(claim: &ResourceClaim, selected: &[&Alternative<'_>]) -> Vec<DeviceAllocationConfiguration> {
    let mut list: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut ranges: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
    for alternative in selected {
        let name = alternative.view.full_name();
        if let Some(known) = ranges.get(alternative.view.class) {
            for config in &mut list[known.clone()] {
                config.requests.get_or_insert_default().push(name.clone());
            }
            continue;
        }
        let start = list.len();
        let of_class = alternative.class.spec.config.iter().flatten();
        list.extend(of_class.map(|config| DeviceAllocationConfiguration {
            source: "FromClass".to_owned(),
            requests: Some(vec![name.clone()]),
            opaque: config.opaque.clone(),
        }));
        ranges.insert(alternative.view.class, start..list.len());
    }
    let of_claim = claim.spec.devices.iter().flat_map(|devices| devices.config.iter().flatten());
    for config in of_claim {
        let requests = config.requests.as_deref().unwrap_or_default();
        // Kubernetes repeats a configuration for each request that it lists.
        let times = match requests {
            [] => 1,
            names => selected.iter().filter(|alternative| alternative.view.is_listed(names)).count(),
        };
        list.extend((0..times).map(|_| DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: config.requests.clone(),
            opaque: config.opaque.clone(),
        }));
    }
    list
}

/// Nodes on which all the devices are accessible; `None` for all nodes.
fn node_selector(
    search: &Search<'_>,
    chosen: &[Chosen],
    node: &Target<'_>,
) -> Result<Option<NodeSelector>, String> {
    let mut term = NodeSelectorTerm::default();
    for chosen in chosen {
        let candidate = &search.candidates[chosen.candidate];
        let (is_local, selector) = candidate.slice.nodes_of(candidate.device);
        if is_local || candidate.device.binds_to_node == Some(true) {
            return Ok(Some(named(node.name)));
        }
        match selector.map(|selector| selector.node_selector_terms).as_deref() {
            None | Some([]) => {}
            Some([own]) => {
                extend(&mut term.match_fields, own.match_fields.as_deref());
                extend(&mut term.match_expressions, own.match_expressions.as_deref());
            }
            Some(terms) => {
                return Err(format!("unsupported ResourceSlice.NodeSelector with {} terms", terms.len()));
            }
        }
    }
    let is_limited = term.match_fields.is_some() || term.match_expressions.is_some();
    Ok(is_limited.then(|| NodeSelector { node_selector_terms: vec![term] }))
}

fn named(node: &str) -> NodeSelector {
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() };
    NodeSelector { node_selector_terms: vec![term] }
}

/// Adds the requirements that are not there yet; the order of values is without significance.
fn extend(to: &mut Option<Vec<NodeSelectorRequirement>>, from: Option<&[NodeSelectorRequirement]>) {
    let sorted = |values: &Option<Vec<String>>| {
        let mut values = values.clone().unwrap_or_default();
        values.sort_unstable();
        values.dedup();
        values
    };
    for requirement in from.into_iter().flatten() {
        let known = to.iter().flatten().any(|known| {
            known.key == requirement.key
                && known.operator == requirement.operator
                && sorted(&known.values) == sorted(&requirement.values)
        });
        if !known {
            to.get_or_insert_default().push(requirement.clone());
        }
    }
}
