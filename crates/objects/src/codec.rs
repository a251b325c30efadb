//! Reading and writing typed objects as JSON.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Error, Value};

use crate::Shared;
use crate::meta::v1::ObjectMeta;

/// JSON codec of a type. Implementations are calls into this crate, never inlined into another.
///
/// ```
/// use objects::Codec;
/// use objects::core::v1::Pod;
///
/// let pod = Pod::decode(br#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}"#)?;
/// assert_eq!(pod.metadata.name.as_deref(), Some("web"));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub trait Codec: Sized {
    fn decode(json: &[u8]) -> Result<Self, Error>;
    fn encode(&self) -> Result<Vec<u8>, Error>;
}

/// A kind with metadata that can be read, watched and written.
pub trait Object:
    Codec + crate::Resource + crate::Metadata<Ty = ObjectMeta> + Clone + Debug + Send + Sync + 'static
{
    /// Decodes an object without its `managedFields`, for a cache of several kinds.
    fn decode_shared(json: &[u8]) -> Result<Shared, Error>;
}

/// [`Object::decode_shared`] of one kind.
pub type DecodeShared = fn(&[u8]) -> Result<Shared, Error>;

/// An object inside a document of another format, encoded by its own codec.
pub struct Json<'a, T>(pub &'a T);

impl<T: Codec> Serialize for Json<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.encode().map_err(S::Error::custom)?;
        let text = String::from_utf8(text).map_err(S::Error::custom)?;
        RawValue::from_string(text).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// Decodes an object from a document.
pub fn from_value<T: Codec>(value: &Value) -> Result<T, Error> {
    T::decode(&serde_json::to_vec(value)?)
}

/// Encodes an object as a document.
pub fn to_value<T: Codec>(object: &T) -> Result<Value, Error> {
    serde_json::from_slice(&object.encode()?)
}

impl Codec for Value {
    fn decode(json: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(json)
    }

    fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self)
    }
}

/// Decodes a type, also where a document has `null` for a field that the type requires: stored objects may have such
/// fields, for instance a condition without a time, and one of them must not make a whole list unreadable.
pub(crate) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    let mut cleaned = Vec::new();
    let mut first = None;
    loop {
        let text = if first.is_none() { json } else { &cleaned };
        // One call for both attempts, so that the decoder is instantiated once.
        match (serde_json::from_slice(text), first.take()) {
            (Ok(object), _) => return Ok(object),
            (Err(error), None) if error.is_data() => {
                cleaned = without_nulls(json)?;
                first = Some(error);
            }
            (Err(error), None) | (Err(_), Some(error)) => return Err(error),
        }
    }
}

pub(crate) fn write<T: Serialize>(object: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(object)
}

/// The one time that types require, and its value when it was never set.
const REQUIRED_TIME: &str = "lastTransitionTime";
const NEVER: &str = "0001-01-01T00:00:00Z";

fn without_nulls(json: &[u8]) -> Result<Vec<u8>, Error> {
    let mut value: Value = serde_json::from_slice(json)?;
    remove_nulls(&mut value);
    serde_json::to_vec(&value)
}

/// Removes fields that are null. The depth is bounded by the parser's.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(time) = fields.get_mut(REQUIRED_TIME).filter(|time| time.is_null()) {
                *time = NEVER.into();
            }
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::v1::Service;

    #[test]
    fn decode_null_required_time_reads_the_rest() {
        let text = r#"{"metadata": {"name": "s"}, "status": {"conditions": [
            {"type": "A", "status": "True", "reason": "", "message": "", "lastTransitionTime": null}]}}"#;
        let service = Service::decode(text.as_bytes()).expect("readable");
        assert_eq!(service.status.and_then(|status| status.conditions).map(|all| all.len()), Some(1));
    }

    #[test]
    fn decode_wrong_type_or_truncated_text_fails() {
        let error = Service::decode(br#"{"metadata": {"name": 5}}"#).expect_err("a number as a name");
        assert!(error.to_string().contains("line 1 column"), "of the text as it was sent: {error}");
        assert!(Service::decode(b"{").is_err());
    }

    #[test]
    fn decode_shared_drops_managed_fields() {
        let text = br#"{"metadata": {"name": "s", "managedFields": [{"manager": "m"}]}}"#;
        let shared = Service::decode_shared(text).expect("readable");
        assert_eq!(shared.meta().managed_fields, None);
        assert_eq!(
            crate::downcast::<Service>(&shared).expect("a service").metadata.name.as_deref(),
            Some("s")
        );
        assert!(crate::downcast::<crate::core::v1::Pod>(&shared).is_none());
    }
}
