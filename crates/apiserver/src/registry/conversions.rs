//! Conversions for comparing the managed fields of other versions.
//!
//! Managed fields are computed synchronously. With a conversion webhook, the computation runs, records the
//! conversions that it lacks, and runs again when those are available.

use super::version::{Served, Version};
use machinery::Value;
use machinery::apply::Converter;
use machinery::schema::SchemaRef;
use parking_lot::Mutex;

/// Limit of computations per write. Each can only lack conversions that the previous one did not reach.
const MAX_ROUNDS: usize = 16;

/// One conversion: an object, the target version, and the converted object if available.
struct CompletedConversion {
    object: Value,
    api_version: String,
    converted: Option<Value>,
}

/// Conversions of one write.
struct Conversions<'a> {
    served: &'a Served,
    made: Vec<CompletedConversion>,
    missing: Mutex<Vec<(Value, String)>>,
}

impl Converter for Conversions<'_> {
    fn convert(&self, object: &Value, wanted: &str) -> Option<Value> {
        let source = self.served.find(object.get("apiVersion").and_then(Value::as_str).unwrap_or(""))?;
        let version = self.served.find(wanted)?;
        if source.webhook().is_none() {
            return version.converted_from(source, object);
        }
        if source.api_version == wanted {
            return Some(object.clone());
        }
        let known = |made: &&CompletedConversion| made.api_version == wanted && made.object == *object;
        if let Some(made) = self.made.iter().find(known) {
            return made.converted.clone();
        }
        let mut missing = self.missing.lock();
        if !missing.iter().any(|(known, version)| version == wanted && known == object) {
            missing.push((object.clone(), wanted.to_owned()));
        }
        None
    }

    fn schema(&self, api_version: &str) -> Option<SchemaRef<'_>> {
        self.served.find(api_version).map(Version::schema)
    }
}

/// Result of a computation on managed fields with all its conversions.
pub(super) async fn with_conversions<T>(served: &Served, compute: impl Fn(&dyn Converter) -> T) -> T {
    let mut conversions = Conversions { served, made: Vec::new(), missing: Mutex::default() };
    for _ in 1..MAX_ROUNDS {
        let outcome = compute(&conversions);
        let missing = std::mem::take(&mut *conversions.missing.lock());
        if missing.is_empty() {
            return outcome;
        }
        for (object, api_version) in missing {
            let converted = served.converted_by_webhook(&object, &api_version).await;
            conversions.made.push(CompletedConversion { object, api_version, converted });
        }
    }
    compute(&conversions)
}
