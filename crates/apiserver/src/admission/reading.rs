//! What plugins read of the cluster: objects straight from the watch caches.

use crate::cache::Entry;
use crate::registry::{Registry, store_error};
use machinery::Value;
use machinery::status::Result;
use std::sync::Arc;

/// Why no client could ask for an object of that name.
pub(super) fn unaskable(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("resource name may not be empty".to_owned());
    }
    let problems = machinery::names::path_segment_name(name, false);
    let shown = machinery::field::show_str(name);
    (!problems.is_empty()).then(|| format!("invalid resource name {shown}: [{}]", problems.join(" ")))
}

impl Registry {
    /// An object, or `None` if there is none of that name.
    pub(crate) async fn find(
        &self,
        resource: (&str, &str, &str),
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>> {
        self.find_if(resource, namespace, name, "").await
    }

    /// An object if it is there and its stored JSON contains `mention`.
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

    /// An object as it is stored, for those who can do without decoding it.
    pub(crate) async fn find_entry(
        &self,
        (group, version, resource): (&str, &str, &str),
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Entry>>> {
        let served = self.builtin(group, version, resource)?;
        let cache = &served.storage.cache;
        let key = served.key(namespace, name);
        cache.ready_for(&key).await.map_err(|e| store_error(&e))?;
        let mut entry = cache.get(&key);
        if entry.is_none() {
            // The cache of a remote store may lag behind: ask before saying no.
            cache.fresh(&key).await.map_err(|e| store_error(&e))?;
            entry = cache.get(&key);
        }
        Ok(entry)
    }

    /// The objects of a namespace (or of the cluster) whose stored JSON contains `mention`. Most objects can be
    /// passed over without decoding them.
    pub(crate) async fn find_all(
        &self,
        (group, version, resource): (&str, &str, &str),
        namespace: &str,
        mention: &str,
    ) -> Result<Vec<Value>> {
        let served = self.builtin(group, version, resource)?;
        let cache = &served.storage.cache;
        let scope = served.scope_key(namespace);
        let now = cache.fresh(&scope).await.map_err(|e| store_error(&e))?;
        let view = cache.list(&scope, None, 0, now, |entry| mentions(&entry.bytes, mention));
        Ok(view.entries.iter().map(|entry| entry.value()).collect())
    }
}

/// Whether stored JSON contains a text. Getting ready for a quick search costs more than looking through one object, so
/// this looks for a byte of the text that most JSON has few of.
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
    fn names_that_fit_into_no_path_cannot_be_asked_for() {
        assert_eq!(unaskable("a"), None);
        assert_eq!(unaskable("").as_deref(), Some("resource name may not be empty"));
        assert_eq!(unaskable("/a").as_deref(), Some("invalid resource name \"/a\": [may not contain '/']"));
    }

    #[test]
    fn mentions_are_found_wherever_they_are() {
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
