//! Watches the objects that configure fairness, maintains the mandatory ones, and writes the `Dangling` condition of
//! schemas.

use super::Fairness;
use super::objects::{Condition, FlowSchema, PriorityLevel};
use crate::bootstrap::flow_control;
use crate::cache::Cache;
use crate::registry::patch::PatchKind;
use crate::registry::update::UpdateStrategy;
use crate::registry::{OrStatus, WriteContext, WriteRecord, metadata};
use crate::user::UserInfo;
use crate::wire::options::{FieldValidation, WriteOptions};
use base::backoff::Backoff;
use base::tasks::TaskGroup;
use machinery::status::Result;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(60));
/// Status writes per schema and minute, so that two servers that disagree do not overwrite each other without end.
const MAX_WRITES: usize = 6;
const WRITES_WINDOW: Duration = Duration::from_secs(60);

/// Times of recent status writes.
#[derive(Default)]
pub struct StatusWrites {
    at: HashMap<String, Vec<Instant>>,
}

impl StatusWrites {
    fn allowed(&mut self, name: &str, now: Instant) -> bool {
        self.at.retain(|_, times| {
            times.retain(|time| now.saturating_duration_since(*time) < WRITES_WINDOW);
            !times.is_empty()
        });
        let times = self.at.entry(name.to_owned()).or_default();
        let allowed = times.len() < MAX_WRITES;
        if allowed {
            times.push(now);
        }
        allowed
    }
}

impl Fairness {
    pub(super) fn follow(self: &Arc<Self>, tasks: &TaskGroup) {
        let fairness = self.clone();
        tasks.spawn_until_stopped(async move { fairness.sync_loop().await });
    }

    async fn sync_loop(&self) {
        let (Ok(levels), Ok(schemas)) =
            (self.cache("prioritylevelconfigurations"), self.cache("flowschemas"))
        else {
            return tracing::error!("flowcontrol resources are not served, ignoring configuration changes");
        };
        let (mut levels, mut schemas) = (levels.ticks(), schemas.ticks());
        let mut retry = RETRY;
        loop {
            levels.borrow_and_update();
            schemas.borrow_and_update();
            let outcome = self.reload().await;
            let again = match outcome {
                Ok(None) => {
                    retry.reset();
                    None
                }
                Ok(Some(later)) => Some(later),
                Err(error) => {
                    let back_off = retry.next_delay();
                    tracing::warn!(
                        error = error.message,
                        ?back_off,
                        "failed to sync priority and fairness configuration, retrying"
                    );
                    Some(back_off)
                }
            };
            let pause = async {
                match again {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = levels.changed() => if changed.is_err() { return },
                changed = schemas.changed() => if changed.is_err() { return },
                () = pause => {}
                () = self.maintained.notified() => {}
            }
        }
    }

    fn cache(&self, resource: &str) -> Result<&Cache> {
        Ok(&self.registry.builtin(GROUP, "v1", resource)?.storage.cache)
    }

    async fn read<T: DeserializeOwned>(&self, resource: &str) -> Result<Vec<T>> {
        let cache = self.cache(resource)?;
        cache.ready().await.or_status()?;
        let view = cache.list(&cache.root, None, 0, 0, |_| true);
        let read = |entry: &Arc<crate::cache::Entry>| match serde_json::from_slice(&entry.bytes) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::warn!(key = &*entry.key, %error, "failed to decode priority and fairness object, skipping it");
                None
            }
        };
        Ok(view.entries.iter().filter_map(read).collect())
    }

    /// Applies the current objects. Returns the delay after which rate-limited statuses can be written.
    pub async fn reload(&self) -> Result<Option<Duration>> {
        let maintain = self.maintaining.load(Ordering::Acquire);
        if maintain {
            flow_control::maintain(&self.registry).await?;
        }
        let levels: Vec<PriorityLevel> = self.read("prioritylevelconfigurations").await?;
        let schemas: Vec<FlowSchema> = self.read("flowschemas").await?;
        let sound: HashSet<String> = levels
            .iter()
            .filter(|level| level.settings().is_some())
            .map(|level| level.metadata.name.clone())
            .collect();
        {
            let now = Instant::now();
            let mut ledger = self.ledger.lock();
            let plan = ledger.digest(levels, schemas.clone(), now);
            self.plan.store(Arc::new(plan));
        }
        self.serve(usize::MAX);
        let mut delayed = None;
        if maintain {
            for schema in &schemas {
                let found = sound.contains(&schema.spec.priority_level_configuration.name);
                let Some(condition) = schema.outdated(found) else { continue };
                if !self.status_writes.lock().allowed(&schema.metadata.name, Instant::now()) {
                    delayed = Some(WRITES_WINDOW / 2);
                    continue;
                }
                self.write_status(&schema.metadata.name, &condition).await?;
            }
        }
        Ok(delayed)
    }

    /// Maintains mandatory objects and writes statuses from now on: the server has started.
    pub async fn maintain(&self) -> Result<()> {
        self.maintaining.store(true, Ordering::Release);
        self.reload().await?;
        self.maintained.notify_one();
        Ok(())
    }

    async fn write_status(&self, name: &str, condition: &Condition) -> Result<()> {
        let served = self.registry.builtin(GROUP, "v1", "flowschemas")?;
        let (user, record) = (UserInfo::server(), WriteRecord::default());
        let context = WriteContext {
            subresource: "status",
            manager: MANAGER.to_owned(),
            ..WriteContext::server(&user, &record, "")
        };
        let options = WriteOptions {
            dry_run: false,
            field_manager: MANAGER.to_owned(),
            field_validation: FieldValidation::Ignore,
            force: true,
        };
        let wanted = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": name},
            "status": {"conditions": [{
                "type": condition.kind, "status": condition.status, "reason": condition.reason,
                "message": condition.message, "lastTransitionTime": metadata::now(),
            }]},
        });
        let strategy = UpdateStrategy::status(served.governing());
        let body = wanted.to_string();
        let kind = PatchKind::ApplyYaml;
        match self.registry.patch(served, name, strategy, kind, body.as_bytes(), &options, &context).await {
            // A concurrent deletion wins.
            Err(status) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

impl FlowSchema {
    /// The schema's `Dangling` condition that has to be written; `None` if it is up to date.
    fn outdated(&self, found: bool) -> Option<Condition> {
        let level = &self.spec.priority_level_configuration.name;
        let references =
            format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
        let (status, reason, message) = match found {
            true => ("False", "Found", format!("{references} and it exists")),
            false => ("True", "NotFound", format!("{references} but there is no such object")),
        };
        let present = self.status.conditions.iter().flatten().find(|condition| condition.kind == "Dangling");
        let same = |condition: &Condition| {
            (condition.status.as_str(), condition.reason.as_str(), &condition.message)
                == (status, reason, &message)
        };
        (!present.is_some_and(same)).then(|| Condition {
            kind: "Dangling".to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_status_writes_are_rate_limited() {
        let (mut writes, now) = (StatusWrites::default(), Instant::now());
        assert_eq!((0..10).filter(|_| writes.allowed("a", now)).count(), MAX_WRITES);
        assert!(writes.allowed("b", now));
        assert!(writes.allowed("a", now + WRITES_WINDOW));
        assert_eq!(writes.at.len(), 1);
    }

    #[test]
    fn schema_dangling_condition_follows_level() {
        let mut schema = FlowSchema::default();
        schema.spec.priority_level_configuration.name = "x".to_owned();
        let lost = schema.outdated(false).expect("not said yet");
        assert_eq!((lost.status.as_str(), lost.reason.as_str()), ("True", "NotFound"));
        schema.status.conditions = Some(vec![lost]);
        assert!(schema.outdated(false).is_none());
        assert_eq!(schema.outdated(true).expect("it is there now").status, "False");
    }
}
