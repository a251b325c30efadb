//! Admission: what may still change or stop a write after authorization. One file per plugin, one row here.

mod certificate_approval;
mod certificate_signing;
mod certificate_subject_restriction;
mod cluster_trust_bundle_attest;
mod configuration;
mod default_class;
mod default_toleration_seconds;
mod event_rate_limit;
mod limit_ranger;
mod matching;
mod namespace_lifecycle;
mod node_restriction;
mod persistent_volume_claim_resize;
mod pod_resize_validator;
mod pod_security;
mod pod_topology_labels;
mod policies;
mod priority;
mod reading;
mod resource_quota;
mod runtime_class;
mod secret_references;
mod service_account;
pub mod signers;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;
#[cfg(test)]
pub(crate) mod test_cluster;
pub mod webhooks;

pub(crate) use webhooks::call::{Failure as CallFailure, service as service_address, with_query, words};

use crate::configuration::ConfigurationError;
use crate::registry::{Registry, Served, Version, WriteContext};
use futures_util::future::BoxFuture;
use machinery::Value;
use machinery::meta;
use machinery::status::{Result, Status};
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// Not a write: somebody wants to reach a pod, a service or a node.
    Connect,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        })
    }
}

/// The write that is to be admitted.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    /// The version in which the write is looked at.
    pub served: &'a Version,
    /// The version that the client uses.
    pub requested: &'a Served,
    pub context: &'a WriteContext<'a>,
    pub operation: Operation,
    /// As messages name the object: while its name is still to be generated, what it will begin with.
    pub name: &'a str,
}

impl<'a> Attributes<'a> {
    pub fn new(served: &'a Served, context: &'a WriteContext<'a>, operation: Operation) -> Self {
        Self { served, requested: served, context, operation, name: "" }
    }

    #[must_use]
    pub fn named(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Whether the write goes to this resource itself.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.is_subresource(group, resource, "")
    }

    pub fn is_subresource(&self, group: &str, resource: &str, subresource: &str) -> bool {
        let kind = &self.served.kind;
        kind.resource() == resource && kind.group() == group && self.context.subresource == subresource
    }

    pub fn subresource(&self) -> &'a str {
        self.context.subresource
    }

    /// Whether the object of the write is of the resource's own kind; some subresources have others.
    pub fn is_whole(&self) -> bool {
        matches!(self.subresource(), "" | "status" | "ephemeralcontainers" | "resize")
    }

    /// An object of the write in the version in which it is looked at.
    pub async fn in_version<'o>(&self, object: &'o Value) -> Result<Cow<'o, Value>> {
        if !self.is_whole() {
            return Ok(Cow::Borrowed(object));
        }
        let converted = self.requested.in_version(object, self.served).await?;
        Ok(converted.map_or(Cow::Borrowed(object), Cow::Owned))
    }

    /// The same for an object that may not be there.
    pub async fn optional_in_version<'o>(&self, object: Option<&'o Value>) -> Result<Option<Cow<'o, Value>>> {
        match object {
            None => Ok(None),
            Some(object) => self.in_version(object).await.map(Some),
        }
    }

    /// Takes over what has become of an object in the version in which it is looked at.
    pub async fn give_back(&self, seen: Value, object: &mut Value) -> Result<()> {
        // What has not changed need not survive the way there and back.
        if *self.in_version(object).await? != seen {
            let requested = Self { served: self.requested, ..*self };
            *object = requested.in_version(&seen).await?.into_owned();
        }
        Ok(())
    }

    /// The refusal of a plugin.
    pub fn forbidden(&self, why: impl fmt::Display) -> Status {
        Status::forbidden(self.requested.kind.group(), self.requested.kind.resource(), self.name, why)
    }
}

/// What messages call an object that may not have its name yet.
pub fn shown_name(object: &Value) -> &str {
    [meta::name(object), meta::text(object, "generateName")]
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or("Unknown")
}

/// One admission plugin. Both steps may read the cluster through the registry.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// Whether the plugin has anything to say about this write; the cheap test comes first.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// Reports whether the plugin is on unless it is disabled; others are on only if they are enabled.
    fn is_default(&self) -> bool {
        true
    }

    /// Whether the plugin has a say in connections, too.
    fn admits_connections(&self) -> bool {
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
static PLUGINS: &[&dyn Plugin] = &[
    &namespace_lifecycle::NamespaceLifecycle,
    &limit_ranger::LimitRanger,
    &service_account::ServiceAccount,
    &node_restriction::NodeRestriction,
    &taint_nodes_by_condition::TaintNodesByCondition,
    &pod_security::PodSecurity,
    &priority::Priority,
    &default_toleration_seconds::DefaultTolerationSeconds,
    &default_class::STORAGE,
    &storage_object_in_use_protection::StorageObjectInUseProtection,
    &persistent_volume_claim_resize::PersistentVolumeClaimResize,
    &runtime_class::RuntimeClass,
    &certificate_approval::CertificateApproval,
    &certificate_signing::CertificateSigning,
    &cluster_trust_bundle_attest::ClusterTrustBundleAttest,
    &certificate_subject_restriction::CertificateSubjectRestriction,
    &default_class::INGRESS,
    &pod_topology_labels::PodTopologyLabels,
    &pod_resize_validator::PodResizeValidator,
    &event_rate_limit::EventRateLimit,
    &policies::MutatingAdmissionPolicy,
    &webhooks::MutatingAdmissionWebhook,
    &policies::ValidatingAdmissionPolicy,
    &webhooks::ValidatingAdmissionWebhook,
    &resource_quota::ResourceQuota,
];

/// The plugins that are switched on.
pub struct Admission {
    plugins: Vec<&'static dyn Plugin>,
    settings: configuration::PluginSettings,
    policies: policies::Policies,
    hooks: webhooks::Hooks,
    quota_turns: resource_quota::Turns,
    event_limits: Vec<event_rate_limit::Enforcer>,
}

/// Which plugins are on, by name. All of the chain are, unless told otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionConfig {
    pub enable: Vec<String>,
    pub disable: Vec<String>,
    /// An `AdmissionConfiguration`: settings of plugins.
    pub file: Option<PathBuf>,
}

/// The names of all plugins, in the order in which they are asked.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().map(|plugin| plugin.name())
}

impl Default for Admission {
    fn default() -> Self {
        Self::with_settings(&AdmissionConfig::default(), configuration::PluginSettings::default())
    }
}

impl Admission {
    /// A plugin that is both switched on and off is on.
    pub fn new(config: &AdmissionConfig) -> Result<Self, ConfigurationError> {
        let settings = match &config.file {
            Some(path) => configuration::read(path)?,
            None => configuration::PluginSettings::default(),
        };
        if settings.event_limits.is_empty() && config.enable.iter().any(|name| name == "EventRateLimit") {
            let path = config.file.clone().unwrap_or_else(|| "--admission-control-config-file".into());
            let why = format!("EventRateLimit: {}", event_rate_limit::NO_LIMITS);
            return Err(ConfigurationError::invalid(&path, why));
        }
        Ok(Self::with_settings(config, settings))
    }

    fn with_settings(config: &AdmissionConfig, settings: configuration::PluginSettings) -> Self {
        let named = |names: &[String], plugin: &dyn Plugin| names.iter().any(|name| name == plugin.name());
        let is_on = |plugin: &&dyn Plugin| {
            named(&config.enable, *plugin) || (plugin.is_default() && !named(&config.disable, *plugin))
        };
        let plugins = PLUGINS.iter().copied().filter(is_on).collect();
        let event_limits =
            settings.event_limits.iter().cloned().map(event_rate_limit::Enforcer::new).collect();
        Self {
            plugins,
            event_limits,
            settings,
            policies: policies::Policies::default(),
            hooks: webhooks::Hooks::default(),
            quota_turns: resource_quota::Turns::default(),
        }
    }
}

impl Admission {
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

    /// Admits a connection; `options` say what is asked for.
    pub async fn connect(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        mut options: Value,
    ) -> Result<()> {
        let plugins = self.plugins.iter().filter(|plugin| plugin.admits_connections());
        let plugins: Vec<_> = plugins.filter(|plugin| plugin.handles(attributes)).collect();
        for plugin in &plugins {
            plugin.mutate(registry, attributes, Some(&mut options), None).await?;
        }
        for plugin in &plugins {
            plugin.validate(registry, attributes, Some(&options), None).await?;
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
