//! Built-in resources: builds served resources from [`api::resources`] and [`api::kinds`].

use super::version::{Conversion, Served, Version};
use super::{Storage, Stores};
use crate::authorize::Rbac;
use crate::authorize::node::{self, Node};
use crate::request_info::Verbs;
use api::Kind;
use api::kinds::{
    KINDS, cluster_role, cluster_role_binding, persistent_volume, pod, pod_certificate_request,
    resource_slice, role, role_binding, volume_attachment,
};
use api::resources::{OPTIONAL, RESOURCES, Resource};
use api::runtime_config::RuntimeConfig;
use machinery::schema::TypeHandle;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Storages of the built-in kinds and their served versions.
pub struct BuiltIn {
    stores: Stores,
    storages: HashMap<(&'static str, &'static str), Arc<Storage>>,
    served: Vec<Arc<Served>>,
}

impl BuiltIn {
    /// Kinds of the default table exist even if not served, for the server's own use.
    pub fn new(stores: &Stores, runtime: &RuntimeConfig) -> Self {
        let mut built_in = Self { stores: stores.clone(), storages: HashMap::new(), served: Vec::new() };
        let mut versions: Vec<(*const Storage, Vec<Arc<Version>>)> = Vec::new();
        let optional = OPTIONAL.iter().filter(|row| runtime.serves(row));
        for resource in RESOURCES.iter().chain(optional) {
            let Some(version) = built_in.version(resource) else { continue };
            let storage = Arc::as_ptr(&version.storage);
            match versions.iter_mut().find(|(of, _)| *of == storage) {
                Some((_, known)) => known.push(Arc::new(version)),
                None => versions.push((storage, vec![Arc::new(version)])),
            }
        }
        let is_served = |version: &&Arc<Version>| {
            let kind = &version.kind;
            runtime.resources().any(|row| {
                (row.group, row.version, row.resource) == (kind.group(), kind.version(), kind.resource())
            })
        };
        for (_, versions) in versions {
            let shown: Vec<_> = match versions.len() {
                1 => Vec::new(),
                _ => versions.iter().filter(is_served).cloned().collect(),
            };
            let all: Arc<[Arc<Version>]> = if shown.len() > 1 { shown.into() } else { [].into() };
            let served = versions.into_iter().map(|version| Arc::new(Served::new(version, Arc::clone(&all))));
            built_in.served.extend(served);
        }
        built_in
    }

    pub fn served(&self) -> &[Arc<Served>] {
        &self.served
    }

    /// The authorizers that read the store.
    pub fn authorizers(&mut self) -> (Node, Rbac) {
        let node = Node::new(node::Storages {
            pods: self.storage(&pod::KIND),
            persistent_volumes: self.storage(&persistent_volume::KIND),
            volume_attachments: self.storage(&volume_attachment::KIND),
            resource_slices: self.storage(&resource_slice::KIND),
            pod_certificate_requests: self.storage(&pod_certificate_request::KIND),
        });
        let rbac = [&cluster_role::KIND, &cluster_role_binding::KIND, &role::KIND, &role_binding::KIND];
        (node, Rbac::new(rbac.map(|kind| self.storage(kind))))
    }

    fn storage(&mut self, kind: &'static Kind) -> Arc<Storage> {
        let make = || {
            let types = api::schema::of_version(kind.version);
            let schema = TypeHandle::of_kind(types, kind.group, kind.version, kind.kind);
            let store = Arc::clone(self.stores.of(kind.group, kind.resource));
            Arc::new(Storage::new(kind.names(), Arc::new(kind), schema, store))
        };
        Arc::clone(self.storages.entry((kind.group, kind.resource)).or_insert_with(make))
    }

    /// `None` for resources without storage.
    fn version(&mut self, resource: &'static Resource) -> Option<Version> {
        let kind = KINDS.iter().copied().find(|kind| {
            (kind.group, kind.version, kind.resource) == (resource.group, resource.version, resource.resource)
        })?;
        let types = api::schema::of_version(kind.version);
        let schema = TypeHandle::of_kind(types, kind.group, kind.version, kind.kind);
        let Some(schema) = schema else {
            tracing::error!(kind = kind.kind, "built-in kind has no schema");
            return None;
        };
        let storage = self.storage(kind.stored_as.map_or(kind, |stored| stored.kind));
        let conversion = kind.stored_as.map(Conversion::BuiltIn);
        let rows = resource.subresources.iter();
        let subresources = rows.map(|row| (Cow::Borrowed(row.name), Verbs::of(row.verbs)));
        let verbs = Verbs::of(resource.verbs);
        Some(Version::new(kind.names(), Arc::new(kind), schema, storage, conversion, verbs, subresources))
    }
}

#[cfg(test)]
mod tests {
    use crate::admission::test_cluster::Cluster;
    use machinery::apply::Converter;
    use serde_json::json;

    #[tokio::test]
    async fn only_kinds_of_several_versions_convert() {
        let cluster = Cluster::empty();
        let served =
            |group, version, resource| cluster.registry.builtin(group, version, resource).expect("served");
        assert_eq!(served("", "v1", "pods").equivalents().count(), 0);
        for version in ["v1", "v2"] {
            assert_eq!(served("autoscaling", version, "horizontalpodautoscalers").equivalents().count(), 1);
        }
        let events = served("", "v1", "events");
        let event = json!({"apiVersion": "v1", "kind": "Event", "message": "m"});
        let shown = events.convert(&event, "events.k8s.io/v1").expect("converted");
        assert_eq!(shown["note"], "m");
        assert_eq!(events.convert(&shown, "v1").expect("converted")["message"], "m");
        assert!(events.convert(&event, "apps/v1").is_none());
    }
}
