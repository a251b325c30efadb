//! Admission chain: plugins that mutate or reject a write after authorization. One file per plugin, one row here.

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
mod metrics;
mod namespace_lifecycle;
mod node_names;
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

pub(crate) use webhooks::call::{
    Failure as CallFailure, call_error_text, service as service_address, with_query,
};

use crate::configuration::ConfigurationError;
use crate::registry::{Registry, Served, Version, WriteContext};
use async_trait::async_trait;
use base::metrics::{Metrics, MetricsError};
use machinery::Value;
use machinery::meta;
use machinery::status::{Result, Status};
use metrics::{AdmissionMetrics, Step};
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// Not a write: a connection to a pod, a service or a node.
    Connect,
}

impl Operation {
    pub fn label(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Attributes of a write in the admission chain.
#[derive(Clone, Copy)]
pub struct Attributes<'a> {
    /// Version that the plugin sees.
    pub served: &'a Version,
    /// Version of the client's request.
    pub requested: &'a Served,
    pub context: &'a WriteContext<'a>,
    pub operation: Operation,
    /// Object name in messages: `generateName` while the name is not generated yet.
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

    /// Reports whether the write is to this resource, not to a subresource.
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

    /// Reports whether the object is of the resource's own kind; some subresources have another kind.
    pub fn is_whole(&self) -> bool {
        matches!(self.subresource(), "" | "status" | "ephemeralcontainers" | "resize")
    }

    /// Converts an object to the version that the plugin sees.
    pub async fn in_version<'o>(&self, object: &'o Value) -> Result<Cow<'o, Value>> {
        if !self.is_whole() {
            return Ok(Cow::Borrowed(object));
        }
        let converted = self.requested.in_version(object, self.served).await?;
        Ok(converted.map_or(Cow::Borrowed(object), Cow::Owned))
    }

    /// As [`Self::in_version`], for an optional object.
    pub async fn optional_in_version<'o>(&self, object: Option<&'o Value>) -> Result<Option<Cow<'o, Value>>> {
        match object {
            None => Ok(None),
            Some(object) => self.in_version(object).await.map(Some),
        }
    }

    /// Converts a mutated object back to the client's version.
    pub async fn convert_back(&self, seen: Value, object: &mut Value) -> Result<()> {
        // An unchanged object is not converted, because the round trip may lose data.
        if *self.in_version(object).await? != seen {
            let requested = Self { served: self.requested, ..*self };
            *object = requested.in_version(&seen).await?.into_owned();
        }
        Ok(())
    }

    /// Rejection by a plugin.
    pub fn forbidden(&self, why: impl fmt::Display) -> Status {
        Status::forbidden(self.requested.kind.group(), self.requested.kind.resource(), self.name, why)
    }
}

/// Name in messages of an object that may not have its name yet.
pub fn shown_name(object: &Value) -> &str {
    [meta::name(object), meta::text(object, "generateName")]
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or("Unknown")
}

/// One admission plugin. Both steps may read the cluster through the registry.
#[async_trait]
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// Reports whether the plugin handles this write; a cheap test before the rest.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// False if the plugin certainly has no configuration objects; its steps are skipped then.
    fn is_configured(&self, _registry: &Registry) -> bool {
        true
    }

    /// Reports whether the plugin is on unless it is disabled; others are on only if they are enabled.
    fn is_default(&self) -> bool {
        true
    }

    /// Reports whether the plugin calls other servers.
    fn is_remote(&self) -> bool {
        false
    }

    /// Reports whether the plugin handles CONNECT.
    fn admits_connections(&self) -> bool {
        false
    }

    async fn mutate(
        &self,
        _registry: &Registry,
        _attributes: &Attributes<'_>,
        _object: Option<&mut Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        Ok(())
    }

    async fn validate(
        &self,
        _registry: &Registry,
        _attributes: &Attributes<'_>,
        _object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<()> {
        Ok(())
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

/// Enabled plugins and their state.
pub struct Admission {
    plugins: Vec<&'static dyn Plugin>,
    settings: configuration::PluginSettings,
    policies: policies::Policies,
    hooks: webhooks::Hooks,
    quota_locks: resource_quota::ChargeLocks,
    event_limits: Vec<event_rate_limit::Enforcer>,
    pub(crate) metrics: Option<AdmissionMetrics>,
}

/// Enabled and disabled plugins, by name. By default the whole chain is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionConfig {
    pub enable: Vec<String>,
    pub disable: Vec<String>,
    /// Path of an `AdmissionConfiguration` with plugin settings.
    pub file: Option<PathBuf>,
}

/// Names of all plugins, in the order of the chain.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().map(|plugin| plugin.name())
}

impl Default for Admission {
    fn default() -> Self {
        Self::with_settings(&AdmissionConfig::default(), configuration::PluginSettings::default())
    }
}

impl Admission {
    /// A plugin that is both enabled and disabled is on.
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
            quota_locks: resource_quota::ChargeLocks::default(),
            metrics: None,
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| plugin.name())
    }

    /// Registers the metrics of the plugins.
    pub fn observe(&mut self, metrics: &Metrics) -> std::result::Result<(), MetricsError> {
        self.metrics = Some(AdmissionMetrics::new(metrics, self.names())?);
        Ok(())
    }

    /// Plugins that handle a write, with their places in the chain.
    fn applicable<'a>(
        &'a self,
        registry: &'a Registry,
        attributes: &'a Attributes<'_>,
    ) -> impl Iterator<Item = (usize, &'static dyn Plugin)> + 'a {
        let plugins = self.plugins.iter().copied().enumerate();
        plugins.filter(move |(_, plugin)| plugin.handles(attributes) && plugin.is_configured(registry))
    }

    /// Measures one plugin. The time of webhooks is not the server's own.
    async fn measured(
        &self,
        (index, plugin): (usize, &dyn Plugin),
        step: Step,
        attributes: &Attributes<'_>,
        running: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let Some(metrics) = &self.metrics else { return running.await };
        let begin = Instant::now();
        let outcome = running.await;
        let took = begin.elapsed();
        metrics.plugin(index, (step, attributes.operation, outcome.is_err()), took);
        if plugin.is_remote() {
            attributes.context.record.add_wait(took);
        }
        outcome
    }

    /// Measures the whole chain.
    fn measured_step(&self, step: Step, attributes: &Attributes<'_>, begin: Instant, outcome: &Result<()>) {
        if let Some(metrics) = &self.metrics {
            metrics.step((step, attributes.operation, outcome.is_err()), begin.elapsed());
        }
    }

    pub async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        let begin = Instant::now();
        let mut outcome = Ok(());
        for one in self.applicable(registry, attributes) {
            let running = one.1.mutate(registry, attributes, object.as_deref_mut(), old);
            outcome = self.measured(one, Step::Admit, attributes, running).await;
            if outcome.is_err() {
                break;
            }
        }
        self.measured_step(Step::Admit, attributes, begin, &outcome);
        outcome
    }

    /// Admits a connection with these options.
    pub async fn connect(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        mut options: Value,
    ) -> Result<()> {
        let plugins = || self.applicable(registry, attributes).filter(|one| one.1.admits_connections());
        for one in plugins() {
            let running = one.1.mutate(registry, attributes, Some(&mut options), None);
            self.measured(one, Step::Admit, attributes, running).await?;
        }
        for one in plugins() {
            let running = one.1.validate(registry, attributes, Some(&options), None);
            self.measured(one, Step::Validate, attributes, running).await?;
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
        let begin = Instant::now();
        let mut outcome = Ok(());
        for one in self.applicable(registry, attributes) {
            let running = one.1.validate(registry, attributes, object, old);
            outcome = self.measured(one, Step::Validate, attributes, running).await;
            if outcome.is_err() {
                break;
            }
        }
        self.measured_step(Step::Validate, attributes, begin, &outcome);
        outcome
    }
}
