//! What is collected while a request is handled.

use machinery::codec::typed::Emptied;
use machinery::field::{ErrorList, FieldError};
use machinery::{Value, meta};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;

/// `Warning` headers, each text once; annotations of the audit event; what the request wrote; what of its body is no
/// longer seen.
#[derive(Debug, Default)]
pub struct Warnings {
    texts: Mutex<Vec<String>>,
    annotations: Mutex<Vec<(Cow<'static, str>, String)>>,
    commits: Mutex<Vec<(Arc<str>, u64)>>,
    given: Mutex<Given>,
}

/// What a body said that its object no longer shows.
#[derive(Debug, Default)]
struct Given {
    emptied: Vec<Emptied>,
    defaulted_labels: bool,
}

impl Warnings {
    /// Lists and maps of the body that were left out, having no entries.
    pub fn emptied(&self, emptied: Vec<Emptied>) {
        if !emptied.is_empty() {
            self.given.lock().emptied = emptied;
        }
    }

    /// Sets defaults of what a body said.
    pub fn set_defaults(&self, object: &mut Value, default: fn(&mut Value)) {
        let has_labels = |object: &Value| meta::metadata(object).is_some_and(|m| m.contains_key("labels"));
        let had_labels = has_labels(object);
        default(object);
        if !had_labels && has_labels(object) {
            self.given.lock().defaulted_labels = true;
        }
    }

    /// The object's labels are a default.
    pub(super) fn defaulted_labels(&self) -> bool {
        self.given.lock().defaulted_labels
    }

    /// Shows what was given where it is as good as nothing.
    pub(super) fn as_given(&self, errors: &mut ErrorList) {
        let given = self.given.lock();
        for emptied in &given.emptied {
            let about = |error: &&mut FieldError| {
                error.field == emptied.path && error.value.as_deref() == Some("null")
            };
            let shown = if emptied.is_list { "[]" } else { "{}" };
            errors.iter_mut().filter(about).for_each(|error| error.value = Some(shown.to_owned()));
        }
    }

    /// Something was written: its key, and the revision that was.
    pub fn committed(&self, key: &Arc<str>, revision: u64) {
        self.commits.lock().push((Arc::clone(key), revision));
    }

    /// What was written, each once.
    pub fn take_commits(&self) -> Vec<(Arc<str>, u64)> {
        std::mem::take(&mut *self.commits.lock())
    }

    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut texts = self.texts.lock();
        if !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.texts.lock())
    }

    /// Notes something for those who audit the request; the last value of a key counts.
    pub fn annotate(&self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) {
        let key = key.into();
        let mut annotations = self.annotations.lock();
        annotations.retain(|(known, _)| *known != key);
        annotations.push((key, value.into()));
    }

    pub fn take_annotations(&self) -> Vec<(Cow<'static, str>, String)> {
        std::mem::take(&mut self.annotations.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::field::Path;
    use serde_json::json;

    #[test]
    fn errors_show_empty_lists_and_maps_that_were_given() {
        let collected = Warnings::default();
        let emptied = |path: &str, is_list| Emptied { path: path.to_owned(), is_list };
        collected.emptied(vec![emptied("spec.rules", true), emptied("spec.labels", false)]);
        let spec = Path::new("spec");
        let mut errors: ErrorList = ["rules", "labels", "other"]
            .iter()
            .map(|name| FieldError::invalid(&spec.child(name), &Value::Null, "no"))
            .collect();
        errors.push(FieldError::invalid(&spec.child("labels"), &json!({"a": "b"}), "no"));
        collected.as_given(&mut errors);
        let shown: Vec<_> = errors.iter().map(|error| error.value.as_deref().unwrap_or("")).collect();
        assert_eq!(shown, ["[]", "{}", "null", r#"{"a":"b"}"#]);
    }

    #[test]
    fn labels_are_known_to_be_a_default() {
        let label = |object: &mut Value| {
            meta::metadata_mut(object).entry("labels").or_insert(json!({"a": "b"}));
        };
        for (object, defaulted) in [(json!({}), true), (json!({"metadata": {"labels": {"c": "d"}}}), false)] {
            let collected = Warnings::default();
            collected.set_defaults(&mut object.clone(), label);
            assert_eq!(collected.defaulted_labels(), defaulted, "{object}");
        }
    }
}
