//! One object in the cache: its stored bytes, its revision, and lazily derived forms.

use crate::stored_form::Prefix;
use bytes::Bytes;
use machinery::codec::stored_json;
use machinery::schema::TypeHandle;
use machinery::selector::label::Labels;
use serde_json::Value;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Resource description of a cache: byte layout and selectable fields.
#[derive(Debug)]
pub struct Layout {
    pub prefix: Prefix,
    /// Selectable fields besides name and namespace.
    pub fields: Vec<api::rules::IndexedField>,
    /// Members that hold none of these fields at any depth, so they need not be decoded.
    pub unindexed: &'static [&'static str],
    /// Protobuf schema; `None` if the resource has no protobuf form.
    pub schema: Option<TypeHandle>,
    pub api_version: String,
    pub kind: String,
    /// Converts stored objects to a definition that may have changed since.
    pub reader: Option<Reader>,
}

/// Reader of objects that were stored under an earlier definition.
pub struct Reader {
    pub rules: Arc<dyn api::Rules>,
    /// True if versions differ in `apiVersion` only; otherwise objects of other versions stay unconverted.
    pub renames: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("renames", &self.renames).finish_non_exhaustive()
    }
}

impl Layout {
    /// Creates the entry of a stored value.
    pub fn entry(&self, key: Arc<str>, bytes: Bytes, revision: u64) -> Entry {
        match &self.reader {
            None => Entry::new(key, bytes, revision),
            Some(reader) => self.read(reader, key, bytes, revision),
        }
    }

    fn read(&self, reader: &Reader, key: Arc<str>, bytes: Bytes, revision: u64) -> Entry {
        if !self.prefix.fits(&bytes) && !reader.renames {
            return Entry::new(key, bytes, revision);
        }
        let mut object = decode(&bytes);
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".to_owned(), self.api_version.clone().into());
        }
        reader.rules.read(&mut object);
        let read = self.prefix.encode(&object);
        if read == bytes {
            return Entry::new(key, bytes, revision);
        }
        Entry { outdated: true, ..Entry::new(key, read, revision) }
    }
}

/// An object at one revision. Immutable except for the derived forms, which are computed on first use.
#[derive(Debug)]
pub struct Entry {
    pub key: Arc<str>,
    pub bytes: Bytes,
    pub revision: u64,
    /// The stored form differs; rewriting the object updates it.
    pub outdated: bool,
    attributes: OnceLock<Box<Attributes>>,
    protobuf: OnceLock<Bytes>,
    /// Bloom filter of the labels, to skip most non-matching objects cheaply. Zero until the attributes are computed.
    label_bits: AtomicU64,
}

/// Attributes for selectors.
#[derive(Debug, Default)]
pub struct Attributes {
    labels: Box<[(Box<str>, Box<str>)]>,
    /// In the order of the layout's fields.
    fields: Box<[Box<str>]>,
    name: Box<str>,
    namespace: Box<str>,
}

impl Entry {
    pub fn new(key: Arc<str>, bytes: Bytes, revision: u64) -> Self {
        Self {
            key,
            bytes,
            revision,
            outdated: false,
            attributes: OnceLock::new(),
            protobuf: OnceLock::new(),
            label_bits: AtomicU64::new(0),
        }
    }

    /// The same object at another revision, for deletion events.
    pub fn at(&self, revision: u64) -> Self {
        Self::new(self.key.clone(), self.bytes.clone(), revision)
    }

    /// The decoded object with its revision.
    pub fn value(&self) -> Value {
        let mut value = decode(&self.bytes);
        machinery::meta::metadata_mut(&mut value)
            .insert("resourceVersion".to_owned(), Value::String(self.revision.to_string()));
        value
    }

    pub fn json(&self, layout: &Layout) -> Bytes {
        let mut out = Vec::new();
        layout.prefix.write_object(&mut out, &self.bytes, self.revision);
        out.into()
    }

    /// Protobuf message bytes, encoded once.
    pub fn protobuf(&self, layout: &Layout) -> Option<&Bytes> {
        let schema = layout.schema.as_ref()?.get();
        // Retained with the entry, so copied at exact size.
        Some(self.protobuf.get_or_init(|| {
            Bytes::copy_from_slice(&machinery::codec::protobuf::encode_object(&self.value(), schema))
        }))
    }

    pub fn attributes(&self, layout: &Layout) -> &Attributes {
        self.attributes.get_or_init(|| {
            let attributes = Attributes::of(&self.bytes, layout);
            let bits =
                attributes.labels.iter().fold(KNOWN, |bits, (key, value)| bits | label_bit(key, value));
            self.label_bits.store(bits, Ordering::Relaxed);
            Box::new(attributes)
        })
    }

    /// Reports whether the object may have all labels with these bits; a cheap test before the exact one.
    pub fn may_have_labels(&self, bits: u64) -> bool {
        let own = self.label_bits.load(Ordering::Relaxed);
        own == 0 || own & bits == bits
    }
}

/// Decodes stored bytes. They nearly always have the form this server writes, which has a fast path.
fn decode(bytes: &[u8]) -> Value {
    stored_json::decode(bytes).unwrap_or_else(|| serde_json::from_slice(bytes).unwrap_or_default())
}

/// Bit that is set once an object's labels are computed.
const KNOWN: u64 = 1;

/// Bit of a label among the other 63.
pub fn label_bit(key: &str, value: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    key.hash(&mut hasher);
    value.hash(&mut hasher);
    1 << (1 + hasher.finish() % 63)
}

/// Attributes for label, name and namespace selectors; the rest is skipped unparsed.
#[derive(serde::Deserialize)]
struct Slim<'a> {
    #[serde(borrow)]
    metadata: SlimMetadata<'a>,
}

#[derive(serde::Deserialize)]
struct SlimMetadata<'a> {
    #[serde(default, borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(default, borrow)]
    namespace: std::borrow::Cow<'a, str>,
    #[serde(default, borrow)]
    labels: std::collections::BTreeMap<std::borrow::Cow<'a, str>, std::borrow::Cow<'a, str>>,
}

impl Attributes {
    fn of(bytes: &[u8], layout: &Layout) -> Self {
        let Ok(slim) = serde_json::from_slice::<Slim<'_>>(bytes) else { return Self::default() };
        let fields = if layout.fields.is_empty() {
            Box::default()
        } else {
            let value = stored_json::decode_without(bytes, layout.unindexed).unwrap_or_else(|| decode(bytes));
            layout.fields.iter().map(|f| f.value(&value).into()).collect()
        };
        Self {
            labels: slim.metadata.labels.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            fields,
            name: slim.metadata.name.into(),
            namespace: slim.metadata.namespace.into(),
        }
    }

    /// Value of a selectable field.
    pub fn field(&self, layout: &Layout, name: &str) -> Option<&str> {
        match name {
            "metadata.name" => Some(&self.name),
            "metadata.namespace" => Some(&self.namespace),
            _ => {
                let index = layout.fields.iter().position(|f| f.name == name)?;
                self.fields.get(index).map(AsRef::as_ref)
            }
        }
    }
}

impl Labels for Attributes {
    fn label(&self, key: &str) -> Option<&str> {
        let index = self.labels.binary_search_by(|(k, _)| k.as_ref().cmp(key)).ok()?;
        Some(&self.labels[index].1)
    }
}
