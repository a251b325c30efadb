//! Resource metrics and what they are for: `kubectl top`, the horizontal pod autoscaler on a real load, another server
//! in their place, `ferry metrics-server` alone, and the real metrics-server where it is installed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use super::ferry;
use super::machine::{Machine, until};
use testbase::{programs, scenarios};

/// Short periods, so that a load is seen within seconds.
const FLAGS: [&str; 5] = [
    "--metrics-adapter",
    "--metric-resolution=2s",
    "--horizontal-pod-autoscaler-sync-period=2s",
    "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
];

/// A program that is busy while DIRECTORY/on exists. Its limit bounds the load; 80 % of its request is less than that.
const WORKLOAD: &str = r#"
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
        command: [/bin/sh, -c, "while :; do if [ -e /load/on ]; then i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; else sleep 1; fi; done"]
        resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}
        volumeMounts: [{name: load, mountPath: /load}]
      - name: side
        image: docker.io/test/busybox:1
        command: [/bin/sh, -c, "exec sleep 1000000"]
        resources: {requests: {cpu: 10m}}
      volumes: [{name: load, hostPath: {path: DIRECTORY}}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}, scaleUp: {stabilizationWindowSeconds: 0}}
"#;

/// Pods with metrics of their own: one with a queue, and one with a hundred thousand series.
const ANNOTATED: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker}
spec:
  replicas: 1
  selector: {matchLabels: {app: worker}}
  template:
    metadata:
      labels: {app: worker}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "8080"}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: docker.io/test/busybox:1
        command: [/bin/sh, -c, "mkdir /tmp/www && printf '# TYPE jobs gauge\\njobs{queue=\"a\"} 12\\njobs{queue=\"b\"} 3\\n' > /tmp/www/metrics && exec busybox httpd -f -p 8080 -h /tmp/www"]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: worker}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}
  maxReplicas: 2
  metrics:
  - type: Pods
    pods: {metric: {name: jobs, selector: {matchLabels: {queue: a}}}, target: {type: AverageValue, averageValue: "5"}}
  - type: Object
    object:
      describedObject: {apiVersion: v1, kind: Service, name: worker}
      metric: {name: jobs, selector: {matchLabels: {queue: b}}}
      target: {type: AverageValue, averageValue: "100"}
  - type: External
    external: {metric: {name: jobs, selector: {matchLabels: {queue: b}}}, target: {type: AverageValue, averageValue: "100"}}
---
apiVersion: v1
kind: Service
metadata: {name: worker}
spec: {selector: {app: worker}, ports: [{port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: flood
  annotations: {prometheus.io/scrape: "true", prometheus.io/port: "8080", prometheus.io/path: /flood}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: docker.io/test/busybox:1
    command: [/bin/sh, -c, "mkdir /tmp/www && busybox seq 100000 | busybox sed 's/.*/s{l=\"&\"} 1/' > /tmp/www/flood && exec busybox httpd -f -p 8080 -h /tmp/www"]
"#;

/// A custom resource with a scale, without a controller, that External metrics scale.
const CUSTOM: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fleets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: fleets, singular: fleet, kind: Fleet}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}}}
          status: {type: object, properties: {size: {type: integer}, selector: {type: string}}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.selector}
"#;
const SCALED_FLEET: &str = r#"
apiVersion: example.com/v1
kind: Fleet
metadata: {name: boats}
spec: {size: 1}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: boats}
spec:
  scaleTargetRef: {apiVersion: example.com/v1, kind: Fleet, name: boats}
  maxReplicas: 3
  metrics:
  - type: External
    external: {metric: {name: jobs, selector: {matchLabels: {queue: a}}}, target: {type: AverageValue, averageValue: "4"}}
"#;

const ELSEWHERE: &str = r#"
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system}
"#;

pub fn run(cgroup: &str) {
    let sink = |directory: &Path| directory.join("sink");
    let machine = Machine::start_with(cgroup, |directory| {
        let own = format!("--metrics-sink=file:{}", sink(directory).display());
        FLAGS.iter().map(|flag| (*flag).to_owned()).chain([own]).collect()
    });
    check(&machine);
    let lines = fs::read_to_string(sink(machine.directory.path())).expect("the sink has written");
    let parts =
        [",container_name=main,", ",namespace_name=default,nodename=n1,", ",pod_name=web-", " value=50i "];
    let is_request =
        |line: &str| line.starts_with("cpu/request,") && parts.iter().all(|part| line.contains(part));
    assert!(lines.lines().any(is_request), "{lines}");
    assert!(lines.contains("memory/working_set,type=cluster value="), "{lines}");
    machine.reset();
}

fn check(machine: &Machine) {
    let directory = machine.directory.path().join("load");
    fs::create_dir_all(&directory).expect("a directory");
    machine.apply(&WORKLOAD.replace("DIRECTORY", &directory.display().to_string()));
    machine.wait_for("deployment/web", "{.status.readyReplicas}", "1");
    scenarios![
        (machine);
        usage_is_printed,
        load_scales,
        annotated_pods_scale,
        another_server_takes_over,
        serves_alone,
        metrics_server_agrees,
        history_is_shown,
    ];
}

/// The lines that kubectl prints after its headings.
fn rows(machine: &Machine, arguments: &[&str]) -> Result<Vec<Vec<String>>, String> {
    let text = machine.try_kubectl(arguments)?;
    let lines = text.lines().skip(1);
    let rows: Vec<Vec<String>> =
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    if rows.is_empty() { Err("no rows".to_owned()) } else { Ok(rows) }
}

fn usage_is_printed(machine: &Machine) {
    let nodes = until("kubectl top nodes", || rows(machine, &["top", "nodes"]));
    assert_eq!((nodes.len(), nodes[0][0].as_str(), nodes[0].len()), (1, "n1", 5), "{nodes:?}");
    let pods =
        until("kubectl top pods", || rows(machine, &["top", "pods", "--containers", "--sort-by=memory"]));
    let mut names: Vec<&str> = pods.iter().map(|row| row[1].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["main", "side"], "{pods:?}");
    let selected = until("a selector", || rows(machine, &["top", "pods", "-l", "app=web", "-A"]));
    assert_eq!(selected[0][0], "default", "{selected:?}");
    assert!(machine.try_kubectl(&["top", "pods", "-l", "app=none"]).is_ok_and(|text| text.is_empty()));
    let table = machine.kubectl(&["get", "nodes.metrics.k8s.io"]);
    assert!(table.starts_with("NAME") && table.contains("WINDOW") && table.contains("n1"), "{table}");
    // The roles that may view namespaces may read metrics.
    let view = ["auth", "can-i", "list", "pods.metrics.k8s.io", "--as=jane"];
    machine.kubectl(&["create", "rolebinding", "jane", "--clusterrole=view", "--user=jane"]);
    until("viewers read metrics", || machine.try_kubectl(&view).map(|_| ()));
    assert!(machine.try_kubectl(&["auth", "can-i", "list", "pods.metrics.k8s.io", "--as=joe"]).is_err());
}

/// A Deployment with a target of 80 % grows under load and shrinks again.
fn load_scales(machine: &Machine) {
    let load = &machine.directory.path().join("load/on");
    machine.wait_until(
        "hpa/web",
        "{.status.conditions[?(@.type==\"ScalingActive\")].status}",
        "is True",
        |text| text == "True",
    );
    fs::write(load, "").expect("a file");
    machine.wait_for("deployment/web", "{.status.readyReplicas}", "3");
    let utilization = "{.status.currentMetrics[0].resource.current.averageUtilization}";
    machine.wait_until("hpa/web", utilization, "is above the target", |text| {
        text.parse::<u32>().is_ok_and(|percent| percent > 80)
    });
    fs::remove_file(load).expect("removed");
    machine.wait_for("deployment/web", "{.spec.replicas}", "1");
    let events =
        machine.kubectl(&["get", "events", "--field-selector=reason=SuccessfulRescale", "-o", "name"]);
    assert!(events.lines().count() >= 2, "{events}");
}

/// `ferry top` shows the last minutes, as a table and as JSON.
fn history_is_shown(machine: &Machine) {
    let top = |arguments: &[&str]| {
        let output = machine.ferry(&[&["top"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let table = top(&["pods", "--since", "10m", "--namespace", "default", "--sort-by", "cpu"]);
    assert!(table.starts_with("NAMESPACE") && table.contains("web-") && table.contains('█'), "{table}");
    assert!(top(&["nodes", "--since", "10m"]).contains("n1"));
    // Advice takes twenty points.
    until("advice about requests", || {
        let list: serde_json::Value =
            serde_json::from_str(&top(&["pods", "--since", "10m", "-o", "json"])).expect("JSON");
        let items = list["items"].as_array().expect("items");
        let is_advised = |item: &&serde_json::Value| {
            item["cpu"]["request"] == "60m"
                && item["cpu"]["advice"].is_string()
                && item["memory"]["advice"] == "lower"
        };
        items.iter().find(is_advised).map(|_| ()).ok_or_else(|| list.to_string())
    });
}

/// Metrics of annotated pods scale a Deployment; a pod with too many series is refused with an event.
fn annotated_pods_scale(machine: &Machine) {
    machine.apply(ANNOTATED);
    let raw = |path: &str| machine.try_kubectl(&["get", "--raw", path]);
    let custom =
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/jobs?labelSelector=app%3Dworker";
    until("custom metrics", || {
        let text = raw(custom)?;
        if text.contains("\"value\":\"15\"") { Ok(()) } else { Err(text) }
    });
    let external =
        raw("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/jobs?labelSelector=queue%3Db");
    assert!(external.as_ref().is_ok_and(|text| text.contains("\"value\":\"3\"")), "{external:?}");
    machine.wait_for("deployment/worker", "{.status.readyReplicas}", "2");
    machine.wait_until(
        "hpa/worker",
        "{.status.currentMetrics[0].pods.current.averageValue}",
        "is 12",
        |text| text == "12",
    );
    for (field, wanted) in [("object", "3"), ("external", "3")] {
        let value = format!("{{.status.currentMetrics[*].{field}.current.averageValue}}");
        machine.wait_for("hpa/worker", &value, wanted);
    }
    let field = "--field-selector=reason=MetricsLimitExceeded,involvedObject.name=flood";
    until("the event of the flood", || {
        let events = machine.try_kubectl(&["get", "events", field, "-o", "jsonpath={.items[*].message}"])?;
        if events.contains("more than 10000 series") { Ok(()) } else { Err(events) }
    });
    assert!(raw("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/flood/s").is_err());
    custom_resource_scales(machine);
    machine.kubectl(&[
        "delete",
        "deployment/worker",
        "service/worker",
        "hpa/worker",
        "pod/flood",
        "--wait=false",
    ]);
}

/// The autoscaler scales a custom resource by its scale subresource.
fn custom_resource_scales(machine: &Machine) {
    machine.apply(CUSTOM);
    machine.kubectl(&["wait", "--for=condition=Established", "crd/fleets.example.com", "--timeout=60s"]);
    machine.apply(SCALED_FLEET);
    let status = r#"{"status": {"size": 1, "selector": "app=boats"}}"#;
    machine.kubectl(&["patch", "fleet/boats", "--subresource=status", "--type=merge", "-p", status]);
    machine.wait_for("fleet/boats", "{.spec.size}", "3");
    let able = "{.status.conditions[?(@.type==\"AbleToScale\")].status}";
    machine.wait_for("hpa/boats", able, "True");
    machine.kubectl(&["delete", "hpa/boats", "fleet/boats"]);
    machine.kubectl(&["delete", "crd/fleets.example.com", "--wait=false"]);
}

/// An APIService that names a server wins over the one in the process, until it is deleted.
fn another_server_takes_over(machine: &Machine) {
    machine.apply(ELSEWHERE);
    until("the other server is asked", || match machine.try_kubectl(&["top", "nodes"]) {
        Err(error) if error.contains("Metrics API not available") || error.contains("unable to handle") => {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    machine.kubectl(&["delete", "apiservice", "v1beta1.metrics.k8s.io"]);
    until("kubectl top nodes", || rows(machine, &["top", "nodes"]));
}

/// `ferry metrics-server` with the credentials of the administrator serves the same to those who may read it.
fn serves_alone(machine: &Machine) {
    let certificates = machine.directory.path().join("certificates");
    let mut server = ferry(&["metrics-server", "--bind-address=127.0.0.1", "--secure-port=0"])
        .args(["--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP"])
        .args(["--metric-resolution=11s", "--kubelet-request-timeout=5s", "--cert-dir"])
        .arg(&certificates)
        .arg("--kubeconfig")
        .arg(machine.data().join("kubeconfig"))
        .stdout(Stdio::piped())
        .stderr(fs::File::create(machine.directory.path().join("metrics-server-log")).expect("a file"))
        .spawn()
        .expect("ferry runs");
    let printed = server.stdout.take().map(BufReader::new).and_then(|lines| lines.lines().next());
    let printed = printed.expect("it says where").expect("a line");
    let url = printed.split_whitespace().last().expect("an address").to_owned();
    let get = |path: &str, more: &[&str]| {
        let own = ["--server", &url, "--insecure-skip-tls-verify", "get", "--raw", path];
        machine.try_kubectl(&[&own, more].concat())
    };
    let base = "/apis/metrics.k8s.io/v1beta1";
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("the server alone has metrics", || {
            let text = get(&format!("{base}/namespaces/default/pods"), &[])?;
            if text.contains("\"main\"") { Ok(()) } else { Err(text) }
        });
        // The storage is ready after the second scrape of a node.
        until("the server alone is ready", || match get("/readyz", &[])?.as_str() {
            "ok" => Ok(()),
            other => Err(other.to_owned()),
        });
        let empty = machine.directory.path().join("empty-kubeconfig");
        fs::write(&empty, "apiVersion: v1\nkind: Config\n").expect("a file");
        let with_token = |token: &str| {
            let own = [format!("--kubeconfig={}", empty.display()), format!("--token={token}")];
            get(&format!("{base}/nodes"), &own.each_ref().map(String::as_str))
        };
        let refused = with_token("nonsense");
        assert!(refused.as_ref().is_err_and(|error| error.contains("logged in")), "{refused:?}");
        let token = machine.kubectl(&["create", "token", "default"]);
        let refused = with_token(token.trim());
        let user = "system:serviceaccount:default:default";
        assert!(refused.as_ref().is_err_and(|error| error.contains(user)), "{refused:?}");
        let page = get("/metrics", &[]).expect("a page");
        assert!(page.contains("metrics_server_kubelet_request_total{success=\"true\"}"), "{page}");
        assert!(get("/debug/pprof/", &[]).is_ok_and(|text| text.contains("heap")));
    }));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    if let Err(panic) = outcome {
        let log = fs::read_to_string(machine.directory.path().join("metrics-server-log")).unwrap_or_default();
        eprintln!("{log}");
        std::panic::resume_unwind(panic);
    }
}

/// The keys of a document, at every depth; those of labels and elements of lists aside.
fn keys(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| {
                let below = if key == "labels" { Vec::new() } else { keys(value) };
                std::iter::once(key.clone()).chain(below.into_iter().map(move |one| format!("{key}.{one}")))
            })
            .collect(),
        serde_json::Value::Array(items) => items.first().map(keys).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The real metrics-server, where it is installed, works on these kubelets and has the same objects.
fn metrics_server_agrees(machine: &Machine) {
    if !programs::has("metrics-server") {
        println!("partly skipped: the real metrics-server is not here");
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let kubeconfig = machine.data().join("kubeconfig").display().to_string();
    let log = machine.directory.path().join("real-metrics-server-log");
    let mut server = Command::new("metrics-server")
        .args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")])
        .args(["--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP"])
        .args(["--metric-resolution=11s", "--kubelet-request-timeout=5s"])
        .arg(format!("--cert-dir={}", machine.directory.path().join("real-certificates").display()))
        .args(
            ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"]
                .map(|flag| format!("{flag}={kubeconfig}")),
        )
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).expect("a file"))
        .spawn()
        .expect("metrics-server runs");
    let url = format!("https://127.0.0.1:{port}");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for path in ["nodes", "namespaces/default/pods?labelSelector=app%3Dweb"] {
            let path = format!("/apis/metrics.k8s.io/v1beta1/{path}");
            let parse = |text: String| {
                serde_json::from_str::<serde_json::Value>(&text).map_err(|error| error.to_string())
            };
            let theirs = until("the real metrics-server has metrics", || {
                let own = ["--server", &url, "--insecure-skip-tls-verify", "get", "--raw", &path];
                let list = parse(machine.try_kubectl(&own)?)?;
                if list["items"].as_array().is_some_and(|items| !items.is_empty()) {
                    Ok(list)
                } else {
                    Err(list.to_string())
                }
            });
            let ours = parse(machine.kubectl(&["get", "--raw", &path])).expect("JSON");
            assert_eq!(keys(&ours), keys(&theirs), "ours: {ours:#}\ntheirs: {theirs:#}");
            let names = |list: &serde_json::Value| {
                let items = list["items"].as_array().cloned().unwrap_or_default();
                let name = |item: &serde_json::Value| {
                    let containers = item["containers"].as_array().cloned().unwrap_or_default();
                    let mut containers: Vec<String> =
                        containers.iter().map(|one| one["name"].to_string()).collect();
                    containers.sort_unstable();
                    (item["metadata"]["name"].to_string(), containers)
                };
                items.iter().map(name).collect::<Vec<_>>()
            };
            assert_eq!(names(&ours), names(&theirs));
        }
    }));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    if let Err(panic) = outcome {
        eprintln!("{}", fs::read_to_string(&log).unwrap_or_default());
        std::panic::resume_unwind(panic);
    }
}
