//! The storage version migrator. Watches migrations; rewrites every object of a migration's resource unchanged, so
//! that it is stored in the current version. Migrations of one resource run one at a time, the oldest first.

use std::sync::Arc;

use async_trait::async_trait;
use client::{ClientError, Dynamic, ListOptions, Patch, ResourceInfo};
use jiff::{SignedDuration, Timestamp};
use objects::meta::v1::GroupResource;
use objects::storagemigration::v1beta1::StorageVersionMigration;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::requeue;
use crate::shared::condition;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "storage-version-migrator-controller",
    resource: "storageversionmigrations.storagemigration.k8s.io",
    identity: "system:serviceaccount:kube-system:storage-version-migrator-controller",
    workers: 1,
};

const PAGE: u32 = 500;
/// Verbs that a resource must support.
const VERBS: [&str; 3] = ["update", "patch", "list"];
/// Retry limit for a resource that is not served: it may just have been defined.
const UNKNOWN: SignedDuration = SignedDuration::from_secs(60);
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_secs(5);

struct Migrator {
    migrations: Cache<StorageVersionMigration>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let all = ctx.cache::<StorageVersionMigration>();
    let migrations = ctx.watch::<StorageVersionMigration>(move |change| {
        // Migrations that wait for this one may continue.
        let changed = change.object();
        let others = all.all();
        let waiting =
            others.iter().filter(|other| resource(other) == resource(changed)).map(|other| Key::of(&**other));
        waiting.chain([Key::of(&**changed)]).collect()
    });
    Box::new(Migrator { migrations })
}

fn resource(migration: &StorageVersionMigration) -> Option<&GroupResource> {
    migration.spec.as_ref().map(|spec| &spec.resource)
}

fn has(migration: &StorageVersionMigration, kind: &str) -> bool {
    condition::holds(migration.status.as_ref().and_then(|status| status.conditions.as_ref()), kind)
}

fn is_over(migration: &StorageVersionMigration) -> bool {
    has(migration, "Succeeded") || has(migration, "Failed")
}

/// Next step of a migration.
#[derive(Debug, PartialEq)]
enum MigrationPlan {
    Nothing,
    Start,
    Run,
    Finish,
}

#[async_trait]
impl Loop for Migrator {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(migration) = self.migrations.get_key(key) else { return Ok(Action::Done) };
        match plan(&migration, &self.migrations.all()) {
            MigrationPlan::Nothing => {}
            MigrationPlan::Start => {
                set(ctx, &migration, ("Running", true, "MigrationRunning", "The migration is running"))
                    .await?;
            }
            MigrationPlan::Finish => {
                set(ctx, &migration, ("Running", false, "MigrationCompleted", "Migration completed")).await?;
            }
            MigrationPlan::Run => return run(ctx, &migration).await,
        }
        Ok(Action::Done)
    }
}

fn plan(migration: &StorageVersionMigration, all: &[Arc<StorageVersionMigration>]) -> MigrationPlan {
    match (has(migration, "Running"), is_over(migration)) {
        (true, true) => return MigrationPlan::Finish,
        (false, true) => return MigrationPlan::Nothing,
        (true, false) => return MigrationPlan::Run,
        (false, false) => {}
    }
    let age = |of: &StorageVersionMigration| {
        (of.metadata.creation_timestamp.as_ref().map(|time| time.0), of.metadata.name.clone())
    };
    let comes_first = |other: &StorageVersionMigration| {
        resource(other) == resource(migration)
            && !is_over(other)
            && (has(other, "Running") || age(other) < age(migration))
    };
    if all.iter().any(|other| comes_first(other)) { MigrationPlan::Nothing } else { MigrationPlan::Start }
}

/// Writes one condition.
async fn set(
    ctx: &Context,
    migration: &StorageVersionMigration,
    (kind, value, reason, message): (&str, bool, &str, &str),
) -> Result<(), ClientError> {
    let mut updated = migration.clone();
    let conditions = &mut updated.status.get_or_insert_default().conditions;
    condition::set(conditions, kind, value, reason, message, ctx.clock.now());
    ctx.client.update_status(&updated).await.map(drop)
}

async fn fail(ctx: &Context, migration: &StorageVersionMigration, why: &str) -> Result<Action, LoopError> {
    set(ctx, migration, ("Failed", true, "StorageVersionMigrationFailed", why)).await?;
    Ok(Action::Done)
}

async fn run(ctx: &Context, migration: &StorageVersionMigration) -> Result<Action, LoopError> {
    let wanted = resource(migration).cloned().unwrap_or_default();
    let discovery = ctx.client.discover().await?;
    let is_it = |info: &&ResourceInfo| info.key.group == wanted.group && info.key.resource == wanted.resource;
    let Some(info) = discovery.preferred.iter().find(is_it) else {
        let created =
            migration.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        if ctx.clock.now().duration_since(created) < UNKNOWN {
            return Ok(requeue(Some(RETRY_INTERVAL)));
        }
        return fail(ctx, migration, "resource does not exist in discovery").await;
    };
    if !VERBS.iter().all(|verb| info.can(verb)) {
        let key = &info.key;
        let shown = format!("{}/{}, Resource={}", key.group, key.version, key.resource);
        let why = format!("resource {shown:?} does not support discovery operations: [{}]", VERBS.join(" "));
        return fail(ctx, migration, &why).await;
    }
    let objects = ctx.client.dynamic(&info.key);
    let status = migration.status.as_ref();
    let Some(until) =
        status.and_then(|status| status.resource_version.clone()).filter(|until| !until.is_empty())
    else {
        // Later writes are stored in the current version.
        let newest = objects.list_metadata("", &ListOptions { limit: 1, ..ListOptions::default() }).await?;
        let mut updated = migration.clone();
        updated.status.get_or_insert_default().resource_version = Some(newest.resource_version().to_owned());
        ctx.client.update_status(&updated).await?;
        return Ok(Action::Done);
    };
    let Ok(until) = until.parse::<u64>() else {
        let why =
            format!("migration encountered unhandled error: resource version {until:?} is not well formed");
        return fail(ctx, migration, &why).await;
    };
    match migrate(&objects, info, until).await {
        Ok(()) => {
            set(ctx, migration, ("Succeeded", true, "StorageVersionMigrationSucceeded", "")).await?;
            Ok(Action::Done)
        }
        // An overloaded or unavailable server is retried; a rejection is final.
        Err(error) if error.code().is_some_and(|code| code != 429 && code != 410 && code < 500) => {
            fail(ctx, migration, &format!("migration encountered unhandled error: {error}")).await
        }
        Err(error) => Err(error.into()),
    }
}

/// Rewrites every object that has not been written since.
async fn migrate(objects: &Dynamic, info: &ResourceInfo, until: u64) -> Result<(), ClientError> {
    let mut options = ListOptions { limit: PAGE, ..ListOptions::default() };
    loop {
        let page = objects.list_metadata("", &options).await?;
        for object in &page.items {
            let meta = &object.metadata;
            let at = meta.resource_version.as_deref().and_then(|at| at.parse::<u64>().ok());
            if at.is_none_or(|at| at > until) {
                continue;
            }
            let (namespace, name) =
                (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            let patch = Patch::Apply {
                manager: DESCRIPTOR.name.to_owned(),
                force: false,
                object: json!({
                    "apiVersion": info.key.api_version(),
                    "kind": info.kind,
                    // A recreated object of this name is another one.
                    "metadata": {
                        "name": name, "namespace": meta.namespace, "uid": meta.uid,
                        "resourceVersion": meta.resource_version,
                    },
                }),
            };
            match objects.patch(namespace, name, None, &patch).await {
                // Deleted, or written by another client meanwhile, which has the same effect.
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                other => drop(other?),
            }
        }
        match page.next_page() {
            Some(next) => options.continue_token = next.to_owned(),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::time;

    fn migration(
        name: &str,
        of: &str,
        created: i64,
        conditions: &[(&str, &str)],
    ) -> Arc<StorageVersionMigration> {
        let conditions = conditions.iter().map(|(kind, status)| {
            json!({ "type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": time(0) })
        });
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "creationTimestamp": time(created) },
                "spec": { "resource": { "group": "", "resource": of } },
                "status": { "conditions": conditions.collect::<Vec<_>>() },
            }))
            .expect("a migration"),
        )
    }

    #[test]
    fn oldest_migration_of_resource_runs_first() {
        let old = migration("old", "secrets", 1, &[]);
        let new = migration("new", "secrets", 2, &[]);
        let other = migration("other", "configmaps", 3, &[]);
        let all = [new.clone(), old.clone(), other.clone()];
        assert_eq!(plan(&old, &all), MigrationPlan::Start);
        assert_eq!(plan(&new, &all), MigrationPlan::Nothing);
        assert_eq!(plan(&other, &all), MigrationPlan::Start);
        let running = migration("new", "secrets", 2, &[("Running", "True")]);
        let all = [running.clone(), old.clone()];
        assert_eq!(plan(&running, &all), MigrationPlan::Run);
        assert_eq!(plan(&old, &all), MigrationPlan::Nothing);
        let over = migration("new", "secrets", 2, &[("Running", "True"), ("Succeeded", "True")]);
        assert_eq!(plan(&over, std::slice::from_ref(&over)), MigrationPlan::Finish);
        assert_eq!(plan(&old, &[over, old.clone()]), MigrationPlan::Start);
        let done = migration("done", "secrets", 0, &[("Running", "False"), ("Failed", "True")]);
        assert_eq!(plan(&done, std::slice::from_ref(&done)), MigrationPlan::Nothing);
    }
}
