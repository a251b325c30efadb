//! KubeSchedulerConfiguration v1: profiles, their plugins and arguments, extenders, and scalar settings.

mod arguments;
mod strict;

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;

pub use arguments::{
    balanced_allocation, default_preemption, dynamic_resources, inter_pod_affinity, node_affinity,
    node_resources_fit, pod_topology_spread, volume_binding,
};

use crate::framework::Point;
use crate::plugins::{self, PluginId};
use crate::profile::{Profile, Selection};
use crate::queue::Backoff;

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
const DEFAULT_PROFILE: &str = "default-scheduler";

/// Error of an invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to decode the arguments of plugin {plugin}")]
    Arguments { plugin: &'static str, source: serde_json::Error },
    #[error("{plugin}: {problem}")]
    Invalid { plugin: &'static str, problem: String },
    #[error("unknown plugin {0:?}")]
    UnknownPlugin(String),
    #[error("duplicate profile {0:?}")]
    DuplicateProfile(String),
    #[error("{field}: {problem}")]
    Field { field: &'static str, problem: String },
    #[error("failed to decode the configuration")]
    Read { source: serde_json::Error },
    #[error("strict decoding error: {}", unknown(.0))]
    UnknownFields(Vec<String>),
    #[error("the configuration is not YAML: {0}")]
    Yaml(String),
    #[error("{0} is not kubescheduler.config.k8s.io/v1 KubeSchedulerConfiguration")]
    Kind(String),
}

fn unknown(fields: &[String]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| format!("unknown field {field:?}")).collect();
    fields.join(", ")
}

/// The configuration file; every field has a default.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Configuration {
    pub profiles: Vec<ProfileConfig>,
    pub extenders: Vec<ExtenderConfig>,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub pod_initial_backoff_seconds: i64,
    pub pod_max_backoff_seconds: i64,
    pub leader_election: LeaderElectionConfig,
    pub client_connection: ClientConnection,
    /// Serves `/debug/pprof`.
    pub enable_profiling: bool,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            profiles: Vec::new(),
            extenders: Vec::new(),
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            leader_election: LeaderElectionConfig::default(),
            client_connection: ClientConnection::default(),
            enable_profiling: true,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClientConnection {
    pub kubeconfig: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElectionConfig {
    pub leader_elect: bool,
    pub resource_name: String,
    pub resource_namespace: String,
}

impl Default for LeaderElectionConfig {
    fn default() -> Self {
        Self {
            leader_elect: true,
            resource_name: "kube-scheduler".to_owned(),
            resource_namespace: "kube-system".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileConfig {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub plugins: Option<Plugins>,
    pub plugin_config: Vec<PluginConfig>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PluginConfig {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Plugins {
    pub multi_point: PluginSetConfig,
    pub pre_enqueue: PluginSetConfig,
    pub queue_sort: PluginSetConfig,
    pub pre_filter: PluginSetConfig,
    pub filter: PluginSetConfig,
    pub post_filter: PluginSetConfig,
    pub pre_score: PluginSetConfig,
    pub score: PluginSetConfig,
    pub reserve: PluginSetConfig,
    pub permit: PluginSetConfig,
    pub pre_bind: PluginSetConfig,
    pub bind: PluginSetConfig,
    pub post_bind: PluginSetConfig,
}

impl Plugins {
    fn at(&self, point: Point) -> &PluginSetConfig {
        match point {
            Point::PreEnqueue => &self.pre_enqueue,
            Point::QueueSort => &self.queue_sort,
            Point::PreFilter => &self.pre_filter,
            Point::Filter => &self.filter,
            Point::PostFilter => &self.post_filter,
            Point::PreScore => &self.pre_score,
            Point::Score => &self.score,
            Point::Reserve => &self.reserve,
            Point::Permit => &self.permit,
            Point::PreBind => &self.pre_bind,
            Point::Bind => &self.bind,
            Point::PostBind => &self.post_bind,
        }
    }

    fn sets(&self) -> impl Iterator<Item = &PluginSetConfig> {
        let points = [
            Point::PreEnqueue,
            Point::QueueSort,
            Point::PreFilter,
            Point::Filter,
            Point::PostFilter,
            Point::PreScore,
            Point::Score,
            Point::Reserve,
            Point::Permit,
            Point::PreBind,
            Point::Bind,
            Point::PostBind,
        ];
        std::iter::once(&self.multi_point).chain(points.into_iter().map(|point| self.at(point)))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginSetConfig {
    pub enabled: Vec<PluginRef>,
    pub disabled: Vec<PluginRef>,
}

impl PluginSetConfig {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == name || plugin.name == "*")
    }

    fn enabled(&self, name: &str) -> Option<&PluginRef> {
        self.enabled.iter().find(|plugin| plugin.name == name)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct PluginRef {
    pub name: String,
    #[serde(default)]
    pub weight: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtenderConfig {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub weight: i64,
    pub bind_verb: String,
    #[serde(alias = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: TlsConfig,
    #[serde(rename = "httpTimeout", alias = "HTTPTimeout")]
    pub http_timeout: Option<String>,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    pub ignorable: bool,
}

/// TLS settings of an extender: its CA and the scheduler's client certificate; data is base64 and precedes files.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedResource {
    pub name: String,
    #[serde(default)]
    pub ignored_by_scheduler: bool,
}

impl ExtenderConfig {
    /// Timeout of a request.
    pub fn timeout(&self) -> Result<Duration, ConfigError> {
        let Some(text) = self.http_timeout.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(Duration::from_secs(5));
        };
        let parsed: Result<SignedDuration, _> = text.parse();
        parsed.ok().and_then(|limit| Duration::try_from(limit).ok()).ok_or_else(|| ConfigError::Field {
            field: "extenders.httpTimeout",
            problem: format!("{text:?} is not a duration"),
        })
    }
}

impl Configuration {
    /// Reads a configuration file.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let decoded =
            machinery::codec::yaml::decode(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        let field =
            |name: &str| decoded.value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        if field("apiVersion") != API_VERSION || field("kind") != KIND {
            return Err(ConfigError::Kind(format!("{} {}", field("apiVersion"), field("kind"))));
        }
        let unknown = strict::unknown_fields(&decoded.value);
        if !unknown.is_empty() {
            return Err(ConfigError::UnknownFields(unknown));
        }
        let without_effect = strict::without_effect(&decoded.value);
        if !without_effect.is_empty() {
            tracing::warn!(fields = without_effect.join(", "), "configuration fields have no effect");
        }
        let configuration: Self =
            serde_json::from_value(decoded.value).map_err(|source| ConfigError::Read { source })?;
        configuration.profiles()?;
        let without_effect = configuration.plugins_without_effect();
        if !without_effect.is_empty() {
            tracing::warn!(plugins = without_effect.join(", "), "scheduler plugins have no effect");
        }
        for extender in &configuration.extenders {
            extender.timeout()?;
        }
        Ok(configuration)
    }

    /// Enabled or configured plugins that this scheduler does not have.
    fn plugins_without_effect(&self) -> Vec<&'static str> {
        let names = |profile: &ProfileConfig| {
            let sets = profile.plugins.iter().flat_map(Plugins::sets).flat_map(|set| &set.enabled);
            let enabled = sets.map(|plugin| plugin.name.clone());
            enabled.chain(profile.plugin_config.iter().map(|config| config.name.clone())).collect::<Vec<_>>()
        };
        let named: Vec<String> = self.profiles.iter().flat_map(names).collect();
        plugins::WITHOUT_EFFECT.into_iter().filter(|name| named.iter().any(|known| known == name)).collect()
    }

    #[must_use]
    pub fn backoff(&self) -> Backoff {
        Backoff {
            first: SignedDuration::from_secs(self.pod_initial_backoff_seconds),
            longest: SignedDuration::from_secs(self.pod_max_backoff_seconds),
        }
    }

    /// Profiles; one of the default name if none is configured.
    pub fn profiles(&self) -> Result<Vec<Profile>, ConfigError> {
        let range = |field, ok: bool, problem: &str| {
            if ok { Ok(()) } else { Err(ConfigError::Field { field, problem: problem.to_owned() }) }
        };
        range("podInitialBackoffSeconds", self.pod_initial_backoff_seconds > 0, "must be greater than 0")?;
        range(
            "podMaxBackoffSeconds",
            self.pod_max_backoff_seconds >= self.pod_initial_backoff_seconds,
            "must be greater than or equal to PodInitialBackoffSeconds",
        )?;
        let valid = |percentage: Option<i64>| percentage.is_none_or(|value| (0..=100).contains(&value));
        range(
            "percentageOfNodesToScore",
            valid(self.percentage_of_nodes_to_score),
            "not in valid range [0-100]",
        )?;
        let default = [ProfileConfig::default()];
        let configured = if self.profiles.is_empty() { &default[..] } else { &self.profiles };
        let mut profiles: Vec<Profile> = Vec::new();
        for config in configured {
            range(
                "profiles.percentageOfNodesToScore",
                valid(config.percentage_of_nodes_to_score),
                "not in valid range [0-100]",
            )?;
            let name = match &config.scheduler_name {
                Some(name) => name.as_str(),
                None if configured.len() == 1 => DEFAULT_PROFILE,
                None => {
                    return Err(ConfigError::Field {
                        field: "profiles.schedulerName",
                        problem: "Required value".to_owned(),
                    });
                }
            };
            if profiles.iter().any(|profile| profile.name == name) {
                return Err(ConfigError::DuplicateProfile(name.to_owned()));
            }
            let percentage = config.percentage_of_nodes_to_score.or(self.percentage_of_nodes_to_score);
            profiles.push(Profile::new(name, config.selections(self)?, percentage)?);
        }
        Ok(profiles)
    }
}

impl ProfileConfig {
    /// Default plugins with this profile's changes.
    fn selections(&self, whole: &Configuration) -> Result<Vec<Selection>, ConfigError> {
        let default = Plugins::default();
        let changes = self.plugins.as_ref().unwrap_or(&default);
        for set in changes.sets() {
            for plugin in &set.enabled {
                let known = PluginId::named(&plugin.name).is_some()
                    || plugins::WITHOUT_EFFECT.contains(&&*plugin.name);
                if !known {
                    return Err(ConfigError::UnknownPlugin(plugin.name.clone()));
                }
            }
        }
        let mut selections = Vec::new();
        for row in plugins::ALL {
            let Some(id) = PluginId::named(row.name) else { continue };
            let custom = changes.multi_point.enabled(row.name);
            let everywhere = custom.is_some() || !changes.multi_point.disables(row.name);
            let mut weight = match custom {
                Some(custom) => custom.weight.max(1),
                None => row.weight,
            };
            let mut points = Vec::new();
            for point in row.points {
                let set = changes.at(*point);
                if let Some(own) = set.enabled(row.name) {
                    if *point == Point::Score {
                        weight = own.weight.max(1);
                    }
                    points.push(*point);
                } else if everywhere && !set.disables(row.name) {
                    points.push(*point);
                }
            }
            // A plugin whose PreFilter is disabled cannot filter either.
            if row.points.contains(&Point::PreFilter) && !points.contains(&Point::PreFilter) {
                points.retain(|point| *point != Point::Filter);
            }
            let mut args = self
                .plugin_config
                .iter()
                .find(|config| config.name == row.name)
                .map(|config| config.args.clone())
                .unwrap_or(Value::Null);
            if row.name == "NodeResourcesFit" {
                ignore_managed(&mut args, whole);
            }
            selections.push(Selection { id, points, weight, args });
        }
        Ok(selections)
    }
}

/// Resources managed by an extender with `ignoredByScheduler` are skipped by NodeResourcesFit.
fn ignore_managed(args: &mut Value, whole: &Configuration) {
    let managed = whole.extenders.iter().flat_map(|extender| &extender.managed_resources);
    let ignored: Vec<Value> = managed
        .filter(|resource| resource.ignored_by_scheduler)
        .map(|resource| Value::String(resource.name.clone()))
        .collect();
    if ignored.is_empty() {
        return;
    }
    if !args.is_object() {
        *args = Value::Object(serde_json::Map::new());
    }
    if let Some(fields) = args.as_object_mut() {
        let list = fields.entry("ignoredResources").or_insert_with(|| Value::Array(Vec::new()));
        if let Some(list) = list.as_array_mut() {
            list.extend(ignored);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<Configuration, ConfigError> {
        Configuration::parse(format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}").as_bytes())
    }

    fn names(profile: &Profile) -> (Vec<&str>, Vec<(&str, i64)>) {
        (
            profile.filters.iter().map(|enabled| enabled.id.name()).collect(),
            profile.scores.iter().map(|(enabled, weight)| (enabled.id.name(), *weight)).collect(),
        )
    }

    #[test]
    fn default_profile_matches_kubernetes() {
        let profiles = Configuration::default().profiles().expect("profiles");
        assert_eq!(profiles.len(), 1);
        assert_eq!(profiles[0].name, "default-scheduler");
        let (filters, scores) = names(&profiles[0]);
        assert_eq!(
            filters,
            [
                "NodeUnschedulable",
                "NodeName",
                "TaintToleration",
                "NodeAffinity",
                "NodePorts",
                "NodeResourcesFit",
                "VolumeRestrictions",
                "NodeVolumeLimits",
                "VolumeBinding",
                "VolumeZone",
                "PodTopologySpread",
                "InterPodAffinity",
                "DynamicResources",
            ]
        );
        assert_eq!(
            scores,
            [
                ("TaintToleration", 3),
                ("NodeAffinity", 2),
                ("NodeResourcesFit", 1),
                ("PodTopologySpread", 2),
                ("InterPodAffinity", 2),
                ("DynamicResources", 2),
                ("NodeResourcesBalancedAllocation", 1),
                ("ImageLocality", 1),
            ]
        );
    }

    /// The plugins that kube-scheduler v1.36 writes with `--write-config-to`.
    #[test]
    fn default_plugins_of_kubernetes_are_known() {
        const DEFAULTS: &str = "SchedulingGates PrioritySort NodeUnschedulable NodeName TaintToleration:3 NodeAffinity:2 NodePorts NodeResourcesFit:1 VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread:2 InterPodAffinity:2 DynamicResources:2 DefaultPreemption NodeResourcesBalancedAllocation:1 ImageLocality:1 DefaultBinder NodeDeclaredFeatures";
        let enabled = |names: &str| {
            let row = |plugin: &str| match plugin.split_once(':') {
                Some((name, weight)) => format!("      - name: {name}\n        weight: {weight}\n"),
                None => format!("      - name: {plugin}\n"),
            };
            let rows: String = names.split(' ').map(row).collect();
            format!(
                "profiles:\n- schedulerName: s\n  pluginConfig:\n  - name: DynamicResources\n    args: {{apiVersion: kubescheduler.config.k8s.io/v1, kind: DynamicResourcesArgs, filterTimeout: 10s}}\n  plugins:\n    multiPoint:\n      enabled:\n{rows}"
            )
        };
        let configuration = parse(&enabled(DEFAULTS)).expect("known plugins");
        assert_eq!(configuration.plugins_without_effect(), ["NodeDeclaredFeatures"]);
        let (configured, default) = (configuration.profiles(), Configuration::default().profiles());
        assert_eq!(names(&configured.expect("profiles")[0]), names(&default.expect("profiles")[0]));
        let unknown = parse(&enabled("Imaginary")).expect_err("an unknown plugin");
        assert_eq!(unknown.to_string(), "unknown plugin \"Imaginary\"");
    }

    #[test]
    fn profile_configuration_changes_plugins() {
        let configuration = parse(
            r#"
percentageOfNodesToScore: 30
podMaxBackoffSeconds: 60
profiles:
- schedulerName: packing
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{name: cpu, weight: 3}]
  plugins:
    score:
      disabled: [{name: ImageLocality}]
      enabled: [{name: NodeResourcesFit, weight: 7}]
    filter:
      disabled: [{name: NodePorts}]
    multiPoint:
      disabled: [{name: InterPodAffinity}]
- schedulerName: bare
  percentageOfNodesToScore: 100
  plugins:
    multiPoint:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit}, {name: DefaultBinder}]
"#,
        )
        .expect("a configuration");
        let profiles = configuration.profiles().expect("profiles");
        let (filters, scores) = names(&profiles[0]);
        assert!(!filters.contains(&"NodePorts") && !filters.contains(&"InterPodAffinity"));
        assert!(scores.contains(&("NodeResourcesFit", 7)));
        assert!(!scores.iter().any(|(name, _)| *name == "ImageLocality"));
        assert_eq!(profiles[0].percentage_of_nodes_to_score, Some(30));
        assert_eq!(names(&profiles[1]), (vec!["NodeResourcesFit"], vec![("NodeResourcesFit", 1)]));
        assert_eq!(profiles[1].percentage_of_nodes_to_score, Some(100));
        assert_eq!(configuration.backoff().longest, SignedDuration::from_mins(1));
    }

    #[test]
    fn invalid_configuration_returns_error() {
        for (body, expected) in [
            ("profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]", "unknown plugin \"Nope\""),
            ("profiles: [{schedulerName: a}, {schedulerName: a}]", "duplicate profile \"a\""),
            ("profiles: [{schedulerName: a}, {}]", "profiles.schedulerName: Required value"),
            ("percentageOfNodesToScore: 101", "percentageOfNodesToScore: not in valid range [0-100]"),
            ("podInitialBackoffSeconds: 0", "podInitialBackoffSeconds: must be greater than 0"),
            (
                "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Odd}}}]}]",
                "NodeResourcesFit: scoring strategy Odd is not supported",
            ),
            (
                "extenders: [{urlPrefix: \"http://x\", httpTimeout: soon}]",
                "extenders.httpTimeout: \"soon\" is not a duration",
            ),
        ] {
            assert_eq!(parse(body).expect_err(body).to_string(), expected);
        }
        let other = Configuration::parse(b"apiVersion: v1\nkind: Pod").expect_err("another kind");
        assert!(matches!(other, ConfigError::Kind(_)));
    }
}
