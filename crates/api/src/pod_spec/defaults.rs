//! Defaults of a pod spec.
//!
//! Runs on every decode, so each step reads before it writes and an already complete object costs only reads.

use super::resources::{is_huge_page, is_pod_level};
use super::{image, totals};
use crate::validation::resource_names::round_up_to_milli;
use crate::value::Fields;
use machinery::{Map, Value};

/// Annotations from before init containers had a field; they are dropped.
const INIT_CONTAINER_ANNOTATIONS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
];

/// Sets defaults of a pod template (`metadata` and `spec`) of a workload kind.
pub fn default_template(template: &mut Value) {
    drop_init_container_annotations(template);
    default_pod_spec(template.child_mut("spec"));
}

/// Sets defaults of a pod spec, also in templates. Those of pods alone are in [`default_pod`].
pub fn default_pod_spec(spec: &mut Value) {
    spec.default_if_zero("dnsPolicy", "ClusterFirst");
    spec.default_if_zero("restartPolicy", "Always");
    if !spec.has("securityContext") {
        spec.set("securityContext", Map::new());
    }
    spec.default_to("terminationGracePeriodSeconds", 30);
    spec.default_if_zero("schedulerName", "default-scheduler");
    mirror_service_account(spec);
    for volume in spec.items_mut("volumes") {
        default_volume(volume);
    }
    round_up_to_milli(spec, "overhead");
    round_resources(spec);
    for list in super::CONTAINER_LISTS {
        for container in spec.items_mut(list) {
            round_resources(container);
            default_container(container);
        }
    }
}

/// Rounds the resources of a pod or a container.
fn round_resources(owner: &mut Value) {
    if let Some(resources) = owner.field_mut("resources") {
        round_up_to_milli(resources, "limits");
        round_up_to_milli(resources, "requests");
    }
}

/// Sets defaults that pods have beyond a template: requests from limits, service links, host ports.
pub fn default_pod(pod: &mut Value) {
    drop_init_container_annotations(pod);
    let spec = pod.child_mut("spec");
    for list in ["containers", "initContainers"] {
        for container in spec.items_mut(list) {
            if let Some(resources) = container.field_mut("resources") {
                requests_from_limits(resources);
            }
        }
    }
    default_pod_level_resources(spec);
    spec.default_to("enableServiceLinks", true);
    if spec.flag("hostNetwork") {
        for list in ["containers", "initContainers"] {
            spec.items_mut(list).iter_mut().for_each(default_host_ports);
        }
    }
    default_pod_spec(spec);
    if spec.opt_int("terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        spec.set("terminationGracePeriodSeconds", 1);
    }
}

/// Syncs the singular and plural fields of a pod's addresses; the singular wins.
pub fn default_pod_status(status: &mut Value) {
    let first = status.items("podIPs").first().map_or("", |ip| ip.text("ip"));
    let single = status.text("podIP");
    if single == first {
        return;
    }
    if single.is_empty() {
        let first = first.to_owned();
        status.set("podIP", first);
    } else {
        let mut ip = Map::new();
        ip.insert("ip".to_owned(), Value::from(single));
        status.set("podIPs", vec![Value::Object(ip)]);
    }
}

/// Removes the pre-1.8 init container annotations from an object's metadata.
fn drop_init_container_annotations(object: &mut Value) {
    let Some(Value::Object(annotations)) = object.at_mut("metadata.annotations") else { return };
    let before = annotations.len();
    for key in INIT_CONTAINER_ANNOTATIONS {
        annotations.remove(key);
    }
    if annotations.is_empty()
        && before > 0
        && let Some(metadata) = object.field_mut("metadata")
    {
        metadata.unset("annotations");
    }
}

/// `serviceAccount` is the deprecated alias of `serviceAccountName`: both always have the same value.
fn mirror_service_account(spec: &mut Value) {
    let (old, new) = (spec.text("serviceAccount"), spec.text("serviceAccountName"));
    if old == new {
        return;
    }
    if new.is_empty() {
        let name = old.to_owned();
        spec.set("serviceAccountName", name);
    } else {
        let name = new.to_owned();
        spec.set("serviceAccount", name);
    }
}

/// A request defaults to the limit.
fn requests_from_limits(resources: &mut Value) {
    let Value::Object(map) = resources else { return };
    let Some(Value::Object(limits)) = map.get("limits") else { return };
    let requests = map.get("requests");
    let missing: Vec<(String, Value)> = limits
        .iter()
        .filter(|(name, _)| !requests.is_some_and(|requests| requests.has(name)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if missing.is_empty() {
        return;
    }
    if let Value::Object(requests) = resources.child_mut("requests") {
        requests.extend(missing);
    }
}

/// Defaults of partly set pod-level resources: limits of huge pages and requests are derived from the containers,
/// other requests from the pod's own limits.
fn default_pod_level_resources(spec: &mut Value) {
    let resources = spec.field("resources");
    let filled = |list: &str| resources.entries(list).is_some_and(|amounts| !amounts.is_empty());
    if !filled("limits") && !filled("requests") {
        return;
    }
    let (limits, requests) = (resources.field("limits"), resources.field("requests"));
    let pages: Vec<(String, String)> = totals::container_totals(spec, "limits")
        .into_iter()
        .filter(|(name, _)| is_huge_page(name) && !requests.has(name) && !limits.has(name))
        .map(|(name, amount)| (name, amount.to_string()))
        .collect();
    let container_requests: Vec<(String, String)> = totals::container_totals(spec, "requests")
        .into_iter()
        .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory") && !requests.has(name))
        .map(|(name, amount)| (name, amount.to_string()))
        .collect();
    let resources = spec.child_mut("resources");
    for (name, amount) in pages {
        resources.child_mut("limits").set(&name, amount);
    }
    let limits: Vec<(String, Value)> = resources
        .entries("limits")
        .into_iter()
        .flatten()
        .filter(|(name, _)| is_pod_level(name))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    if limits.is_empty() && !resources.has("limits") {
        return;
    }
    for (name, amount) in container_requests {
        resources.child_mut("requests").default_to(&name, amount);
    }
    for (name, amount) in limits {
        resources.child_mut("requests").default_to(&name, amount);
    }
}

/// With host networking, the host port defaults to the container port.
fn default_host_ports(container: &mut Value) {
    for port in container.items_mut("ports") {
        let number = port.int("containerPort");
        if port.int("hostPort") == 0 && number != 0 {
            port.set("hostPort", number);
        }
    }
}

fn default_container(container: &mut Value) {
    if container.text("imagePullPolicy").is_empty() {
        let policy = pull_policy(container.text("image"));
        container.set("imagePullPolicy", policy);
    }
    container.default_if_zero("terminationMessagePath", "/dev/termination-log");
    container.default_if_zero("terminationMessagePolicy", "File");
    for port in container.items_mut("ports") {
        port.default_if_zero("protocol", "TCP");
    }
    for variable in container.items_mut("env") {
        let Some(source) = variable.field_mut("valueFrom") else { continue };
        default_field_ref(source);
        if let Some(file) = source.field_mut("fileKeyRef") {
            file.default_to("optional", false);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.field_mut(probe) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = container.field_mut("lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(get) = lifecycle.field_mut(hook).and_then(|hook| hook.field_mut("httpGet")) {
                default_http_get(get);
            }
        }
    }
}

fn pull_policy(image: &str) -> &'static str {
    if image::is_latest(image) { "Always" } else { "IfNotPresent" }
}

fn default_probe(probe: &mut Value) {
    probe.default_if_zero("timeoutSeconds", 1);
    probe.default_if_zero("periodSeconds", 10);
    probe.default_if_zero("successThreshold", 1);
    probe.default_if_zero("failureThreshold", 3);
    if let Some(get) = probe.field_mut("httpGet") {
        default_http_get(get);
    }
    if let Some(grpc) = probe.field_mut("grpc") {
        grpc.default_to("service", "");
    }
}

fn default_http_get(get: &mut Value) {
    get.default_if_zero("path", "/");
    get.default_if_zero("scheme", "HTTP");
}

/// Default version of a `fieldRef` inside `holder`.
fn default_field_ref(holder: &mut Value) {
    if let Some(field_ref) = holder.field_mut("fieldRef") {
        field_ref.default_if_zero("apiVersion", "v1");
    }
}

fn default_volume(volume: &mut Value) {
    let Value::Object(map) = volume else { return };
    if !map.iter().any(|(name, value)| name != "name" && !value.is_null()) {
        map.insert("emptyDir".to_owned(), Value::Object(Map::new()));
        return;
    }
    for (name, source) in map.iter_mut() {
        if source.is_object() {
            default_volume_source(name, source);
        }
    }
}

fn default_volume_source(name: &str, source: &mut Value) {
    match name {
        "hostPath" => source.default_to("type", ""),
        "secret" | "configMap" => source.default_to("defaultMode", 0o644),
        "iscsi" => source.default_if_zero("iscsiInterface", "default"),
        "rbd" => {
            source.default_if_zero("pool", "rbd");
            source.default_if_zero("user", "admin");
            source.default_if_zero("keyring", "/etc/ceph/keyring");
        }
        "downwardAPI" => {
            source.default_to("defaultMode", 0o644);
            source.items_mut("items").iter_mut().for_each(default_field_ref);
        }
        "azureDisk" => {
            source.default_to("cachingMode", "ReadWrite");
            source.default_to("fsType", "ext4");
            source.default_to("readOnly", false);
            source.default_to("kind", "Shared");
        }
        "projected" => {
            source.default_to("defaultMode", 0o644);
            for projection in source.items_mut("sources") {
                if let Some(downward) = projection.field_mut("downwardAPI") {
                    downward.items_mut("items").iter_mut().for_each(default_field_ref);
                }
                if let Some(token) = projection.field_mut("serviceAccountToken") {
                    token.default_to("expirationSeconds", 3600);
                }
            }
        }
        "scaleIO" => {
            source.default_if_zero("storageMode", "ThinProvisioned");
            source.default_if_zero("fsType", "xfs");
        }
        "image" if source.text("pullPolicy").is_empty() => {
            let policy = pull_policy(source.text("reference"));
            source.set("pullPolicy", policy);
        }
        "ephemeral" => {
            if let Some(template) = source.field_mut("volumeClaimTemplate") {
                template.child_mut("spec").default_to("volumeMode", "Filesystem");
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn full(mut pod: Value) -> Value {
        default_pod(&mut pod);
        let mut again = pod.clone();
        default_pod(&mut again);
        assert_eq!(again, pod, "defaulting twice changes nothing");
        pod
    }

    #[test]
    fn minimal_pod_gets_defaults() {
        let pod = full(json!({"spec": {"containers": [{"name": "c", "image": "nginx", "resources": {}}]}}));
        assert_eq!(
            pod,
            json!({"spec": {
                "containers": [{
                    "name": "c", "image": "nginx", "imagePullPolicy": "Always", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            }})
        );
    }

    #[test]
    fn container_fields_get_defaults() {
        let pod = full(json!({"spec": {"hostNetwork": true, "serviceAccount": "sa", "containers": [{
            "name": "c", "image": "nginx:1", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "readinessProbe": {"grpc": {"port": 80}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
        }]}}));
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["ports"], json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]));
        assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
        let rounded = full(
            json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1.0000001"}}}]}}),
        );
        assert_eq!(rounded["spec"]["containers"][0]["resources"]["requests"], json!({"cpu": "1001m"}));
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(
            container["livenessProbe"],
            json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(container["readinessProbe"]["grpc"]["service"], "");
        assert_eq!(container["lifecycle"]["preStop"]["httpGet"]["scheme"], "HTTP");
        assert_eq!(pod["spec"]["serviceAccountName"], "sa");
    }

    #[test]
    fn pod_level_resources_get_defaults() {
        let pod = full(json!({"spec": {
            "resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
            "containers": [{"name": "c", "image": "a:1", "resources": {"requests": {"cpu": "1"}}}],
        }}));
        assert_eq!(pod["spec"]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
        let pod = full(json!({"spec": {"resources": {"requests": {"cpu": "1"}}, "containers": []}}));
        assert_eq!(pod["spec"]["resources"], json!({"requests": {"cpu": "1"}}));
    }

    #[test]
    fn volume_sources_get_defaults() {
        for (input, want) in [
            (json!({"name": "v"}), json!({"name": "v", "emptyDir": {}})),
            (
                json!({"name": "v", "hostPath": {"path": "/x"}}),
                json!({"name": "v", "hostPath": {"path": "/x", "type": ""}}),
            ),
            (
                json!({"name": "v", "secret": {"secretName": "s"}}),
                json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 420}}),
            ),
            (
                json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                json!({"name": "v", "projected": {"defaultMode": 420,
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}),
            ),
            (
                json!({"name": "v", "image": {"reference": "a:1"}}),
                json!({"name": "v", "image": {"reference": "a:1", "pullPolicy": "IfNotPresent"}}),
            ),
        ] {
            let pod = full(json!({"spec": {"volumes": [input], "containers": []}}));
            assert_eq!(pod["spec"]["volumes"][0], want);
        }
    }

    #[test]
    fn pod_ip_fields_are_synced() {
        for (input, want) in [
            (json!({"podIP": "1.1.1.1"}), json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}]})),
            (
                json!({"podIPs": [{"ip": "1.1.1.1"}]}),
                json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}]}),
            ),
            (
                json!({"podIP": "2.2.2.2", "podIPs": [{"ip": "1.1.1.1"}]}),
                json!({"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}]}),
            ),
            (json!({}), json!({})),
        ] {
            let mut status = input;
            default_pod_status(&mut status);
            assert_eq!(status, want);
        }
    }
}
