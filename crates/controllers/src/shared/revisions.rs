//! Controller revisions in the API: finds or creates the one for the current template.

use std::sync::Arc;

use client::{Client, ClientError, Object, Patch, delete_options};
use objects::apps::v1::ControllerRevision;
use objects::core::v1::PodTemplateSpec;
use objects::meta::v1::LabelSelector;
use runtime::Cache;
use serde_json::json;

use crate::shared::adoption::{claim, controller_reference};
use crate::shared::history::{self, Choice};

/// Revisions of an owner, oldest first, and the one for its template.
pub struct Revisions {
    pub all: Vec<Arc<ControllerRevision>>,
    pub update: Arc<ControllerRevision>,
    pub collisions: i32,
}

/// Claims the owner's revisions and ensures that one exists for `template`.
pub async fn ensure<O: Object>(
    client: &Client,
    cache: &Cache<ControllerRevision>,
    owner: &O,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    mut collisions: i32,
) -> Result<Revisions, ClientError> {
    let mut all = claim(client, cache, owner, selector, |_| true).await?;
    history::sort(&mut all);
    let namespace = owner.metadata().namespace.as_deref().unwrap_or_default();
    loop {
        let reference = controller_reference(owner);
        match history::choose(&all, template, owner.metadata(), reference, collisions) {
            Choice::Latest(update) => return Ok(Revisions { all, update, collisions }),
            Choice::Renumber(known, revision) => {
                let name = known.metadata.name.as_deref().unwrap_or_default();
                let patch = Patch::Merge(json!({ "revision": revision }));
                let update =
                    Arc::new(client.patch::<ControllerRevision>(namespace, name, None, &patch).await?);
                all.retain(|revision| revision.metadata.name != update.metadata.name);
                all.push(Arc::clone(&update));
                return Ok(Revisions { all, update, collisions });
            }
            Choice::Create(new) => match client.create(namespace, &*new).await {
                Ok(created) => {
                    let update = Arc::new(created);
                    all.push(Arc::clone(&update));
                    return Ok(Revisions { all, update, collisions });
                }
                Err(error) if error.is_already_exists() => {
                    let name = new.metadata.name.as_deref().unwrap_or_default();
                    let known: ControllerRevision = client.get(namespace, name).await?;
                    // Created a moment ago and not in the cache yet, or a hash collision.
                    if history::template(&known).as_ref() == Some(template) {
                        let update = Arc::new(known);
                        all.push(Arc::clone(&update));
                        return Ok(Revisions { all, update, collisions });
                    }
                    collisions = collisions.saturating_add(1);
                }
                Err(error) => return Err(error),
            },
        }
    }
}

/// Deletes unused revisions beyond the limit.
pub async fn truncate(client: &Client, surplus: Vec<Arc<ControllerRevision>>) -> Result<(), ClientError> {
    for revision in surplus {
        let meta = &revision.metadata;
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let options = delete_options(meta.uid.as_deref(), None);
        let deleted = client.delete::<ControllerRevision>(
            namespace.unwrap_or_default(),
            name.unwrap_or_default(),
            &options,
        );
        match deleted.await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
