//! DynamicResources: rejects every node for pods with resource claims, because this scheduler does not allocate devices.
//! Such a pod stays pending instead of running without its devices.

use crate::framework::{Cycle, Filter, Plugin, PreFilter, Rejection};
use crate::state::{NodeInfo, PodInfo};

const REASON: &str = "cannot allocate all claims";

pub struct DynamicResources;

/// Reports whether a pod needs a claim. A template for which no claim was necessary has a status without name.
fn needs_claims(pod: &PodInfo) -> bool {
    let claims = pod.spec().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default();
    let statuses = pod.pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref());
    claims.iter().any(|claim| {
        let status = statuses.into_iter().flatten().find(|status| status.name == claim.name);
        claim.resource_claim_name.is_some()
            || status.is_none_or(|status| status.resource_claim_name.is_some())
    })
}

#[derive(Clone)]
struct Unallocated;

impl<'a> Filter<'a> for Unallocated {
    fn check(&self, _: &NodeInfo) -> Result<(), Rejection> {
        Err(Rejection::unresolvable(REASON))
    }

    fn boxed(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

impl Plugin for DynamicResources {
    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        if needs_claims(cycle.pod) { PreFilter::Check(Box::new(Unallocated)) } else { PreFilter::Skip }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn pod_needs_claims_unless_none_was_necessary() {
        let claims = |claim: serde_json::Value| json!({"resourceClaims": [claim]});
        let own = claims(json!({"name": "gpu", "resourceClaimName": "c"}));
        let template = claims(json!({"name": "gpu", "resourceClaimTemplateName": "t"}));
        let status = |status: serde_json::Value| json!({"resourceClaimStatuses": [status]});
        for (spec, status, needs) in [
            (json!({}), json!({}), false),
            (own, json!({}), true),
            (template.clone(), json!({}), true),
            (template.clone(), status(json!({"name": "gpu", "resourceClaimName": "c"})), true),
            (template, status(json!({"name": "gpu"})), false),
        ] {
            let mut built = (*pod("p").spec(spec.clone()).info().pod).clone();
            built.status = serde_json::from_value(status).expect("a status");
            let info = PodInfo::new(Arc::new(built));
            assert_eq!(needs_claims(&info), needs, "{spec}");
        }
    }
}
