//! Flags of kube-apiserver whose values Ferry validates: unsupported values are errors, never ignored.

use anyhow::{Context, Result, ensure};
use api::runtime_config::RuntimeConfig;
use clap::{ArgAction, Args};
use cluster::{AggregatorRouting, Config, WebhookTokenConfig};
use std::path::PathBuf;
use std::time::Duration;

use crate::flags::parse_duration;
use crate::oidc_flags::OidcArgs;

/// Names of authorization modes.
const MODES: [&str; 5] = ["Node", "RBAC", "Webhook", "AlwaysAllow", "AlwaysDeny"];

#[derive(Args, Debug)]
pub struct KubernetesArgs {
    #[command(flatten)]
    pub audit: crate::audit_flags::AuditFlags,

    /// If true, replace the max-in-flight handler with an enhanced one that queues and dispatches with priority and
    /// fairness.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub enable_priority_and_fairness: bool,

    /// Enable profiling via web interface host:port/debug/pprof/.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub profiling: bool,

    /// Ordered list of plug-ins to do authorization on secure port. Comma-delimited list of: Node, RBAC, Webhook,
    /// AlwaysAllow, AlwaysDeny.
    #[arg(long, value_name = "MODE[,MODE]", value_delimiter = ',', default_value = "Node,RBAC",
          value_parser = parse_mode, help_heading = "API server")]
    pub authorization_mode: Vec<String>,

    /// File with Authorization Configuration to configure the authorizer chain. Mutually exclusive with
    /// `--authorization-mode` and the `--authorization-webhook-*` flags.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "authorization_webhook_config_file",
        help_heading = "API server"
    )]
    pub authorization_config: Option<PathBuf>,

    /// File with webhook configuration in kubeconfig format, used with `--authorization-mode=Webhook`. The API server
    /// will query the remote service to determine access on the API server's secure port.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub authorization_webhook_config_file: Option<PathBuf>,

    /// The API version of the authorization.k8s.io SubjectAccessReview to send to and expect from the webhook.
    #[arg(long, value_name = "VERSION", default_value = "v1", value_parser = ["v1", "v1beta1"], help_heading = "API server")]
    pub authorization_webhook_version: String,

    /// The duration to cache 'authorized' responses from the webhook authorizer.
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = parse_duration, help_heading = "API server")]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// The duration to cache 'unauthorized' responses from the webhook authorizer.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration, help_heading = "API server")]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,

    /// File with Authentication Configuration to configure the JWT Token authenticator or the anonymous
    /// authenticator; reloaded when it changes.
    #[arg(long, value_name = "FILE", conflicts_with = "oidc_issuer_url", help_heading = "API server")]
    pub authentication_config: Option<PathBuf>,

    /// File with webhook configuration for token authentication in kubeconfig format. The API server will query the
    /// remote service to determine authentication for bearer tokens.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,

    /// The API version of the authentication.k8s.io TokenReview to send to and expect from the webhook.
    #[arg(long, value_name = "VERSION", default_value = "v1", value_parser = ["v1", "v1beta1"], help_heading = "API server")]
    pub authentication_token_webhook_version: String,

    /// The duration to cache responses from the webhook token authenticator.
    #[arg(long, value_name = "DURATION", default_value = "2m0s", value_parser = parse_duration, help_heading = "API server")]
    pub authentication_token_webhook_cache_ttl: Duration,

    #[command(flatten)]
    pub oidc: OidcArgs,

    /// File containing PEM-encoded x509 RSA or ECDSA private or public keys, used to verify ServiceAccount tokens in
    /// addition to the signing key. The flag can be specified multiple times with different files.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub service_account_key_file: Vec<PathBuf>,

    /// Path to the file that contains the current private key (RSA or EC) of the service account token issuer. The
    /// issuer will sign issued ID tokens with this private key.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub service_account_signing_key_file: Option<PathBuf>,

    /// Path to socket where an external JWT signer is listening. This flag is mutually exclusive with
    /// --service-account-signing-key-file and --service-account-key-file. A name that begins with @ is an abstract
    /// socket.
    #[arg(long, value_name = "SOCKET", help_heading = "API server")]
    pub service_account_signing_endpoint: Option<String>,

    /// List of client certificate common names to allow to provide usernames in headers specified by
    /// `--requestheader-username-headers`. If empty, any client certificate validated by the authorities in
    /// `--requestheader-client-ca-file` is allowed.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', help_heading = "API server")]
    pub requestheader_allowed_names: Vec<String>,

    /// If true, allow privileged containers. Only true is supported: Pod Security rejects them by namespace.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, value_parser = parse_true, help_heading = "API server")]
    pub allow_privileged: bool,

    /// The number of apiservers running in the cluster, must be a positive number. With several, custom resource
    /// definitions are established five seconds after their names are accepted.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "API server")]
    pub apiserver_count: u32,

    /// Turns on aggregator routing requests to endpoints IP rather than cluster IP.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub enable_aggregator_routing: bool,

    /// A set of key=value pairs that enable or disable built-in APIs: `group/version`, `group/version/resource`,
    /// `api/all`, `api/ga`, `api/beta`, `api/alpha`.
    #[arg(long, value_name = "KEY=BOOL[,...]", value_delimiter = ',', help_heading = "API server")]
    pub runtime_config: Vec<String>,

    /// Admission plugins that should be enabled in addition to default enabled ones.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = parse_plugin, help_heading = "API server")]
    pub enable_admission_plugins: Vec<String>,

    /// Admission plugins that should be disabled although they are in the default enabled plugins list.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = parse_plugin, help_heading = "API server")]
    pub disable_admission_plugins: Vec<String>,

    /// File with admission control configuration.
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub admission_control_config_file: Option<PathBuf>,

    /// List of request headers to inspect for usernames; only X-Remote-User is supported.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-User",
          value_parser = |text: &str| only(text, "X-Remote-User"), help_heading = "API server")]
    pub requestheader_username_headers: String,

    /// List of request headers to inspect for groups; only X-Remote-Group is supported.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-Group",
          value_parser = |text: &str| only(text, "X-Remote-Group"), help_heading = "API server")]
    pub requestheader_group_headers: String,

    /// List of request headers to inspect for UIDs; only X-Remote-Uid is supported.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-Uid",
          value_parser = |text: &str| only(text, "X-Remote-Uid"), help_heading = "API server")]
    pub requestheader_uid_headers: String,

    /// List of request header prefixes to inspect for extra fields; only X-Remote-Extra- is supported.
    #[arg(long, value_name = "PREFIX", default_value = "X-Remote-Extra-",
          value_parser = |text: &str| only(text, "X-Remote-Extra-"), help_heading = "API server")]
    pub requestheader_extra_headers_prefix: String,
}

impl KubernetesArgs {
    /// Applies the flags to the configuration.
    pub fn apply(self, config: &mut Config) -> Result<()> {
        config.api.chain.pages.profiling = self.profiling;
        let authorization = &mut config.api.authorization;
        let webhook = self.authorization_mode.iter().any(|mode| mode == "Webhook");
        ensure!(
            webhook == self.authorization_webhook_config_file.is_some(),
            "--authorization-mode=Webhook and --authorization-webhook-config-file require each other"
        );
        authorization.modes = self.authorization_mode;
        authorization.file = self.authorization_config;
        authorization.webhook.kubeconfig = self.authorization_webhook_config_file;
        authorization.webhook.version = self.authorization_webhook_version;
        authorization.webhook.authorized_ttl = self.authorization_webhook_cache_authorized_ttl;
        authorization.webhook.unauthorized_ttl = self.authorization_webhook_cache_unauthorized_ttl;
        let authentication = &mut config.api.authentication;
        authentication.file = self.authentication_config;
        authentication.oidc = self.oidc.flags();
        authentication.webhook =
            self.authentication_token_webhook_config_file.map(|kubeconfig| WebhookTokenConfig {
                kubeconfig,
                cache: self.authentication_token_webhook_cache_ttl,
                version: self.authentication_token_webhook_version,
            });
        authentication.front_proxy_names = self.requestheader_allowed_names;
        if let Some(endpoint) = &self.service_account_signing_endpoint {
            ensure!(
                self.service_account_signing_key_file.is_none() && self.service_account_key_file.is_empty(),
                "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with `--service-account-signing-endpoint` (They are mutually exclusive)"
            );
            ensure!(
                endpoint.strip_prefix('@').is_none_or(is_abstract_name),
                "invalid value {endpoint:?} passed for `--service-account-signing-endpoint`, when prefixed with @ must be a valid abstract socket name"
            );
        }
        authentication.service_accounts.signing_endpoint =
            self.service_account_signing_endpoint.filter(|endpoint| !endpoint.is_empty()).map(PathBuf::from);
        authentication.service_accounts.key_files = self.service_account_key_file;
        authentication.service_accounts.signing_key_file = self.service_account_signing_key_file;
        config.api.limits.cbor = base::features::enabled("CBORServingAndStorage");
        let runtime = RuntimeConfig::parse(self.runtime_config.iter().map(String::as_str));
        config.api.runtime = runtime.context("--runtime-config")?;
        let without_effect = config.api.runtime.without_effect();
        if !without_effect.is_empty() {
            eprintln!("ferry: --runtime-config: not served in this version: {}", without_effect.join(", "));
        }
        config.api.api_server_count = self.apiserver_count;
        config.api.aggregator_routing = match self.enable_aggregator_routing {
            true => AggregatorRouting::Endpoints,
            false => AggregatorRouting::Service,
        };
        config.api.chain.priority_and_fairness = self.enable_priority_and_fairness;
        self.audit.apply(&mut config.api.audit)?;
        config.api.admission.enable = self.enable_admission_plugins;
        config.api.admission.disable = self.disable_admission_plugins;
        config.api.admission.file = self.admission_control_config_file;
        Ok(())
    }
}

/// Reports whether a name consists of parts of letters, digits, `_` and `-`, with dots between them.
fn is_abstract_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    name.split('.').all(|part| !part.is_empty() && part.bytes().all(is_word))
}

fn parse_mode(text: &str) -> Result<String, String> {
    match text {
        _ if MODES.contains(&text) => Ok(text.to_owned()),
        _ => Err(format!("unknown mode, supported modes: {}", MODES.join(", "))),
    }
}

fn parse_true(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => {
            Err("privileged containers are rejected by Pod Security only (label the namespace)".to_owned())
        }
        _ => Err("expected true or false".to_owned()),
    }
}

fn parse_plugin(text: &str) -> Result<String, String> {
    if cluster::admission_plugins().any(|name| name == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = cluster::admission_plugins().collect();
    Err(format!("unknown plugin, supported plugins: {}", names.join(", ")))
}

/// Header names are case-insensitive.
fn only(text: &str, want: &str) -> Result<String, String> {
    if text.eq_ignore_ascii_case(want) {
        Ok(text.to_owned())
    } else {
        Err(format!("only {want} is supported"))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    pub fn configured(flags: &[&str]) -> Result<Config, String> {
        let line = ["ferry", "apiserver"].iter().chain(flags);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Apiserver(arguments) = cli.command else { return Err("another command".to_owned()) };
        crate::serve::configure(arguments, crate::serve::Role::ApiServer)
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn external_signer_excludes_keys() {
        for endpoint in ["/run/signer.sock", "@signer", "@a.b-c_d.9"] {
            let config = configured(&["--service-account-signing-endpoint", endpoint]).expect("valid");
            let accounts = &config.api.authentication.service_accounts;
            assert_eq!(accounts.signing_endpoint.as_deref(), Some(std::path::Path::new(endpoint)));
        }
        for (flags, want) in [
            (&["--service-account-signing-endpoint=@"][..], "must be a valid abstract socket name"),
            (&["--service-account-signing-endpoint=@a..b"], "must be a valid abstract socket name"),
            (&["--service-account-signing-endpoint=@a/b"], "must be a valid abstract socket name"),
            (
                &["--service-account-signing-endpoint=/s", "--service-account-key-file=/k"],
                "They are mutually exclusive",
            ),
            (
                &["--service-account-signing-endpoint=/s", "--service-account-signing-key-file=/k"],
                "They are mutually exclusive",
            ),
        ] {
            let error = configured(flags).err().unwrap_or_default();
            assert!(error.contains(want), "{flags:?}: {error}");
        }
    }

    #[test]
    fn kubeadm_flags_are_accepted() {
        let config = configured(&[
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            "--anonymous-auth=true",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--enable-aggregator-routing=true",
            "--apiserver-count=3",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--enable-admission-plugins=LimitRanger,ResourceQuota",
            "--disable-admission-plugins=Priority",
            "--max-requests-inflight=10",
            "--enable-priority-and-fairness=false",
            "--audit-policy-file=/etc/kubernetes/audit.yaml",
            "--audit-log-path=/var/log/audit.log",
            "--audit-log-maxage=30",
            "--audit-log-maxbackup=10",
            "--audit-log-maxsize=100",
            "--max-mutating-requests-inflight=5",
            "--runtime-config=api/beta=true",
        ]);
        let config = config.expect("all of them are accepted");
        let beta = "resource.k8s.io/v1beta1";
        let serves = |row: &api::resources::Resource| format!("{}/{}", row.group, row.version) == beta;
        assert!(config.api.runtime.resources().any(serves));
        assert_eq!(config.api.chain.max_requests_in_flight, 10);
        assert_eq!(config.api.admission.disable, ["Priority"]);
        assert!(!config.api.chain.priority_and_fairness);
        assert_eq!(config.api.aggregator_routing, AggregatorRouting::Endpoints);
        assert_eq!(config.api.api_server_count, 3);
        let log = config.api.audit.log.expect("a log");
        assert_eq!((log.rotation.max_bytes, log.rotation.max_backups), (100 << 20, 10));
        assert!(config.api.audit.audit_log.is_some());
        let config = configured(&["--enable-aggregator-routing=false"]).expect("accepted");
        assert_eq!(config.api.aggregator_routing, AggregatorRouting::Service);
    }

    #[test]
    fn store_quota_flag_sets_the_size_limit() {
        assert_eq!(configured(&[]).expect("valid").store_quota_bytes, cluster::DEFAULT_QUOTA_BYTES);
        let config = configured(&["--quota-backend-bytes=1048576"]).expect("valid");
        assert_eq!(config.store_quota_bytes, 1 << 20);
        assert!(configured(&["--quota-backend-bytes=0"]).is_err());
    }

    #[test]
    fn unsupported_flag_value_returns_error() {
        for (flag, want) in [
            ("--authorization-mode=Webhook", "require each other"),
            ("--authorization-webhook-config-file=x", "require each other"),
            ("--oidc-issuer-url=https://issuer", "--oidc-client-id"),
            ("--authorization-mode=Nobody", "unknown mode"),
            ("--allow-privileged=false", "Pod Security"),
            ("--runtime-config=nothing/v1=true", "unknown api groups nothing/v1"),
            ("--enable-admission-plugins=Nonsense", "unknown plugin"),
            ("--requestheader-username-headers=X-User", "only X-Remote-User"),
            ("--service-cluster-ip-range=10.0.0.0", "is not a CIDR"),
            ("--audit-log-format=xml", "xml"),
            ("--audit-log-maxage=3", "--audit-log-path"),
        ] {
            let error = configured(&[flag]).expect_err(flag);
            assert!(error.contains(want), "{flag}: {error}");
        }
    }
}
