//! The cleaner of legacy tokens. Watches token secrets that Kubernetes once made on its own; marks those that nobody has
//! used for a year as invalid, and deletes them after another year of no use.

use async_trait::async_trait;
use base::clock::time_left;
use client::{Patch, delete_options};
use jiff::{SignedDuration, Timestamp};
use objects::core::v1::{ConfigMap, Container, Pod, Secret, ServiceAccount};
use objects::meta::v1::Preconditions;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use super::{ACCOUNT_UID, account_of, annotation};
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
/// Says since when the server notes that tokens are used.
const TRACKING: (&str, &str) = ("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
/// How long until a token that something keeps is looked at again.
const LATER: SignedDuration = SignedDuration::from_hours(24);

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
    Keep,
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
        let of_uid = annotation(&secret, ACCOUNT_UID).filter(|uid| !uid.is_empty());
        let listed = account.is_some_and(|account| {
            of_uid.is_none_or(|uid| account.metadata.uid.as_deref() == Some(uid))
                && account.secrets.iter().flatten().any(|known| known.name == secret.metadata.name)
        });
        if !listed {
            return Ok(Action::Done);
        }
        let now = ctx.clock.now();
        let planned = plan(&secret, now);
        match &planned {
            Plan::Keep => return Ok(Action::Done),
            Plan::Wait(left) => return Ok(requeue(Some(*left))),
            _ if self.is_used(key) => return Ok(requeue(Some(LATER))),
            Plan::Invalidate | Plan::Delete => {}
        }
        // A token that seems unused may only be one whose use nobody has noted for long enough.
        let tracked = tracked_since(ctx).await?.map(|since| time_left(UNUSED, since, now));
        match tracked {
            None => return Ok(requeue(Some(LATER))),
            Some(left) if left.is_positive() => return Ok(requeue(Some(left))),
            Some(_) => {}
        }
        match planned {
            Plan::Keep | Plan::Wait(_) => {}
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
                let mut options = delete_options(None, None);
                // If it has been used meanwhile, it has changed.
                options.preconditions = Some(Preconditions {
                    uid: secret.metadata.uid.clone(),
                    resource_version: secret.metadata.resource_version.clone(),
                });
                ctx.client.delete::<Secret>(&key.namespace, &key.name, &options).await?;
            }
        }
        Ok(Action::Done)
    }
}

/// The end of the day on which the server began to note the use of tokens; `None`: nobody knows.
async fn tracked_since(ctx: &Context) -> Result<Option<Timestamp>, LoopError> {
    let map = match ctx.client.get::<ConfigMap>(TRACKING.0, TRACKING.1).await {
        Err(error) if error.is_not_found() => return Ok(None),
        other => other?,
    };
    let since = map.data.as_ref().and_then(|data| data.get("since")).and_then(|text| day(text));
    Ok(since.and_then(|since| since.checked_add(LATER).ok()))
}

/// The begin of a day.
fn day(text: &str) -> Option<Timestamp> {
    let date = text.parse::<jiff::civil::Date>().ok()?;
    Some(date.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

impl Cleaner {
    fn is_used(&self, key: &Key) -> bool {
        self.pods.list(&key.namespace).iter().any(|pod| uses(pod, &key.name))
    }
}

/// Whether a pod names a secret.
fn uses(pod: &Pod, secret: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let volumes = spec.volumes.iter().flatten().any(|volume| {
        let whole = volume.secret.as_ref().and_then(|of| of.secret_name.as_deref());
        let sources = volume.projected.iter().flat_map(|of| of.sources.iter().flatten());
        let mut parts = sources.filter_map(|source| source.secret.as_ref());
        let driver = volume.csi.as_ref().and_then(|of| of.node_publish_secret_ref.as_ref());
        whole == Some(secret)
            || parts.any(|part| part.name == secret)
            || driver.is_some_and(|driver| driver.name == secret)
    });
    let in_environment = |container: &Container| {
        let mut single = container.env.iter().flatten().filter_map(|variable| {
            variable.value_from.as_ref()?.secret_key_ref.as_ref().map(|reference| reference.name.as_str())
        });
        let mut whole = container
            .env_from
            .iter()
            .flatten()
            .filter_map(|source| source.secret_ref.as_ref().map(|reference| reference.name.as_str()));
        single.any(|name| name == secret) || whole.any(|name| name == secret)
    };
    volumes
        || spec.image_pull_secrets.iter().flatten().any(|pull| pull.name == secret)
        || spec.init_containers.iter().flatten().chain(&spec.containers).any(in_environment)
}

fn plan(secret: &Secret, now: Timestamp) -> Plan {
    let label = |key: &str| secret.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let created = secret.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
    let used = match label(LAST_USED).map(|text| day(text)) {
        None => created,
        Some(Some(used)) => used.max(created),
        // Nobody can tell when it was used.
        Some(None) => return Plan::Keep,
    };
    if secret.metadata.deletion_timestamp.is_some() {
        return Plan::Keep;
    }
    let left = time_left(UNUSED, used, now);
    if left.is_positive() {
        return Plan::Wait(left);
    }
    match label(INVALID_SINCE).and_then(|text| day(text)) {
        None => Plan::Invalidate,
        Some(since) => {
            let left = time_left(UNUSED, since, now);
            if left.is_positive() { Plan::Wait(left) } else { Plan::Delete }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::meta;
    use objects::meta::v1::Time;

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
        assert_eq!(plan(&secret(&[(LAST_USED, "yesterday")]), now), Plan::Keep);
        assert_eq!(plan(&secret(&[(INVALID_SINCE, "yesterday")]), now), Plan::Invalidate);
        assert!(matches!(plan(&secret(&[(INVALID_SINCE, "2025-06-01")]), now), Plan::Wait(_)));
        assert_eq!(plan(&secret(&[(INVALID_SINCE, "2024-06-01")]), now), Plan::Delete);
    }
    #[test]
    fn pods_use_secrets_in_many_ways() {
        let pod = |spec: serde_json::Value| -> Pod {
            serde_json::from_value(json!({ "spec": spec })).expect("a pod")
        };
        let container = |more: serde_json::Value| {
            let mut container = json!({ "name": "c" });
            for (key, value) in more.as_object().into_iter().flatten() {
                container[key] = value.clone();
            }
            json!({ "containers": [container] })
        };
        let volume = |source: serde_json::Value| {
            let mut volume = json!({ "name": "v" });
            for (key, value) in source.as_object().into_iter().flatten() {
                volume[key] = value.clone();
            }
            json!({ "containers": [], "volumes": [volume] })
        };
        for (spec, used) in [
            (volume(json!({ "secret": { "secretName": "t" } })), true),
            (volume(json!({ "projected": { "sources": [{ "secret": { "name": "t" } }] } })), true),
            (volume(json!({ "csi": { "driver": "d", "nodePublishSecretRef": { "name": "t" } } })), true),
            (container(json!({ "envFrom": [{ "secretRef": { "name": "t" } }] })), true),
            (
                container(
                    json!({ "env": [{ "name": "e", "valueFrom": { "secretKeyRef": { "name": "t", "key": "k" } } }] }),
                ),
                true,
            ),
            (json!({ "containers": [], "imagePullSecrets": [{ "name": "t" }] }), true),
            (volume(json!({ "secret": { "secretName": "other" } })), false),
            (json!({ "containers": [] }), false),
        ] {
            assert_eq!(uses(&pod(spec.clone()), "t"), used, "{spec}");
        }
    }
}
