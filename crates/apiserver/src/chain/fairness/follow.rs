//! Follows the objects that configure fairness, keeps those that must be there, and tells schemas whether their level is.

use super::Fairness;
use super::objects::{Condition, FlowSchema, PriorityLevel};
use crate::bootstrap::flow_control;
use crate::cache::Cache;
use crate::options::{FieldValidation, WriteOptions};
use crate::registry::patch::PatchKind;
use crate::registry::update::Door;
use crate::registry::{Warnings, WriteContext, metadata, store_error};
use crate::user::UserInfo;
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
const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// Two servers that disagree must not write without end: a schema's status is written so often within a minute.
const MAX_WRITES: usize = 6;
const WRITES_WINDOW: Duration = Duration::from_secs(60);

/// When the status of schemas was written lately.
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
        let (fairness, stopping) = (self.clone(), tasks.stopping());
        tasks.spawn(async move {
            tokio::select! {
                () = stopping => {}
                () = fairness.keep_up() => {}
            }
        });
    }

    async fn keep_up(&self) {
        let (Ok(levels), Ok(schemas)) =
            (self.cache("prioritylevelconfigurations"), self.cache("flowschemas"))
        else {
            return tracing::error!("priority and fairness has no objects to follow");
        };
        let (mut levels, mut schemas) = (levels.ticks(), schemas.ticks());
        let mut back_off = FIRST_BACK_OFF;
        loop {
            levels.borrow_and_update();
            schemas.borrow_and_update();
            let outcome = self.reload().await;
            let again = match outcome {
                Ok(None) => {
                    back_off = FIRST_BACK_OFF;
                    None
                }
                Ok(Some(later)) => Some(later),
                Err(error) => {
                    tracing::warn!(error = error.message, ?back_off, "following priority and fairness");
                    let wait = back_off;
                    back_off = (back_off * 2).min(MAX_BACK_OFF);
                    Some(wait)
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
        cache.ready().await.map_err(|error| store_error(&error))?;
        let view = cache.list(&cache.root, None, 0, 0, |_| true);
        let read = |entry: &Arc<crate::cache::Entry>| match serde_json::from_slice(&entry.bytes) {
            Ok(object) => Some(object),
            Err(error) => {
                tracing::warn!(key = &*entry.key, %error, "an object of priority and fairness cannot be read");
                None
            }
        };
        Ok(view.entries.iter().filter_map(read).collect())
    }

    /// Puts the present objects into force. Some statuses may have to wait for so long.
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

    /// From now on the objects that must be there are kept, and statuses are written: the server has started.
    pub async fn maintain(&self) -> Result<()> {
        self.maintaining.store(true, Ordering::Release);
        self.reload().await?;
        self.maintained.notify_one();
        Ok(())
    }

    async fn write_status(&self, name: &str, condition: &Condition) -> Result<()> {
        let served = self.registry.builtin(GROUP, "v1", "flowschemas")?;
        let (user, warnings) = (UserInfo::server(), Warnings::default());
        let context = WriteContext {
            subresource: "status",
            manager: MANAGER.to_owned(),
            ..WriteContext::server(&user, &warnings, "")
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
        let door = Door::status(served.governing());
        let body = wanted.to_string();
        let kind = PatchKind::ApplyYaml;
        match self.registry.patch(served, name, door, kind, body.as_bytes(), &options, &context).await {
            // Somebody who deletes it wins.
            Err(status) if status.code == 404 => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}

impl FlowSchema {
    /// What its status should say about its level; `None` if it does.
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
    fn a_status_is_written_so_often_and_no_more() {
        let (mut writes, now) = (StatusWrites::default(), Instant::now());
        assert_eq!((0..10).filter(|_| writes.allowed("a", now)).count(), MAX_WRITES);
        assert!(writes.allowed("b", now));
        assert!(writes.allowed("a", now + WRITES_WINDOW));
        assert_eq!(writes.at.len(), 1);
    }

    #[test]
    fn schemas_are_told_whether_their_level_exists() {
        let mut schema = FlowSchema::default();
        schema.spec.priority_level_configuration.name = "x".to_owned();
        let lost = schema.outdated(false).expect("not said yet");
        assert_eq!((lost.status.as_str(), lost.reason.as_str()), ("True", "NotFound"));
        schema.status.conditions = Some(vec![lost]);
        assert!(schema.outdated(false).is_none());
        assert_eq!(schema.outdated(true).expect("it is there now").status, "False");
    }
}
