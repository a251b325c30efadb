//! The root CA publisher. Watches namespaces and config maps; writes the config map `kube-root-ca.crt`.
//!
//! Invariant: every namespace that is not terminating has the CA bundle of the API server for its pods.

use std::collections::BTreeMap;

use async_trait::async_trait;
use client::ClientError;
use objects::core::v1::{ConfigMap, Namespace};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use tokio::time::Instant;

use crate::Settings;
use crate::shared::{metrics, namespaces};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "root-ca-certificate-publisher-controller",
    resource: "namespaces",
    identity: "system:serviceaccount:kube-system:root-ca-cert-publisher",
    workers: 1,
};

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

struct Publisher {
    namespaces: Cache<Namespace>,
    maps: Cache<ConfigMap>,
    root_ca: Option<String>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let namespaces = ctx.watch_self::<Namespace>();
    let maps = ctx.watch::<ConfigMap>(|change| {
        let meta = &change.object().metadata;
        match meta.name.as_deref() {
            Some(NAME) => vec![Key::new("", meta.namespace.as_deref().unwrap_or_default())],
            _ => Vec::new(),
        }
    });
    let root_ca = ctx.setting::<Settings>().and_then(|settings| settings.root_ca.clone());
    Box::new(Publisher { namespaces, maps, root_ca })
}

/// Pending write.
#[derive(Debug, PartialEq)]
enum Write {
    Create(ConfigMap),
    Update(ConfigMap),
}

#[async_trait]
impl Loop for Publisher {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        // Without a configured CA, nothing is published.
        let Some(root_ca) = &self.root_ca else { return Ok(Action::Done) };
        let (namespace, map) = (self.namespaces.get_key(key), self.maps.get(&key.name, NAME));
        let started = Instant::now();
        let outcome = match plan(namespace.as_deref(), map.as_deref(), root_ca) {
            None => {
                record(ctx, None, started);
                return Ok(Action::Done);
            }
            Some(Write::Create(map)) => ctx.client.create(&key.name, &map).await,
            Some(Write::Update(map)) => ctx.client.update(&map).await,
        };
        record(ctx, outcome.as_ref().err(), started);
        match outcome {
            Ok(_) => {}
            Err(error)
                if error.is_already_exists() || error.is_not_found() || error.is_namespace_terminating() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Done)
    }
}

fn record(ctx: &Context, error: Option<&ClientError>, started: Instant) {
    let Some(metrics) = metrics::of(ctx) else { return };
    let code = error.map_or(200, |error| error.code().unwrap_or(500)).to_string();
    metrics.others.root_ca_syncs.with_label_values(&[&code]).inc();
    metrics.others.root_ca_seconds.with_label_values(&[&code]).observe(started.elapsed().as_secs_f64());
}

fn plan(namespace: Option<&Namespace>, map: Option<&ConfigMap>, root_ca: &str) -> Option<Write> {
    if !namespace.is_some_and(namespaces::is_active) {
        return None;
    }
    let data = Some(BTreeMap::from([("ca.crt".to_owned(), root_ca.to_owned())]));
    let describe = |map: &mut ConfigMap| {
        let annotations = map.metadata.annotations.get_or_insert_default();
        annotations.insert(DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned());
    };
    let Some(map) = map else {
        let mut map = ConfigMap { data, ..ConfigMap::default() };
        map.metadata.name = Some(NAME.to_owned());
        describe(&mut map);
        return Some(Write::Create(map));
    };
    let described = map.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(DESCRIPTION.0));
    if map.data == data && described {
        return None;
    }
    let mut map = ConfigMap { data, ..map.clone() };
    describe(&mut map);
    Some(Write::Update(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::{meta, time};

    #[test]
    fn config_map_is_created_and_repaired() {
        let alive = Namespace { metadata: meta("a"), ..Namespace::default() };
        let Some(Write::Create(map)) = plan(Some(&alive), None, "pem") else { panic!("created") };
        assert_eq!(map.data.as_ref().expect("data")["ca.crt"], "pem");
        assert_eq!(plan(Some(&alive), Some(&map), "pem"), None);
        let mut damaged = map.clone();
        damaged.data.get_or_insert_default().insert("more".to_owned(), String::new());
        assert_eq!(plan(Some(&alive), Some(&damaged), "pem"), Some(Write::Update(map.clone())));
        let mut going = alive.clone();
        going.metadata.deletion_timestamp = Some(time(1));
        assert_eq!(plan(Some(&going), None, "pem"), None);
    }
}
