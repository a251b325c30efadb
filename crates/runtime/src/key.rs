//! The name of an object within its kind.

use std::fmt;
use std::sync::Arc;

use client::Object;
use objects::meta::v1::{ObjectMeta, OwnerReference};

/// Namespace and name; the namespace is empty for cluster-scoped objects.
///
/// ```
/// use runtime::Key;
///
/// assert_eq!(Key::new("default", "web").to_string(), "default/web");
/// assert_eq!(Key::new("", "node-1").to_string(), "node-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    #[must_use]
    pub fn of<K: Object>(object: &K) -> Self {
        Self::of_meta(object.metadata())
    }

    #[must_use]
    pub fn of_meta(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Controller reference of an object, if it has one.
#[must_use]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}
