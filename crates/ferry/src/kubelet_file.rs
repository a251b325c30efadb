//! `ferry kubelet --config`: translates a KubeletConfiguration to flags. Flags on the command line take precedence.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::error::{ContextKind, ContextValue};
use serde_json::Value;

/// Conversion of a field to a flag value.
enum Form {
    Plain,
    /// A list, joined by commas.
    List,
    /// A map; each key and value joined by this character.
    Map(char),
    /// A list of objects: pairs of the two named fields, the second in seconds.
    Seconds(&'static str, &'static str),
    /// A list of objects: pairs of the two named fields, joined by `=`.
    Pairs(&'static str, &'static str),
    /// A duration, or a number of nanoseconds.
    Nanoseconds,
    /// A list of taints.
    Taints,
}

use Form::{List, Map, Nanoseconds, Pairs, Plain, Seconds, Taints};

/// LoggingConfiguration v1.
const LOGGING: &[(&str, &[&str], Form)] = &[
    ("/logging/flushFrequency", &["log-flush-frequency"], Nanoseconds),
    ("/logging/format", &["log-format", "logging-format"], Plain),
    ("/logging/verbosity", &["v"], Plain),
    ("/logging/vmodule", &["vmodule"], Pairs("filePattern", "verbosity")),
];

/// Field path, equivalent flag (with aliases) and conversion.
const FIELDS: &[(&str, &[&str], Form)] = &[
    ("/allowedUnsafeSysctls", &["allowed-unsafe-sysctls"], List),
    ("/authentication/x509/clientCAFile", &["client-ca-file"], Plain),
    ("/cgroupRoot", &["cgroup-root"], Plain),
    ("/cgroupsPerQOS", &["cgroups-per-qos"], Plain),
    ("/clusterDNS", &["cluster-dns"], List),
    ("/clusterDomain", &["cluster-domain"], Plain),
    ("/containerLogMaxFiles", &["container-log-max-files"], Plain),
    ("/containerLogMaxSize", &["container-log-max-size"], Plain),
    ("/containerRuntimeEndpoint", &["container-runtime-endpoint"], Plain),
    ("/cpuManagerPolicy", &["cpu-manager-policy"], Plain),
    ("/cpuManagerPolicyOptions", &["cpu-manager-policy-options"], Map('=')),
    ("/cpuManagerReconcilePeriod", &["cpu-manager-reconcile-period"], Plain),
    ("/enableProfilingHandler", &["profiling"], Plain),
    ("/enableSystemLogHandler", &["enable-system-log-handler"], Plain),
    ("/enableSystemLogQuery", &["enable-system-log-query"], Plain),
    ("/evictionHard", &["eviction-hard"], Map('<')),
    ("/evictionMaxPodGracePeriod", &["eviction-max-pod-grace-period"], Plain),
    ("/evictionMinimumReclaim", &["eviction-minimum-reclaim"], Map('=')),
    ("/evictionPressureTransitionPeriod", &["eviction-pressure-transition-period"], Plain),
    ("/evictionSoft", &["eviction-soft"], Map('<')),
    ("/evictionSoftGracePeriod", &["eviction-soft-grace-period"], Map('=')),
    ("/featureGates", &["feature-gates"], Map('=')),
    ("/imageGCHighThresholdPercent", &["image-gc-high-threshold"], Plain),
    ("/imageGCLowThresholdPercent", &["image-gc-low-threshold"], Plain),
    ("/imageMaximumGCAge", &["image-maximum-gc-age"], Plain),
    ("/imageMinimumGCAge", &["minimum-image-ttl-duration"], Plain),
    ("/kubeReserved", &["kube-reserved"], Map('=')),
    ("/maxPods", &["max-pods"], Plain),
    ("/podCIDR", &["pod-cidr"], Plain),
    ("/podPidsLimit", &["pod-max-pids"], Plain),
    ("/providerID", &["provider-id"], Plain),
    ("/registerWithTaints", &["register-with-taints"], Taints),
    ("/reservedSystemCPUs", &["reserved-cpus"], Plain),
    ("/resolvConf", &["resolv-conf"], Plain),
    ("/rotateCertificates", &["rotate-certificates"], Plain),
    ("/serverTLSBootstrap", &["rotate-server-certificates"], Plain),
    ("/shutdownGracePeriod", &["node-shutdown-grace-period"], Plain),
    (
        "/shutdownGracePeriodByPodPriority",
        &["node-shutdown-grace-period-by-pod-priority"],
        Seconds("priority", "shutdownGracePeriodSeconds"),
    ),
    ("/shutdownGracePeriodCriticalPods", &["node-shutdown-grace-period-critical-pods"], Plain),
    ("/staticPodPath", &["static-pods", "pod-manifest-path"], Plain),
    ("/systemReserved", &["system-reserved"], Map('=')),
    ("/tlsCertFile", &["tls-cert-file"], Plain),
    ("/tlsPrivateKeyFile", &["tls-private-key-file"], Plain),
    ("/tracing/endpoint", &[TRACING], Plain),
    ("/tracing/samplingRatePerMillion", &["tracing-sampling-rate-per-million"], Plain),
];

/// Flag that turns traces on; `tracing: {}` does so with the default endpoint.
const TRACING: &str = "tracing-endpoint";
/// Flag that combines the fields for address and port.
const LISTEN: &str = "kubelet-listen";
/// Kubernetes' defaults of the two fields.
const ADDRESS: (&str, u64) = ("0.0.0.0", 10250);

/// Content of a configuration file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FromFile {
    /// Equivalent flags.
    pub flags: Vec<OsString>,
    /// Fields that are set but have no effect in Ferry.
    pub without_effect: Vec<String>,
}

/// Path of the field whose flag an error is about.
pub fn field_of(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = argument.trim_start_matches('-').split([' ', '=']).next()?;
    if flag == LISTEN {
        return Some("address or port".to_owned());
    }
    let mut rows = FIELDS.iter().chain(LOGGING);
    let (pointer, ..) = rows.find(|(_, names, _)| names.contains(&flag))?;
    Some(pointer.trim_start_matches('/').replace('/', "."))
}

/// Reads a file; omits flags that are among `given`.
pub fn read(path: &Path, given: &[OsString]) -> Result<FromFile> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let decoded = machinery::codec::yaml::decode(&text);
    let root = decoded.with_context(|| format!("{} is not valid YAML", path.display()))?.value;
    let text = |field: &str| root[field].as_str().unwrap_or_default();
    ensure!(
        text("kind") == "KubeletConfiguration" && text("apiVersion") == "kubelet.config.k8s.io/v1beta1",
        "{} is not a KubeletConfiguration of kubelet.config.k8s.io/v1beta1",
        path.display()
    );
    Ok(translate(&root, given))
}

/// Reads `logging` of another component's configuration.
pub fn read_logging(path: &Path, given: &[OsString]) -> Result<FromFile> {
    let text = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let decoded = machinery::codec::yaml::decode(&text);
    let root = decoded.with_context(|| format!("{} is not valid YAML", path.display()))?.value;
    Ok(FromFile { flags: logging(&root, given).flags, without_effect: Vec::new() })
}

fn logging(root: &Value, given: &[OsString]) -> FromFile {
    let mut found = FromFile::default();
    for (pointer, names, form) in LOGGING {
        let value = root.pointer(pointer).and_then(|value| render(value, form));
        if let Some(value) = value.filter(|_| !names.iter().any(|name| is_given(given, name))) {
            found.flags.push(format!("--{}={value}", names[0]).into());
        }
    }
    if root.pointer("/logging/options").is_some_and(|options| !is_unset(options)) {
        found.without_effect.push("logging.options".to_owned());
    }
    found
}

/// Reports whether a flag is on the command line; single-letter flags may have one hyphen.
fn is_given(given: &[OsString], flag: &str) -> bool {
    given.iter().filter_map(|word| word.to_str()).any(|word| {
        let long = word.strip_prefix("--").and_then(|word| word.strip_prefix(flag));
        let is_short = flag.len() == 1 && word.strip_prefix('-').is_some_and(|word| word.starts_with(flag));
        is_short || long.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

fn translate(root: &Value, given: &[OsString]) -> FromFile {
    let is_given = |flag: &str| is_given(given, flag);
    let mut found = logging(root, given);
    let mut add = |flag: &str, value: &str| found.flags.push(format!("--{flag}={value}").into());
    for (pointer, names, form) in FIELDS {
        let Some(value) = root.pointer(pointer).and_then(|value| render(value, form)) else { continue };
        if !names.iter().any(|name| is_given(name)) {
            add(names[0], &value);
        }
    }
    let has_endpoint = root.pointer("/tracing/endpoint").is_some_and(|endpoint| !is_unset(endpoint));
    if root["tracing"].is_object() && !has_endpoint && !is_given(TRACING) {
        add(TRACING, base::trace::DEFAULT_ENDPOINT);
    }
    let address = root["address"].as_str().filter(|address| !address.is_empty());
    let port = root["port"].as_u64().filter(|port| *port > 0);
    if (address.is_some() || port.is_some()) && !is_given(LISTEN) {
        let (address, port) = (address.unwrap_or(ADDRESS.0), port.unwrap_or(ADDRESS.1));
        let address = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        add(LISTEN, &format!("{address}:{port}"));
    }
    let known = |name: &str| {
        let top = |pointer: &str| pointer[1..].split('/').next() == Some(name);
        ["apiVersion", "kind", "address", "port", "logging"].contains(&name)
            || FIELDS.iter().any(|(pointer, ..)| top(pointer))
    };
    let set = root.as_object().into_iter().flatten().filter(|(_, value)| !is_unset(value));
    found.without_effect.extend(set.map(|(name, _)| name.clone()).filter(|name| !known(name)));
    found
}

/// True for values that are equivalent to absence, as written by generators.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_unset),
    }
}

fn render(value: &Value, form: &Form) -> Option<String> {
    if is_unset(value) {
        return None;
    }
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    match form {
        Plain => plain(value),
        List => Some(value.as_array()?.iter().filter_map(plain).collect::<Vec<_>>().join(",")),
        Map(between) => {
            let pairs = value.as_object()?.iter();
            let pairs = pairs.filter_map(|(key, value)| Some(format!("{key}{between}{}", plain(value)?)));
            Some(pairs.collect::<Vec<_>>().join(","))
        }
        Seconds(name, seconds) => {
            let items = value.as_array()?.iter();
            let pairs =
                items.map(|item| format!("{}={}s", plain(&item[*name]).unwrap_or_default(), item[*seconds]));
            Some(pairs.collect::<Vec<_>>().join(","))
        }
        Pairs(name, number) => {
            let items = value.as_array()?.iter();
            let pairs =
                items.map(|item| format!("{}={}", plain(&item[*name]).unwrap_or_default(), item[*number]));
            Some(pairs.collect::<Vec<_>>().join(","))
        }
        Taints => {
            let items = value.as_array()?.iter();
            let text = |item: &Value, name: &str| plain(&item[name]).unwrap_or_default();
            let taints = items.map(|item| {
                format!("{}={}:{}", text(item, "key"), text(item, "value"), text(item, "effect"))
            });
            Some(taints.collect::<Vec<_>>().join(","))
        }
        Nanoseconds => match value {
            Value::Number(number) => Some(format!("{number}ns")),
            other => plain(other),
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    const FILE: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: "::"
authentication:
  anonymous: {enabled: false}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
cgroupDriver: systemd
clusterDNS: [10.96.0.10, "fd00::a"]
clusterDomain: example.org
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
cpuManagerReconcilePeriod: 5s
evictionHard: {memory.available: 200Mi, nodefs.available: "5%"}
kubeReserved: {cpu: 100m}
maxPods: 42
providerID: cloud:///1
reservedSystemCPUs: 0-1
registerWithTaints: [{key: dedicated, value: gpu, effect: NoSchedule}, {key: x, effect: NoExecute}]
rotateCertificates: true
shutdownGracePeriod: 0s
shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 20}, {priority: 1000, shutdownGracePeriodSeconds: 5}]
staticPodPath: /etc/kubernetes/manifests
"#;

    fn read_file(given: &[&str]) -> FromFile {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet.yaml");
        std::fs::write(&path, FILE).unwrap();
        read(&path, &given.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn error_of_flag_names_its_field() {
        for (flag, field) in [
            ("--max-pods=many", Some("maxPods")),
            ("--image-gc-high-threshold=high", Some("imageGCHighThresholdPercent")),
            ("--kubelet-listen=nowhere", Some("address or port")),
            ("--node-labels", None),
        ] {
            let error = Cli::try_parse_from(["ferry", "kubelet", "--kubeconfig=k", flag]).expect_err(flag);
            assert_eq!(field_of(&error).as_deref(), field, "{error}");
        }
    }

    #[test]
    fn config_fields_become_flags() {
        let found = read_file(&[]);
        assert_eq!(found.without_effect, ["cgroupDriver"]);
        let mut line: Vec<OsString> = ["ferry", "kubelet", "--kubeconfig=k"].map(OsString::from).into();
        line.extend(found.flags);
        let Command::Kubelet(kubelet) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(kubelet.node.max_pods, 42);
        let registration = kubelet.node.registration.clone().config();
        let taints: Vec<_> = registration.taints.iter().map(|taint| (&*taint.key, &*taint.effect)).collect();
        assert_eq!(taints, [("dedicated", "NoSchedule"), ("x", "NoExecute")]);
        assert_eq!(registration.provider_id.as_deref(), Some("cloud:///1"));
        assert_eq!(kubelet.node.kubelet_listen.to_string(), "[::]:10250");
        assert_eq!(kubelet.node.cluster_dns.len(), 2);
        assert_eq!(kubelet.client_ca_file.as_deref(), Some(Path::new("/etc/kubernetes/pki/ca.crt")));
        assert_eq!(
            kubelet.node.housekeeping.eviction_hard.as_deref(),
            Some("memory.available<200Mi,nodefs.available<5%")
        );
        let mut housekeeping = cluster::HousekeepingConfig::default();
        kubelet.node.housekeeping.clone().apply(&mut housekeeping).expect("valid settings");
        let cpus = &housekeeping.cpu_manager;
        assert!(cpus.static_policy.is_some_and(|options| options.full_cores_only));
        assert_eq!(cpus.reconcile_period.as_secs(), 5);
        assert_eq!(cpus.reserved.as_ref().map(ToString::to_string).as_deref(), Some("0-1"));
        assert_eq!(housekeeping.reserved.get("cpu"), Some(&2000), "the list supersedes kubeReserved");
        let by_priority = kubelet.node.housekeeping.node_shutdown_grace_period_by_pod_priority.as_deref();
        assert_eq!(by_priority, Some("0=20s,1000=5s"));
    }

    #[test]
    fn logging_configuration_is_used_by_kubelet_and_proxy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy.yaml");
        let parsed = |text: &str, given: &[&str]| {
            std::fs::write(&path, text).unwrap();
            let words: Vec<OsString> =
                ["ferry", "proxy", "--kubeconfig=k"].iter().chain(given).map(OsString::from).collect();
            let flags = read_logging(&path, &words).unwrap().flags;
            Cli::try_parse_from(words.into_iter().chain(flags)).map_err(|error| error.to_string())
        };
        let file = "logging:\n  format: text\n  verbosity: 4\n  flushFrequency: 2000000000\n  \
                    vmodule: [{filePattern: fair*, verbosity: 6}, {filePattern: mod, verbosity: 0}]\n";
        let cli = parsed(file, &[]).unwrap();
        assert_eq!(cli.log.verbosity, Some(4));
        assert_eq!(cli.log.log_flush_frequency, std::time::Duration::from_secs(2));
        assert_eq!(cli.log.vmodule, "fair*=6,mod=0".parse().unwrap());
        // Flags on the command line take precedence.
        for given in [&["-v", "1"][..], &["-v1"], &["--v=1"], &["--v", "1"]] {
            assert_eq!(parsed(file, given).unwrap().log.verbosity, Some(1), "{given:?}");
        }
        let json = parsed("logging: {format: json, flushFrequency: 5s}", &[]).unwrap();
        assert_eq!(json.log.log_format, crate::log_flags::LogFormat::Json);
        for (text, want) in [
            ("logging: {format: xml}", "xml"),
            ("logging: {flushFrequency: soon}", "soon"),
            ("logging: {verbosity: -1}", "-1"),
            ("logging: {vmodule: [{filePattern: '', verbosity: 1}]}", "syntax error"),
            ("logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}", "invalid verbosity"),
        ] {
            let error = parsed(text, &[]).err().unwrap_or_default();
            assert!(error.contains(want), "{text}: {error}");
        }
        let options = serde_json::json!({"logging": {"options": {"json": {"splitStream": true}}}});
        assert_eq!(logging(&options, &[]).without_effect, ["logging.options"]);
    }

    #[test]
    fn tracing_configuration_becomes_flags() {
        let config = |tracing: serde_json::Value| {
            let flags = translate(&serde_json::json!({"tracing": tracing}), &[]).flags;
            let line = ["ferry", "kubelet", "--kubeconfig=k"].map(OsString::from).into_iter().chain(flags);
            let Command::Kubelet(kubelet) =
                Cli::try_parse_from(line).map_err(|error| error.to_string())?.command
            else {
                panic!("another command")
            };
            Ok::<_, String>(kubelet.node.tracing.config())
        };
        assert_eq!(config(Value::Null), Ok(None));
        let default = base::trace::TracingConfig::default();
        assert_eq!(config(serde_json::json!({})), Ok(Some(default.clone())));
        let rate = base::trace::TracingConfig { sampling_rate_per_million: 7, ..default };
        assert_eq!(config(serde_json::json!({"samplingRatePerMillion": 7})), Ok(Some(rate)));
        let set = config(serde_json::json!({"endpoint": "unix:///s", "samplingRatePerMillion": 1_000_000}));
        let set = set.unwrap().unwrap();
        assert_eq!(
            (set.endpoint.to_string().as_str(), set.sampling_rate_per_million),
            ("unix:///s", 1_000_000)
        );
        for wrong in [
            serde_json::json!({"samplingRatePerMillion": 1_000_001}),
            serde_json::json!({"samplingRatePerMillion": -1}),
            serde_json::json!({"endpoint": "ftp://host"}),
        ] {
            assert!(config(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_override_config_fields() {
        let flags = read_file(&["--max-pods=3", "--pod-manifest-path", "/x", "--cluster-dns=1.2.3.4"]).flags;
        let has = |name: &str| flags.iter().any(|flag| flag.to_string_lossy().starts_with(name));
        assert!(!has("--max-pods") && !has("--static-pods") && !has("--cluster-dns"), "{flags:?}");
        assert!(has("--cluster-domain=example.org"), "{flags:?}");
    }

    #[test]
    fn every_config_field_maps_to_existing_flag() {
        use clap::CommandFactory as _;
        let command = Cli::command();
        let kubelet = command.find_subcommand("kubelet").unwrap();
        let arguments = kubelet.get_arguments().chain(command.get_arguments());
        let known: Vec<&str> = arguments.filter_map(clap::Arg::get_long).collect();
        for (pointer, names, _) in FIELDS {
            assert!(known.contains(&names[0]), "{pointer}: {}", names[0]);
        }
    }

    #[test]
    fn file_of_other_kind_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other.yaml");
        std::fs::write(&path, "apiVersion: v1\nkind: Pod\n").unwrap();
        assert!(read(&path, &[]).is_err());
        assert!(read(&directory.path().join("none"), &[]).is_err());
    }
}
