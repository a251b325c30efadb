//! Objects of kinds known only at run time: what the garbage collector and the namespace loop work on.

use http::Method;
use objects::meta::v1::ObjectMeta;
use objects::{Codec, PartialObject};
use serde_json::Value;

use crate::client::{Ask, JSON};
use crate::{
    Client, ClientError, DeleteOptions, ListOptions, ObjectList, Patch, ResourceKey, WatchOptions,
    WatchStream,
};

pub(crate) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(crate) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The objects of one resource.
#[derive(Clone, Debug)]
pub struct Dynamic {
    client: Client,
    resource: ResourceKey,
}

impl Dynamic {
    pub(crate) fn new(client: Client, resource: ResourceKey) -> Self {
        Self { client, resource }
    }

    fn namespace<'a>(&self, ns: &'a str) -> &'a str {
        if self.resource.namespaced { ns } else { "" }
    }

    fn path(&self, ns: &str, name: &str, subresource: Option<&str>) -> String {
        self.resource.path(self.namespace(ns), name, subresource)
    }

    pub async fn get(&self, ns: &str, name: &str) -> Result<Value, ClientError> {
        self.client.json(Ask::get(self.path(ns, name, None))).await
    }

    pub async fn get_metadata(&self, ns: &str, name: &str) -> Result<ObjectMeta, ClientError> {
        let ask = Ask { accept: METADATA, ..Ask::get(self.path(ns, name, None)) };
        Ok(self.client.json::<PartialObject>(ask).await?.metadata)
    }

    pub async fn list(&self, ns: &str, options: &ListOptions) -> Result<ObjectList<Value>, ClientError> {
        self.client.list_at(&self.path(ns, "", None), options, JSON, Value::decode).await
    }

    pub async fn list_metadata(
        &self,
        ns: &str,
        options: &ListOptions,
    ) -> Result<ObjectList<PartialObject>, ClientError> {
        self.client.list_at(&self.path(ns, "", None), options, METADATA_LIST, PartialObject::decode).await
    }

    pub async fn watch(&self, ns: &str, options: &WatchOptions) -> Result<WatchStream<Value>, ClientError> {
        self.client.watch_at(&self.path(ns, "", None), options, JSON, Value::decode).await
    }

    pub async fn watch_metadata(
        &self,
        ns: &str,
        options: &WatchOptions,
    ) -> Result<WatchStream<PartialObject>, ClientError> {
        self.client.watch_at(&self.path(ns, "", None), options, METADATA, PartialObject::decode).await
    }

    pub async fn create(&self, ns: &str, object: &Value) -> Result<Value, ClientError> {
        self.client.json(Ask::with_body(Method::POST, self.path(ns, "", None), object)?).await
    }

    pub async fn update(
        &self,
        ns: &str,
        name: &str,
        subresource: Option<&str>,
        object: &Value,
    ) -> Result<Value, ClientError> {
        self.client.json(Ask::with_body(Method::PUT, self.path(ns, name, subresource), object)?).await
    }

    pub async fn patch(
        &self,
        ns: &str,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch,
    ) -> Result<Value, ClientError> {
        self.client.patch_at(self.path(ns, name, subresource), patch).await
    }

    pub async fn delete(&self, ns: &str, name: &str, options: &DeleteOptions) -> Result<(), ClientError> {
        self.client.delete_at(self.path(ns, name, None), options).await
    }

    /// Deletes every object of `ns`, or of the cluster.
    pub async fn delete_collection(&self, ns: &str, options: &DeleteOptions) -> Result<(), ClientError> {
        self.client.delete_at(self.path(ns, "", None), options).await
    }
}
