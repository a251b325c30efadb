//! Controller revisions: numbered, immutable snapshots of the templates of a stateful set or daemon set. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use objects::RawExtension;
use objects::apps::v1::ControllerRevision;
use objects::core::v1::PodTemplateSpec;
use objects::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

/// Alphabet of hashes in names: no vowels, so no words.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Labels with the hash of a revision: of stateful sets, and of daemon sets.
const HASH_LABELS: [&str; 2] = ["controller.kubernetes.io/hash", "controller-revision-hash"];

/// Hash of a revision's content.
#[must_use]
pub fn hash_of(revision: &ControllerRevision) -> Option<&str> {
    let labels = revision.metadata.labels.as_ref()?;
    HASH_LABELS.iter().rev().find_map(|label| labels.get(*label)).map(String::as_str)
}

/// Step to obtain a revision for the current template.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// The newest revision is equal.
    Latest(Arc<ControllerRevision>),
    /// An older one is equal; it gets this number.
    Renumber(Arc<ControllerRevision>, i64),
    Create(Box<ControllerRevision>),
}

/// Oldest first: by number, then by age, then by name.
pub fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|a, b| {
        let key = |r: &ControllerRevision| {
            (r.revision, r.metadata.creation_timestamp.clone(), r.metadata.name.clone())
        };
        key(a).cmp(&key(b))
    });
}

/// Patch stored in a revision: it replaces the template as a whole.
#[must_use]
pub fn snapshot(template: &PodTemplateSpec) -> Value {
    let mut template = objects::to_value(template).unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.insert("$patch".to_owned(), json!("replace"));
    }
    json!({ "spec": { "template": template } })
}

/// Template stored in a revision.
#[must_use]
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.get("spec")?.get("template")?;
    objects::from_value(template).ok()
}

/// Finds the revision of `template`; `revisions` are sorted.
#[must_use]
pub fn choose(
    revisions: &[Arc<ControllerRevision>],
    template_now: &PodTemplateSpec,
    owner: &ObjectMeta,
    reference: OwnerReference,
    collisions: i32,
) -> Choice {
    let next = revisions.last().map_or(1, |latest| latest.revision.saturating_add(1));
    let same = revisions.iter().rposition(|revision| template(revision).as_ref() == Some(template_now));
    match same {
        Some(position) if position + 1 == revisions.len() => Choice::Latest(Arc::clone(&revisions[position])),
        Some(position) => Choice::Renumber(Arc::clone(&revisions[position]), next),
        None => Choice::Create(Box::new(new_revision(template_now, owner, reference, next, collisions))),
    }
}

/// Builds a revision with this number; its name ends in a hash of its content.
#[must_use]
pub fn new_revision(
    template: &PodTemplateSpec,
    owner: &ObjectMeta,
    reference: OwnerReference,
    revision: i64,
    collisions: i32,
) -> ControllerRevision {
    let data = snapshot(template);
    let hash = hash(&data, collisions);
    let owner_name = owner.name.as_deref().unwrap_or_default();
    // Leaves space for the hyphen and the hash within the length limit of names.
    let prefix: String = owner_name.chars().take(223).collect();
    let mut labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    // Revisions of daemon sets use the label key of their pods.
    let label = if reference.kind == "DaemonSet" { HASH_LABELS[1] } else { HASH_LABELS[0] };
    labels.insert(label.to_owned(), hash.clone());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: owner.namespace.clone(),
            labels: Some(labels),
            annotations: owner.annotations.clone(),
            owner_references: Some(vec![reference]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision,
    }
}

fn hash(data: &Value, collisions: i32) -> String {
    let mut state: u32 = 0x811c_9dc5;
    let text = data.to_string();
    for byte in text.bytes().chain(collisions.to_string().bytes()) {
        state = (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    state.to_string().bytes().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

/// Revisions to delete: the oldest of those that are not `live`, beyond the limit.
#[must_use]
pub fn surplus(
    revisions: &[Arc<ControllerRevision>],
    live: &HashSet<String>,
    limit: i32,
) -> Vec<Arc<ControllerRevision>> {
    let unused: Vec<_> = revisions
        .iter()
        .filter(|revision| !live.contains(revision.metadata.name.as_deref().unwrap_or_default()))
        .collect();
    let Ok(limit) = usize::try_from(limit) else { return Vec::new() };
    let count = unused.len().saturating_sub(limit);
    unused.into_iter().take(count).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::meta;
    use objects::core::v1::{Container, PodSpec};

    fn image(image: &str) -> PodTemplateSpec {
        let container = Container { name: "c".into(), image: Some(image.into()), ..Container::default() };
        PodTemplateSpec {
            spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            ..PodTemplateSpec::default()
        }
    }

    fn create(template: &PodTemplateSpec, number: i64) -> Arc<ControllerRevision> {
        Arc::new(new_revision(template, &meta("s"), OwnerReference::default(), number, 0))
    }

    #[test]
    fn earlier_template_reuses_its_revision() {
        let revisions = [create(&image("a"), 1), create(&image("b"), 2)];
        let choose = |name: &str| choose(&revisions, &image(name), &meta("s"), OwnerReference::default(), 0);
        assert_eq!(choose("b"), Choice::Latest(Arc::clone(&revisions[1])));
        assert_eq!(choose("a"), Choice::Renumber(Arc::clone(&revisions[0]), 3));
        let Choice::Create(new) = choose("c") else { panic!("a new one") };
        assert_eq!(new.revision, 3);
        assert_eq!(template(&new), Some(image("c")));
    }

    #[test]
    fn collision_changes_revision_name() {
        let name = |collisions| {
            new_revision(&image("a"), &meta("s"), OwnerReference::default(), 1, collisions).metadata.name
        };
        assert_eq!(name(0), name(0));
        assert_ne!(name(0), name(1));
    }

    #[test]
    fn only_unused_revisions_are_deleted() {
        let revisions = [create(&image("a"), 1), create(&image("b"), 2), create(&image("c"), 3)];
        let live = HashSet::from([revisions[0].metadata.name.clone().expect("a name")]);
        assert_eq!(surplus(&revisions, &live, 1), [Arc::clone(&revisions[1])]);
        assert!(surplus(&revisions, &live, 2).is_empty());
        assert_eq!(surplus(&revisions, &live, 0).len(), 2);
    }
}
