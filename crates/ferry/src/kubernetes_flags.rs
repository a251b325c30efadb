//! Flags of Kubernetes' API server whose values Ferry checks: what it cannot do is an error, never ignored.

use anyhow::{Result, ensure};
use clap::{ArgAction, Args};
use cluster::Config;

/// Feature gates: their name, their default, whether the other value can be had.
const GATES: &[(&str, bool, bool)] = &[
    ("AllAlpha", false, false),
    ("AllBeta", false, false),
    ("CBORServingAndStorage", false, true),
    ("OpenAPIEnums", true, false),
    ("StorageVersionAPI", false, false),
    ("WatchList", true, false),
];

/// How authorizers are called; all but the first two are not in Ferry.
const MODES: [&str; 6] = ["Node", "RBAC", "ABAC", "AlwaysAllow", "AlwaysDeny", "Webhook"];

#[derive(Args, Debug)]
pub struct KubernetesArgs {
    #[command(flatten)]
    pub audit: crate::audit_flags::AuditFlags,

    /// Whether requests queue for seats as FlowSchemas and PriorityLevelConfigurations say; otherwise they are only
    /// counted, and refused when they are too many.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub enable_priority_and_fairness: bool,

    /// Who decides what users may do; Node and RBAC are both always on in this version.
    #[arg(long, value_name = "MODE[,MODE]", value_delimiter = ',', default_value = "Node,RBAC",
          value_parser = parse_mode, help_heading = "API server")]
    pub authorization_mode: Vec<String>,

    /// Whether pods may have privileged containers; always true here: Pod Security decides, by namespace.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, value_parser = parse_true, help_heading = "API server")]
    pub allow_privileged: bool,

    /// Whether requests to aggregated servers go to endpoints instead of cluster IPs. There is no aggregation yet: the
    /// value is kept for then.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, help_heading = "API server")]
    pub enable_aggregator_routing: bool,

    /// Switches of features, such as CBORServingAndStorage=true; the only one that can be changed so far.
    #[arg(long, value_name = "GATE=BOOL[,...]", value_delimiter = ',', value_parser = parse_gate, help_heading = "API server")]
    pub feature_gates: Vec<(&'static str, bool)>,

    /// Admission plugins to switch on besides those that are on by default.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = parse_plugin, help_heading = "API server")]
    pub enable_admission_plugins: Vec<String>,

    /// Admission plugins to switch off.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',', value_parser = parse_plugin, help_heading = "API server")]
    pub disable_admission_plugins: Vec<String>,

    /// Headers by which front proxies name the user; only X-Remote-User.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-User",
          value_parser = |text: &str| only(text, "X-Remote-User"), help_heading = "API server")]
    pub requestheader_username_headers: String,

    /// Headers by which front proxies name the user's groups; only X-Remote-Group.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-Group",
          value_parser = |text: &str| only(text, "X-Remote-Group"), help_heading = "API server")]
    pub requestheader_group_headers: String,

    /// Headers by which front proxies name the user's UID; only X-Remote-Uid.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-Uid",
          value_parser = |text: &str| only(text, "X-Remote-Uid"), help_heading = "API server")]
    pub requestheader_uid_headers: String,

    /// What headers start with by which front proxies tell more about the user; only X-Remote-Extra-.
    #[arg(long, value_name = "PREFIX", default_value = "X-Remote-Extra-",
          value_parser = |text: &str| only(text, "X-Remote-Extra-"), help_heading = "API server")]
    pub requestheader_extra_headers_prefix: String,
}

impl KubernetesArgs {
    /// Sets what these flags mean to Ferry.
    pub fn apply(self, config: &mut Config) -> Result<()> {
        for mode in ["Node", "RBAC"] {
            let named = self.authorization_mode.iter().any(|name| name == mode);
            ensure!(named, "--authorization-mode: {mode} cannot be switched off in this version");
        }
        for (gate, on) in self.feature_gates {
            if gate == "CBORServingAndStorage" {
                config.api.limits.cbor = on;
            }
        }
        config.api.chain.priority_and_fairness = self.enable_priority_and_fairness;
        self.audit.apply(&mut config.api.audit)?;
        config.api.admission.enable = self.enable_admission_plugins;
        config.api.admission.disable = self.disable_admission_plugins;
        Ok(())
    }
}

fn parse_mode(text: &str) -> Result<String, String> {
    match text {
        "Node" | "RBAC" => Ok(text.to_owned()),
        _ if MODES.contains(&text) => Err(format!("{text} is not in this version; there are Node and RBAC")),
        _ => Err(format!("no such mode; Kubernetes has {}", MODES.join(", "))),
    }
}

fn parse_true(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => {
            Err("privileged containers are refused by Pod Security (label the namespace), not here"
                .to_owned())
        }
        _ => Err("true or false".to_owned()),
    }
}

fn parse_gate(text: &str) -> Result<(&'static str, bool), String> {
    let (name, value) = text.split_once('=').ok_or("GATE=true or GATE=false")?;
    let on = match value {
        "true" => true,
        "false" => false,
        _ => return Err(format!("{value:?} is neither true nor false")),
    };
    let names = || GATES.iter().map(|gate| gate.0).collect::<Vec<_>>().join(", ");
    let Some((name, default, free)) = GATES.iter().find(|gate| gate.0 == name) else {
        return Err(format!("unrecognized feature gate: {name}; there are {}", names()));
    };
    if on != *default && !free {
        return Err(format!("{name} is always {default} in this version"));
    }
    Ok((name, on))
}

fn parse_plugin(text: &str) -> Result<String, String> {
    if cluster::admission_plugins().any(|name| name == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<_> = cluster::admission_plugins().collect();
    Err(format!("no such plugin in this version; there are {}", names.join(", ")))
}

/// Header names do not care about case.
fn only(text: &str, want: &str) -> Result<String, String> {
    if text.eq_ignore_ascii_case(want) { Ok(text.to_owned()) } else { Err(format!("only {want} is read")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn configured(flags: &[&str]) -> Result<Config, String> {
        let line = ["ferry", "apiserver"].iter().chain(flags);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Apiserver(arguments) = cli.command else { return Err("another command".to_owned()) };
        crate::serve::configure(arguments).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn the_flags_of_an_ordinary_cluster() {
        let config = configured(&[
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            "--anonymous-auth=true",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--enable-aggregator-routing=true",
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
            "--feature-gates=CBORServingAndStorage=true,WatchList=true",
        ]);
        let config = config.expect("all of them are accepted");
        assert!(config.api.limits.cbor);
        assert_eq!(config.api.chain.max_requests_in_flight, 10);
        assert_eq!(config.api.admission.disable, ["Priority"]);
        assert!(!config.api.chain.priority_and_fairness);
        let log = config.api.audit.log.expect("a log");
        assert_eq!((log.rotation.max_bytes, log.rotation.max_backups), (100 << 20, 10));
        assert!(config.api.audit.trail.is_some());
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (flag, want) in [
            ("--authorization-mode=Webhook", "Webhook is not in this version"),
            ("--authorization-mode=RBAC", "Node cannot be switched off"),
            ("--authorization-mode=Nobody", "no such mode"),
            ("--allow-privileged=false", "Pod Security"),
            ("--feature-gates=Nonsense=true", "unrecognized feature gate: Nonsense"),
            ("--feature-gates=WatchList=false", "always true"),
            ("--feature-gates=WatchList", "GATE=true"),
            ("--enable-admission-plugins=Nonsense", "no such plugin"),
            ("--requestheader-username-headers=X-User", "only X-Remote-User"),
            ("--service-cluster-ip-range=10.0.0.0", "is not a range"),
            ("--audit-log-format=xml", "xml"),
            ("--audit-log-maxage=3", "--audit-log-path"),
        ] {
            let error = configured(&[flag]).expect_err(flag);
            assert!(error.contains(want), "{flag}: {error}");
        }
    }
}
