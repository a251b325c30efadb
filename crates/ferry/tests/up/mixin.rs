//! The series that the rules and alerts of kubernetes-mixin select, as kube-prometheus installs them: a Prometheus with
//! its job names scrapes a cluster, and each selector must have data.

mod rules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::machine::{Machine, until};
use testbase::programs;

const PORT: &str = "127.0.0.1:9090";
const FLAGS: [&str; 2] = ["--state-metrics=127.0.0.1:8080", "--machine-metrics=127.0.0.1:9100"];

const SLI: &str = r#"job="apiserver",subresource!~"proxy|attach|log|exec|portforward""#;
const CADVISOR: &str = r#"job="kubelet",metrics_path="/metrics/cadvisor""#;
const KUBELET: &str = r#"job="kubelet",metrics_path="/metrics""#;
const STATE: &str = r#"job="kube-state-metrics""#;
const NODE: &str = r#"job="node-exporter""#;
const SCHEDULER: &str = r#"job="kube-scheduler""#;
const API: &str = r#"job="apiserver""#;

/// Common matchers, then metrics with further matchers.
const SELECTORS: &[(&str, &[(&str, &str)])] = &[
    (
        API,
        &[
            ("up", ""),
            ("aggregator_unavailable_apiservice", ""),
            ("apiserver_request_total", r#"code=~"5..""#),
            ("apiserver_client_certificate_expiration_seconds_bucket", ""),
            ("apiserver_client_certificate_expiration_seconds_count", ""),
            ("apiserver_request_total", r#"verb=~"LIST|GET""#),
            ("apiserver_request_total", r#"verb=~"POST|PUT|PATCH|DELETE",code=~"2..""#),
            ("apiserver_request_total", r#"verb=~"LIST|GET|POST|PUT|PATCH|DELETE",code=~"4..""#),
            ("rest_client_requests_total", ""),
        ],
    ),
    (
        SLI,
        &[
            (
                "apiserver_request_sli_duration_seconds_bucket",
                r#"verb=~"LIST|GET",scope="cluster",le=~"30(\\.0)?""#,
            ),
            (
                "apiserver_request_sli_duration_seconds_bucket",
                r#"verb=~"LIST|GET",scope="namespace",le=~"5(\\.0)?""#,
            ),
            (
                "apiserver_request_sli_duration_seconds_bucket",
                r#"verb=~"LIST|GET",scope=~"resource|",le=~"1(\\.0)?""#,
            ),
            (
                "apiserver_request_sli_duration_seconds_bucket",
                r#"verb=~"POST|PUT|PATCH|DELETE",le=~"1(\\.0)?""#,
            ),
            ("apiserver_request_sli_duration_seconds_count", r#"verb=~"LIST|GET""#),
            ("apiserver_request_sli_duration_seconds_count", r#"verb=~"POST|PUT|PATCH|DELETE""#),
        ],
    ),
    (
        CADVISOR,
        &[
            ("container_cpu_cfs_periods_total", ""),
            ("container_cpu_cfs_throttled_periods_total", r#"container!="""#),
            ("container_cpu_usage_seconds_total", r#"image!="""#),
            ("container_memory_cache", r#"image!="""#),
            ("container_memory_rss", r#"image!="""#),
            ("container_memory_swap", r#"image!="""#),
            ("container_memory_working_set_bytes", r#"image!="""#),
        ],
    ),
    (
        KUBELET,
        &[
            ("up", ""),
            ("kubelet_node_name", ""),
            ("kubelet_pleg_relist_duration_seconds_bucket", ""),
            ("kubelet_pod_worker_duration_seconds_bucket", ""),
            ("kubelet_running_pods", ""),
            ("kubelet_certificate_manager_server_ttl_seconds", ""),
            ("kubelet_certificate_manager_client_expiration_renew_errors", ""),
            ("kubelet_server_expiration_renew_errors", ""),
            ("kubelet_volume_stats_available_bytes", ""),
            ("kubelet_volume_stats_capacity_bytes", ""),
            ("kubelet_volume_stats_inodes", ""),
            ("kubelet_volume_stats_inodes_free", ""),
            ("kubelet_volume_stats_inodes_used", ""),
            ("kubelet_volume_stats_used_bytes", ""),
            ("kubernetes_build_info", ""),
            ("rest_client_requests_total", ""),
        ],
    ),
    (
        SCHEDULER,
        &[
            ("up", ""),
            ("kubernetes_build_info", ""),
            ("scheduler_pod_scheduling_sli_duration_seconds_bucket", ""),
            ("scheduler_scheduling_algorithm_duration_seconds_bucket", ""),
            ("scheduler_scheduling_attempt_duration_seconds_bucket", ""),
        ],
    ),
    (
        r#"job="kube-controller-manager""#,
        &[
            ("up", ""),
            ("kubernetes_build_info", ""),
            ("workqueue_depth", ""),
            ("rest_client_requests_total", ""),
        ],
    ),
    (
        r#"job="kube-proxy""#,
        &[
            ("up", ""),
            ("kubernetes_build_info", ""),
            ("kubeproxy_sync_proxy_rules_duration_seconds_bucket", ""),
        ],
    ),
    (
        STATE,
        &[
            ("kube_daemonset_status_current_number_scheduled", ""),
            ("kube_daemonset_status_desired_number_scheduled", ""),
            ("kube_daemonset_status_number_available", ""),
            ("kube_daemonset_status_number_misscheduled", ""),
            ("kube_daemonset_status_updated_number_scheduled", ""),
            ("kube_deployment_metadata_generation", ""),
            ("kube_deployment_spec_replicas", ""),
            ("kube_deployment_status_condition", r#"condition="Progressing",status="false""#),
            ("kube_deployment_status_observed_generation", ""),
            ("kube_deployment_status_replicas_available", ""),
            ("kube_deployment_status_replicas_updated", ""),
            ("kube_horizontalpodautoscaler_spec_max_replicas", ""),
            ("kube_horizontalpodautoscaler_spec_min_replicas", ""),
            ("kube_horizontalpodautoscaler_status_current_replicas", ""),
            ("kube_horizontalpodautoscaler_status_desired_replicas", ""),
            ("kube_job_failed", ""),
            ("kube_job_owner", r#"owner_kind!="Pod",owner_kind!="""#),
            ("kube_job_status_active", ""),
            ("kube_job_status_start_time", ""),
            ("kube_node_info", ""),
            ("kube_node_role", r#"role="control-plane""#),
            ("kube_node_spec_unschedulable", ""),
            ("kube_node_status_allocatable", r#"resource="cpu""#),
            ("kube_node_status_allocatable", r#"resource="memory""#),
            ("kube_node_status_capacity", r#"resource="pods""#),
            ("kube_node_status_condition", r#"condition="Ready",status="true""#),
            ("kube_node_status_condition", r#"condition="MemoryPressure",status="true""#),
            ("kube_pod_container_resource_limits", r#"resource="cpu""#),
            ("kube_pod_container_resource_requests", r#"resource="memory""#),
            ("kube_pod_container_status_waiting_reason", r#"reason="CrashLoopBackOff""#),
            ("kube_pod_info", r#"node!="""#),
            ("kube_pod_owner", r#"owner_kind="",owner_name="""#),
            ("kube_pod_owner", r#"owner_kind="DaemonSet""#),
            ("kube_pod_owner", r#"owner_kind="Job""#),
            ("kube_pod_owner", r#"owner_kind="ReplicaSet""#),
            ("kube_pod_owner", r#"owner_kind="StatefulSet""#),
            ("kube_pod_status_phase", r#"phase=~"Pending|Unknown""#),
            ("kube_pod_status_phase", r#"phase="Running""#),
            ("kube_pod_status_ready", r#"condition="true""#),
            ("kube_persistentvolume_status_phase", r#"phase=~"Failed|Pending""#),
            ("kube_persistentvolumeclaim_access_mode", r#"access_mode="ReadWriteOnce""#),
            ("kube_poddisruptionbudget_status_current_healthy", ""),
            ("kube_poddisruptionbudget_status_desired_healthy", ""),
            ("kube_replicaset_owner", r#"owner_kind="Deployment""#),
            ("kube_resourcequota", r#"type="hard",resource=~"(cpu|requests.cpu)""#),
            ("kube_resourcequota", r#"type="used""#),
            ("kube_statefulset_metadata_generation", ""),
            ("kube_statefulset_replicas", ""),
            ("kube_statefulset_status_current_revision", ""),
            ("kube_statefulset_status_observed_generation", ""),
            ("kube_statefulset_status_replicas_ready", ""),
            ("kube_statefulset_status_replicas_updated", ""),
            ("kube_statefulset_status_update_revision", ""),
        ],
    ),
    (
        NODE,
        &[
            ("node_cpu_seconds_total", r#"mode="idle""#),
            ("node_filefd_allocated", ""),
            ("node_filefd_maximum", ""),
            ("node_filesystem_avail_bytes", r#"fstype!="",mountpoint!="""#),
            ("node_filesystem_files_free", r#"fstype!="",mountpoint!="""#),
            ("node_filesystem_readonly", r#"fstype!="",mountpoint!="""#),
            ("node_filesystem_size_bytes", r#"fstype!="",mountpoint!="""#),
            ("node_load1", ""),
            ("node_memory_MemAvailable_bytes", ""),
            ("node_memory_MemTotal_bytes", ""),
            ("node_memory_Slab_bytes", ""),
            ("node_network_receive_bytes_total", r#"device!="lo""#),
            ("node_network_transmit_drop_total", r#"device!="lo""#),
            ("node_network_up", r#"device!~"veth.+""#),
            ("node_timex_maxerror_seconds", ""),
            ("node_timex_offset_seconds", ""),
            ("node_timex_sync_status", ""),
            ("node_vmstat_pgmajfault", ""),
            ("node_exporter_build_info", ""),
            ("node_textfile_scrape_error", ""),
            ("node_filesystem_files", r#"fstype!="",mountpoint!="""#),
            ("node_memory_Buffers_bytes", ""),
            ("node_memory_Cached_bytes", ""),
            ("node_memory_MemFree_bytes", ""),
            ("node_network_receive_errs_total", ""),
            ("node_network_receive_packets_total", ""),
            ("node_network_transmit_errs_total", ""),
            ("node_network_transmit_packets_total", ""),
        ],
    ),
];

/// Further selectors of the rules, which have no data here, and why. One that has data fails the test.
const WITHOUT_DATA: &[(&str, &str)] = &[
    (
        r#"aggregator_unavailable_apiservice_total{job="apiserver"}"#,
        "no available APIService became unavailable",
    ),
    (r#"apiserver_request_terminations_total{job="apiserver"}"#, "no request was rejected for overload"),
    (r#"kubelet_evictions{job="kubelet"}"#, "no pod was evicted"),
    (r#"kube_node_spec_taint{key="node.kubernetes.io/unreachable"}"#, "the node is reachable"),
    (r#"kube_pod_owner{owner_kind="Node"}"#, "there is no static pod"),
    ("node_systemd_unit_state", "collected only if enabled in node-exporter too"),
    ("container_cpu_usage_seconds_total{job=\"windows-exporter\"}", "another product"),
];

const WORKLOADS: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: docker.io/test/busybox:1
        command: [/bin/sh, -c, "exec sleep 1000000"]
        resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: docker.io/test/busybox:1, command: [/bin/sh, -c, "exec sleep 1000000"], resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: docker.io/test/busybox:1, command: [/bin/sh, -c, "exec sleep 1000000"], resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 0 1 1 *"
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: docker.io/test/busybox:1, command: [/bin/sh, -c, "exit 1"], resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: all}
spec: {hard: {requests.cpu: "4", requests.memory: 4Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: crashing}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: docker.io/test/busybox:1, command: [/bin/sh, -c, "exit 1"], resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}}]
"#;

/// A claim on a volume in `DIRECTORY`, its pod, a gated pod, and an APIService whose requests fail.
const TROUBLE: &str = r#"
apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: DIRECTORY}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n1]}]}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: storing}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: docker.io/test/busybox:1, command: [/bin/sh, -c, "exec sleep 1000000"], volumeMounts: [{name: data, mountPath: /data}], resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec:
  schedulingGates: [{name: example.com/later}]
  containers: [{name: main, image: docker.io/test/busybox:1, resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {cpu: 100m, memory: 64Mi}}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.missing.example.com}
spec: {group: missing.example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 15, insecureSkipTLSVerify: true, service: {namespace: default, name: missing}}
"#;

/// Permissions that kube-prometheus grants to its Prometheus.
const ACCESS: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {nonResourceURLs: [/metrics, /metrics/slis], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
"#;

pub fn run(cgroup: &str) {
    let machine = Machine::start_with(cgroup, |_| FLAGS.map(str::to_owned).to_vec());
    machine.apply(WORKLOADS);
    machine.apply(ACCESS);
    let volume = machine.directory.path().join("volume");
    fs::create_dir_all(&volume).expect("a directory");
    machine.apply(&TROUBLE.replace("DIRECTORY", &volume.display().to_string()));
    machine.try_kubectl(&["get", "--raw", "/apis/missing.example.com/v1"]).expect_err("there is no server");
    machine.kubectl(&["create", "job", "--from=cronjob/nightly", "nightly-1"]);
    machine.kubectl(&["label", "node", "n1", "node-role.kubernetes.io/control-plane="]);
    let directory = machine.directory.path().join("prometheus");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("token"), machine.kubectl(&["create", "token", "prometheus"]).trim())
        .expect("a file");
    rules::parser_finds_metrics();
    let files = rules::files(&directory);
    let text = configuration(&machine, files.as_deref().unwrap_or_default());
    fs::write(directory.join("prometheus.yml"), text).expect("a file");
    let mut prometheus = start(&directory);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("every target is scraped", targets_are_up);
        until("every selector of the mixin has data", || {
            let missing = without_data();
            if missing.is_empty() { Ok(()) } else { Err(format!("without data: {missing:#?}")) }
        });
        for (selector, reason) in WITHOUT_DATA {
            let found = query(&format!("count({selector})")).expect("an answer");
            assert!(found.is_empty(), "{selector} has data, although: {reason}");
        }
        if files.is_some() {
            until("every rule of kube-prometheus is evaluated and has data", || rules::problems(PORT));
            assert_eq!(rules::needless(PORT), Ok(Vec::new()), "the table has entries that are not needed");
        } else {
            println!("partly skipped: the rules of kube-prometheus are not here (FERRY_MIXIN_RULES)");
        }
    }));
    prometheus.kill().expect("it runs");
    prometheus.wait().expect("it ends");
    if let Err(panic) = outcome {
        eprintln!("{}", fs::read_to_string(directory.join("log")).unwrap_or_default());
        std::panic::resume_unwind(panic);
    }
    machine.reset();
}

fn start(directory: &Path) -> std::process::Child {
    Command::new("prometheus")
        .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
        .arg(format!("--web.listen-address={PORT}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(directory.join("log")).expect("a file"))
        .spawn()
        .expect("prometheus runs")
}

/// Job, scheme, address and path of each target.
fn configuration(machine: &Machine, rules: &[PathBuf]) -> String {
    let port = "jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}";
    let kubelet = format!("127.0.0.1:{}", machine.kubectl(&["get", "node", "n1", "-o", port]).trim());
    let server = "jsonpath={.clusters[0].cluster.server}";
    let server = machine.kubectl(&["config", "view", "-o", server]).trim().to_owned();
    let server = server.strip_prefix("https://").expect("a URL").to_owned();
    let token = machine.directory.path().join("prometheus/token");
    let mut text = "global: {scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 5s}\n".to_owned();
    let rules: Vec<String> = rules.iter().map(|file| file.display().to_string()).collect();
    text.push_str(&format!("rule_files: {rules:?}\nscrape_configs:\n"));
    for (job, scheme, address, path) in [
        ("apiserver", "https", &*server, "/metrics"),
        ("kube-controller-manager", "https", "127.0.0.1:10257", "/metrics"),
        ("kube-controller-manager", "https", "127.0.0.1:10257", "/metrics/slis"),
        ("kube-scheduler", "https", "127.0.0.1:10259", "/metrics"),
        ("kube-scheduler", "https", "127.0.0.1:10259", "/metrics/slis"),
        ("kubelet", "https", &*kubelet, "/metrics"),
        ("kubelet", "https", &*kubelet, "/metrics/cadvisor"),
        ("kubelet", "https", &*kubelet, "/metrics/probes"),
        ("kubelet", "https", &*kubelet, "/metrics/slis"),
        ("kube-proxy", "http", "127.0.0.1:10249", "/metrics"),
        ("kube-state-metrics", "http", "127.0.0.1:8080", "/metrics"),
        ("node-exporter", "http", "127.0.0.1:9100", "/metrics"),
    ] {
        text.push_str(&format!(
            r#"- job_name: {job}{path}
  scheme: {scheme}
  metrics_path: {path}
  honor_labels: true
  tls_config: {{insecure_skip_verify: true}}
  authorization: {{credentials_file: {}}}
  static_configs: [{{targets: ["{address}"]}}]
  relabel_configs:
  - {{target_label: job, replacement: {job}}}
  - {{target_label: metrics_path, replacement: {path}}}
"#,
            token.display()
        ));
    }
    text
}

/// Rows of an instant query.
fn query(text: &str) -> Result<String, String> {
    let output = programs::command("promtool", &["query", "instant", &format!("http://{PORT}"), text])
        .output()
        .map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let error = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(printed) } else { Err(error()) }
}

fn targets_are_up() -> Result<(), String> {
    let down = query("up == 0")?;
    let up = query("count(up == 1)")?;
    if down.is_empty() && up.contains("=> 12 ") { Ok(()) } else { Err(format!("up: {up}; down: {down}")) }
}

/// Selectors without data.
fn without_data() -> Vec<String> {
    let selectors = SELECTORS.iter().flat_map(|(common, metrics)| {
        metrics.iter().map(move |(name, more)| match *more {
            "" => format!("{name}{{{common}}}"),
            more => format!("{name}{{{common},{more}}}"),
        })
    });
    let is_empty =
        |selector: &String| query(&format!("count({selector})")).map_or(true, |text| text.is_empty());
    selectors.filter(is_empty).collect()
}
