//! Options of requests.

use std::any::TypeId;

use objects::meta::v1::{DeleteOptions, Preconditions};
use serde_json::Value;

use crate::object::escape;

/// Selection of objects of a collection, and their revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    /// `"0"` accepts any cached state; empty is the most recent one.
    pub resource_version: String,
    pub resource_version_match: String,
    /// Page size; 0 is unlimited.
    pub limit: u32,
    pub continue_token: String,
}

impl ListOptions {
    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        query.add("labelSelector", &self.label_selector);
        query.add("fieldSelector", &self.field_selector);
        query.add("resourceVersion", &self.resource_version);
        query.add("resourceVersionMatch", &self.resource_version_match);
        if self.limit > 0 {
            query.add("limit", &self.limit.to_string());
        }
        query.add("continue", &self.continue_token);
        query
    }
}

/// Selection of changes, and their first revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    /// Starts with the existing objects, followed by a bookmark.
    pub send_initial_events: bool,
    pub bookmarks: bool,
    /// Time after which the server ends the watch; 0 is the server's default.
    pub timeout_seconds: u32,
}

impl WatchOptions {
    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        query.add("watch", "true");
        query.add("labelSelector", &self.label_selector);
        query.add("fieldSelector", &self.field_selector);
        query.add("resourceVersion", &self.resource_version);
        if self.send_initial_events {
            query.add("sendInitialEvents", "true");
            query.add("resourceVersionMatch", "NotOlderThan");
        }
        if self.bookmarks || self.send_initial_events {
            query.add("allowWatchBookmarks", "true");
        }
        if self.timeout_seconds > 0 {
            query.add("timeoutSeconds", &self.timeout_seconds.to_string());
        }
        query
    }
}

/// A change to an object, in one of the API's patch types.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    /// Server-side apply.
    Apply {
        manager: String,
        force: bool,
        object: Value,
    },
}

impl Patch {
    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
            Self::Apply { .. } => "application/apply-patch+yaml",
        }
    }

    pub(crate) fn body(&self) -> &Value {
        match self {
            Self::Json(value) | Self::Merge(value) | Self::Strategic(value) => value,
            Self::Apply { object, .. } => object,
        }
    }

    pub(crate) fn query(&self) -> Query {
        let mut query = Query::default();
        if let Self::Apply { manager, force, .. } = self {
            query.add("fieldManager", manager);
            if *force {
                query.add("force", "true");
            }
        }
        query
    }
}

/// Deletion propagation to owned objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

/// Deletes the object only if it has this `uid`, if one is specified.
#[must_use]
pub fn delete_options(uid: Option<&str>, propagation: Option<Propagation>) -> DeleteOptions {
    DeleteOptions {
        preconditions: uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() }),
        propagation_policy: propagation.map(|policy| policy.name().to_owned()),
        ..DeleteOptions::default()
    }
}

/// Cause of a controller's write: sent with its requests, recorded in the API server's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Name of the controller.
    pub controller: String,
    /// The reconciled object: `deployments.apps/default/web`.
    pub object: String,
    /// The revision that triggered the reconciliation; empty for a timer.
    pub revision: String,
}

impl Cause {
    /// The name of the header.
    pub const HEADER: &'static str = "ferry-cause";

    /// The value of the header.
    #[must_use]
    pub fn header(&self) -> String {
        format!("loop={}; object={}; revision={}", self.controller, self.object, self.revision)
    }
}

/// Provider of the causes of writes, notified of completed ones.
pub trait Causes: Send + Sync {
    /// Cause of the current write.
    fn cause(&self) -> Cause;

    /// An object was written and has this revision now.
    fn wrote(&self, _kind: TypeId, _ns: &str, _name: &str, _revision: &str) {}
}

impl Causes for Cause {
    fn cause(&self) -> Cause {
        self.clone()
    }
}

/// A query string under construction; empty values are left out.
#[derive(Debug, Default)]
pub(crate) struct Query(pub String);

impl Query {
    pub fn add(&mut self, key: &str, value: &str) {
        use std::fmt::Write;
        if value.is_empty() {
            return;
        }
        let separator = if self.0.is_empty() { '?' } else { '&' };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{separator}{key}={}", escape(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_strings_are_built() {
        let options = ListOptions { label_selector: "a in (b,c)".to_owned(), limit: 5, ..Default::default() };
        assert_eq!(options.query().0, "?labelSelector=a%20in%20(b,c)&limit=5");
        let options = WatchOptions { send_initial_events: true, ..WatchOptions::default() };
        assert_eq!(
            options.query().0,
            "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
    }
}
