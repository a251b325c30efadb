//! Encodes values for clients.

use crate::wire::negotiate::{Accepted, Encoding};
use bytes::Bytes;
use machinery::Value;
use machinery::codec;
use machinery::gvk::split_api_version;
use machinery::schema::SchemaRef;
use machinery::status::{Result, Status};

/// Any API object, lists and Status included.
pub fn value(value: &Value, accepted: &Accepted) -> Result<Bytes> {
    Ok(match accepted.encoding {
        Encoding::Json if accepted.pretty => pretty(value).into(),
        Encoding::Json => codec::json::encode(value).into(),
        Encoding::Yaml => codec::yaml::encode(value).into(),
        Encoding::Cbor => {
            let (api_version, kind) = type_meta(value);
            codec::cbor::encode(value, schema_of(api_version, kind)).into()
        }
        Encoding::Protobuf => {
            let (api_version, kind) = type_meta(value);
            let message = message(value)?;
            codec::protobuf::wrap(api_version, kind, &message).into()
        }
    })
}

/// Indented JSON.
fn pretty(value: &Value) -> Vec<u8> {
    let mut out = serde_json::to_vec_pretty(value).unwrap_or_default();
    out.push(b'\n');
    out
}

/// One watch event around an object.
pub fn event(kind: &str, object: &Value, accepted: &Accepted) -> Result<Bytes> {
    Ok(match accepted.encoding {
        Encoding::Protobuf => {
            let (api_version, object_kind) = type_meta(object);
            let message = message(object)?;
            let object = codec::protobuf::wrap(api_version, object_kind, &message);
            codec::protobuf::watch_frame(kind, &object).into()
        }
        Encoding::Cbor => {
            let (api_version, object_kind) = type_meta(object);
            let object = codec::cbor::encode(object, schema_of(api_version, object_kind));
            codec::cbor::watch_frame(kind, &object).into()
        }
        Encoding::Json | Encoding::Yaml => {
            let mut out = codec::json::encode(&serde_json::json!({"type": kind, "object": object}));
            out.push(b'\n');
            out.into()
        }
    })
}

fn type_meta(value: &Value) -> (&str, &str) {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    (text("apiVersion"), text("kind"))
}

fn message(value: &Value) -> Result<Vec<u8>> {
    let (api_version, kind) = type_meta(value);
    let Some(schema) = schema_of(api_version, kind) else {
        let list = if value.get("items").is_some_and(Value::is_array) { "List" } else { "" };
        return Err(Status::not_acceptable(format!(
            "object *unstructured.Unstructured{list} does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message"
        )));
    };
    Ok(codec::protobuf::encode_object(value, schema))
}

/// Schema of any kind with a protobuf form.
pub fn schema_of(api_version: &str, kind: &str) -> Option<SchemaRef<'static>> {
    let (group, version) = split_api_version(api_version);
    let schema = api::schema::of_version(version);
    schema.kind(group, version, kind).or_else(|| {
        // Kinds of the meta group belong to every built-in version; a custom resource may have the same names.
        if !matches!(group, "" | "meta.k8s.io") {
            return None;
        }
        schema.named(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"))
    })
}
