//! Pod templates: equality, and the hash that names a replica set.

use objects::Codec;
use objects::apps::v1::{Deployment, ReplicaSet};
use objects::core::v1::PodTemplateSpec;
use serde_json::Value;

/// Label that distinguishes the pods of different templates.
pub const HASH: &str = "pod-template-hash";

/// Alphabet without vowels, so that no words result.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// True if a replica set has the current template of a deployment.
pub fn is_of(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
    let made = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
    match (wanted, made) {
        (Some(wanted), Some(made)) => same(wanted, made),
        _ => false,
    }
}

/// True if two templates are equal, ignoring the hash label.
pub fn same(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    let (a, b) = (without_hash(a), without_hash(b));
    a == b || plain(&a) == plain(&b)
}

pub fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(meta) = &mut template.metadata
        && let Some(labels) = &mut meta.labels
    {
        labels.remove(HASH);
    }
    template
}

/// The template without empty values: null and an empty list are equivalent.
fn plain(template: &PodTemplateSpec) -> Value {
    let mut value = objects::to_value(template).unwrap_or_default();
    prune(&mut value);
    value
}

fn prune(value: &mut Value) {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(items) => items.iter_mut().for_each(prune),
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            // An empty directory is a volume, an empty object a setting: only lists and null may be dropped.
            fields.retain(|_, value| !is_nothing(value) || value.is_object());
        }
        _ => {}
    }
}

/// Hash of a template; changes after each collision.
pub fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let mut state: u32 = 0x811c_9dc5;
    let text = without_hash(template).encode().unwrap_or_default();
    let collisions = collisions.map(|count| count.to_string()).unwrap_or_default();
    for byte in text.into_iter().chain(collisions.bytes()) {
        state = (state ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    state.to_string().bytes().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}
