//! Flags of kubelet and kube-proxy without effect: name, form, and why Ferry does not need it.

use super::upstream_flags::Form::{Switch, Value};
use super::upstream_flags::{QPS, Row};

const ACCESS: &str = "the API server authenticates and authorizes requests";
const CGROUPS: &str = "control groups have fixed names";
const CIPHERS: &str = "all safe versions and cipher suites are offered";
const CONNTRACK: &str = "limits of the connection table are not changed";
const CREDENTIALS: &str = "credential provider plugins are not run";
const DEAD: &str = "dead containers are kept as by default";
const FILES: &str = "use --data-dir";
const HEALTH: &str = "health is served at the port of the API";
const IPVS: &str = "IPVS has its default settings";
const LISTEN: &str = "use --kubelet-listen";
const MANAGERS: &str = "memory is not pinned, and resources are not aligned";
const MANIFESTS: &str = "static pods are read from files";
const MARK: &str = "packets have Kubernetes' default mark";
const PULLS: &str = "images are pulled in parallel";
const SYNC: &str = "rules follow changes";
const WINDOWS: &str = "Windows is not supported";

pub const KUBELET: &[Row] = &[
    ("address", Value, LISTEN),
    ("anonymous-auth", Switch, ACCESS),
    ("authentication-token-webhook", Switch, ACCESS),
    ("authentication-token-webhook-cache-ttl", Value, ACCESS),
    ("authorization-mode", Value, ACCESS),
    ("authorization-webhook-cache-authorized-ttl", Value, ACCESS),
    ("authorization-webhook-cache-unauthorized-ttl", Value, ACCESS),
    ("cert-dir", Value, FILES),
    ("cgroup-driver", Value, CGROUPS),
    ("config-dir", Value, "there are no drop-in configuration files"),
    ("cpu-cfs-quota", Switch, "CPU limits are enforced with Kubernetes' default period"),
    ("cpu-cfs-quota-period", Value, "CPU limits are enforced with Kubernetes' default period"),
    ("enable-controller-attach-detach", Switch, "volumes are attached by the controller"),
    ("enable-debugging-handlers", Switch, "logs, exec and port-forward are always served"),
    ("enable-server", Switch, "the server always runs"),
    ("enforce-node-allocatable", Value, CGROUPS),
    ("event-burst", Value, QPS),
    ("event-qps", Value, QPS),
    ("exit-on-lock-contention", Switch, FILES),
    (
        "experimental-allocatable-ignore-eviction",
        Switch,
        "allocatable resources exclude the hard eviction thresholds",
    ),
    ("experimental-mounter-path", Value, "volumes are mounted by the kubelet itself"),
    ("fail-cgroupv1", Switch, CGROUPS),
    ("fail-swap-on", Switch, "swap does not prevent the start"),
    ("file-check-frequency", Value, "static pods follow changes of their files"),
    ("hairpin-mode", Value, "the network plugin decides"),
    ("healthz-bind-address", Value, HEALTH),
    ("healthz-port", Value, HEALTH),
    ("http-check-frequency", Value, MANIFESTS),
    ("image-credential-provider-bin-dir", Value, CREDENTIALS),
    ("image-credential-provider-config", Value, CREDENTIALS),
    ("image-service-endpoint", Value, "the runtime serves images too"),
    ("kernel-memcg-notification", Switch, "memory is measured periodically"),
    ("kube-api-burst", Value, QPS),
    ("kube-api-content-type", Value, "objects are sent as JSON"),
    ("kube-api-qps", Value, QPS),
    ("kube-reserved-cgroup", Value, CGROUPS),
    ("kubelet-cgroups", Value, CGROUPS),
    ("local-storage-capacity-isolation", Switch, "limits of local storage are enforced"),
    ("lock-file", Value, FILES),
    ("make-iptables-util-chains", Switch, "the kubelet makes no iptables chains"),
    ("manifest-url", Value, MANIFESTS),
    ("manifest-url-header", Value, MANIFESTS),
    ("max-open-files", Value, "the limit of the process is not changed"),
    ("maximum-dead-containers", Value, DEAD),
    ("maximum-dead-containers-per-container", Value, DEAD),
    ("memory-manager-policy", Value, MANAGERS),
    ("minimum-container-ttl-duration", Value, DEAD),
    ("node-status-max-images", Value, "50 images are reported"),
    ("node-status-update-frequency", Value, "the node status has Kubernetes' default interval"),
    ("oom-score-adj", Value, "the score of the process is not changed"),
    ("pods-per-core", Value, "use --max-pods"),
    ("port", Value, LISTEN),
    ("protect-kernel-defaults", Switch, "kernel parameters are not changed"),
    ("qos-reserved", Value, CGROUPS),
    ("read-only-port", Value, "there is no read-only port"),
    ("register-node", Switch, "the node is always registered"),
    ("registry-burst", Value, PULLS),
    ("registry-qps", Value, PULLS),
    ("reserved-memory", Value, MANAGERS),
    ("root-dir", Value, FILES),
    ("runtime-cgroups", Value, CGROUPS),
    ("runtime-request-timeout", Value, "calls of the runtime have their own limits"),
    ("seccomp-default", Switch, "the profile RuntimeDefault applies"),
    ("serialize-image-pulls", Switch, PULLS),
    ("streaming-connection-idle-timeout", Value, "streams end with their connections"),
    ("sync-frequency", Value, "pods follow changes"),
    ("system-cgroups", Value, CGROUPS),
    ("system-reserved-cgroup", Value, CGROUPS),
    ("tls-cipher-suites", Value, CIPHERS),
    ("tls-min-version", Value, CIPHERS),
    ("topology-manager-policy", Value, MANAGERS),
    ("topology-manager-policy-options", Value, MANAGERS),
    ("topology-manager-scope", Value, MANAGERS),
    ("volume-plugin-dir", Value, "FlexVolume plugins are not run"),
    ("volume-stats-agg-period", Value, "usage of volumes is measured on request"),
    ("windows-priorityclass", Value, WINDOWS),
];

pub const PROXY: &[Row] = &[
    ("bind-address", Value, "node ports and rules do not depend on it"),
    ("config-sync-period", Value, "rules follow changes"),
    ("conntrack-max-per-core", Value, CONNTRACK),
    ("conntrack-min", Value, CONNTRACK),
    ("conntrack-tcp-be-liberal", Switch, CONNTRACK),
    ("conntrack-tcp-timeout-close-wait", Value, CONNTRACK),
    ("conntrack-tcp-timeout-established", Value, CONNTRACK),
    ("conntrack-udp-timeout", Value, CONNTRACK),
    ("conntrack-udp-timeout-stream", Value, CONNTRACK),
    ("detect-local-mode", Value, "traffic of pods is detected by --cluster-cidr"),
    ("enable-dsr", Switch, WINDOWS),
    ("forward-healthcheck-vip", Switch, WINDOWS),
    ("healthz-port", Value, "use --healthz-bind-address"),
    ("iptables-localhost-nodeports", Switch, "node ports are not served on loopback addresses"),
    ("iptables-masquerade-bit", Value, MARK),
    ("iptables-min-sync-period", Value, SYNC),
    ("iptables-sync-period", Value, SYNC),
    ("ipvs-exclude-cidrs", Value, IPVS),
    ("ipvs-min-sync-period", Value, SYNC),
    ("ipvs-scheduler", Value, IPVS),
    ("ipvs-strict-arp", Switch, IPVS),
    ("ipvs-sync-period", Value, SYNC),
    ("ipvs-tcp-timeout", Value, IPVS),
    ("ipvs-tcpfin-timeout", Value, IPVS),
    ("ipvs-udp-timeout", Value, IPVS),
    ("kube-api-burst", Value, QPS),
    ("kube-api-content-type", Value, "objects are sent as JSON"),
    ("kube-api-qps", Value, QPS),
    ("master", Value, "use --kubeconfig"),
    ("metrics-port", Value, "use --metrics-bind-address"),
    ("network-name", Value, WINDOWS),
    ("nodeport-addresses", Value, "node ports are served on all addresses of the node"),
    ("oom-score-adj", Value, "the score of the process is not changed"),
    ("pod-bridge-interface", Value, "traffic of pods is detected by --cluster-cidr"),
    ("pod-interface-name-prefix", Value, "traffic of pods is detected by --cluster-cidr"),
    ("root-hnsendpoint-name", Value, WINDOWS),
    ("source-vip", Value, WINDOWS),
];
