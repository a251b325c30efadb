//! Reads of plugins: objects straight from the watch caches.

use crate::cache::Entry;
use crate::registry::{OrStatus, Registry};
use machinery::Value;
use machinery::status::Result;
use std::sync::Arc;

/// Reason why a name cannot be requested by a client.
pub(super) fn invalid_name_reason(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("resource name may not be empty".to_owned());
    }
    let problems = machinery::names::path_segment_name(name, false);
    let shown = machinery::field::show_str(name);
    (!problems.is_empty()).then(|| format!("invalid resource name {shown}: [{}]", problems.join(" ")))
}

impl Registry {
    /// Returns an object; `None` if it does not exist.
    pub(crate) async fn find(
        &self,
        resource: (&str, &str, &str),
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>> {
        self.find_if(resource, namespace, name, "").await
    }

    /// Returns an object if it exists and its stored JSON contains `mention`.
    pub(crate) async fn find_if(
        &self,
        resource: (&str, &str, &str),
        namespace: &str,
        name: &str,
        mention: &str,
    ) -> Result<Option<Value>> {
        let entry = self.find_entry(resource, namespace, name).await?;
        Ok(entry.filter(|entry| mentions(&entry.bytes, mention)).map(|entry| entry.value()))
    }

    /// Returns an object as stored, for callers that need not decode it.
    pub(crate) async fn find_entry(
        &self,
        (group, version, resource): (&str, &str, &str),
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Entry>>> {
        let served = self.builtin(group, version, resource)?;
        let cache = &served.storage.cache;
        let key = served.key(namespace, name);
        cache.ready_for(&key).await.or_status()?;
        let mut entry = cache.get(&key);
        if entry.is_none() {
            // The cache of a remote store may lag: sync before reporting the object as missing.
            cache.fresh(&key).await.or_status()?;
            entry = cache.get(&key);
        }
        Ok(entry)
    }

    /// Returns the objects of a namespace (or of the cluster) whose stored JSON contains `mention`, so that most
    /// objects are skipped undecoded.
    pub(crate) async fn find_all(
        &self,
        (group, version, resource): (&str, &str, &str),
        namespace: &str,
        mention: &str,
    ) -> Result<Vec<Value>> {
        let served = self.builtin(group, version, resource)?;
        let cache = &served.storage.cache;
        let scope = served.scope_key(namespace);
        let now = cache.fresh(&scope).await.or_status()?;
        let view = cache.list(&scope, None, 0, now, |entry| mentions(&entry.bytes, mention));
        Ok(view.entries.iter().map(|entry| entry.value()).collect())
    }
}

/// Reports whether stored JSON contains a text. Preparing a fast searcher costs more than scanning one object, so
/// this scans for the byte of the text that is rarest in JSON.
pub(super) fn mentions(json: &[u8], text: &str) -> bool {
    let text = text.as_bytes();
    let rarity = |byte: u8| match byte {
        b'A'..=b'Z' => 3,
        b'/' | b'_' => 2,
        b'a'..=b'z' => 1,
        _ => 0,
    };
    let Some((at, &rare)) = text.iter().enumerate().max_by_key(|(_, byte)| rarity(**byte)) else {
        return true;
    };
    memchr::memchr_iter(rare, json)
        .filter_map(|found| json.get(found.checked_sub(at)?..))
        .any(|rest| rest.starts_with(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_path_segment_names_have_a_reason() {
        assert_eq!(invalid_name_reason("a"), None);
        assert_eq!(invalid_name_reason("").as_deref(), Some("resource name may not be empty"));
        assert_eq!(
            invalid_name_reason("/a").as_deref(),
            Some("invalid resource name \"/a\": [may not contain '/']")
        );
    }

    #[test]
    fn mentions_finds_text_at_any_position() {
        let json = br#"{"metadata":{"name":"a/b"},"globalDefault":true,"aa":"aaab"}"#;
        for text in ["", "{", "\"globalDefault\":true", "aaab\"}", "a/b", "\"metadata\"", "aab", "}"] {
            assert!(mentions(json, text), "{text}");
        }
        for text in ["Terminating", "globalDefault\":false", "aaaab", "}}", "x{", "}x"] {
            assert!(!mentions(json, text), "{text}");
        }
        assert!(!mentions(b"", "a") && mentions(b"", ""));
    }
}
