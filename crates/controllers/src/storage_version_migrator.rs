//! The storage version migrator. Watches migrations; writes every object of a migration's resource anew, unchanged, so
//! that it is stored in the version of today.

use async_trait::async_trait;
use client::{ListOptions, Patch};
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::condition;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "storage-version-migrator-controller",
    resource: "storageversionmigrations.storagemigration.k8s.io",
    identity: "system:serviceaccount:kube-system:storage-version-migrator-controller",
    workers: 1,
};

const PAGE: u32 = 500;

struct Migrator {
    migrations: Cache<StorageVersionMigration>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    Box::new(Migrator { migrations: ctx.watch_self() })
}

#[async_trait]
impl Loop for Migrator {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(migration) = self.migrations.get_key(key) else { return Ok(Action::Done) };
        let mut updated = migration.as_ref().clone();
        let status = updated.status.get_or_insert_default();
        if ["Succeeded", "Failed"].iter().any(|end| condition::holds(status.conditions.as_ref(), end)) {
            return Ok(Action::Done);
        }
        let now = ctx.clock.now();
        let wanted = migration.spec.clone().unwrap_or_default().resource;
        let discovery = ctx.client.discover().await?;
        let found = discovery
            .preferred
            .iter()
            .find(|info| info.key.group == wanted.group && info.key.resource == wanted.resource);
        let Some(info) = found.filter(|info| info.can("list") && info.can("patch")).cloned() else {
            let message = "resource does not exist in GC, or cannot be listed and patched";
            condition::set(
                &mut status.conditions,
                "Failed",
                true,
                "StorageVersionMigrationFailed",
                message,
                now,
            );
            ctx.client.update_status(&updated).await?;
            return Ok(Action::Done);
        };
        if !condition::holds(status.conditions.as_ref(), "Running") {
            let reason = "StorageVersionMigrationInProgress";
            condition::set(&mut status.conditions, "Running", true, reason, "", now);
            updated = ctx.client.update_status(&updated).await?;
        }
        let resource = ctx.client.dynamic(&info.key);
        let mut options = ListOptions { limit: PAGE, ..ListOptions::default() };
        let mut revision = None;
        loop {
            let page = resource.list_metadata("", &options).await?;
            revision.get_or_insert_with(|| page.resource_version().to_owned());
            for object in &page.items {
                let meta = &object.metadata;
                let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref());
                let patch = Patch::Apply {
                    manager: DESCRIPTOR.name.to_owned(),
                    force: false,
                    object: json!({
                        "apiVersion": info.key.api_version(),
                        "kind": info.kind,
                        "metadata": {
                            "name": name, "namespace": meta.namespace, "uid": meta.uid,
                            "resourceVersion": meta.resource_version,
                        },
                    }),
                };
                match resource.patch(namespace, name.unwrap_or_default(), None, &patch).await {
                    // Gone, or written by somebody else meanwhile, which is as good.
                    Err(error) if error.is_not_found() || error.is_conflict() => {}
                    Err(error) => return Err(error.into()),
                    Ok(_) => {}
                }
            }
            match page.next_page() {
                Some(next) => options.continue_token = next.to_owned(),
                None => break,
            }
        }
        let status = updated.status.get_or_insert_default();
        status.resource_version = revision;
        condition::set(&mut status.conditions, "Running", false, "StorageVersionMigrationSucceeded", "", now);
        condition::set(
            &mut status.conditions,
            "Succeeded",
            true,
            "StorageVersionMigrationSucceeded",
            "",
            now,
        );
        ctx.client.update_status(&updated).await?;
        Ok(Action::Done)
    }
}
