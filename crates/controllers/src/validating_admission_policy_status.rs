//! The status loop of validating admission policies. Watches them; says in the status which generation was looked at.

use async_trait::async_trait;
use k8s_openapi::api::admissionregistration::v1::{TypeChecking, ValidatingAdmissionPolicy};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "validatingadmissionpolicy-status-controller",
    resource: "validatingadmissionpolicies.admissionregistration.k8s.io",
    identity: "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller",
    workers: 5,
};

struct PolicyStatus {
    policies: Cache<ValidatingAdmissionPolicy>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(PolicyStatus { policies: ctx.watch_self() })
}

#[async_trait]
impl Loop for PolicyStatus {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(policy) = self.policies.get_key(key) else { return Ok(Action::Done) };
        let seen = policy.status.as_ref().and_then(|status| status.observed_generation);
        if seen >= policy.metadata.generation {
            return Ok(Action::Done);
        }
        let mut updated = policy.as_ref().clone();
        let status = updated.status.get_or_insert_default();
        status.observed_generation = policy.metadata.generation;
        // Expressions are checked when they are admitted, but not yet against the fields of the kinds they match.
        status.type_checking = Some(TypeChecking::default());
        ctx.client.update_status(&updated).await?;
        Ok(Action::Done)
    }
}
