//! Authorizers and their order: from flags, or from an `AuthorizationConfiguration`.

use super::webhook::{FailurePolicy, REQUEST, Settings, Webhook};
use super::{Authorizer, Decision, ResolvedRules};
use crate::configuration::{self, ConfigurationError};
use crate::outbound::{KubeconfigError, read_kubeconfig};
use crate::user::UserInfo;
use expressions::Type;
use futures_util::future::BoxFuture;
use machinery::status::Result;
use serde::Deserialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const GROUP: &str = "apiserver.config.k8s.io";
const KIND: &str = "AuthorizationConfiguration";
const TYPES: [&str; 5] = ["AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// One entry of the chain.
#[derive(Clone)]
pub enum Choice {
    Node,
    Rbac,
    Other(Arc<dyn Authorizer>),
}

/// Settings of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationConfig {
    /// Names of authorizers, in order.
    pub modes: Vec<String>,
    /// For the mode `Webhook`.
    pub webhook: WebhookFlags,
    /// An `AuthorizationConfiguration` that replaces all the above.
    pub file: Option<PathBuf>,
}

/// A webhook configured by flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFlags {
    pub kubeconfig: Option<PathBuf>,
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
}

impl Default for AuthorizationConfig {
    fn default() -> Self {
        Self {
            modes: vec!["Node".to_owned(), "RBAC".to_owned()],
            webhook: WebhookFlags {
                kubeconfig: None,
                version: "v1".to_owned(),
                authorized_ttl: Duration::from_secs(5 * 60),
                unauthorized_ttl: Duration::from_secs(30),
            },
            file: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error("failed to set up the authorization webhook")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("authorization mode Webhook needs --authorization-webhook-config-file")]
    NoKubeconfig,
    #[error("authorizer types other than Webhook cannot change while running: were [{0}], are [{1}]")]
    Types(String, String),
    #[error("unknown authorization mode {0}")]
    Mode(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Configuration {
    #[serde(default)]
    authorizers: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    webhook: Option<WebhookRow>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct WebhookRow {
    #[serde(rename = "authorizedTTL")]
    authorized_ttl: Option<String>,
    cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL")]
    unauthorized_ttl: Option<String>,
    cache_unauthorized_requests: Option<bool>,
    timeout: Option<String>,
    subject_access_review_version: String,
    match_condition_subject_access_review_version: String,
    failure_policy: String,
    connection_info: ConnectionInfo,
    match_conditions: Vec<MatchCondition>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct ConnectionInfo {
    #[serde(rename = "type")]
    kind: String,
    kube_config_file: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchCondition {
    #[serde(default)]
    expression: String,
}

impl AuthorizationConfig {
    /// Builds the chain.
    pub fn choices(&self) -> Result<Vec<Choice>, AuthorizationError> {
        match &self.file {
            Some(path) => from_file(path),
            None => self.modes.iter().map(|mode| self.choice(mode)).collect(),
        }
    }

    fn choice(&self, mode: &str) -> Result<Choice, AuthorizationError> {
        if let Some(simple) = simple(mode) {
            return Ok(simple);
        }
        if mode != "Webhook" {
            return Err(AuthorizationError::Mode(mode.to_owned()));
        }
        let path = self.webhook.kubeconfig.as_ref().ok_or(AuthorizationError::NoKubeconfig)?;
        let settings = Settings {
            version: self.webhook.version.clone(),
            authorized_ttl: self.webhook.authorized_ttl,
            unauthorized_ttl: self.webhook.unauthorized_ttl,
            timeout: MAX_TIMEOUT,
            failure_policy: FailurePolicy::NoOpinion,
            conditions: Vec::new(),
        };
        Ok(Choice::Other(Arc::new(Webhook::new("default", read_kubeconfig(path)?, settings))))
    }
}

/// An `AuthorizationConfiguration` that is reloaded when it changes.
pub struct AuthorizationFile {
    pub path: PathBuf,
    /// Types besides webhooks: they can be neither added nor removed while running.
    types: Vec<String>,
}

impl AuthorizationFile {
    /// `None` if the chain is not configured by a file.
    pub fn of(config: &AuthorizationConfig) -> Result<Option<Self>, AuthorizationError> {
        let Some(path) = config.file.clone() else { return Ok(None) };
        let types = types_in(&path)?;
        Ok(Some(Self { path, types }))
    }

    /// Builds the chain from the current content of the file.
    pub fn reload(&self) -> Result<Vec<Choice>, AuthorizationError> {
        let types = types_in(&self.path)?;
        if types != self.types {
            return Err(AuthorizationError::Types(self.types.join(", "), types.join(", ")));
        }
        from_file(&self.path)
    }
}

/// The types of a file besides webhooks, sorted.
fn types_in(path: &Path) -> Result<Vec<String>, AuthorizationError> {
    let found: Configuration = configuration::read(path, GROUP, &["v1", "v1beta1"], KIND)?;
    let mut types: Vec<String> = found.authorizers.into_iter().map(|row| row.kind).collect();
    types.retain(|kind| kind != "Webhook");
    types.sort();
    Ok(types)
}

fn simple(mode: &str) -> Option<Choice> {
    Some(match mode {
        "Node" => Choice::Node,
        "RBAC" => Choice::Rbac,
        "AlwaysAllow" => Choice::Other(Arc::new(Always { allows: true })),
        "AlwaysDeny" => Choice::Other(Arc::new(Always { allows: false })),
        _ => return None,
    })
}

fn from_file(path: &Path) -> Result<Vec<Choice>, AuthorizationError> {
    let found: Configuration = configuration::read(path, GROUP, &["v1", "v1beta1"], KIND)?;
    let invalid = |reason: String| ConfigurationError::invalid(path, reason);
    if found.authorizers.is_empty() {
        let why = "authorizers: Required value: at least one authorization mode must be defined";
        return Err(invalid(why.to_owned()).into());
    }
    let (mut types, mut names) = (HashSet::new(), HashSet::new());
    let mut choices = Vec::new();
    for (index, row) in found.authorizers.into_iter().enumerate() {
        let location = format!("authorizers[{index}]");
        check_row(&row, &mut types, &mut names).map_err(|why| invalid(format!("{location}.{why}")))?;
        let choice = match row.webhook {
            None => simple(&row.kind).ok_or_else(|| invalid(format!("{location}.type: {}", row.kind)))?,
            Some(webhook) => {
                let (kubeconfig, settings) =
                    settings(&webhook).map_err(|why| invalid(format!("{location}.{why}")))?;
                Choice::Other(Arc::new(Webhook::new(&row.name, read_kubeconfig(&kubeconfig)?, settings)))
            }
        };
        choices.push(choice);
    }
    Ok(choices)
}

fn check_row(row: &Row, types: &mut HashSet<String>, names: &mut HashSet<String>) -> Result<(), String> {
    if row.kind.is_empty() {
        return Err("type: Required value".to_owned());
    }
    if !TYPES.contains(&row.kind.as_str()) {
        return Err(format!(
            "type: Unsupported value: {:?}: supported values: {}",
            row.kind,
            TYPES.join(", ")
        ));
    }
    if !types.insert(row.kind.clone()) && row.kind != "Webhook" {
        return Err(format!("type: Duplicate value: {:?}", row.kind));
    }
    if row.name.is_empty() {
        return Err("name: Required value".to_owned());
    }
    if !names.insert(row.name.clone()) {
        return Err(format!("name: Duplicate value: {:?}", row.name));
    }
    match (row.kind == "Webhook", row.webhook.is_some()) {
        (true, false) => Err("webhook: Required value: required when type=Webhook".to_owned()),
        (false, true) => {
            Err("webhook: Invalid value: \"non-null\": may only be specified when type=Webhook".to_owned())
        }
        _ => Ok(()),
    }
}

fn settings(row: &WebhookRow) -> Result<(PathBuf, Settings), String> {
    let time = |field: &str, text: &Option<String>| {
        let text = text.as_ref().ok_or_else(|| format!("{field}: Required value"))?;
        let found = configuration::duration(text).filter(|found| !found.is_zero());
        found.ok_or_else(|| format!("{field}: Invalid value: {text:?}: must be > 0s"))
    };
    let timeout = time("timeout", &row.timeout)?;
    if timeout > MAX_TIMEOUT {
        return Err(format!("timeout: Invalid value: {timeout:?}: must be > 0s and <= 30s"));
    }
    let ttl_of =
        |wanted: Option<bool>, ttl: Duration| if wanted == Some(false) { Duration::ZERO } else { ttl };
    let authorized_ttl = ttl_of(row.cache_authorized_requests, time("authorizedTTL", &row.authorized_ttl)?);
    let unauthorized_ttl =
        ttl_of(row.cache_unauthorized_requests, time("unauthorizedTTL", &row.unauthorized_ttl)?);
    let version = row.subject_access_review_version.clone();
    if !matches!(version.as_str(), "v1" | "v1beta1") {
        return Err(format!(
            "subjectAccessReviewVersion: Unsupported value: {version:?}: supported values: \"v1\", \"v1beta1\""
        ));
    }
    let failure_policy = match row.failure_policy.as_str() {
        "NoOpinion" => FailurePolicy::NoOpinion,
        "Deny" => FailurePolicy::Deny,
        other => {
            return Err(format!(
                "failurePolicy: Unsupported value: {other:?}: supported values: \"Deny\", \"NoOpinion\""
            ));
        }
    };
    let conditions_version = row.match_condition_subject_access_review_version.as_str();
    if conditions_version != "v1" && !row.match_conditions.is_empty() {
        return Err("matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified".to_owned());
    }
    let mut conditions = Vec::new();
    for (index, condition) in row.match_conditions.iter().enumerate() {
        let compiled = REQUEST.compile_about(&condition.expression, &[Type::Bool]);
        let compiled = compiled.map_err(|error| {
            format!("matchConditions[{index}].expression: Invalid value: {:?}: {error}", condition.expression)
        })?;
        conditions.push(compiled);
    }
    let kubeconfig = match (row.connection_info.kind.as_str(), &row.connection_info.kube_config_file) {
        ("KubeConfigFile", Some(path)) if path.is_absolute() => path.clone(),
        ("KubeConfigFile", Some(path)) => {
            return Err(format!(
                "connectionInfo.kubeConfigFile: Invalid value: {path:?}: must be an absolute path"
            ));
        }
        ("KubeConfigFile", None) => return Err("connectionInfo.kubeConfigFile: Required value".to_owned()),
        (other, _) => {
            return Err(format!(
                "connectionInfo.type: Unsupported value: {other:?}: supported values: \"KubeConfigFile\""
            ));
        }
    };
    let settings =
        Settings { version, authorized_ttl, unauthorized_ttl, timeout, failure_policy, conditions };
    Ok((kubeconfig, settings))
}

/// An authorizer with a constant decision.
struct Always {
    allows: bool,
}

impl Authorizer for Always {
    fn label(&self) -> (&'static str, &str) {
        if self.allows { ("AlwaysAllow", "alwaysallow") } else { ("AlwaysDeny", "alwaysdeny") }
    }

    fn authorize<'a>(
        &'a self,
        _user: &'a UserInfo,
        _attributes: &'a super::Attributes<'a>,
    ) -> BoxFuture<'a, Result<Decision>> {
        let decision = match self.allows {
            true => Decision::Allowed(Arc::default()),
            false => Decision::NoOpinion("Everything is forbidden.".to_owned()),
        };
        Box::pin(std::future::ready(Ok(decision)))
    }

    fn always_allows(&self) -> bool {
        self.allows
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Result<ResolvedRules>> {
        let everything = || vec!["*".to_owned()];
        let resources = super::rules::Rule {
            verbs: everything(),
            api_groups: everything(),
            resources: everything(),
            ..super::rules::Rule::default()
        };
        let rest = super::rules::Rule {
            verbs: everything(),
            non_resource_urls: everything(),
            ..super::rules::Rule::default()
        };
        let rules = if self.allows { vec![resources, rest] } else { Vec::new() };
        Box::pin(std::future::ready(Ok(ResolvedRules { rules, ..ResolvedRules::default() })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_file_with_changed_types_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("authorization.yaml");
        let write = |rows: &str| {
            let text = format!("apiVersion: {GROUP}/v1\nkind: {KIND}\nauthorizers: {rows}\n");
            std::fs::write(&path, text).expect("written");
        };
        write("[{type: Node, name: node}, {type: RBAC, name: rbac}]");
        let config = AuthorizationConfig { file: Some(path.clone()), ..AuthorizationConfig::default() };
        let file = AuthorizationFile::of(&config).expect("read").expect("a file");
        write("[{type: RBAC, name: rbac}, {type: Node, name: node}]");
        assert!(matches!(file.reload().expect("reloaded").as_slice(), [Choice::Rbac, Choice::Node]));
        write("[{type: AlwaysAllow, name: a}]");
        assert!(matches!(file.reload(), Err(AuthorizationError::Types(..))));
        let none = AuthorizationFile::of(&AuthorizationConfig::default()).expect("nothing to read");
        assert!(none.is_none());
    }

    #[test]
    fn authorization_configuration_invalid_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("authorization.yaml");
        let webhook = "authorizedTTL: 1m, unauthorizedTTL: 1m, timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny";
        for (rows, want) in [
            ("[]".to_owned(), "at least one authorization mode"),
            ("[{type: Magic, name: m}]".to_owned(), "Unsupported value: \"Magic\""),
            ("[{type: RBAC}]".to_owned(), "authorizers[0].name: Required value"),
            (
                "[{type: RBAC, name: a}, {type: RBAC, name: b}]".to_owned(),
                "authorizers[1].type: Duplicate value",
            ),
            ("[{type: Webhook, name: w}]".to_owned(), "webhook: Required value"),
            ("[{type: Webhook, name: w, webhook: {timeout: 60s}}]".to_owned(), "must be > 0s and <= 30s"),
            (
                format!(
                    "[{{type: Webhook, name: w, webhook: {{{webhook}, matchConditionSubjectAccessReviewVersion: v1, matchConditions: [{{expression: 'reqest.user'}}]}}}}]"
                ),
                "undeclared reference to 'reqest'",
            ),
            (
                format!(
                    "[{{type: Webhook, name: w, webhook: {{{webhook}, connectionInfo: {{type: KubeConfigFile, kubeConfigFile: x}}}}}}]"
                ),
                "must be an absolute path",
            ),
        ] {
            std::fs::write(&path, format!("apiVersion: {GROUP}/v1\nkind: {KIND}\nauthorizers: {rows}\n"))
                .expect("written");
            let config = AuthorizationConfig { file: Some(path.clone()), ..AuthorizationConfig::default() };
            let error = config.choices().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(want), "{rows}: {error}");
        }
        let chain = AuthorizationConfig::default().choices().expect("the default");
        assert!(matches!(chain.as_slice(), [Choice::Node, Choice::Rbac]));
        let modes =
            AuthorizationConfig { modes: vec!["Webhook".to_owned()], ..AuthorizationConfig::default() };
        assert!(matches!(modes.choices(), Err(AuthorizationError::NoKubeconfig)));
    }
}
