//! Get and list: resource version semantics, selection and pagination.

use super::{OrStatus, Registry, Served, Version, store_error};
use crate::cache::{Entry, Layout, View};
use crate::chain::offload;
use crate::selection::Selection;
use crate::wire::options::{ListOptions, Match};
use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use machinery::status::{Cause, Details, Result, Status};
use std::sync::Arc;
use std::time::Duration;
use store::{RangeRequest, StoreError};

/// Wait limit of a read for a future revision.
const FUTURE_WAIT: Duration = Duration::from_secs(3);
/// Objects per read from an old revision.
const PAGE: usize = 1000;

/// Lenient decoding of tokens: trailing bits after the last byte are ignored.
const TOKENS: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// One page of a list.
pub struct Page {
    pub entries: Vec<Arc<Entry>>,
    pub revision: u64,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

/// Continuation of a list.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    /// `None`: the newest one; the list is no longer consistent.
    revision: Option<u64>,
    start: String,
}

impl Registry {
    /// One object. A resource version is a lower bound, which a fresh read always satisfies.
    pub async fn get(
        &self,
        served: &Version,
        namespace: &str,
        name: &str,
        version: &str,
    ) -> Result<Arc<Entry>> {
        let revision = match version {
            "" => 0,
            text => crate::wire::query::parse_uint(text).map_err(|why| {
                Status::new(500, "", format!("resourceVersion: Invalid value: {text:?}: {why}"))
            })?,
        };
        let cache = &served.storage.cache;
        let key = served.key(namespace, name);
        let now = cache.fresh(&key).await.or_status()?;
        served.await_revision(revision, now).await?;
        cache.get(&key).ok_or_else(|| served.not_found(name))
    }

    pub async fn list(
        &self,
        served: &Served,
        namespace: &str,
        selection: &Selection,
        options: &ListOptions,
    ) -> Result<Page> {
        let cache = &served.storage.cache;
        let scope =
            selection.narrow(served.scope_key(namespace), served.namespaced() && namespace.is_empty());
        if !options.continue_token.is_empty() {
            let token = Token::decode(&options.continue_token)?;
            if !matches!(options.resource_version.as_str(), "" | "0") {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let limit = if options.resource_version == "0" { 0 } else { options.limit };
            return self.list_from(served, &scope, selection, limit, token).await;
        }
        let requested = options.revision()?;
        let now = cache.fresh(&scope).await.or_status()?;
        // A limit together with a resource version means exactly that version.
        let exact = match options.resource_version_match {
            Match::Exact => true,
            Match::NotOlderThan => false,
            Match::Unset => options.limit > 0 && requested.is_some_and(|revision| revision > 0),
        };
        if let (true, Some(revision)) = (exact, requested) {
            served.await_revision(revision, now).await?;
            let token = Token { revision: Some(revision), start: String::new() };
            return self.list_from(served, &scope, selection, options.limit, token).await;
        }
        served.await_revision(requested.unwrap_or(0), now).await?;
        // For "any version" limits do not apply.
        let limit = if requested == Some(0) { 0 } else { options.limit };
        let view = matching(served, &scope, None, limit, now, selection).await?;
        served.storage.lists.cache.add(view.scanned, view.entries.len());
        Ok(self.page(served, selection, view.entries, view.revision, view.more.then_some(view.remaining)))
    }

    fn page(
        &self,
        served: &Served,
        selection: &Selection,
        entries: Vec<Arc<Entry>>,
        revision: u64,
        remaining: Option<usize>,
    ) -> Page {
        let continue_token = remaining.and_then(|_| {
            let last = entries.last()?;
            let start = format!("{}\0", last.key.strip_prefix(served.storage.cache.root.as_str())?);
            Some(Token { revision: Some(revision), start }.encode())
        });
        // With a selector the number of remaining matches is unknown.
        let remaining = remaining.filter(|_| selection.is_everything());
        Page { entries, revision, continue_token, remaining }
    }

    /// A list at an old revision, or the continuation of one.
    async fn list_from(
        &self,
        served: &Served,
        scope: &str,
        selection: &Selection,
        limit: usize,
        token: Token,
    ) -> Result<Page> {
        let cache = &served.storage.cache;
        let root = &cache.root;
        let start = format!("{root}{}", token.start);
        let start = if start.as_str() < scope { scope.to_owned() } else { start };
        let now = cache.fresh(scope).await.or_status()?;
        let Some(revision) = token.revision else {
            let view = matching(served, scope, Some(&start), limit, now, selection).await?;
            served.storage.lists.cache.add(view.scanned, view.entries.len());
            let remaining = view.more.then_some(view.remaining);
            return Ok(self.page(served, selection, view.entries, view.revision, remaining));
        };
        // This resource is unchanged since that revision: the cache can serve it, regardless of compaction.
        let compacted = served.storage.store.compacted().await.or_status()?;
        if cache.revision() <= revision && revision <= now && revision >= compacted {
            let mut view = matching(served, scope, Some(&start), limit, now, selection).await?;
            served.storage.lists.cache.add(view.scanned, view.entries.len());
            view.revision = revision;
            let remaining = view.more.then_some(view.remaining);
            return Ok(self.page(served, selection, view.entries, revision, remaining));
        }
        self.list_at(served, scope, selection, limit, start, revision, token.start.is_empty()).await
    }

    #[expect(clippy::too_many_arguments, reason = "one private step of a list, not worth a type of its own")]
    async fn list_at(
        &self,
        served: &Served,
        scope: &str,
        selection: &Selection,
        limit: usize,
        mut start: String,
        revision: u64,
        fresh: bool,
    ) -> Result<Page> {
        let layout: &Layout = &served.storage.cache.layout;
        let end = store::prefix_end(scope);
        let mut entries = Vec::new();
        let mut following = 0;
        let mut fetched = 0;
        loop {
            let request = RangeRequest {
                start: start.clone(),
                end: end.clone(),
                limit: PAGE,
                revision: Some(revision),
            };
            let page = match served.storage.store.range(request).await {
                Ok(page) => page,
                Err(StoreError::Compacted { .. }) => return Err(expired(&start, served, fresh)),
                Err(error) => return Err(store_error(&error)),
            };
            let found: Vec<Arc<Entry>> = page
                .kvs
                .into_iter()
                .map(|kv| Arc::new(layout.entry(kv.key, kv.value, kv.mod_revision)))
                .collect();
            let count = found.len();
            fetched += count;
            let converted = if selection.needs_conversion(served) {
                Some(selection.matching_converted(served, &found).await?)
            } else {
                None
            };
            for (index, entry) in found.into_iter().enumerate() {
                if limit > 0 && entries.len() == limit {
                    following = page.count as usize - index;
                    break;
                }
                let matches = match &converted {
                    Some(verdicts) => verdicts.get(index) == Some(&true),
                    None => selection.matches(&entry, layout),
                };
                if !matches {
                    continue;
                }
                start = format!("{}\0", entry.key);
                entries.push(entry);
            }
            if following > 0 || !page.more || count == 0 {
                break;
            }
        }
        served.storage.lists.store.add(fetched, entries.len());
        Ok(self.page(served, selection, entries, revision, (following > 0).then_some(following)))
    }
}

impl Version {
    /// Waits for a revision that a client has seen on another server.
    pub(super) async fn await_revision(&self, wanted: u64, now: u64) -> Result<()> {
        if wanted <= now {
            return Ok(());
        }
        let deadline = tokio::time::Instant::now() + FUTURE_WAIT;
        let mut current = now;
        while tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
            current = self.storage.store.barrier().await.or_status()?;
            if current >= wanted {
                return Ok(());
            }
        }
        let message = format!("Too large resource version: {wanted}, current: {current}");
        Err(Status::timeout(format!("Timeout: {message}"), 1).with_details(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".to_owned(),
                message: "Too large resource version".to_owned(),
                ..Cause::default()
            }],
            retry_after_seconds: 1,
            ..Details::default()
        }))
    }
}

/// Matching objects in the cache. With a costly selection the lock of the cache is held for collecting references
/// only.
async fn matching(
    served: &Served,
    scope: &str,
    from: Option<&str>,
    limit: usize,
    now: u64,
    selection: &Selection,
) -> Result<View> {
    let cache = &served.storage.cache;
    let matches = |entry: &Entry| selection.matches(entry, &cache.layout);
    let converts = selection.needs_conversion(served);
    if !converts && !selection.is_costly() {
        return Ok(cache.list(scope, from, limit, now, matches));
    }
    offload::heavy().await;
    let mut view = cache.list(scope, from, 0, now, |_| true);
    let all = std::mem::take(&mut view.entries);
    let portion = if converts { PAGE } else { all.len().max(1) };
    for (number, entries) in all.chunks(portion).enumerate() {
        let verdicts = if converts {
            selection.matching_converted(served, entries).await?
        } else {
            entries.iter().map(|entry| matches(entry)).collect()
        };
        for (index, (entry, matches)) in entries.iter().zip(verdicts).enumerate() {
            if limit > 0 && view.entries.len() == limit {
                view.more = true;
                view.remaining = all.len() - number * portion - index;
                return Ok(view);
            }
            if matches {
                view.entries.push(Arc::clone(entry));
            }
        }
    }
    Ok(view)
}

/// Error for a compacted revision. A continued list gets a token for an inconsistent continuation.
fn expired(start: &str, served: &Served, fresh: bool) -> Status {
    if fresh {
        return Status::expired("The resourceVersion for the provided list is too old.");
    }
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let start = start.strip_prefix(served.storage.cache.root.as_str()).unwrap_or(start).to_owned();
    status.continue_token = Some(Token { revision: None, start }.encode());
    status
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Wire {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

impl Token {
    fn encode(&self) -> String {
        let rv = self.revision.map_or(-1, |r| i64::try_from(r).unwrap_or(i64::MAX));
        let wire = Wire { v: "meta.k8s.io/v1".to_owned(), rv, start: self.start.clone() };
        TOKENS.encode(serde_json::to_vec(&wire).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self> {
        let invalid = |why: String| Status::bad_request(format!("invalid continue token: {why}"));
        let bytes = TOKENS
            .decode(text)
            .map_err(|e| invalid(format!("continue key is not valid: {}", base64_error(text, &e))))?;
        if let Some(first) = bytes.first().filter(|byte| **byte >= 0x80) {
            return Err(invalid(format!(
                "continue key is not valid: invalid character '\\u{first:04x}' looking for beginning of value"
            )));
        }
        if let Err(error) = machinery::codec::json::decode(&bytes) {
            return Err(invalid(format!("continue key is not valid: {error}")));
        }
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|_| {
            invalid("continue key is not valid: json: cannot unmarshal into the token".to_owned())
        })?;
        if wire.v != "meta.k8s.io/v1" {
            return Err(invalid(format!(
                "continue key is not valid: server does not recognize this encoded version {}",
                wire.v
            )));
        }
        if wire.rv == 0 {
            return Err(invalid(
                "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
                    .to_owned(),
            ));
        }
        if wire.start.is_empty() {
            return Err(invalid(
                "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)".to_owned(),
            ));
        }
        let key = wire.start.trim_start_matches('/');
        if wire.start.starts_with("//") || key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(invalid(format!("continue key is not valid: {}", wire.start)));
        }
        Ok(Self { revision: u64::try_from(wire.rv).ok(), start: key.to_owned() })
    }
}

/// Go's error text for an invalid base64 character.
fn base64_error(text: &str, error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        // Caused by a single trailing character.
        _ => text.len() - text.len() % 4,
    };
    format!("illegal base64 data at input byte {at}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_round_trip_and_reject_path_traversal() {
        let token = Token { revision: Some(7), start: "ns/name\0".to_owned() };
        assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        let token = Token { revision: None, start: "a".to_owned() };
        assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        for start in ["../../", "a/../b", "//a", "a//b", "./a"] {
            let bad = Token { revision: Some(1), start: start.to_owned() }.encode();
            assert_eq!(Token::decode(&bad).unwrap_err().code, 400, "{start}");
        }
        for (text, at) in [("bogus", 4), ("x", 0), ("b!", 1)] {
            let decode_message = Token::decode(text).unwrap_err().message;
            assert!(
                decode_message.ends_with(&format!("illegal base64 data at input byte {at}")),
                "{text}: {decode_message}"
            );
        }
        let error = Token::decode("e30").unwrap_err();
        assert_eq!(
            error.message,
            "invalid continue token: continue key is not valid: server does not recognize this encoded version "
        );
    }
}
