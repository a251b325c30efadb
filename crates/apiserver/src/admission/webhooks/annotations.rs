//! Audit annotations of webhook calls: mutation, patch, fail-open.

use super::hook::Hook;
use crate::registry::WriteRecord;
use machinery::Value;
use serde::Serialize;

/// Prefix of keys whose values hold parts of objects: for audit levels that record requests only.
pub const PATCH_PREFIX: &str = "patch.webhook.admission.k8s.io/";
const MUTATION_PREFIX: &str = "mutation.webhook.admission.k8s.io/";
const VALIDATING_PREFIX: &str = "validating.webhook.admission.k8s.io/";

#[derive(Serialize)]
struct Mutation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    mutated: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Patch<'a> {
    configuration: &'a str,
    webhook: &'a str,
    patch: &'a Value,
    patch_type: &'static str,
}

/// Annotates one call of a mutating webhook.
pub struct Annotator<'a> {
    hook: &'a Hook,
    /// `round_N_index_M`: M is the index of the webhook among all.
    path: String,
    record: &'a WriteRecord,
}

impl<'a> Annotator<'a> {
    pub fn new(hooks: &[Hook], hook: &'a Hook, round: usize, record: &'a WriteRecord) -> Self {
        let index = hooks.iter().position(|known| std::ptr::eq(known, hook)).unwrap_or_default();
        Self { hook, path: format!("round_{round}_index_{index}"), record }
    }

    pub fn mutation(&self, mutated: bool) {
        let (configuration, webhook) = (self.hook.configuration.as_str(), self.hook.name.as_str());
        self.add(MUTATION_PREFIX, &Mutation { configuration, webhook, mutated });
    }

    pub fn patch(&self, patch: &Value) {
        if patch.as_array().is_none_or(Vec::is_empty) {
            return;
        }
        let (configuration, webhook) = (self.hook.configuration.as_str(), self.hook.name.as_str());
        self.add(PATCH_PREFIX, &Patch { configuration, webhook, patch, patch_type: "JSONPatch" });
    }

    pub fn failed_open(&self) {
        let key = format!("failed-open.{MUTATION_PREFIX}{}", self.path);
        self.record.annotate(key, self.hook.name.as_str());
    }

    fn add(&self, prefix: &str, value: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(value) {
            self.record.annotate(format!("{prefix}{}", self.path), text);
        }
    }
}

/// Annotates a validating webhook that failed open, by its index among the matching ones.
pub fn validating_failed_open(index: usize, hook: &str, record: &WriteRecord) {
    record.annotate(format!("failed-open.{VALIDATING_PREFIX}round_0_index_{index}"), hook);
}
