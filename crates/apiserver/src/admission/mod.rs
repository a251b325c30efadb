//! Admission: what may still change or stop a write after authorization. One file per plugin, one row here.

mod namespace_lifecycle;

use crate::registry::{Registry, Served, WriteContext};
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::status::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// The write that is to be admitted.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    pub served: &'a Served,
    pub context: &'a WriteContext<'a>,
    pub operation: Operation,
    /// Empty for a create whose name is still to be generated.
    pub name: &'a str,
}

impl<'a> Attributes<'a> {
    pub fn new(served: &'a Served, context: &'a WriteContext<'a>, operation: Operation) -> Self {
        Self { served, context, operation, name: "" }
    }

    #[must_use]
    pub fn named(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }
}

/// One admission plugin. Both steps may read the cluster through the registry.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// Whether the plugin has anything to say about this write; the cheap test comes first.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// Whether `mutate` may change the object.
    fn mutates(&self) -> bool {
        false
    }

    fn mutate<'a>(
        &'a self,
        _registry: &'a Registry,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a mut Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn validate<'a>(
        &'a self,
        _registry: &'a Registry,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a Value>,
        _old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// The built-in chain, in order.
static PLUGINS: &[&dyn Plugin] = &[&namespace_lifecycle::NamespaceLifecycle];

/// The plugins that are switched on.
pub struct Admission {
    plugins: Vec<&'static dyn Plugin>,
    mutates: bool,
}

impl Default for Admission {
    fn default() -> Self {
        let plugins = PLUGINS.to_vec();
        let mutates = plugins.iter().any(|plugin| plugin.mutates());
        Self { plugins, mutates }
    }
}

impl Admission {
    /// Whether any plugin may change objects: if not, nobody needs to compare before and after.
    pub fn mutates(&self) -> bool {
        self.mutates
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| plugin.name())
    }

    pub async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        for plugin in &self.plugins {
            if plugin.handles(attributes) {
                plugin.mutate(registry, attributes, object.as_deref_mut(), old).await?;
            }
        }
        Ok(())
    }

    pub async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        for plugin in &self.plugins {
            if plugin.handles(attributes) {
                plugin.validate(registry, attributes, object, old).await?;
            }
        }
        Ok(())
    }
}
