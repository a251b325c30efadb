//! Record of a request's writes: warnings, audit annotations, commits.

use super::DecodedInput;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Limit of warnings per request. Headers hold fewer.
const MAX_WARNINGS: usize = 1000;

/// `Warning` headers without duplicates, audit annotations and commits of a request, with notes about its body.
#[derive(Debug, Default)]
pub struct WriteRecord {
    warnings: Mutex<Vec<String>>,
    annotations: Mutex<Vec<(Cow<'static, str>, String)>>,
    commits: Mutex<Vec<(Arc<str>, u64)>>,
    outcome_unknown: AtomicBool,
    /// Nanoseconds in queues and webhooks.
    waited: AtomicU64,
    pub input: DecodedInput,
}

impl WriteRecord {
    /// Records a commit: its key and revision.
    pub fn committed(&self, key: &Arc<str>, revision: u64) {
        base::trace::wrote(revision);
        self.commits.lock().push((Arc::clone(key), revision));
    }

    /// Records a failed write that may have been stored.
    pub(super) fn note_unknown_outcome(&self) {
        self.outcome_unknown.store(true, Ordering::Relaxed);
    }

    /// Reports whether a write of this request may have been stored although it failed.
    pub(super) fn is_outcome_unknown(&self) -> bool {
        self.outcome_unknown.load(Ordering::Relaxed)
    }

    /// Adds time that the request spent in a queue or in admission webhooks.
    pub fn add_wait(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Time in queues and admission webhooks.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// Takes the recorded commits.
    pub fn take_commits(&self) -> Vec<(Arc<str>, u64)> {
        std::mem::take(&mut *self.commits.lock())
    }

    /// Adds a warning; empty ones and duplicates are ignored.
    pub fn warn(&self, warning: impl Into<String>) {
        let warning = warning.into();
        let mut warnings = self.warnings.lock();
        if !warning.is_empty() && warnings.len() < MAX_WARNINGS && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Takes the warnings, truncated to the limits of headers.
    pub fn take_warnings(&self) -> Vec<String> {
        bounded(std::mem::take(&mut self.warnings.lock()))
    }

    /// Adds an audit annotation; the last value of a key wins.
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

/// Limit of the total characters of warnings and, beyond it, of each one.
const TOTAL_CHARACTERS: usize = 4096;
const CHARACTERS: usize = 256;

/// All warnings, or truncated first ones.
fn bounded(texts: Vec<String>) -> Vec<String> {
    let length = |text: &String| text.chars().count();
    if texts.iter().map(length).sum::<usize>() <= TOTAL_CHARACTERS {
        return texts;
    }
    // At least as many as would fit untruncated.
    let mut total = 0;
    let fitting = texts.iter().take_while(|text| {
        total += length(text);
        total <= TOTAL_CHARACTERS
    });
    let at_least = fitting.count() + 1;
    let mut written = 0;
    let mut retained = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        if index >= at_least && written >= TOTAL_CHARACTERS {
            break;
        }
        let text: String = text.chars().take(CHARACTERS).collect();
        written += length(&text);
        retained.push(text);
    }
    retained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_warnings_are_truncated() {
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
}
