//! Cells of every table, and the columns against the reference.

use super::*;
use crate::Kind;
use crate::kinds::KINDS;
use serde_json::json;

const NOW: &str = "2026-01-01T01:00:00Z";

/// The table of a resource; of one that is not stored, the generic one.
fn table(group: &str, resource: &str) -> &'static Table {
    crate::kinds::find(group, resource).map_or(&GENERIC, |kind| kind.table)
}

fn cells(group: &str, resource: &str, object: &Value) -> Vec<Value> {
    let now = cell::seconds(NOW).unwrap();
    (table(group, resource).cells)(object, CellContext { now })
}

#[test]
fn columns_match_the_reference() {
    for (key, columns) in reference::COLUMNS.values() {
        let parts: Vec<&str> = key.split('/').collect();
        let (group, resource) = match parts[..] {
            [_, resource] => ("", resource),
            [group, _, resource] => (group, resource),
            _ => panic!("{key}"),
        };
        let ours: Vec<Value> = table(group, resource)
            .columns
            .iter()
            .map(|column| {
                json!({
                    "name": column.name,
                    "type": column.kind,
                    "format": column.format,
                    "priority": column.priority,
                })
            })
            .collect();
        assert_eq!(Value::Array(ours), columns, "{key}");
    }
}

#[test]
fn versions_of_a_kind_share_its_facts() {
    for kind in KINDS {
        let first = crate::kinds::find(kind.group, kind.resource).expect("a kind");
        assert!(std::ptr::eq(kind.table, first.table), "{} {}", kind.version, kind.kind);
        assert_eq!(kind.returns_deleted, first.returns_deleted, "{} {}", kind.version, kind.kind);
        let names = |kind: &Kind| kind.selectable.fields.iter().map(|field| field.name).collect::<Vec<_>>();
        assert_eq!(names(kind), names(first), "{} {}", kind.version, kind.kind);
    }
}

/// Recorded tables whose rows contain the whole object, or whose object was created in the step before.
#[test]
fn recorded_tables_match() {
    let (mut columns_seen, mut rows_seen) = (0, 0);
    for (name, recording) in reference::RECORDINGS.values() {
        for step in recording["steps"].as_array().into_iter().flatten() {
            let answer = &step["want"]["body"];
            if answer["kind"] != "Table" || answer["apiVersion"] != "meta.k8s.io/v1" {
                continue;
            }
            let Some((group, resource)) = resource_of(step["path"].as_str().unwrap_or("")) else {
                continue;
            };
            let table = table(&group, &resource);
            let label = format!("{name}: {group}/{resource}");
            if let Some(columns) = answer["columnDefinitions"].as_array().filter(|c| !c.is_empty()) {
                let ours: Vec<&str> = table.columns.iter().map(|column| column.description).collect();
                let theirs: Vec<&str> =
                    columns.iter().map(|c| c["description"].as_str().unwrap_or("")).collect();
                assert_eq!(ours, theirs, "{label}");
                columns_seen += 1;
            }
            for row in answer["rows"].as_array().into_iter().flatten() {
                let object = &row["object"];
                if object.is_null() || object["kind"] == "PartialObjectMetadata" {
                    continue;
                }
                let ours = (table.cells)(object, CellContext { now: 0 });
                for (ours, theirs) in ours.iter().zip(row["cells"].as_array().unwrap()) {
                    let masked = theirs.as_str().is_some_and(|text| text.contains('<'));
                    assert!(masked || ours == theirs, "{label}: {ours} != {theirs}");
                }
                let conditions = table.conditions.map(|conditions| conditions(object)).unwrap_or_default();
                let expected = row["conditions"].as_array().cloned().unwrap_or_default();
                assert_eq!(conditions, expected, "{label}");
                rows_seen += 1;
            }
        }
    }
    assert!(columns_seen > 0 && rows_seen > 0);
}

/// The group and resource of a recorded path without subresource.
fn resource_of(path: &str) -> Option<(String, String)> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts[..] {
        ["api", _, ref rest @ ..] => ("", rest),
        ["apis", group, _, ref rest @ ..] => (group, rest),
        _ => return None,
    };
    let resource = match *rest {
        ["namespaces", _, resource] | ["namespaces", _, resource, _] | [resource] | [resource, _] => resource,
        ["namespaces", _, resource, _, "status"] | [resource, _, "status"] => resource,
        _ => return None,
    };
    Some((group.to_owned(), resource.to_owned()))
}

#[test]
fn durations_are_shortened_like_kubectl() {
    let cases = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (10_860, "3h1m"),
        (28_800, "8h"),
        (172_800, "2d"),
        (176_400, "2d1h"),
        (691_200, "8d"),
        (63_072_000, "2y"),
        (63_158_400, "2y1d"),
        (315_360_000, "10y"),
    ];
    for (seconds, text) in cases {
        assert_eq!(human_duration(seconds), text, "{seconds}");
    }
}

#[test]
fn label_selector_cells_match() {
    let cases = [
        (Value::Null, Some("")),
        (json!({}), Some("")),
        (json!({"matchLabels": {"b": "2", "a": "1"}}), Some("a=1,b=2")),
        (
            json!({
                "matchLabels": {"m": "1"},
                "matchExpressions": [
                    {"key": "z", "operator": "In", "values": ["y", "x"]},
                    {"key": "a", "operator": "DoesNotExist"},
                    {"key": "b", "operator": "Exists"},
                    {"key": "c", "operator": "NotIn", "values": ["v"]},
                ],
            }),
            Some("!a,b,c notin (v),m=1,z in (x,y)"),
        ),
        (json!({"matchExpressions": [{"key": "z", "operator": "In"}]}), None),
        (json!({"matchExpressions": [{"key": "z", "operator": "Bogus"}]}), None),
    ];
    for (selector, text) in cases {
        assert_eq!(label_selector_text(Some(&selector)).as_deref(), text, "{selector}");
    }
}

/// Ready, status and restarts of a pod in many states.
#[test]
fn pod_cells_match_pod_state() {
    let running = json!({"name": "c", "ready": true, "state": {"running": {}}});
    let done = json!({"name": "d", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
    let failed = json!({"name": "e", "state": {"terminated": {"exitCode": 2}}});
    let ready = json!({"type": "Ready", "status": "True"});
    let sidecar = json!([{"name": "s", "restartPolicy": "Always"}]);
    let cases = [
        (json!({}), json!({"phase": "Pending"}), ["0/1", "Pending", "0"]),
        (json!({}), json!({"phase": "Failed", "reason": "Evicted"}), ["0/1", "Evicted", "0"]),
        (
            json!({}),
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            ["0/1", "SchedulingGated", "0"],
        ),
        (json!({}), json!({"phase": "Running", "containerStatuses": [running]}), ["1/1", "Running", "0"]),
        (
            json!({}),
            json!({"phase": "Running", "containerStatuses": [{
                "name": "c", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:55:00Z"}},
            }]}),
            ["0/1", "CrashLoopBackOff", "3 (5m ago)"],
        ),
        (
            json!({}),
            json!({"phase": "Running", "containerStatuses": [done, running], "conditions": [ready]}),
            ["1/1", "Running", "0"],
        ),
        (
            json!({}),
            json!({"phase": "Running", "containerStatuses": [done, running]}),
            ["1/1", "NotReady", "0"],
        ),
        (
            json!({}),
            json!({"phase": "Running", "containerStatuses": [done, failed]}),
            ["0/1", "ExitCode:2", "0"],
        ),
        (
            json!({"initContainers": [{"name": "i"}, {"name": "j"}]}),
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "restartCount": 1, "state": {"running": {}}},
            ]}),
            ["0/1", "Init:1/2", "1"],
        ),
        (
            json!({"initContainers": [{"name": "i"}]}),
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 1, "signal": 9}}},
            ]}),
            ["0/1", "Init:Signal:9", "0"],
        ),
        (
            json!({"initContainers": sidecar}),
            json!({"phase": "Running", "containerStatuses": [running], "initContainerStatuses": [
                {"name": "s", "ready": true, "started": true, "restartCount": 2, "state": {"running": {}}},
            ]}),
            ["2/2", "Running", "2"],
        ),
    ];
    for (mut spec, status, expected) in cases {
        spec["containers"] = json!([{"name": "c"}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
        assert_eq!(&cells("", "pods", &pod)[1..4], expected, "{status}");
    }
    let mut pod = json!({"metadata": {"deletionTimestamp": NOW}, "status": {"phase": "Running"}});
    assert_eq!(cells("", "pods", &pod)[2], "Terminating");
    pod["status"]["reason"] = "NodeLost".into();
    assert_eq!(cells("", "pods", &pod)[2], "Unknown");
}

/// Asserts the cells of an object.
#[track_caller]
fn assert_cells(group: &str, resource: &str, object: &Value, expected: &Value) {
    assert_eq!(&Value::Array(cells(group, resource, object)), expected, "{resource}");
}

#[test]
fn service_cells_match() {
    let object = json!({
        "metadata": {"name": "s", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "selector": {"a": "b"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},
        "status": {"loadBalancer": {"ingress": [{"hostname": "z"}, {"ip": "1.2.3.4"}]}},
    });
    let expected = json!(["s", "LoadBalancer", "10.0.0.1", "1.2.3.4,z", "80:30080/TCP,53/UDP", "60m", "a=b"]);
    assert_cells("", "services", &object, &expected);
}

#[test]
fn endpoints_cells_match() {
    let object = json!({"metadata": {"name": "e"}, "subsets": [
        {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 1}, {"port": 2}]},
    ]});
    let expected = json!(["e", "10.0.0.1:1,[fd00::1]:1,10.0.0.1:2 + 1 more...", "<unknown>"]);
    assert_cells("", "endpoints", &object, &expected);
}

#[test]
fn node_cells_match() {
    let object = json!({
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/b": "", "kubernetes.io/role": "a"}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "Unknown"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "kernelVersion": "6.1", "architecture": "amd64"},
        },
    });
    let expected = json!([
        "n",
        "NotReady,SchedulingDisabled",
        "a,b",
        "<unknown>",
        "v1.36.0",
        "10.0.0.1",
        "<none>",
        "<unknown>",
        "6.1 (amd64)",
        "<unknown>"
    ]);
    assert_cells("", "nodes", &object, &expected);
}

#[test]
fn resource_quota_cells_match() {
    let object = json!({"metadata": {"name": "q"}, "status": {
        "hard": {"limits.cpu": "2", "pods": "10", "requests.cpu": "1"}, "used": {"pods": "3"},
    }});
    let expected = json!(["q", "pods: 3/10, requests.cpu: 0/1", "limits.cpu: 0/2", "<unknown>"]);
    assert_cells("", "resourcequotas", &object, &expected);
}

#[test]
fn job_cells_match() {
    let object = json!({
        "metadata": {"name": "j"},
        "spec": {"parallelism": 3},
        "status": {"succeeded": 1, "startTime": "2026-01-01T00:50:00Z",
            "conditions": [{"type": "Suspended", "status": "True"}]},
    });
    let expected = json!(["j", "Suspended", "1/1 of 3", "10m", "<unknown>", "", "", "<none>"]);
    assert_cells("batch", "jobs", &object, &expected);
}

#[test]
fn ingress_cells_match() {
    let object = json!({"metadata": {"name": "i"}, "spec": {"tls": [{}], "rules": [
        {"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}, {},
    ]}});
    let expected = json!(["i", "<none>", "a,b,c + 2 more...", "", "80, 443", "<unknown>"]);
    assert_cells("networking.k8s.io", "ingresses", &object, &expected);
}

#[test]
fn horizontal_pod_autoscaler_cells_match() {
    let object = json!({
        "metadata": {"name": "h"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5, "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
            {"type": "Pods", "pods": {"target": {"averageValue": "10"}}},
            {"type": "External", "external": {"target": {"value": "1"}}},
        ]},
        "status": {"currentReplicas": 2, "currentMetrics": [
            {"type": "Resource", "resource": {"current": {"averageUtilization": 40}}},
        ]},
    });
    let expected =
        json!(["h", "Deployment/d", "cpu: 40%/80%, <unknown>/10 + 1 more...", "<unset>", 5, 2, "<unknown>"]);
    assert_cells("autoscaling", "horizontalpodautoscalers", &object, &expected);
}

#[test]
fn horizontal_pod_autoscaler_v1_cells_match() {
    let object = json!({
        "apiVersion": "autoscaling/v1",
        "metadata": {"name": "h"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "minReplicas": 1,
            "maxReplicas": 5, "targetCPUUtilizationPercentage": 80},
    });
    let expected = json!(["h", "Deployment/d", "cpu: <unknown>/80%", "1", 5, 0, "<unknown>"]);
    assert_cells("autoscaling", "horizontalpodautoscalers", &object, &expected);
}

#[test]
fn policy_binding_cells_match() {
    let object = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "paramRef": {"selector": {
        "matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}],
    }}}});
    let expected = json!([
        "b",
        "p",
        "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement\
                 {LabelSelectorRequirement{Key:k,Operator:In,Values:[x y],},},}",
        "<unknown>"
    ]);
    assert_cells("admissionregistration.k8s.io", "validatingadmissionpolicybindings", &object, &expected);
}

#[test]
fn role_binding_cells_match() {
    let object = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [
        {"kind": "User", "name": "u"}, {"kind": "User", "name": "v"}, {"kind": "Group", "name": "g"},
        {"kind": "ServiceAccount", "namespace": "n", "name": "s"},
    ]});
    let expected = json!(["b", "Role/r", "<unknown>", "u, v", "g", "n/s"]);
    assert_cells("rbac.authorization.k8s.io", "rolebindings", &object, &expected);
}

#[test]
fn certificate_signing_request_cells_match() {
    let object = json!({"metadata": {"name": "c"}, "spec": {"expirationSeconds": 3600, "username": "u"}, "status": {
        "conditions": [{"type": "Approved"}], "certificate": "eA==",
    }});
    let expected = json!(["c", "<unknown>", "<none>", "u", "60m", "Approved,Issued"]);
    assert_cells("certificates.k8s.io", "certificatesigningrequests", &object, &expected);
}

#[test]
fn priority_level_configuration_cells_match() {
    let object = json!({"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": {
        "nominalConcurrencyShares": 30, "limitResponse": {"type": "Reject"},
    }}});
    let expected = json!(["l", "Limited", 30, "<none>", "<none>", "<none>", "<unknown>"]);
    assert_cells("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", &object, &expected);
}

#[test]
fn event_cells_match() {
    let object = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "R", "message": " m\n",
        "involvedObject": {"kind": "Pod", "name": "p"}, "source": {"component": "c", "host": "h"},
        "lastTimestamp": "2026-01-01T00:59:00Z", "firstTimestamp": "2026-01-01T00:00:00Z", "count": 4,
    });
    let expected = json!(["60s", "Normal", "R", "pod/p", "", "c, h", "m", "60m", 4, "e"]);
    assert_cells("", "events", &object, &expected);
}

#[test]
fn ip_address_cells_match() {
    let object = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {
        "resource": "services", "namespace": "n", "name": "s",
    }}});
    let expected = json!(["10.0.0.1", "services/n/s", "<unknown>"]);
    assert_cells("networking.k8s.io", "ipaddresses", &object, &expected);
}

#[test]
fn controller_revision_cells_match() {
    let object = json!({"metadata": {"name": "r", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "controller": true},
            ]}, "revision": 2});
    let expected = json!(["r", "statefulset.apps/s", 2, "<unknown>"]);
    assert_cells("apps", "controllerrevisions", &object, &expected);
}

#[test]
fn limit_range_generic_cells_match() {
    let object = json!({"metadata": {"name": "l", "creationTimestamp": "2026-01-01T00:00:00Z"}});
    let expected = json!(["l", "2026-01-01T00:00:00Z"]);
    assert_cells("", "limitranges", &object, &expected);
}

/// Cells do not panic on any object.
#[test]
fn cells_of_hostile_objects_do_not_panic() {
    let nonsense = json!({
        "metadata": [], "spec": 7, "status": {"conditions": [1, null, "x"], "hard": [], "podIPs": {}},
        "webhooks": "x", "subsets": [null, 3], "endpoints": [{"addresses": [1]}],
    });
    for kind in KINDS {
        for object in [&Value::Null, &nonsense] {
            (kind.table.cells)(object, CellContext { now: 0 });
        }
    }
}
