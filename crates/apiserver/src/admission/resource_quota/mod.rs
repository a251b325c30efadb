//! ResourceQuota: what a namespace may use in all. A write that fits is charged to the namespace's quotas before
//! it is stored, by compare-and-swap on their status, so that two writes cannot both take the last unit.

mod ledger;
pub mod limited;
mod resized;
mod scopes;
mod usage;

use super::{Attributes, Operation, Plugin};
use crate::registry::update::{Change, Door};
use crate::registry::{Registry, Warnings, WriteContext};
use crate::user::UserInfo;
use api::value::Fields;
use futures_util::future::BoxFuture;
use ledger::{Charge, QuotaRefusal};
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use std::hash::{BuildHasher, RandomState};
use tokio::sync::Mutex;
pub(super) use usage::pod_total;

const QUOTAS: (&str, &str, &str) = ("", "v1", "resourcequotas");
/// How often a charge starts over when somebody else changed the quota meanwhile. In one server turns are
/// taken, so this is about other servers only.
const ATTEMPTS: usize = 20;
const TURNS: usize = 64;

pub struct ResourceQuota;

/// One charge at a time per namespace (or several that share a slot).
pub struct Turns {
    slots: Vec<Mutex<()>>,
    hasher: RandomState,
}

impl Default for Turns {
    fn default() -> Self {
        Self { slots: (0..TURNS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl Turns {
    fn of(&self, namespace: &str) -> &Mutex<()> {
        let slot = self.hasher.hash_one(namespace) % TURNS as u64;
        &self.slots[usize::try_from(slot).unwrap_or(0)]
    }
}

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

    fn validate<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Some(object) = object.filter(|object| usage::counts(attributes, object, old)) else {
                return Ok(());
            };
            let namespace = attributes.context.namespace;
            let limits_nothing = registry.admission.settings.limited_resources.is_empty();
            if limits_nothing && registry.find_all(QUOTAS, namespace, "").await?.is_empty() {
                return Ok(());
            }
            let _turn = registry.admission.quota_turns.of(namespace).lock().await;
            charge(registry, attributes, object, old).await
        })
    }
}

/// Finds the quotas, checks them all, and writes those that the object is charged to.
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
        // Quotas that are charged again were found sufficient before.
        let limited = match only {
            None => registry.admission.settings.limited_resources.as_slice(),
            Some(_) => &[],
        };
        let charges =
            ledger::plan(attributes, object, old, &quotas, limited).map_err(|refusal| match refusal {
                QuotaRefusal::Forbidden(why) => attributes.forbidden(why),
                QuotaRefusal::Plain(why) => Status::new(500, "", why),
            })?;
        if attributes.context.dry_run {
            return Ok(());
        }
        let mut raced = Vec::new();
        for charge in charges {
            match write(registry, &charge).await {
                Err(status) if status.code == 409 => raced.push(meta::name(charge.quota).to_owned()),
                // A quota that is gone meanwhile limits nothing.
                Err(status) if status.code == 404 => {}
                outcome => outcome?,
            }
        }
        if raced.is_empty() {
            return Ok(());
        }
        only = Some(raced);
    }
    Err(Status::internal("the namespace's quotas change too fast to be charged"))
}

/// Writes the new usage, provided that the quota is still the one that was checked.
async fn write(registry: &Registry, charge: &Charge<'_>) -> Result<()> {
    let (user, warnings) = (UserInfo::server(), Warnings::default());
    let namespace = meta::namespace(charge.quota);
    let context = WriteContext { subresource: "status", ..WriteContext::server(&user, &warnings, namespace) };
    let mut new = charge.quota.clone();
    new.child_mut("status").set("used", usage::show(&charge.used));
    let served = registry.builtin(QUOTAS.0, QUOTAS.1, QUOTAS.2)?;
    let door = Door::status(served.governing());
    let name = meta::name(charge.quota);
    registry.update(served, name, door, false, &context, |_| Ok(Change::Replace(new.clone()))).await.map(drop)
}
