//! The decoders, one row each.

mod codecs;
mod metrics;
mod network;
mod patches;
mod text;

use crate::engine::Target;
use machinery::schema::SchemaRef;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

/// Every target.
pub static TARGETS: &[&Target] = &[
    &codecs::JSON,
    &codecs::TYPED_JSON,
    &codecs::STORED_JSON,
    &codecs::YAML,
    &codecs::CBOR,
    &codecs::PROTOBUF,
    &patches::JSON_PATCH,
    &patches::MERGE_PATCH,
    &patches::STRATEGIC_PATCH,
    &patches::APPLY,
    &patches::MANAGED_FIELDS,
    &patches::SCHEMA,
    &text::LABEL_SELECTOR,
    &text::FIELD_SELECTOR,
    &text::QUANTITY,
    &text::TIME,
    &text::EXPRESSION,
    &text::NAMES,
    &metrics::EXPOSITION,
    &network::DNS,
    &network::WEBSOCKET,
    &network::SPDY,
    &network::CERTIFICATE,
    &network::REQUEST,
];

/// Typical kinds, covering all field types.
static KINDS: LazyLock<Vec<SchemaRef<'static>>> = LazyLock::new(|| {
    let kinds = [
        ("", "v1", "ConfigMap"),
        ("", "v1", "Pod"),
        ("", "v1", "Secret"),
        ("apps", "v1", "Deployment"),
        ("networking.k8s.io", "v1", "Ingress"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ];
    let schema = api::schema::schema();
    kinds.into_iter().filter_map(|(group, version, kind)| schema.kind(group, version, kind)).collect()
});

/// The first byte selects the type, the rest is the input.
fn kind_of(input: &[u8]) -> Option<(SchemaRef<'static>, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((KINDS[usize::from(*first) % KINDS.len()], rest))
}

/// An outcome: success or failure, and its text without numbers.
fn outcome<T, E: std::fmt::Display>(result: &Result<T, E>, detail: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    match result {
        Ok(_) => (0, detail).hash(&mut hasher),
        Err(error) => {
            let text = error.to_string();
            let text: String = text.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
            (1, text).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// The size of a value, rounded to a power of two.
fn steps(size: usize) -> usize {
    size.checked_ilog2().map_or(0, |log| log as usize + 1)
}
