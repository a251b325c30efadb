//! Flags of Kubernetes' components that Ferry's counterparts accept without effect, and the names of Kubernetes'
//! binaries.
//!
//! Manifests and test environments pass many flags for mechanisms that Ferry does not have. Such a flag is removed
//! from the command line and named in a warning, so that existing unit files start and nothing is ignored silently.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::controller_flags::CONCURRENCY;
use crate::upstream_node_flags::{KUBELET, PROXY};
use crate::upstream_version::{self, VersionRequest};

/// Binaries of Kubernetes and the equivalent commands of Ferry, run by links of those names.
const BINARIES: &[(&str, &str)] = &[
    ("cloud-controller-manager", "cloud-controller-manager"),
    ("etcd", "etcd"),
    ("kube-apiserver", "apiserver"),
    ("kube-controller-manager", "controller-manager"),
    ("kube-proxy", "proxy"),
    ("kube-scheduler", "scheduler"),
    ("kubelet", "kubelet"),
];

/// Default of kube-apiserver's `--cert-dir`.
const CERT_DIR: &str = "/var/run/kubernetes";

/// Form of a flag's value on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `--flag` or `--flag=true`.
    Switch,
    /// `--flag=value` or `--flag value`.
    Value,
}

use Form::{Switch, Value};

/// Flag without effect: name, form, and why Ferry does not need it.
pub type Row = (&'static str, Form, &'static str);

const NO_CONTENTION: &str = "there are no profiles of lock contention";
const NO_SOCKET: &str = "profiles are served at the port of metrics";
const ONE_CACHE: &str = "every resource has one watch cache, whose size follows its objects";
const LOGGING: &str = "use -v and --log-format";
const PEERS: &str = "servers do not forward requests to each other";
const METRICS: &str = "all metrics are served";
pub const QPS: &str = "requests are limited by the server's priority and fairness";
const LOG_BATCHES: &str = "events are written to the log one by one";
const KUBELET_PORT: &str = "the port in the status of the Node is used";
const NO_CLOUD: &str = "use cloud-controller-manager";
const RECYCLER: &str = "volumes are not recycled";
const LEASES: &str = "leases have Kubernetes' default names and times";
const DELEGATED: &str =
    "the API server authenticates and authorizes requests, with the kubeconfig of --kubeconfig";

/// Flags that every component of Kubernetes has.
const COMMON: &[Row] = &[
    ("allow-metric-labels", Value, METRICS),
    ("allow-metric-labels-manifest", Value, METRICS),
    ("contention-profiling", Switch, NO_CONTENTION),
    ("debug-socket-path", Value, NO_SOCKET),
    ("disabled-metrics", Value, METRICS),
    ("emulated-version", Value, "Ferry serves one version of Kubernetes"),
    ("emulation-forward-compatible", Switch, "Ferry serves one version of Kubernetes"),
    ("log-json-info-buffer-size", Value, LOGGING),
    ("log-json-split-stream", Switch, LOGGING),
    ("log-text-info-buffer-size", Value, LOGGING),
    ("log-text-split-stream", Switch, LOGGING),
    ("min-compatibility-version", Value, "Ferry serves one version of Kubernetes"),
    ("show-hidden-metrics-for-version", Value, METRICS),
];

const API_SERVER: &[Row] = &[
    ("admission-control", Value, "use --enable-admission-plugins"),
    ("aggregator-reject-forwarding-redirect", Switch, "redirects of extension servers are never followed"),
    ("audit-log-batch-max-size", Value, LOG_BATCHES),
    ("audit-log-batch-max-wait", Value, LOG_BATCHES),
    ("audit-log-batch-throttle-burst", Value, LOG_BATCHES),
    ("audit-log-batch-throttle-enable", Switch, LOG_BATCHES),
    ("audit-log-batch-throttle-qps", Value, LOG_BATCHES),
    ("audit-log-truncate-max-batch-size", Value, LOG_BATCHES),
    ("audit-webhook-batch-initial-backoff", Value, "use --audit-webhook-initial-backoff"),
    ("authorization-policy-file", Value, "there is no attribute-based access control"),
    (
        "authorization-always-allow-paths",
        Value,
        "the RBAC bootstrap policy allows anonymous access to health and version",
    ),
    ("default-watch-cache-size", Value, ONE_CACHE),
    ("delete-collection-workers", Value, "objects of a collection are deleted one after the other"),
    ("coordinated-leadership-lease-duration", Value, "leases are not coordinated"),
    ("coordinated-leadership-renew-deadline", Value, "leases are not coordinated"),
    ("coordinated-leadership-retry-period", Value, "leases are not coordinated"),
    ("disable-http2-serving", Switch, "HTTP/2 is always served"),
    ("enable-garbage-collector", Switch, "the garbage collector is a controller: see --controllers"),
    ("enable-logs-handler", Switch, "/logs is not served"),
    ("endpoint-reconciler-type", Value, "each server writes its own address to the service `kubernetes`"),
    ("etcd-compaction-interval", Value, "history is compacted after five minutes"),
    ("etcd-count-metric-poll-period", Value, "objects are counted from the watch cache"),
    ("etcd-db-metric-poll-interval", Value, "the size of the store is read on each scrape of /metrics"),
    ("etcd-healthcheck-timeout", Value, "health checks of the store have Kubernetes' default timeout"),
    ("etcd-readycheck-timeout", Value, "health checks of the store have Kubernetes' default timeout"),
    ("external-hostname", Value, "use --advertise-address"),
    ("http2-max-streams-per-connection", Value, "the limit is 100"),
    ("kubelet-port", Value, KUBELET_PORT),
    ("kubelet-preferred-address-types", Value, "addresses are tried in Kubernetes' default order"),
    ("kubelet-read-only-port", Value, KUBELET_PORT),
    ("kubelet-timeout", Value, "connections to kubelets use Kubernetes' default timeout"),
    ("kubernetes-service-node-port", Value, "the service `kubernetes` has no node port"),
    ("lease-reuse-duration-seconds", Value, "events share leases of a minute"),
    ("livez-grace-period", Value, "/livez passes as soon as the server has started"),
    ("max-connection-bytes-per-sec", Value, "connections are not throttled"),
    ("peer-advertise-ip", Value, PEERS),
    ("peer-advertise-port", Value, PEERS),
    ("peer-ca-file", Value, PEERS),
    ("permit-address-sharing", Switch, "addresses are not shared"),
    ("permit-port-sharing", Switch, "ports are not shared"),
    ("runtime-config-emulation-forward-compatible", Switch, "Ferry serves one version of Kubernetes"),
    ("service-account-lookup", Switch, "tokens of deleted service accounts are always rejected"),
    ("shutdown-watch-termination-grace-period", Value, "watches end when draining begins"),
    ("storage-backend", Value, "use --store"),
    ("storage-initialization-timeout", Value, "the server waits for its store"),
    ("storage-media-type", Value, "objects are stored as JSON"),
    ("tls-curve-preferences", Value, "all safe curves are offered"),
    ("watch-cache", Switch, ONE_CACHE),
    ("watch-cache-sizes", Value, ONE_CACHE),
];

const LOOPS: &[Row] = &[
    ("authentication-token-webhook-cache-ttl", Value, DELEGATED),
    ("authorization-webhook-cache-authorized-ttl", Value, DELEGATED),
    ("authorization-webhook-cache-unauthorized-ttl", Value, DELEGATED),
    ("disable-http2-serving", Switch, "HTTP/2 is always served"),
    ("http2-max-streams-per-connection", Value, "the limit is 100"),
    ("master", Value, "use --kubeconfig"),
    ("permit-address-sharing", Switch, "addresses are not shared"),
    ("permit-port-sharing", Switch, "ports are not shared"),
    ("requestheader-uid-headers", Value, DELEGATED),
    ("tls-curve-preferences", Value, "all safe curves are offered"),
    ("tls-sni-cert-key", Value, "there is one certificate: use --tls-cert-file"),
    ("authentication-kubeconfig", Value, DELEGATED),
    ("authentication-skip-lookup", Switch, DELEGATED),
    ("authentication-tolerate-lookup-failure", Switch, DELEGATED),
    ("authorization-always-allow-paths", Value, DELEGATED),
    ("authorization-kubeconfig", Value, DELEGATED),
    ("client-ca-file", Value, DELEGATED),
    ("requestheader-allowed-names", Value, DELEGATED),
    ("requestheader-client-ca-file", Value, DELEGATED),
    ("requestheader-extra-headers-prefix", Value, DELEGATED),
    ("requestheader-group-headers", Value, DELEGATED),
    ("requestheader-username-headers", Value, DELEGATED),
    ("tls-cipher-suites", Value, DELEGATED),
    ("tls-min-version", Value, DELEGATED),
];

const CONTROLLER_MANAGER: &[Row] = &[
    ("allow-untagged-cloud", Switch, NO_CLOUD),
    ("cloud-config", Value, NO_CLOUD),
    ("concurrent-service-syncs", Value, NO_CLOUD),
    ("controller-shutdown-timeout", Value, "controllers are stopped within the grace period of the process"),
    ("controller-start-interval", Value, "controllers start together"),
    ("disable-force-detach-on-timeout", Switch, "volumes are not detached by force"),
    ("enable-hostpath-provisioner", Switch, "volumes are provisioned by storage drivers"),
    ("enable-leader-migration", Switch, "controllers do not move between managers"),
    ("endpoint-updates-batch-period", Value, "endpoints follow changes"),
    ("external-cloud-volume-plugin", Value, NO_CLOUD),
    ("flex-volume-plugin-dir", Value, "FlexVolume plugins are not run"),
    ("leader-migration-config", Value, "controllers do not move between managers"),
    ("mirroring-endpointslice-updates-batch-period", Value, "slices follow changes"),
    ("mirroring-max-endpoints-per-subset", Value, "the limit is 1000"),
    ("namespace-sync-period", Value, "namespaces follow changes"),
    ("pv-recycler-increment-timeout-nfs", Value, RECYCLER),
    ("pv-recycler-minimum-timeout-hostpath", Value, RECYCLER),
    ("pv-recycler-minimum-timeout-nfs", Value, RECYCLER),
    ("pv-recycler-pod-template-filepath-hostpath", Value, RECYCLER),
    ("pv-recycler-pod-template-filepath-nfs", Value, RECYCLER),
    ("pv-recycler-timeout-increment-hostpath", Value, RECYCLER),
    ("pvclaimbinder-sync-period", Value, "claims follow changes"),
    ("route-reconciliation-period", Value, NO_CLOUD),
    ("attach-detach-reconcile-sync-period", Value, "attachments follow changes"),
    ("cidr-allocator-type", Value, "node ranges are allocated from --cluster-cidr"),
    ("cloud-provider", Value, "use cloud-controller-manager"),
    ("cluster-name", Value, "the name is not used"),
    ("configure-cloud-routes", Switch, "use cloud-controller-manager"),
    ("disable-attach-detach-reconcile-sync", Switch, "attachments follow changes"),
    ("enable-dynamic-provisioning", Switch, "volumes are provisioned by storage drivers"),
    ("enable-garbage-collector", Switch, "see --controllers"),
    ("endpointslice-updates-batch-period", Value, "slices follow changes"),
    ("kube-api-burst", Value, QPS),
    ("kube-api-content-type", Value, "objects are sent as JSON"),
    ("kube-api-qps", Value, QPS),
    ("large-cluster-size-threshold", Value, "zones have Kubernetes' default thresholds"),
    ("leader-elect-lease-duration", Value, LEASES),
    ("leader-elect-renew-deadline", Value, LEASES),
    ("leader-elect-resource-lock", Value, LEASES),
    ("leader-elect-resource-name", Value, LEASES),
    ("leader-elect-resource-namespace", Value, LEASES),
    ("leader-elect-retry-period", Value, LEASES),
    ("min-resync-period", Value, "caches follow watches without resyncs"),
    ("node-eviction-rate", Value, "zones have Kubernetes' default rates"),
    ("node-monitor-period", Value, "nodes are checked when their leases expire"),
    ("resource-quota-sync-period", Value, "quotas follow changes"),
    ("secondary-node-eviction-rate", Value, "zones have Kubernetes' default rates"),
    ("unhealthy-zone-threshold", Value, "zones have Kubernetes' default thresholds"),
];

const CLOUD_CONTROLLER_MANAGER: &[Row] = &[("profiling", Switch, "it serves no port")];

const SCHEDULER: &[Row] = &[
    ("pod-max-in-unschedulable-pods-duration", Value, "pods are retried after five minutes"),
    ("kube-api-burst", Value, QPS),
    ("kube-api-content-type", Value, "objects are sent as JSON"),
    ("kube-api-qps", Value, QPS),
    ("leader-elect-lease-duration", Value, LEASES),
    ("leader-elect-renew-deadline", Value, LEASES),
    ("leader-elect-resource-lock", Value, LEASES),
    ("leader-elect-resource-name", Value, LEASES),
    ("leader-elect-resource-namespace", Value, LEASES),
    ("leader-elect-retry-period", Value, LEASES),
];

const ETCD: &[Row] = &[
    ("advertise-client-urls", Value, "there are no other members"),
    ("auto-compaction-mode", Value, "clients compact"),
    ("auto-compaction-retention", Value, "clients compact"),
    ("election-timeout", Value, "there are no other members"),
    ("experimental-initial-corrupt-check", Switch, "checksums are always checked"),
    ("experimental-watch-progress-notify-interval", Value, "progress is sent when it is requested"),
    ("heartbeat-interval", Value, "there are no other members"),
    ("initial-advertise-peer-urls", Value, "there are no other members"),
    ("initial-cluster", Value, "there are no other members"),
    ("initial-cluster-state", Value, "there are no other members"),
    ("initial-cluster-token", Value, "there are no other members"),
    ("listen-metrics-urls", Value, "there are no metrics"),
    ("listen-peer-urls", Value, "there are no other members"),
    ("log-level", Value, LOGGING),
    ("logger", Value, LOGGING),
    ("name", Value, "there are no other members"),
    ("snapshot-count", Value, "checkpoints follow the size of the log"),
];

/// Rows that apply to a command.
fn rows(command: &str) -> impl Iterator<Item = &'static Row> {
    let own = match command {
        "apiserver" | "server" => API_SERVER,
        "controller-manager" | "scheduler" | "cloud-controller-manager" => LOOPS,
        "etcd" => ETCD,
        _ => &[],
    };
    let common = match command {
        "apiserver"
        | "server"
        | "controller-manager"
        | "scheduler"
        | "cloud-controller-manager"
        | "kubelet"
        | "proxy" => COMMON,
        _ => &[],
    };
    let more = match command {
        "controller-manager" => CONTROLLER_MANAGER,
        "kubelet" => KUBELET,
        "proxy" => PROXY,
        "scheduler" => SCHEDULER,
        "cloud-controller-manager" => CLOUD_CONTROLLER_MANAGER,
        _ => &[],
    };
    own.iter().chain(more).chain(common)
}

/// A command line for clap, and the warnings to print.
#[derive(Debug)]
pub struct CommandLine {
    pub words: Vec<OsString>,
    pub warnings: Vec<String>,
    /// `--version` of a component.
    pub version: Result<Option<VersionRequest>, String>,
}

impl CommandLine {
    /// Parses `words`; the first is the program name. The name of a Kubernetes binary selects the equivalent command.
    pub fn new(words: impl IntoIterator<Item = OsString>) -> Self {
        let mut words: Vec<OsString> = words.into_iter().collect();
        let version =
            component(&words).map_or(Ok(None), |command| upstream_version::take(command, &mut words));
        let mut words = words.into_iter();
        let program = words.next().unwrap_or_default();
        let mut line = Self { words: vec![program.clone()], warnings: Vec::new(), version };
        line.words.extend(command_of(&program).map(OsString::from));
        let mut command: Option<String> = command_of(&program).map(str::to_owned);
        while let Some(word) = words.next() {
            if word == "--" {
                line.words.push(word);
                line.words.extend(words);
                break;
            }
            if command.as_deref() == Some("controller-manager")
                && let Some((controller, value)) = concurrency(&word)
            {
                let value = value.map(OsString::from).or_else(|| words.next()).unwrap_or_default();
                let mut flag = OsString::from(format!("--concurrency={controller}="));
                flag.push(value);
                line.words.push(flag);
                continue;
            }
            let found = command.as_deref().and_then(|command| row(command, &word));
            match found {
                Some((flag, form, reason)) => {
                    line.warnings.push(format!("--{flag} has no effect: {reason}"));
                    if *form == Value && !contains_value(&word) {
                        words.next();
                    }
                }
                None => {
                    // The first argument that is not a flag is the command; global flags before it may have values.
                    if command.is_none() && !word.as_encoded_bytes().starts_with(b"-") {
                        command = word.to_str().map(str::to_owned);
                    }
                    line.words.push(word);
                }
            }
        }
        line.set_directory(&program);
        line
    }

    /// kube-apiserver has no data directory: a link of that name uses its certificate directory.
    fn set_directory(&mut self, program: &OsStr) {
        let value = |flag: &str| {
            let words = self.words.iter().filter_map(|word| word.to_str());
            let mut found = words.filter_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
            found.next_back().map(str::to_owned)
        };
        if command_of(program) == Some("apiserver") && value("--data-dir").is_none() {
            let directory = value("--cert-dir").unwrap_or_else(|| CERT_DIR.to_owned());
            self.words.push(format!("--data-dir={directory}").into());
        }
    }
}

/// Command of a line that runs a component of Kubernetes, by the program's name or as the first argument.
fn component(words: &[OsString]) -> Option<&'static str> {
    let by_name = words.first().and_then(|program| command_of(program));
    by_name.or_else(|| {
        BINARIES.iter().map(|(_, command)| *command).find(|one| words.get(1).is_some_and(|word| word == one))
    })
}

/// Command that a program of this name runs.
fn command_of(program: &OsStr) -> Option<&'static str> {
    let name = Path::new(program).file_name()?;
    BINARIES.iter().find(|(binary, _)| name == *binary).map(|(_, command)| *command)
}

fn row(command: &str, word: &OsStr) -> Option<&'static Row> {
    let flag = word.to_str()?.strip_prefix("--")?;
    let name = flag.split_once('=').map_or(flag, |(name, _)| name);
    rows(command).find(|(flag, ..)| *flag == name)
}

/// Controller whose number of workers a flag sets, and the value if given with `=`.
fn concurrency(word: &OsStr) -> Option<(&'static str, Option<&str>)> {
    let flag = word.to_str()?.strip_prefix("--")?;
    let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
    let (_, controller) = CONCURRENCY.iter().find(|(flag, _)| *flag == name)?;
    Some((controller, value))
}

fn contains_value(word: &OsStr) -> bool {
    word.as_encoded_bytes().contains(&b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn line(words: &[&str]) -> CommandLine {
        CommandLine::new(words.iter().map(OsString::from))
    }

    fn text(line: &CommandLine) -> String {
        line.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_without_effect_are_removed_with_warning() {
        let line = line(&[
            "ferry",
            "apiserver",
            "--contention-profiling=false",
            "--watch-cache-sizes",
            "pods#100",
            "--enable-logs-handler",
            "--secure-port=1",
        ]);
        assert_eq!(text(&line), "ferry apiserver --secure-port=1");
        assert_eq!(line.warnings.len(), 3, "{:?}", line.warnings);
        assert_eq!(
            line.warnings[0],
            "--contention-profiling has no effect: there are no profiles of lock contention"
        );
    }

    #[test]
    fn kubernetes_binary_link_runs_equivalent_command() {
        let want = "/a/kube-apiserver apiserver --v=1 --data-dir=/var/run/kubernetes";
        assert_eq!(text(&line(&["/a/kube-apiserver", "--v=1"])), want);
        let want = "kube-apiserver apiserver --cert-dir=/tmp/x --data-dir=/tmp/x";
        assert_eq!(text(&line(&["kube-apiserver", "--cert-dir=/tmp/x"])), want);
        assert_eq!(text(&line(&["etcd", "--name", "x"])), "etcd etcd");
        assert_eq!(text(&line(&["/a/ferry", "up"])), "/a/ferry up");
    }

    #[test]
    fn concurrent_syncs_flags_become_workers_flag() {
        let line =
            line(&["kube-controller-manager", "--concurrent-gc-syncs=3", "--concurrent-job-syncs", "4"]);
        let want = "kube-controller-manager controller-manager --concurrency=garbage-collector-controller=3 \
                    --concurrency=job-controller=4";
        assert_eq!(text(&line), want);
    }

    #[test]
    fn flags_of_other_commands_are_unchanged() {
        assert_eq!(text(&line(&["ferry", "up", "--profiling"])), "ferry up --profiling");
        assert_eq!(
            text(&line(&["ferry", "scheduler", "--", "--profiling"])),
            "ferry scheduler -- --profiling"
        );
    }

    /// Flags of kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kube-proxy v1.36.4.
    const KUBERNETES: &str = include_str!("upstream_flags.txt");
    /// Flags that select another task than running the component, or Windows: they stay errors.
    const MODES: [&str; 4] = ["init-only", "runonce", "windows-service", "write-config-to"];

    #[test]
    fn every_flag_of_kubernetes_is_supported_or_named_in_a_warning() {
        let cli = Cli::command();
        let supported = |name: &str, flag: &str| {
            let command = cli.find_subcommand(name).expect(name);
            command.get_arguments().chain(cli.get_arguments()).any(|argument| {
                argument.get_long() == Some(flag)
                    || argument.get_all_aliases().is_some_and(|all| all.contains(&flag))
            })
        };
        let mut missing = Vec::new();
        let mut walked = 0;
        for section in KUBERNETES.split("# ").filter(|section| !section.trim().is_empty()) {
            let mut words = section.split_whitespace();
            let binary = words.next().expect("a component");
            let command = command_of(OsStr::new(binary)).expect(binary);
            for flag in words.filter(|flag| !MODES.contains(flag)) {
                walked += 1;
                let word = OsString::from(format!("--{flag}=1"));
                let workers = command == "controller-manager" && concurrency(&word).is_some();
                if row(command, &word).is_none() && !workers && !supported(command, flag) {
                    missing.push(format!("{binary} --{flag}"));
                }
            }
        }
        assert_eq!(missing, [""; 0]);
        assert!(walked > 500, "{walked}");
    }

    /// Supported flags must not be in these tables: they would never reach the parser.
    #[test]
    fn table_contains_no_supported_flag_and_binaries_have_commands() {
        let cli = Cli::command();
        for (_, name) in BINARIES {
            let command = cli.find_subcommand(name).expect(name);
            for (flag, ..) in rows(name) {
                let supported = command.get_arguments().chain(cli.get_arguments()).any(|argument| {
                    argument.get_long() == Some(flag)
                        || argument.get_all_aliases().is_some_and(|all| all.contains(flag))
                });
                assert!(!supported, "{name}: --{flag} is supported");
            }
        }
    }
}
