//! A definition as the follower keeps it: its stored bytes, shared with the watch cache, and a decoded head without schemas.
//!
//! A decoded schema takes many times the memory of its JSON. It is decoded when the definition changes, when an object of
//! it is first used, and when its OpenAPI document is built, and dropped again.

use super::conditions;
use crate::cache::Entry;
use crate::registry::conditions::Condition;
use api::custom::DefinitionSource;
use api::value::Fields;
use machinery::{Value, meta};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Digest of a definition's spec.
pub type SpecDigest = [u8; 32];

/// One definition.
#[derive(Clone, Debug)]
pub struct KnownDefinition {
    pub entry: Arc<Entry>,
    /// The definition without schemas, managed fields and annotations of other programs.
    pub head: Value,
    pub spec: SpecDigest,
    /// The `NonStructuralSchema` condition it should have.
    pub structure: Option<Condition>,
}

impl KnownDefinition {
    /// Reads a definition. What an earlier state of it with the same spec knows is taken over.
    pub fn new(entry: &Arc<Entry>, previous: Option<&Self>) -> Self {
        let mut head = entry.value();
        let spec = digest(head.field("spec"));
        let structure = match previous.filter(|previous| previous.spec == spec) {
            Some(previous) => previous.structure.clone(),
            None => conditions::structure(&head),
        };
        strip(&mut head);
        Self { entry: Arc::clone(entry), head, spec, structure }
    }

    /// The whole definition with the status and the finalizers of `changed`, a changed head.
    pub fn with_status_of(&self, changed: &Value) -> Value {
        let mut whole = self.entry.value();
        whole.set("status", changed.field("status").clone());
        let metadata = meta::metadata_mut(&mut whole);
        match meta::finalizers(changed) {
            // An empty list would be a field that the status' manager owns.
            [] => drop(metadata.remove("finalizers")),
            some => drop(metadata.insert("finalizers".to_owned(), Value::Array(some.to_vec()))),
        }
        whole
    }
}

/// Digest of a spec.
fn digest(spec: &Value) -> SpecDigest {
    struct Hashing(Sha256);
    impl std::io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut out = std::io::BufWriter::new(Hashing(Sha256::new()));
    serde_json::to_writer(&mut out, spec).expect("hashing does not fail");
    let hashing = out.into_inner().map_err(|error| error.into_error()).expect("hashing does not fail");
    hashing.0.finalize().into()
}

fn strip(definition: &mut Value) {
    let versions = definition.get_mut("spec").and_then(|spec| spec.get_mut("versions"));
    for version in versions.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(version) = version.as_object_mut() {
            version.remove("schema");
            version.remove("additionalPrinterColumns");
        }
    }
    let metadata = meta::metadata_mut(definition);
    metadata.remove("managedFields");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| name == conditions::APPROVAL);
    }
}

/// The newest entry of a definition whose spec stays the same.
#[derive(Debug)]
pub struct EntrySource(Mutex<Arc<Entry>>);

impl EntrySource {
    pub fn new(entry: Arc<Entry>) -> Self {
        Self(Mutex::new(entry))
    }

    /// Takes a newer entry with the same spec, so that the bytes of the older one are freed.
    pub fn replace(&self, entry: &Arc<Entry>) {
        *self.0.lock() = Arc::clone(entry);
    }
}

impl DefinitionSource for EntrySource {
    fn definition(&self) -> Value {
        let entry = Arc::clone(&self.0.lock());
        entry.value()
    }
}
