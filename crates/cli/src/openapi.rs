//! Schemas of objects, from the server's OpenAPI v3 documents.

use serde_json::Value;

use crate::error::{CliError, fail};
use crate::session::Session;

/// The schemas of one group version.
#[derive(Clone, Debug)]
pub struct Schemas(Value);

/// A schema, with the extensions of the property that refers to it.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    schemas: &'a Schemas,
    /// The property as it is written.
    pub own: &'a Value,
    /// The schema that it refers to, or itself.
    pub value: &'a Value,
}

/// Longest chain of references.
const LONGEST_CHAIN: usize = 16;

impl Session {
    /// The schemas of an `apiVersion`.
    pub async fn schemas(&mut self, api_version: &str) -> Result<Schemas, CliError> {
        let path = match api_version.contains('/') {
            true => format!("/openapi/v3/apis/{api_version}"),
            false => format!("/openapi/v3/api/{api_version}"),
        };
        Ok(Schemas(self.read(&path).await?))
    }
}

impl Schemas {
    #[cfg(test)]
    pub fn new(document: Value) -> Self {
        Self(document)
    }

    /// The schema of a kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Result<Node<'_>, CliError> {
        let is_it = |schema: &&Value| {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            kinds.is_some_and(|kinds| {
                kinds
                    .iter()
                    .any(|gvk| gvk["group"] == group && gvk["version"] == version && gvk["kind"] == kind)
            })
        };
        let found =
            self.0["components"]["schemas"].as_object().and_then(|schemas| schemas.values().find(is_it));
        match found {
            Some(schema) => Ok(Node { schemas: self, own: schema, value: schema }),
            None => fail(format!("couldn't find resource for \"{group}/{version}, Kind={kind}\"")),
        }
    }

    fn node<'a>(&'a self, own: &'a Value) -> Node<'a> {
        let mut value = own;
        for _ in 0..LONGEST_CHAIN {
            let reference = match (&value["$ref"], &value["allOf"][0]["$ref"]) {
                (Value::String(reference), _) | (_, Value::String(reference)) => reference,
                _ => break,
            };
            let name = reference.rsplit('/').next().unwrap_or_default();
            value = &self.0["components"]["schemas"][name];
        }
        Node { schemas: self, own, value }
    }
}

impl<'a> Node<'a> {
    /// The schema of a member, or of a map's values.
    pub fn member(self, name: &str) -> Option<Node<'a>> {
        let property = self.value["properties"].get(name);
        property.or_else(|| self.value.get("additionalProperties")).map(|own| self.schemas.node(own))
    }

    /// The schema of a list's items.
    pub fn items(self) -> Option<Node<'a>> {
        self.value.get("items").map(|own| self.schemas.node(own))
    }

    pub fn has_strategy(self, strategy: &str) -> bool {
        let text = self.own["x-kubernetes-patch-strategy"].as_str().unwrap_or_default();
        text.split(',').any(|one| one == strategy)
    }

    pub fn merge_key(self) -> &'a str {
        self.own["x-kubernetes-patch-merge-key"].as_str().unwrap_or_default()
    }
}
