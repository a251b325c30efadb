//! A registry with the whole chain, for plugin tests.

use super::Admission;
use crate::registry::services::{ServiceConfig, Services};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use machinery::status::{Result, Status};
use machinery::{Value, meta};
use serde_json::json;
use std::sync::Arc;
use store::{Embedded, EmbeddedOptions};

pub struct Cluster {
    pub registry: Registry,
    _directory: tempfile::TempDir,
}

/// Result of a write: the object, its warnings, its audit annotations.
pub type Made = (Value, Vec<String>, Vec<(String, String)>);

impl Cluster {
    /// An empty cluster.
    pub fn empty() -> Self {
        Self::with_admission(Admission::default())
    }

    /// An empty cluster with these plugins.
    pub fn with_admission(admission: Admission) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let registry = Registry::new(Arc::new(store), admission, Services::new(ServiceConfig::default()));
        Self { registry, _directory: directory }
    }

    /// With two namespaces: `n` with the label "true", and `quiet` with the label "false".
    pub async fn with_label(label: &str) -> Self {
        let cluster = Self::empty();
        for (name, value) in [("n", "true"), ("quiet", "false")] {
            let namespace = json!({"metadata": {"name": name, "labels": {label: value}}});
            cluster.create(("", "v1", "namespaces"), namespace).await.expect("made");
        }
        cluster
    }

    pub async fn create_as(
        &self,
        user: &UserInfo,
        (group, version, resource): (&str, &str, &str),
        mut object: Value,
    ) -> Result<Made> {
        let served = self.registry.builtin(group, version, resource)?;
        object["kind"] = served.kind.kind().into();
        object["apiVersion"] = served.api_version.clone().into();
        let record = WriteRecord::default();
        let namespace = meta::namespace(&object).to_owned();
        let context = WriteContext::server(user, &record, &namespace);
        machinery::codec::typed::normalize(&mut object, served.schema()).map_err(Status::internal)?;
        served.rules.set_defaults(&mut object);
        let written = self.registry.create(served, object, &context).await?;
        let notes = record.take_annotations();
        let notes = notes.into_iter().map(|(key, value)| (key.into_owned(), value)).collect();
        Ok((written.value(), record.take_warnings(), notes))
    }

    /// Creates as the server itself, which is never rejected.
    pub async fn create(&self, resource: (&str, &str, &str), object: Value) -> Result<Made> {
        self.create_as(&UserInfo::server(), resource, object).await
    }

    /// Creates as a user who is subject to all plugins.
    pub async fn try_create(&self, resource: (&str, &str, &str), object: Value) -> Result<Made> {
        let alice = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
        self.create_as(&alice, resource, object).await
    }

    pub async fn config_map(&self, namespace: &str, name: &str, data: Value) -> Result<Made> {
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "data": data});
        self.try_create(("", "v1", "configmaps"), object).await
    }

    /// An autoscaler in either version, with the target in that version's field.
    pub async fn autoscaler(&self, version: &str, name: &str, utilization: u32) -> Result<Made> {
        let mut spec = json!({
            "maxReplicas": 9, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        });
        match version {
            "v1" => spec["targetCPUUtilizationPercentage"] = utilization.into(),
            _ => {
                let target = json!({"type": "Utilization", "averageUtilization": utilization});
                spec["metrics"] =
                    json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
            }
        }
        let object = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        self.try_create(("autoscaling", version, "horizontalpodautoscalers"), object).await
    }
}
