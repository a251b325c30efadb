//! What is collected while a request is handled.

use api::Rules;
use machinery::codec::typed::Emptied;
use machinery::field::{ErrorList, FieldError};
use machinery::{Value, meta};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Warnings of one request that are kept, and empty lists and maps that are remembered. Headers have room for fewer.
const MAX_TEXTS: usize = 1000;

/// `Warning` headers, each text once; annotations of the audit event; what the request wrote; what of its body is no
/// longer seen.
#[derive(Debug, Default)]
pub struct Warnings {
    texts: Mutex<Vec<String>>,
    annotations: Mutex<Vec<(Cow<'static, str>, String)>>,
    commits: Mutex<Vec<(Arc<str>, u64)>>,
    outcome_unknown: AtomicBool,
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
            let mut emptied = emptied;
            emptied.truncate(MAX_TEXTS);
            self.given.lock().emptied = emptied;
        }
    }

    /// Sets defaults of what a body said.
    pub fn set_defaults(&self, object: &mut Value, rules: Option<&dyn Rules>) {
        let Some(rules) = rules else { return };
        let has_labels = |object: &Value| meta::metadata(object).is_some_and(|m| m.contains_key("labels"));
        let had_labels = has_labels(object);
        rules.set_defaults(object);
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
            let (parent, name) = emptied.path.rsplit_once('.').unwrap_or(("", &emptied.path));
            let about = |error: &&mut FieldError| {
                let told = error.field == parent && error.detail.contains(&format!("`{name}`"));
                error.value.as_deref() == Some("null") && (told || error.field == emptied.path)
            };
            let shown = if emptied.is_list { "[]" } else { "{}" };
            errors.iter_mut().filter(about).for_each(|error| error.value = Some(shown.to_owned()));
        }
    }

    /// Something was written: its key, and the revision that was.
    pub fn committed(&self, key: &Arc<str>, revision: u64) {
        self.commits.lock().push((Arc::clone(key), revision));
    }

    /// A write failed in a way that leaves open whether it was stored.
    pub(super) fn note_unknown_outcome(&self) {
        self.outcome_unknown.store(true, Ordering::Relaxed);
    }

    /// Reports whether a write of this request may have been stored although it failed.
    pub(super) fn is_outcome_unknown(&self) -> bool {
        self.outcome_unknown.load(Ordering::Relaxed)
    }

    /// What was written, each once.
    pub fn take_commits(&self) -> Vec<(Arc<str>, u64)> {
        std::mem::take(&mut *self.commits.lock())
    }

    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut texts = self.texts.lock();
        if !text.is_empty() && texts.len() < MAX_TEXTS && !texts.contains(&text) {
            texts.push(text);
        }
    }

    /// The texts, cut where they are too many for headers.
    pub fn take(&self) -> Vec<String> {
        bounded(std::mem::take(&mut self.texts.lock()))
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

/// How many characters all warnings may have, and if they have more, each of them.
const TOTAL_CHARACTERS: usize = 4096;
const CHARACTERS: usize = 256;

/// Warnings as clients get them: all of them, or the beginnings of the first ones.
fn bounded(texts: Vec<String>) -> Vec<String> {
    let length = |text: &String| text.chars().count();
    if texts.iter().map(length).sum::<usize>() <= TOTAL_CHARACTERS {
        return texts;
    }
    // Those that fit together whole are told in any case.
    let mut total = 0;
    let fitting = texts.iter().take_while(|text| {
        total += length(text);
        total <= TOTAL_CHARACTERS
    });
    let at_least = fitting.count() + 1;
    let mut written = 0;
    let mut kept = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        if index >= at_least && written >= TOTAL_CHARACTERS {
            break;
        }
        let text: String = text.chars().take(CHARACTERS).collect();
        written += length(&text);
        kept.push(text);
    }
    kept
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
        errors.push(FieldError::invalid(&spec, &Value::Null, "there have to be `rules`"));
        errors.push(FieldError::invalid(&spec, &Value::Null, "no"));
        collected.as_given(&mut errors);
        let shown: Vec<_> = errors.iter().map(|error| error.value.as_deref().unwrap_or("")).collect();
        assert_eq!(shown, ["[]", "{}", "null", r#"{"a":"b"}"#, "[]", "null"]);
    }

    #[test]
    fn too_many_warnings_are_cut() {
        let lengths = |texts: Vec<usize>| -> Vec<usize> {
            bounded(texts.into_iter().map(|length| "ü".repeat(length)).collect())
                .iter()
                .map(|text| text.chars().count())
                .collect()
        };
        assert_eq!(lengths(vec![4000, 96]), [4000, 96]);
        assert_eq!(lengths(vec![4000, 97]), [256, 97]);
        assert_eq!(lengths(vec![5000]), [256]);
        assert_eq!(lengths(vec![300; 30]), [256; 16]);
        assert_eq!(lengths(vec![10; 500]), vec![10; 410]);
    }

    #[test]
    fn labels_are_known_to_be_a_default() {
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let rules = &api::kinds::replication_controller::KIND;
        for (metadata, defaulted) in [(json!({}), true), (json!({"labels": {"c": "d"}}), false)] {
            let collected = Warnings::default();
            let mut object = json!({"metadata": metadata, "spec": {"template": template}});
            collected.set_defaults(&mut object, Some(&rules));
            assert_eq!(collected.defaulted_labels(), defaulted, "{object}");
        }
    }
}
