//! The cleaner of legacy tokens. Watches token secrets that Kubernetes once made on its own; marks those that nobody has
//! used for a year as invalid, and deletes them after another year of no use.

use async_trait::async_trait;
use client::{Patch, delete_options};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use super::account_of;
use crate::requeue;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "legacy-serviceaccount-token-cleaner-controller",
    resource: "secrets",
    identity: "system:serviceaccount:kube-system:legacy-service-account-token-cleaner",
    workers: 1,
};

const UNUSED: SignedDuration = SignedDuration::from_hours(365 * 24);
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

struct Cleaner {
    secrets: Cache<Secret>,
    accounts: Cache<ServiceAccount>,
    pods: Cache<Pod>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let secrets = ctx.watch::<Secret>(|change| {
        let secret = change.object();
        if account_of(secret).is_some() { vec![Key::of(&**secret)] } else { Vec::new() }
    });
    Box::new(Cleaner { secrets, accounts: ctx.cache(), pods: ctx.cache() })
}

/// What to do about a token.
#[derive(Debug, PartialEq)]
enum Plan {
    Wait(SignedDuration),
    Invalidate,
    Delete,
}

#[async_trait]
impl Loop for Cleaner {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(secret) = self.secrets.get_key(key) else { return Ok(Action::Done) };
        // Only tokens that the account lists were made by Kubernetes; people's own are people's business.
        let account = account_of(&secret).and_then(|name| self.accounts.get(&key.namespace, name));
        let listed = account.is_some_and(|account| {
            account.secrets.iter().flatten().any(|known| known.name == secret.metadata.name)
        });
        if !listed {
            return Ok(Action::Done);
        }
        let now = ctx.clock.now();
        match plan(&secret, now) {
            Plan::Wait(left) => return Ok(requeue(Some(left))),
            _ if self.is_mounted(key) => return Ok(requeue(Some(SignedDuration::from_hours(24)))),
            Plan::Invalidate => {
                let today = now.strftime("%Y-%m-%d").to_string();
                let patch = Patch::Merge(json!({
                    "metadata": {
                        "labels": { INVALID_SINCE: today },
                        "resourceVersion": secret.metadata.resource_version,
                    },
                }));
                ctx.client.patch::<Secret>(&key.namespace, &key.name, None, &patch).await?;
            }
            Plan::Delete => {
                let options = delete_options(secret.metadata.uid.as_deref(), None);
                ctx.client.delete::<Secret>(&key.namespace, &key.name, &options).await?;
            }
        }
        Ok(Action::Done)
    }
}

impl Cleaner {
    fn is_mounted(&self, key: &Key) -> bool {
        let mounts = |pod: &Pod| {
            let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            let mut secrets = volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref());
            secrets.any(|name| name == &*key.name)
        };
        self.pods.list(&key.namespace).iter().any(|pod| mounts(pod))
    }
}

fn plan(secret: &Secret, now: Timestamp) -> Plan {
    let label = |key: &str| secret.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let day = |text: &String| text.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let day = |key: &str| label(key).and_then(day).map(|day| day.timestamp());
    let created = secret.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let used = day(LAST_USED).unwrap_or(created).max(created);
    let left = UNUSED - now.duration_since(used);
    if left.is_positive() {
        return Plan::Wait(left);
    }
    match day(INVALID_SINCE) {
        None => Plan::Invalidate,
        Some(since) => {
            let left = UNUSED - now.duration_since(since);
            if left.is_positive() { Plan::Wait(left) } else { Plan::Delete }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::meta;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn unused_tokens_are_marked_and_then_go() {
        let secret = |labels: &[(&str, &str)]| {
            let mut metadata = meta("t");
            metadata.creation_timestamp = Some(Time("2020-01-01T00:00:00Z".parse().expect("a time")));
            metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
            Secret { metadata, ..Secret::default() }
        };
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        assert_eq!(plan(&secret(&[]), now), Plan::Invalidate);
        assert!(matches!(plan(&secret(&[(LAST_USED, "2025-06-01")]), now), Plan::Wait(_)));
        assert!(matches!(plan(&secret(&[(INVALID_SINCE, "2025-06-01")]), now), Plan::Wait(_)));
        assert_eq!(plan(&secret(&[(INVALID_SINCE, "2024-06-01")]), now), Plan::Delete);
    }
}
