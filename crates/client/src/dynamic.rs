//! Objects of kinds known only at run time, for the garbage collector and the namespace controller.

use http::Method;
use objects::meta::v1::ObjectMeta;
use objects::{Codec, PartialObject};
use serde_json::Value;

use crate::client::{JSON, PreparedRequest};
use crate::{
    Client, ClientError, DeleteOptions, ListOptions, ObjectList, Patch, ResourceKey, WatchOptions,
    WatchStream,
};

pub(crate) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(crate) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The objects of one resource.
///
/// ```no_run
/// use client::{Client, ClientError, ListOptions, ResourceKey};
///
/// # async fn list(client: Client) -> Result<(), ClientError> {
/// let widgets = ResourceKey {
///     group: "example.com".to_owned(),
///     version: "v1".to_owned(),
///     resource: "widgets".to_owned(),
///     namespaced: true,
/// };
/// for widget in client.dynamic(&widgets).list("default", &ListOptions::default()).await?.items {
///     println!("{}", widget["metadata"]["name"]);
/// }
/// # Ok(())
/// # }
/// ```
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
        self.client.json(PreparedRequest::get(self.path(ns, name, None))).await
    }

    pub async fn get_metadata(&self, ns: &str, name: &str) -> Result<ObjectMeta, ClientError> {
        let prepared =
            PreparedRequest { accept: METADATA, ..PreparedRequest::get(self.path(ns, name, None)) };
        Ok(self.client.json::<PartialObject>(prepared).await?.metadata)
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

    pub async fn create(&self, ns: &str, object: &Value) -> Result<Value, ClientError> {
        self.client.json(PreparedRequest::with_body(Method::POST, self.path(ns, "", None), object)?).await
    }

    pub async fn update(
        &self,
        ns: &str,
        name: &str,
        subresource: Option<&str>,
        object: &Value,
    ) -> Result<Value, ClientError> {
        self.client
            .json(PreparedRequest::with_body(Method::PUT, self.path(ns, name, subresource), object)?)
            .await
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
