//! Label and field selectors of one request, validated once and matched against cached attributes.

use crate::cache::entry::label_bit;
use crate::cache::{Entry, Layout};
use crate::registry::{Conversion, Served, Version};
use crate::wire::options::ListOptions;
use machinery::Value;
use machinery::selector::label::Labels;
use machinery::selector::{FieldSelector, LabelSelector};
use machinery::status::{Result, Status};
use std::borrow::Cow;
use std::sync::Arc;

/// Limit of requirements per request. Each is compared with every object in scope.
const MAX_REQUIREMENTS: usize = 1000;
/// Selectors with more requirements are matched outside of the cache's lock, so that they do not block writes.
const COSTLY: usize = 16;

/// Selectors of a list, watch or deletecollection.
#[derive(Debug)]
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// Label filter bits that every match must have.
    label_bits: u64,
}

impl Selection {
    pub fn read(served: &Served, options: &ListOptions) -> Result<Self> {
        let labels =
            LabelSelector::parse(&options.label_selector).map_err(|e| Status::bad_request(e.to_string()))?;
        let fields =
            FieldSelector::parse(&options.field_selector).map_err(|e| Status::bad_request(e.to_string()))?;
        let count = labels.requirements().len() + fields.terms.len();
        if count > MAX_REQUIREMENTS {
            let why = format!("the selectors have {count} requirements, the limit is {MAX_REQUIREMENTS}");
            return Err(Status::bad_request(why));
        }
        let rules = &*served.rules;
        if let Some(name) = fields.unsupported(|name| rules.find_field(name).is_ok()) {
            let refusal = rules.find_field(name).err();
            return Err(Status::bad_request(refusal.map_or_else(String::new, |e| e.to_string())));
        }
        let fields = fields
            .transform(|name, value| Ok::<_, Status>((rules.stored_field(&name).into_owned(), value)))?;
        let label_bits = labels
            .requirements()
            .iter()
            .filter_map(|requirement| requirement.only_value())
            .fold(0, |bits, (key, value)| bits | label_bit(key, value));
        Ok(Self { labels, fields, label_bits })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Reports whether matching would block writes for too long.
    pub fn is_costly(&self) -> bool {
        self.labels.requirements().len() + self.fields.terms.len() > COSTLY
    }

    pub fn matches(&self, entry: &Entry, layout: &Layout) -> bool {
        if self.is_everything() {
            return true;
        }
        if !entry.may_have_labels(self.label_bits) {
            return false;
        }
        let attributes = entry.attributes(layout);
        self.labels.matches(attributes) && self.fields.matches(|name| attributes.field(layout, name))
    }

    /// Reports whether the selectors compare fields or labels of another version than the stored one, which require
    /// the conversion webhook: [`Self::matching_converted`] then replaces [`Self::matches`].
    pub fn needs_conversion(&self, served: &Version) -> bool {
        matches!(served.conversion, Some(Conversion::Batch(_)))
            && (!self.labels.is_empty() || self.fields.terms.iter().any(|term| !is_metadata(&term.field)))
    }

    /// Matches each entry in the version of the request. A webhook may change labels and all fields except name and
    /// namespace: objects excluded by those are not converted.
    pub async fn matching_converted(&self, served: &Version, entries: &[Arc<Entry>]) -> Result<Vec<bool>> {
        let layout = &served.storage.cache.layout;
        let (mut verdicts, mut waiting, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        for (index, entry) in entries.iter().enumerate() {
            if served.shows_stored_bytes(entry) {
                verdicts.push(self.matches(entry, layout));
                continue;
            }
            verdicts.push(false);
            if self.names_match(entry, layout) {
                waiting.push((index, entry));
                objects.push(entry.value());
            }
        }
        let converted = served.converted(objects).await?;
        for ((index, entry), object) in waiting.into_iter().zip(converted) {
            let field = |name: &str| converted_field(entry, &object, layout, name).unwrap_or_default();
            verdicts[index] = self.labels.matches(&ConvertedLabels(&object))
                && self.fields.terms.iter().all(|term| (field(&term.field) == term.value) == term.equal);
        }
        Ok(verdicts)
    }

    fn names_match(&self, entry: &Entry, layout: &Layout) -> bool {
        let attributes = entry.attributes(layout);
        let mut terms = self.fields.terms.iter().filter(|term| is_metadata(&term.field));
        terms.all(|term| (attributes.field(layout, &term.field) == Some(&term.value)) == term.equal)
    }

    /// Narrows the key range for a selector of one object or namespace.
    pub fn narrow(&self, scope: String, all_namespaces: bool) -> String {
        if all_namespaces && let Some(namespace) = self.fields.requires("metadata.namespace") {
            return format!("{scope}{namespace}/");
        }
        scope
    }
}

fn is_metadata(field: &str) -> bool {
    matches!(field, "metadata.name" | "metadata.namespace")
}

/// Labels of a converted object.
struct ConvertedLabels<'a>(&'a Value);

impl Labels for ConvertedLabels<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("labels")?.get(key)?.as_str()
    }
}

/// A field of an object in another version than `entry`. Conversion does not change name and namespace.
fn converted_field<'a>(
    entry: &'a Entry,
    object: &'a Value,
    layout: &'a Layout,
    name: &str,
) -> Option<Cow<'a, str>> {
    if is_metadata(name) {
        return entry.attributes(layout).field(layout, name).map(Cow::Borrowed);
    }
    layout.fields.iter().find(|field| field.name == name).map(|field| field.value(object))
}
