//! A controller on `runtime`: copies the label `team` of each namespace to the config maps in it.
//!
//!     cargo run -p runtime --example label-copier -- /var/lib/ferry/kubeconfig
//!
//! It works against any Kubernetes API server that the kubeconfig names.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use base::clock::Clock;
use base::tasks::TaskGroup;
use base::version::user_agent;
use client::{Client, Patch};
use objects::core::v1::{ConfigMap, Namespace};
use runtime::{Action, Cache, Context, Descriptor, Harness, Key, Loop, LoopError, Row};
use serde_json::json;

const LABEL: &str = "team";

/// Keys of the queue are config maps; `identity` is the user for which the client is requested.
const DESCRIPTOR: Descriptor = Descriptor {
    name: "label-copier",
    resource: "configmaps",
    identity: "system:serviceaccount:kube-system:label-copier",
    workers: 2,
};

pub const ROW: Row = Row { descriptor: &DESCRIPTOR, build, by_default: true };

struct LabelCopier {
    namespaces: Cache<Namespace>,
    config_maps: Cache<ConfigMap>,
}

/// Registers the watches: a changed config map enqueues itself, a changed namespace all config maps in it.
fn build(ctx: &Context) -> Box<dyn Loop> {
    let config_maps = ctx.watch_self::<ConfigMap>();
    let in_namespace = config_maps.clone();
    let namespaces = ctx.watch::<Namespace>(move |change| {
        let name = change.object().metadata.name.as_deref().unwrap_or_default();
        in_namespace.list(name).iter().map(|map| Key::of(&**map)).collect()
    });
    Box::new(LabelCopier { namespaces, config_maps })
}

#[async_trait]
impl Loop for LabelCopier {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let (Some(map), Some(namespace)) =
            (self.config_maps.get_key(key), self.namespaces.get("", &key.namespace))
        else {
            return Ok(Action::Done);
        };
        let labels = |meta: &objects::meta::v1::ObjectMeta| meta.labels.as_ref()?.get(LABEL).cloned();
        let (wanted, current) = (labels(&namespace.metadata), labels(&map.metadata));
        if wanted == current {
            return Ok(Action::Done);
        }
        // A null value removes the label.
        let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: wanted}}}));
        ctx.client.patch::<ConfigMap>(&key.namespace, &key.name, None, &patch).await?;
        Ok(Action::Done)
    }
}

/// Starts the controller in `tasks`. The client of the kubeconfig serves all identities.
pub fn start(kubeconfig: &Path, tasks: &TaskGroup) -> Result<()> {
    let client = Client::connect(kubeconfig, &user_agent("label-copier"))?;
    let harness = Harness::new("label-copier", client.clone(), Arc::new(client), Clock::system(), tasks);
    harness.start(&ROW).context("failed to start the controller")
}

#[tokio::main]
async fn main() -> Result<()> {
    let kubeconfig = std::env::args().nth(1).context("usage: label-copier KUBECONFIG")?;
    let tasks = TaskGroup::new();
    start(Path::new(&kubeconfig), &tasks)?;
    println!("label-copier is running; press Ctrl-C to stop");
    tokio::signal::ctrl_c().await?;
    tasks.drain(Duration::from_secs(5)).await.context("failed to stop")
}
