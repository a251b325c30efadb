//! A definition as cached by the follower: its stored bytes, shared with the watch cache, and a decoded head without
//! schemas.
//!
//! A decoded schema takes many times the memory of its JSON. It is decoded when the definition changes, when an
//! object of it is first used, and when its OpenAPI document is built, and dropped again.

use super::conditions;
use crate::cache::Entry;
use crate::registry::conditions::Condition;
use crate::stored_form::Members;
use api::custom::DefinitionSource;
use api::value::Fields;
use machinery::{Value, meta};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Digest of a definition's stored spec.
pub type SpecDigest = [u8; 32];

/// One definition.
#[derive(Clone, Debug)]
pub struct KnownDefinition {
    pub entry: Arc<Entry>,
    /// The definition without schemas, managed fields and annotations of other programs.
    pub head: Value,
    pub spec: SpecDigest,
    /// Its desired `NonStructuralSchema` condition.
    pub structure: Option<Condition>,
}

impl KnownDefinition {
    /// Decodes the head of a definition, reusing the results of a previous state with the same spec.
    pub fn new(entry: &Arc<Entry>, previous: Option<&Self>, decoded: &LastDecoded) -> Self {
        let whole = decoded.get(entry);
        let spec = digest(entry);
        let structure = match previous.filter(|previous| previous.spec == spec) {
            Some(previous) => previous.structure.clone(),
            None => conditions::structure(&whole),
        };
        Self { entry: Arc::clone(entry), head: head_of(&whole), spec, structure }
    }

    /// The whole definition with the status and the finalizers of `changed`, a modified head.
    pub fn with_status_of(&self, changed: &Value) -> Value {
        let mut whole = self.entry.value();
        whole.set("status", changed.field("status").clone());
        let metadata = meta::metadata_mut(&mut whole);
        match meta::finalizers(changed) {
            // The status manager would own an empty list.
            [] => drop(metadata.remove("finalizers")),
            some => drop(metadata.insert("finalizers".to_owned(), Value::Array(some.to_vec()))),
        }
        whole
    }
}

/// Digest of the stored bytes of a spec, which nothing has to be decoded and encoded for.
fn digest(entry: &Entry) -> SpecDigest {
    let members: Members<'_> = serde_json::from_slice(&entry.bytes).unwrap_or_default();
    let spec = members.get("spec").map_or("", |spec| spec.get());
    Sha256::digest(spec).into()
}

/// A copy without schemas, printer columns, managed fields and annotations of other programs.
fn head_of(whole: &Value) -> Value {
    let mut head = without(whole, &["spec", "metadata"]);
    let mut metadata = without(whole.field("metadata"), &["managedFields"]);
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| name == conditions::APPROVAL);
    }
    head.set("metadata", metadata);
    let spec = whole.field("spec");
    let mut small = without(spec, &["versions"]);
    let versions = spec.items("versions").iter();
    let versions = versions.map(|version| without(version, &["schema", "additionalPrinterColumns"]));
    small.set("versions", Value::Array(versions.collect()));
    head.set("spec", small);
    head
}

/// A copy of an object without some members.
fn without(value: &Value, left_out: &[&str]) -> Value {
    let Some(map) = value.as_object() else { return value.clone() };
    let kept = map.iter().filter(|(name, _)| !left_out.contains(&name.as_str()));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Size of stored definitions up to which decoded ones are kept.
const MAX_KEPT: usize = 1 << 20;

/// The definition that was decoded last. A changed one is decoded once for its head, its served resources and the OpenAPI
/// document that is requested next.
#[derive(Debug, Default)]
pub struct LastDecoded(Mutex<Option<(Arc<Entry>, Arc<Value>)>>);

impl LastDecoded {
    /// The decoded definition of an entry, which is kept.
    pub fn get(&self, entry: &Arc<Entry>) -> Arc<Value> {
        if let Some((_, value)) = self.0.lock().as_ref().filter(|(known, _)| Arc::ptr_eq(known, entry)) {
            return Arc::clone(value);
        }
        let value = Arc::new(entry.value());
        if entry.bytes.len() <= MAX_KEPT {
            *self.0.lock() = Some((Arc::clone(entry), Arc::clone(&value)));
        }
        value
    }

    /// The decoded definition of an entry, which is no longer kept.
    pub fn take(&self, entry: &Arc<Entry>) -> Value {
        let kept = self.0.lock().take_if(|(known, _)| Arc::ptr_eq(known, entry));
        kept.map_or_else(|| entry.value(), |(_, value)| Arc::unwrap_or_clone(value))
    }
}

/// The newest entry of a definition with an unchanged spec.
#[derive(Debug)]
pub struct EntrySource {
    entry: Mutex<Arc<Entry>>,
    decoded: Arc<LastDecoded>,
}

impl EntrySource {
    pub fn new(entry: Arc<Entry>, decoded: Arc<LastDecoded>) -> Self {
        Self { entry: Mutex::new(entry), decoded }
    }

    /// Sets a newer entry with the same spec, so that the bytes of the older one are freed.
    pub fn replace(&self, entry: &Arc<Entry>) {
        *self.entry.lock() = Arc::clone(entry);
    }
}

impl DefinitionSource for EntrySource {
    fn definition(&self) -> Value {
        let entry = Arc::clone(&self.entry.lock());
        self.decoded.take(&entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::json;

    fn entry(definition: &Value) -> Arc<Entry> {
        let bytes = Bytes::from(definition.to_string());
        Arc::new(Entry::new(Arc::from("/registry/customresourcedefinitions/a"), bytes, 1))
    }

    #[test]
    fn changed_definition_is_decoded_once() {
        let (one, other) = (entry(&json!({"spec": {"group": "a"}})), entry(&json!({"spec": {"group": "b"}})));
        let decoded = LastDecoded::default();
        let first = decoded.get(&one);
        assert!(Arc::ptr_eq(&first, &decoded.get(&one)), "decoded again");
        let at = std::ptr::from_ref(first.field("spec"));
        drop(first);
        let source = EntrySource::new(Arc::clone(&one), Arc::new(decoded));
        let taken = source.definition();
        assert_eq!((taken.field("spec").text("group"), one.value()), ("a", taken.clone()));
        assert!(std::ptr::eq(at, taken.field("spec")), "decoded again or copied");
        assert!(source.decoded.0.lock().is_none(), "kept after the document");
        // An entry that is not kept is decoded, and does not replace the kept one.
        source.decoded.get(&other);
        assert_eq!(source.definition(), taken);
        assert_eq!(source.decoded.take(&other).field("spec").text("group"), "b");
    }

    #[test]
    fn large_definition_is_not_kept_decoded() {
        let large = entry(&json!({"spec": {"group": "a".repeat(MAX_KEPT)}}));
        let decoded = LastDecoded::default();
        decoded.get(&large);
        assert!(decoded.0.lock().is_none());
    }

    #[test]
    fn head_has_no_schemas_and_foreign_annotations() {
        let whole = json!({"kind": "CustomResourceDefinition",
            "metadata": {"name": "a", "managedFields": [{}], "annotations": {"x": "y", (conditions::APPROVAL): "z"}},
            "spec": {"group": "a", "versions": [
                {"name": "v1", "served": true, "schema": {"openAPIV3Schema": {}}, "additionalPrinterColumns": [{}]}]},
            "status": {"storedVersions": ["v1"]}});
        let head = json!({"kind": "CustomResourceDefinition",
            "metadata": {"name": "a", "annotations": {(conditions::APPROVAL): "z"}},
            "spec": {"group": "a", "versions": [{"name": "v1", "served": true}]},
            "status": {"storedVersions": ["v1"]}});
        assert_eq!(head_of(&whole), head);
    }
}
