//! One object in the cache: its stored bytes, its revision, and what was derived from them so far.

use super::canonical::Prefix;
use bytes::Bytes;
use machinery::codec::own;
use machinery::schema::TypeHandle;
use machinery::selector::label::Labels;
use serde_json::Value;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What a cache knows of its resource: how bytes are laid out and which fields selectors may name.
#[derive(Debug)]
pub struct Layout {
    pub prefix: Prefix,
    /// Besides name and namespace.
    pub fields: Vec<api::rules::IndexedField>,
    /// Members in which none of the fields is, wherever they are: they need not be decoded.
    pub unindexed: &'static [&'static str],
    /// How protobuf carries the object; `None`: it has no protobuf form.
    pub schema: Option<TypeHandle>,
    pub api_version: String,
    pub kind: String,
    /// Brings stored objects into the form of a definition that may have changed since.
    pub reader: Option<Reader>,
}

/// Reader of objects that were stored under an earlier definition.
pub struct Reader {
    pub rules: Arc<dyn api::Rules>,
    /// Objects of other versions differ in their `apiVersion` only; otherwise they stay as they are.
    pub renames: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("renames", &self.renames).finish_non_exhaustive()
    }
}

impl Layout {
    /// A stored value as an entry.
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

/// An object at one revision. Immutable but for the derived forms, which are made on first use.
#[derive(Debug)]
pub struct Entry {
    pub key: Arc<str>,
    pub bytes: Bytes,
    pub revision: u64,
    /// The store has the object in another form: writing it again changes that.
    pub outdated: bool,
    attributes: OnceLock<Box<Attributes>>,
    protobuf: OnceLock<Bytes>,
    /// One bit per label, so that most objects a selector does not want are passed over at a glance.
    /// Zero until the attributes are known.
    label_bits: AtomicU64,
}

/// What selectors look at.
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

    /// The same object at another revision: what a deletion shows.
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

    /// Protobuf message bytes, made once.
    pub fn protobuf(&self, layout: &Layout) -> Option<&Bytes> {
        let schema = layout.schema.as_ref()?.get();
        // Kept with the entry, so exactly as large as it is.
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

    /// Whether the object may carry all labels whose bits are given; a cheap test before the real one.
    pub fn may_have_labels(&self, bits: u64) -> bool {
        let own = self.label_bits.load(Ordering::Relaxed);
        own == 0 || own & bits == bits
    }
}

/// Stored bytes as a value. Nearly always they are as this server writes them, which is quicker to read.
fn decode(bytes: &[u8]) -> Value {
    own::decode(bytes).unwrap_or_else(|| serde_json::from_slice(bytes).unwrap_or_default())
}

/// Set as soon as an object's labels are known.
const KNOWN: u64 = 1;

/// The bit that stands for one label among the other 63.
pub fn label_bit(key: &str, value: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    key.hash(&mut hasher);
    value.hash(&mut hasher);
    1 << (1 + hasher.finish() % 63)
}

/// The part of an object that selectors by label, name and namespace need; the rest is skipped unparsed.
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
            let value = own::decode_without(bytes, layout.unindexed).unwrap_or_else(|| decode(bytes));
            layout.fields.iter().map(|f| f.value(&value).into()).collect()
        };
        Self {
            labels: slim.metadata.labels.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            fields,
            name: slim.metadata.name.into(),
            namespace: slim.metadata.namespace.into(),
        }
    }

    /// The value of a field that selectors may name.
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
