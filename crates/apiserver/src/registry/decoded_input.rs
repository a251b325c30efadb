//! Notes about a decoded body that its object no longer shows.

use machinery::codec::typed::Emptied;
use machinery::field::{ErrorList, FieldError};
use parking_lot::Mutex;

/// Limit of recorded empty lists and maps.
const MAX_EMPTIED: usize = 1000;

/// Parts of a body that decoding dropped, and labels that it added.
#[derive(Debug, Default)]
pub struct DecodedInput {
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    emptied: Vec<Emptied>,
    defaulted_labels: bool,
}

impl DecodedInput {
    /// Records empty lists and maps that decoding dropped.
    pub fn record_emptied(&self, emptied: Vec<Emptied>) {
        if !emptied.is_empty() {
            let mut emptied = emptied;
            emptied.truncate(MAX_EMPTIED);
            self.notes.lock().emptied = emptied;
        }
    }

    /// Records that the object's labels are a default.
    pub fn record_defaulted_labels(&self) {
        self.notes.lock().defaulted_labels = true;
    }

    /// Reports whether the object's labels are a default.
    pub(super) fn defaulted_labels(&self) -> bool {
        self.notes.lock().defaulted_labels
    }

    /// Restores submitted empty lists and maps in errors that would show `null`.
    pub(super) fn restore_emptied(&self, errors: &mut ErrorList) {
        let notes = self.notes.lock();
        for emptied in &notes.emptied {
            let (parent, name) = emptied.path.rsplit_once('.').unwrap_or(("", &emptied.path));
            let about = |error: &&mut FieldError| {
                let in_detail = error.field == parent && error.detail.contains(&format!("`{name}`"));
                error.value.as_deref() == Some("null") && (in_detail || error.field == emptied.path)
            };
            let shown = if emptied.is_list { "[]" } else { "{}" };
            errors.iter_mut().filter(about).for_each(|error| error.value = Some(shown.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::Value;
    use machinery::field::Path;
    use serde_json::json;

    #[test]
    fn errors_show_submitted_empty_lists_and_maps() {
        let collected = DecodedInput::default();
        let emptied = |path: &str, is_list| Emptied { path: path.to_owned(), is_list };
        collected.record_emptied(vec![emptied("spec.rules", true), emptied("spec.labels", false)]);
        let spec = Path::new("spec");
        let mut errors: ErrorList = ["rules", "labels", "other"]
            .iter()
            .map(|name| FieldError::invalid(&spec.child(name), &Value::Null, "no"))
            .collect();
        errors.push(FieldError::invalid(&spec.child("labels"), &json!({"a": "b"}), "no"));
        errors.push(FieldError::invalid(&spec, &Value::Null, "there have to be `rules`"));
        errors.push(FieldError::invalid(&spec, &Value::Null, "no"));
        collected.restore_emptied(&mut errors);
        let shown: Vec<_> = errors.iter().map(|error| error.value.as_deref().unwrap_or("")).collect();
        assert_eq!(shown, ["[]", "{}", "null", r#"{"a":"b"}"#, "[]", "null"]);
    }

    #[test]
    fn defaulted_labels_are_recorded() {
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let rules = &api::kinds::replication_controller::KIND;
        for (metadata, defaulted) in [(json!({}), true), (json!({"labels": {"c": "d"}}), false)] {
            let collected = DecodedInput::default();
            let mut object = json!({"metadata": metadata, "spec": {"template": template}});
            crate::wire::decode::set_defaults(&mut object, &rules, &collected);
            assert_eq!(collected.defaulted_labels(), defaulted, "{object}");
        }
    }
}
