//! Stored form of an object, and its serialization to the wire without decoding.
//!
//! Stored bytes are JSON in a fixed order, `{"kind":K,"apiVersion":V,"metadata":{…},…}`, without `resourceVersion`.
//! Everything up to `"metadata":{` is the same for all objects of a resource, so the position of the spliced-in
//! revision needs no search, and list items, which have neither kind nor apiVersion, are the same bytes from another
//! offset.

use bytes::Bytes;
use machinery::codec::json_writer;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Bytes before the metadata of every stored object of one resource.
#[derive(Clone, Debug)]
pub struct Prefix {
    bytes: Box<[u8]>,
}

/// Members of a stored object as raw JSON, so that changing one does not parse the others.
pub type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Retained capacity of a thread's encoding buffer.
const SCRATCH_BYTES: usize = 64 * 1024;

const ITEM: &[u8] = b"{\"metadata\":{";

impl Prefix {
    pub fn new(api_version: &str, kind: &str) -> Self {
        let bytes =
            format!("{{\"kind\":{},\"apiVersion\":{},\"metadata\":{{", quote(kind), quote(api_version));
        Self { bytes: bytes.into_bytes().into_boxed_slice() }
    }

    /// Encodes the stored form. `resourceVersion` is omitted: the store's revision is authoritative.
    pub fn encode(&self, object: &Value) -> Bytes {
        let empty = Map::new();
        let map = object.as_object().unwrap_or(&empty);
        let metadata = map.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        scratch(|out| self.write_parts(out, metadata, map))
    }

    /// Encodes the stored form from raw members: those of the metadata, and the others, in their order.
    pub fn encode_parts(&self, metadata: &Members<'_>, rest: &[(&str, &Members<'_>)]) -> Bytes {
        scratch(|out| self.write_parts(out, metadata, rest.iter().map(|(name, members)| (name, members))))
    }

    fn write_parts<'a>(
        &self,
        out: &mut Vec<u8>,
        metadata: impl IntoIterator<Item = (&'a (impl AsRef<str> + 'a), &'a (impl Text + 'a))>,
        rest: impl IntoIterator<Item = (&'a (impl AsRef<str> + 'a), &'a (impl Text + 'a))>,
    ) {
        out.extend_from_slice(&self.bytes);
        members(out, metadata, false, &["resourceVersion"]);
        out.push(b'}');
        members(out, rest, true, &["apiVersion", "kind", "metadata"]);
        out.push(b'}');
    }

    /// Reports whether stored bytes have this resource's prefix.
    pub fn fits(&self, stored: &[u8]) -> bool {
        stored.starts_with(&self.bytes)
    }

    /// Writes a single object with its revision.
    pub fn write_object(&self, out: &mut Vec<u8>, stored: &[u8], revision: u64) {
        self.write(out, &self.bytes, stored, revision);
    }

    /// Writes the object as a list item.
    pub fn write_item(&self, out: &mut Vec<u8>, stored: &[u8], revision: u64) {
        self.write(out, ITEM, stored, revision);
    }

    fn write(&self, out: &mut Vec<u8>, head: &[u8], stored: &[u8], revision: u64) {
        let tail = stored.get(self.bytes.len()..).unwrap_or_default();
        out.reserve(head.len() + tail.len() + 44);
        out.extend_from_slice(head);
        out.extend_from_slice(b"\"resourceVersion\":\"");
        out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
        out.push(b'"');
        if !tail.starts_with(b"}") {
            out.push(b',');
        }
        out.extend_from_slice(tail);
    }
}

/// Fills a reused buffer and copies its content out at exact size, because stored values are long-lived.
fn scratch(fill: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|out| {
        out.clear();
        fill(out);
        let stored = Bytes::copy_from_slice(out);
        out.shrink_to(SCRATCH_BYTES);
        stored
    })
}

fn members<'a>(
    out: &mut Vec<u8>,
    members: impl IntoIterator<Item = (&'a (impl AsRef<str> + 'a), &'a (impl Text + 'a))>,
    mut comma: bool,
    skip: &[&str],
) {
    for (key, value) in members {
        if skip.contains(&key.as_ref()) {
            continue;
        }
        if comma {
            out.push(b',');
        }
        comma = true;
        json_writer::write_text(out, key.as_ref());
        out.push(b':');
        value.write(out);
    }
}

/// A value that can be written as a member of an object.
trait Text {
    fn write(&self, out: &mut Vec<u8>);
}

impl Text for Value {
    fn write(&self, out: &mut Vec<u8>) {
        json_writer::write_value(out, self);
    }
}

impl Text for &RawValue {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.get().as_bytes());
    }
}

impl Text for &Members<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        members(out, *self, false, &[]);
        out.push(b'}');
    }
}

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_form_round_trips_with_its_revision() {
        let prefix = Prefix::new("apps/v1", "Deployment");
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 1},
            "metadata": {"name": "a", "resourceVersion": "7"},
        });
        let stored = prefix.encode(&object);
        assert!(prefix.fits(&stored));
        let mut out = Vec::new();
        prefix.write_object(&mut out, &stored, 42);
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = json!("42");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), expected);

        out.clear();
        prefix.write_item(&mut out, &stored, 42);
        expected.as_object_mut().unwrap().retain(|k, _| k != "kind" && k != "apiVersion");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), expected);
    }

    #[test]
    fn empty_metadata_stays_valid_json() {
        let prefix = Prefix::new("v1", "ConfigMap");
        let stored = prefix.encode(&json!({}));
        let mut out = Vec::new();
        prefix.write_object(&mut out, &stored, 1);
        assert_eq!(
            serde_json::from_slice::<Value>(&out).unwrap()["metadata"],
            json!({"resourceVersion": "1"})
        );
    }
}
