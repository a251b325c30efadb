//! Paths of resources and collections of objects.

use objects::Object;
use objects::meta::v1::ListMeta;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Objects of one path, in one form: the source of an informer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collection {
    pub(crate) path: String,
    pub(crate) metadata_only: bool,
}

impl Collection {
    /// The objects of a kind in `ns`, or in all namespaces if it is empty.
    #[must_use]
    pub fn of<K: Object>(ns: &str) -> Self {
        let path = path(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT, ns, "", None);
        Self { path, metadata_only: false }
    }

    /// The metadata of a resource's objects: decode them as [`crate::PartialObject`].
    #[must_use]
    pub fn metadata_of(resource: &ResourceKey) -> Self {
        Self { path: resource.path("", "", None), metadata_only: true }
    }

    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

/// A list, as of one revision.
#[derive(Clone, Debug)]
pub struct ObjectList<K> {
    pub items: Vec<K>,
    pub metadata: ListMeta,
}

impl<K> ObjectList<K> {
    #[must_use]
    pub fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// Continue token of the next page; `None` for the last page.
    #[must_use]
    pub fn next_page(&self) -> Option<&str> {
        self.metadata.continue_.as_deref().filter(|token| !token.is_empty())
    }
}

/// Characters that must be escaped in a path segment or a query value.
const RESERVED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'+')
    .add(b'/')
    .add(b'<')
    .add(b'=')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Percent-encodes characters with a meaning in a path or a query.
pub fn escape(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, RESERVED)
}

/// A resource in the form of the API's paths.
///
/// ```
/// use client::ResourceKey;
/// use objects::apps::v1::Deployment;
///
/// let deployments = ResourceKey::of::<Deployment>();
/// assert_eq!(deployments.qualified(), "deployments.apps");
/// assert_eq!(deployments.path("n", "web", Some("scale")), "/apis/apps/v1/namespaces/n/deployments/web/scale");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub namespaced: bool,
}

impl ResourceKey {
    /// The resource of a kind known at compile time.
    #[must_use]
    pub fn of<K: Object>() -> Self {
        Self {
            group: K::GROUP.to_owned(),
            version: K::VERSION.to_owned(),
            resource: K::URL_PATH_SEGMENT.to_owned(),
            // The scope is not needed for paths of typed objects: their callers pass a namespace or none.
            namespaced: true,
        }
    }

    /// `pods`, `deployments.apps`.
    #[must_use]
    pub fn qualified(&self) -> String {
        qualified(&self.group, &self.resource)
    }

    /// The `apiVersion` of its objects.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    #[must_use]
    pub fn path(&self, ns: &str, name: &str, subresource: Option<&str>) -> String {
        path(&self.group, &self.version, &self.resource, ns, name, subresource)
    }
}

pub(crate) fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// The path of an object, or of its collection if `name` is empty; without namespace if `ns` is empty.
pub(crate) fn path(
    group: &str,
    version: &str,
    resource: &str,
    ns: &str,
    name: &str,
    subresource: Option<&str>,
) -> String {
    let mut path = String::with_capacity(96);
    if group.is_empty() {
        path.push_str("/api/");
    } else {
        path.push_str("/apis/");
        path.push_str(group);
        path.push('/');
    }
    path.push_str(version);
    if !ns.is_empty() {
        path.push_str("/namespaces/");
        path.push_str(&escape(ns).to_string());
    }
    path.push('/');
    path.push_str(resource);
    if !name.is_empty() {
        path.push('/');
        path.push_str(&escape(name).to_string());
    }
    if let Some(subresource) = subresource {
        path.push('/');
        path.push_str(subresource);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::apps::v1::Deployment;
    use objects::core::v1::Node;

    #[test]
    fn resource_paths_are_built() {
        let deployments = ResourceKey::of::<Deployment>();
        assert_eq!(deployments.path("", "", None), "/apis/apps/v1/deployments");
        assert_eq!(
            deployments.path("web", "a", Some("status")),
            "/apis/apps/v1/namespaces/web/deployments/a/status"
        );
        assert_eq!(ResourceKey::of::<Node>().path("", "../n?x", None), "/api/v1/nodes/..%2Fn%3Fx");
        assert_eq!(deployments.qualified(), "deployments.apps");
    }
}
