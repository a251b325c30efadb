//! The status loop of validating admission policies. Watches them; writes to the status the observed generation, and
//! type checking warnings about expressions: fields that do not exist, types that do not match.

mod type_checking;

use std::collections::BTreeMap;

use async_trait::async_trait;
use client::{Client, ClientError, Patch};
use expressions::{Type, openapi};
use machinery::gvk::{GroupVersionKind, split_api_version};
use objects::admissionregistration::v1::{ParamKind, ValidatingAdmissionPolicy};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::{Value, json};

use type_checking::{Types, kinds, plan};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "validatingadmissionpolicy-status-controller",
    resource: "validatingadmissionpolicies.admissionregistration.k8s.io",
    identity: "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller",
    workers: 5,
};

/// Field manager of the status, with Kubernetes' name.
const MANAGER: &str = "validatingadmissionpolicy-status";

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
        let warnings = plan(&policy, &types(&ctx.client, &policy).await?);
        let checked = if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
        let patch = Patch::Apply {
            manager: MANAGER.to_owned(),
            force: true,
            object: json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicy",
                // Preconditions: a policy that has changed meanwhile is reconciled again.
                "metadata": {
                    "name": key.name, "uid": policy.metadata.uid,
                    "resourceVersion": policy.metadata.resource_version,
                },
                "status": { "observedGeneration": policy.metadata.generation, "typeChecking": checked },
            }),
        };
        ctx.client.patch::<ValidatingAdmissionPolicy>("", &key.name, Some("status"), &patch).await?;
        Ok(Action::Done)
    }
}

/// Server-provided schemas of a policy's kinds.
async fn types(client: &Client, policy: &ValidatingAdmissionPolicy) -> Result<Types, ClientError> {
    let mut documents = Documents { client, read: BTreeMap::new() };
    let mut types = Types::default();
    for kind in kinds(policy, &client.discover().await?) {
        if let Some(document) = documents.of(&kind).await? {
            // A kind without a schema is dynamically typed.
            types.objects.push((openapi_type(document, &kind, 0).unwrap_or(Type::Dyn), kind));
        }
    }
    if let Some(kind) = policy.spec.as_ref().and_then(|spec| spec.param_kind.as_ref()).map(param_kind) {
        let document = documents.of(&kind).await?;
        types.params = document.and_then(|document| openapi_type(document, &kind, 1));
    }
    Ok(types)
}

fn param_kind(of: &ParamKind) -> GroupVersionKind {
    let api_version = of.api_version.as_deref().unwrap_or_default();
    let (group, version) = split_api_version(api_version);
    GroupVersionKind::new(group, version, of.kind.as_deref().unwrap_or_default())
}

/// Type names of objects and params in messages: their kinds, numbered if both are equal.
fn openapi_type(document: &Value, of: &GroupVersionKind, number: u8) -> Option<Type> {
    openapi::type_of(document, (&of.group, &of.version, &of.kind), &format!("{}{number}", of.kind))
}

/// OpenAPI documents by group and version, each read once.
struct Documents<'c> {
    client: &'c Client,
    read: BTreeMap<String, Option<Value>>,
}

impl Documents<'_> {
    /// `None` if the server publishes none for this group and version, or if it lacks the kind.
    async fn of(&mut self, kind: &GroupVersionKind) -> Result<Option<&Value>, ClientError> {
        let path = match kind.group.as_str() {
            "" => format!("/openapi/v3/api/{}", kind.version),
            group => format!("/openapi/v3/apis/{group}/{}", kind.version),
        };
        if !self.read.contains_key(&path) {
            let document = match self.client.read(&path).await {
                Err(error) if error.is_not_found() => None,
                other => Some(other?),
            };
            self.read.insert(path.clone(), document);
        }
        Ok(self.read.get(&path).and_then(Option::as_ref))
    }
}
