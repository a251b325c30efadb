//! Group, version, kind and group, version, resource.

use std::fmt;

/// Group, version and kind: `apps/v1, Kind=Deployment`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// Group, version and resource: `apps/v1, Resource=deployments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    pub group: String,
    pub version: String,
    pub resource: String,
}

/// `v1` or `apps/v1`, as in an object's `apiVersion`.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Splits an `apiVersion` into group and version; the core group is empty.
///
/// ```
/// use machinery::gvk::{api_version, split_api_version};
///
/// assert_eq!(split_api_version("apps/v1"), ("apps", "v1"));
/// assert_eq!(split_api_version("v1"), ("", "v1"));
/// assert_eq!(api_version("", "v1"), "v1");
/// ```
pub fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

impl GroupVersionKind {
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

impl GroupVersionResource {
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self { group: group.to_owned(), version: version.to_owned(), resource: resource.to_owned() }
    }

    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Kind={}", self.api_version(), self.kind)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, Resource={}", self.api_version(), self.resource)
    }
}
