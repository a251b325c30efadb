//! Facts of subresources, one row each: how requests are handled, and which forms responses have.

use crate::kind::MetadataCheck;
use crate::{kinds, pod};
use machinery::Value;
use machinery::field::ErrorList;

/// One subresource. Fields that are not named have the values of [`Subresource::DEFAULT`].
#[derive(Debug)]
pub struct Subresource {
    /// Resource of the core group or of `certificates.k8s.io`; empty for that of all resources.
    pub resource: &'static str,
    pub name: &'static str,
    pub handler: Handler,
    /// True if its requests are long-running streams.
    pub streaming: bool,
    /// True if responses have a table form.
    pub tabular: bool,
}

/// Handler of the requests to a subresource.
#[derive(Debug)]
pub enum Handler {
    /// The object's status, updated with the kind's own rules.
    Status,
    /// The object, updated with these rules.
    Update(UpdateRules),
    /// A view of the object's replicas.
    Scale,
    /// A connection to the pod, the service or the node.
    Connect,
    Bind,
    Evict,
    Token,
}

/// Update strategy of a subresource of one kind.
#[derive(Clone, Copy, Debug)]
pub struct UpdateRules {
    pub prepare: fn(&mut Value, &Value),
    pub validate: fn(&Value, &Value) -> ErrorList,
    pub metadata: &'static [MetadataCheck],
    /// True if changes increment the generation.
    pub counts_generation: bool,
}

impl Subresource {
    const DEFAULT: Self =
        Self { resource: "", name: "", handler: Handler::Status, streaming: false, tabular: true };

    const fn connection(resource: &'static str, name: &'static str) -> Self {
        Self { resource, name, handler: Handler::Connect, streaming: true, ..Self::DEFAULT }
    }

    /// Without a table form.
    const fn plain(resource: &'static str, name: &'static str, handler: Handler) -> Self {
        Self { resource, name, handler, tabular: false, ..Self::DEFAULT }
    }
}

/// Rows of one resource precede those of all.
static ROWS: &[Subresource] = &[
    Subresource::connection("pods", "attach"),
    Subresource::connection("pods", "exec"),
    Subresource::connection("pods", "log"),
    Subresource::connection("pods", "portforward"),
    Subresource::connection("pods", "proxy"),
    Subresource::connection("services", "proxy"),
    Subresource::connection("nodes", "proxy"),
    Subresource::plain("pods", "binding", Handler::Bind),
    Subresource::plain("pods", "eviction", Handler::Evict),
    Subresource::plain("serviceaccounts", "token", Handler::Token),
    Subresource::plain(
        "pods",
        "ephemeralcontainers",
        Handler::Update(UpdateRules {
            prepare: pod::ephemeral::prepare,
            validate: pod::ephemeral::validate,
            metadata: &[MetadataCheck::Update],
            counts_generation: true,
        }),
    ),
    Subresource::plain(
        "pods",
        "resize",
        Handler::Update(UpdateRules {
            prepare: pod::resize::prepare,
            validate: pod::resize::validate,
            metadata: &[MetadataCheck::Update],
            counts_generation: true,
        }),
    ),
    Subresource::plain(
        "namespaces",
        "finalize",
        Handler::Update(UpdateRules {
            prepare: kinds::namespace::prepare_finalize,
            validate: kinds::namespace::validate_finalize,
            metadata: &[MetadataCheck::Update],
            counts_generation: false,
        }),
    ),
    Subresource::plain(
        "certificatesigningrequests",
        "approval",
        Handler::Update(UpdateRules {
            prepare: kinds::certificate_signing_request::prepare_approval_update,
            validate: kinds::certificate_signing_request::validate_approval_update,
            metadata: &[MetadataCheck::New],
            counts_generation: false,
        }),
    ),
    Subresource::plain("resourceclaims", "status", Handler::Status),
    Subresource { name: "status", ..Subresource::DEFAULT },
    Subresource { name: "scale", handler: Handler::Scale, ..Subresource::DEFAULT },
];

/// Facts of a subresource; `None` if it has no handler.
///
/// ```
/// let log = api::subresources::find("pods", "log").expect("a row");
/// assert!(log.streaming);
/// ```
pub fn find(resource: &str, name: &str) -> Option<&'static Subresource> {
    ROWS.iter().find(|row| row.name == name && (row.resource.is_empty() || row.resource == resource))
}

/// True for a name of subresources with long-running streams, of extension servers too.
pub fn is_streaming(name: &str) -> bool {
    ROWS.iter().any(|row| row.name == name && row.streaming)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::RESOURCES;

    #[test]
    fn every_served_subresource_has_a_row() {
        for resource in RESOURCES {
            for subresource in resource.subresources {
                let row = find(resource.resource, subresource.name);
                assert!(row.is_some(), "{}/{}", resource.resource, subresource.name);
            }
        }
    }

    #[test]
    fn every_row_of_one_resource_is_served() {
        for row in ROWS.iter().filter(|row| !row.resource.is_empty()) {
            let mut served = RESOURCES.iter().filter(|resource| resource.resource == row.resource);
            let is_served =
                served.any(|resource| resource.subresources.iter().any(|sub| sub.name == row.name));
            assert!(is_served, "{}/{}", row.resource, row.name);
        }
    }

    #[test]
    fn rows_of_one_resource_precede_those_of_all() {
        assert!(!find("resourceclaims", "status").expect("a row").tabular);
        assert!(find("pods", "status").expect("a row").tabular);
        assert!(find("widgets", "log").is_none() && is_streaming("log"));
    }
}
