//! ResourceQuota: limits the total usage of a namespace. A write that fits is charged to the namespace's quotas
//! before it is stored, by compare-and-swap on their status, so that two writes cannot both take the last unit.

mod ledger;
pub mod limited;
mod resized;
mod scopes;
mod usage;

use super::{Attributes, Operation, Plugin};
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use api::value::Fields;
use async_trait::async_trait;
use ledger::{Charge, QuotaRejection};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use std::hash::{BuildHasher, RandomState};
use tokio::sync::Mutex;
pub(super) use usage::pod_total;

const QUOTAS: (&str, &str, &str) = ("", "v1", "resourcequotas");
/// Attempts of a charge after conflicting quota updates. Charges within one server are serialized, so conflicts come
/// from other servers only.
const ATTEMPTS: usize = 20;
const LOCK_SLOTS: usize = 64;

pub struct ResourceQuota;

/// Serializes charges per namespace (namespaces may share a slot).
pub struct ChargeLocks {
    slots: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl Default for ChargeLocks {
    fn default() -> Self {
        Self { slots: (0..LOCK_SLOTS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl ChargeLocks {
    fn of(&self, namespace: &str) -> &Mutex<()> {
        let slot = self.hasher.hash_one(namespace) % LOCK_SLOTS as u64;
        &self.slots[usize::try_from(slot).unwrap_or(0)]
    }
}

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        let kind = &attributes.served.kind;
        // Events of either group are not counted; custom resources of that name are.
        let is_event = kind.resource() == "events" && matches!(kind.group(), "" | "events.k8s.io");
        attributes.operation != Operation::Delete && attributes.served.namespaced() && !is_event
    }

    async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let Some(object) = object.filter(|object| usage::counts(attributes, object, old)) else {
            return Ok(());
        };
        let namespace = attributes.context.namespace;
        let limits_nothing = registry.admission.settings.limited_resources.is_empty();
        if limits_nothing && registry.find_all(QUOTAS, namespace, "").await?.is_empty() {
            return Ok(());
        }
        let _turn = registry.admission.quota_locks.of(namespace).lock().await;
        charge(registry, attributes, object, old).await
    }
}

/// Reads the quotas, checks them all, and updates those that the object is charged to.
async fn charge(
    registry: &Registry,
    attributes: &Attributes<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    let mut only: Option<Vec<String>> = None;
    for _ in 0..ATTEMPTS {
        let mut quotas = registry.find_all(QUOTAS, attributes.context.namespace, "").await?;
        if let Some(only) = &only {
            quotas.retain(|quota| only.iter().any(|name| name == meta::name(quota)));
        }
        // A retried quota passed this check in the first attempt.
        let limited = match only {
            None => registry.admission.settings.limited_resources.as_slice(),
            Some(_) => &[],
        };
        let charges =
            ledger::plan(attributes, object, old, &quotas, limited).map_err(|refusal| match refusal {
                QuotaRejection::Forbidden(why) => attributes.forbidden(why),
                QuotaRejection::Plain(why) => Status::new(500, "", why),
            })?;
        if attributes.context.dry_run {
            return Ok(());
        }
        let mut raced = Vec::new();
        for charge in charges {
            match write(registry, &charge).await {
                Err(status) if status.code == 409 => raced.push(meta::name(charge.quota).to_owned()),
                // A quota deleted meanwhile limits nothing.
                Err(status) if status.code == 404 => {}
                outcome => outcome?,
            }
        }
        if raced.is_empty() {
            return Ok(());
        }
        only = Some(raced);
    }
    Err(Status::internal("too many conflicts while charging the namespace's quotas"))
}

/// Writes the new usage if the quota is unchanged since the check.
async fn write(registry: &Registry, charge: &Charge<'_>) -> Result<()> {
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let namespace = meta::namespace(charge.quota);
    let context = WriteContext { subresource: "status", ..WriteContext::server(&user, &record, namespace) };
    let mut new = charge.quota.clone();
    new.child_mut("status").set("used", usage::show(&charge.used));
    let served = registry.builtin(QUOTAS.0, QUOTAS.1, QUOTAS.2)?;
    let strategy = UpdateStrategy::status(served.governing());
    let name = meta::name(charge.quota);
    registry
        .update(served, name, strategy, false, &context, |_| Ok(Change::Replace(new.clone())))
        .await
        .map(drop)
}
