//! What a request may ask for besides its object.

use std::any::TypeId;

use objects::meta::v1::{DeleteOptions, Preconditions};
use serde_json::Value;

use crate::object::escape;

/// Which objects of a collection, and as of when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    /// `"0"` takes whatever the server has at hand; empty is up to date.
    pub resource_version: String,
    pub resource_version_match: String,
    /// Page size; 0 is everything at once.
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

/// Which changes, and from when on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    /// Begin with the objects there are, then a bookmark that says that those were all.
    pub send_initial_events: bool,
    pub bookmarks: bool,
    /// After how long the server ends the watch; 0 leaves it to the server.
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

/// A change to an object, in one of the API's languages.
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

/// What becomes of the objects an object owns when it is deleted.
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

/// Deletion of the object with this `uid` and no other of its name, if one is given.
#[must_use]
pub fn delete_options(uid: Option<&str>, propagation: Option<Propagation>) -> DeleteOptions {
    DeleteOptions {
        preconditions: uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() }),
        propagation_policy: propagation.map(|policy| policy.name().to_owned()),
        ..DeleteOptions::default()
    }
}

/// Why a loop writes: stamped on its requests, kept by the API server's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// The loop.
    pub controller: String,
    /// What it reconciles: `deployments.apps/default/web`.
    pub object: String,
    /// The revision that made it look; empty if it was a timer.
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

/// Knows why writes are made, and hears what they made of objects.
pub trait Causes: Send + Sync {
    /// Why a write is made that is made now.
    fn cause(&self) -> Cause;

    /// An object was changed, and has this revision now.
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
    fn queries() {
        let options = ListOptions { label_selector: "a in (b,c)".to_owned(), limit: 5, ..Default::default() };
        assert_eq!(options.query().0, "?labelSelector=a%20in%20(b,c)&limit=5");
        let options = WatchOptions { send_initial_events: true, ..WatchOptions::default() };
        assert_eq!(
            options.query().0,
            "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        );
    }
}
