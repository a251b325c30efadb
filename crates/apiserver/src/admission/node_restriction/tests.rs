use super::*;
use crate::admission::test_cluster::Cluster;
use crate::registry::{WriteContext, WriteRecord};
use crate::user::UserInfo;
use serde_json::json;

const NODES: (&str, &str, &str) = ("", "v1", "nodes");
const PODS: (&str, &str, &str) = ("", "v1", "pods");

fn kubelet(node: &str) -> UserInfo {
    UserInfo {
        name: format!("system:node:{node}"),
        groups: vec!["system:nodes".to_owned(), "system:authenticated".to_owned()],
        ..UserInfo::default()
    }
}

impl Cluster {
    /// With two nodes, and a pod on each.
    async fn with_nodes() -> Self {
        let cluster = Self::empty();
        for (resource, object) in [
            (("", "v1", "namespaces"), json!({"metadata": {"name": "n"}})),
            (NODES, json!({"metadata": {"name": "a"}})),
            (NODES, json!({"metadata": {"name": "b"}})),
            (("", "v1", "serviceaccounts"), json!({"metadata": {"name": "default", "namespace": "n"}})),
            (PODS, pod("mine", "a")),
            (PODS, pod("other", "b")),
        ] {
            cluster.create(resource, object).await.expect("created");
        }
        cluster
    }

    /// Message that node `a` gets for this write; empty if it is admitted.
    async fn try_as_a(
        &self,
        resource: (&str, &str, &str),
        operation: Operation,
        subresource: &str,
        (name, object, old): (&str, Value, Value),
    ) -> String {
        self.try_as(&kubelet("a"), resource, operation, subresource, (name, object, old)).await
    }

    async fn try_as(
        &self,
        user: &UserInfo,
        resource: (&str, &str, &str),
        operation: Operation,
        subresource: &str,
        (name, object, old): (&str, Value, Value),
    ) -> String {
        let served = self.registry.builtin(resource.0, resource.1, resource.2).expect("served");
        let record = WriteRecord::default();
        let namespace = if served.namespaced() { "n" } else { "" };
        let context = WriteContext { subresource, ..WriteContext::server(user, &record, namespace) };
        let attributes = Attributes::new(served, &context, operation).named(name);
        if !NodeRestriction.handles(&attributes) {
            return String::new();
        }
        let mut new = object.clone();
        let first = NodeRestriction.mutate(&self.registry, &attributes, Some(&mut new), Some(&old)).await;
        let second = NodeRestriction.validate(&self.registry, &attributes, Some(&object), Some(&old)).await;
        first.and(second).err().map(|status| status.message).unwrap_or_default()
    }
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n"},
        "spec": {
            "nodeName": node, "serviceAccountName": "default",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "t", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "audience": "vault"}},
            ]}}],
        },
    })
}

#[tokio::test]
async fn only_node_users_are_restricted_and_unnamed_ones_rejected() {
    let cluster = Cluster::with_nodes().await;
    let write = || ("x", json!({}), Value::Null);
    let alice = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
    assert_eq!(cluster.try_as(&alice, NODES, Operation::Delete, "", write()).await, "");
    assert_eq!(
        cluster.try_as(&kubelet(""), NODES, Operation::Delete, "", write()).await,
        r#"nodes "x" is forbidden: could not determine node from user "system:node:""#
    );
}

#[tokio::test]
async fn kubelet_changes_own_node_except_workload_steering_fields() {
    let cluster = Cluster::with_nodes().await;
    let old = json!({"metadata": {"name": "a", "labels": {"kubernetes.io/hostname": "a"}}, "spec": {}});
    let with = |path: &str, value: Value| {
        let mut node = old.clone();
        *node.pointer_mut(path).expect("a place") = value;
        ("a", node, old.clone())
    };
    let refusal =
        |why: &str| if why.is_empty() { String::new() } else { format!("nodes \"a\" is forbidden: {why}") };
    for (write, want) in [
        (with("/spec", json!({"unschedulable": true})), ""),
        (with("/spec", json!({"taints": [{"key": "k"}]})), r#"node "a" is not allowed to modify taints"#),
        (
            with("/spec", json!({"configSource": {}})),
            r#"node "a" is not allowed to update configSource to a new non-nil configSource"#,
        ),
        (with("/metadata/labels", json!({"example.com/x": "y", "kubernetes.io/hostname": "b"})), ""),
        (
            with(
                "/metadata/labels",
                json!({"kubernetes.io/b": "y", "a.k8s.io/x": "", "kubernetes.io/hostname": "a"}),
            ),
            "is not allowed to modify labels: a.k8s.io/x, kubernetes.io/b",
        ),
        (
            with("/metadata", json!({"name": "a", "ownerReferences": [{"name": "x"}]})),
            r#"node "a" is not allowed to modify ownerReferences"#,
        ),
    ] {
        assert_eq!(cluster.try_as_a(NODES, Operation::Update, "", write).await, refusal(want));
    }
    for (object, want) in [
        (json!({"metadata": {"name": "a"}}), ""),
        (
            json!({"metadata": {"name": "a", "labels": {"node-restriction.kubernetes.io/x": ""}}}),
            r#"node "a" is not allowed to set the following labels: node-restriction.kubernetes.io/x"#,
        ),
        (
            json!({"metadata": {"name": "a"}, "spec": {"configSource": {}}}),
            r#"node "a" is not allowed to create pods with a non-nil configSource"#,
        ),
    ] {
        let write = ("a", object, Value::Null);
        assert_eq!(cluster.try_as_a(NODES, Operation::Create, "", write).await, refusal(want));
    }
    let write = ("b", json!({}), json!({}));
    assert_eq!(
        cluster.try_as_a(NODES, Operation::Update, "status", write).await,
        r#"nodes "b" is forbidden: node "a" is not allowed to modify node "b""#
    );
}

#[tokio::test]
async fn mirror_pod_creation_is_restricted() {
    let cluster = Cluster::with_nodes().await;
    let node = cluster.registry.find(NODES, "", "a").await.expect("read").expect("there");
    let good = json!({
        "metadata": {
            "name": "p", "namespace": "n", "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": meta::uid(&node), "controller": true},
            ],
        },
        "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
    });
    let with = |path: &str, value: Value| {
        let mut pod = good.clone();
        *pod.pointer_mut(path).expect("a place") = value;
        pod
    };
    let owners = "/metadata/ownerReferences";
    for (pod, want) in [
        (good.clone(), ""),
        (
            with("/metadata/annotations", json!({})),
            r#"pod does not have "kubernetes.io/config.mirror" annotation, node "a" can only create mirror pods"#,
        ),
        (
            with("/spec/nodeName", json!("b")),
            r#"node "a" can only create pods with spec.nodeName set to itself"#,
        ),
        (with(owners, json!([])), r#"node "a" can only create pods with an owner reference set to itself"#),
        (
            with(owners, json!([{}, {}])),
            r#"node "a" can only create pods with a single owner reference set to itself"#,
        ),
        (
            with("/metadata/ownerReferences/0/name", json!("b")),
            r#"node "a" can only create pods with an owner reference set to itself"#,
        ),
        (
            with("/metadata/ownerReferences/0/controller", json!(false)),
            r#"node "a" can only create pods with a controller owner reference set to itself"#,
        ),
        (
            with("/spec", json!({"nodeName": "a", "serviceAccountName": "x"})),
            r#"node "a" can not create pods that reference serviceaccounts"#,
        ),
    ] {
        let outcome = cluster.try_as_a(PODS, Operation::Create, "", ("p", pod, Value::Null)).await;
        let want = if want.is_empty() { String::new() } else { format!("pods \"p\" is forbidden: {want}") };
        assert_eq!(outcome, want);
    }
    let unknown_owner = with("/metadata/ownerReferences/0/uid", json!("u"));
    let outcome = cluster.try_as_a(PODS, Operation::Create, "", ("p", unknown_owner, Value::Null)).await;
    assert_eq!(
        outcome,
        format!(r#"pods "p" is forbidden: node a UID mismatch: expected u got {}"#, meta::uid(&node))
    );
}

#[tokio::test]
async fn pods_of_other_nodes_are_rejected() {
    let cluster = Cluster::with_nodes().await;
    let (mine, other) = (pod("mine", "a"), pod("other", "b"));
    let mut relabelled = mine.clone();
    relabelled["metadata"]["labels"] = json!({"x": "y"});
    let mut claiming = mine.clone();
    claiming["status"] = json!({"resourceClaimStatuses": [{"name": "c"}]});
    use Operation::{Create, Delete, Update};
    for (operation, strategy, write, want) in [
        (Delete, "", ("mine", Value::Null, mine.clone()), ""),
        (
            Delete,
            "",
            ("other", Value::Null, other.clone()),
            r#"node "a" can only delete pods with spec.nodeName set to itself"#,
        ),
        (
            Update,
            "",
            ("mine", mine.clone(), mine.clone()),
            r#"unexpected operation "UPDATE", node "a" can only create and delete mirror pods"#,
        ),
        (Update, "status", ("mine", mine.clone(), mine.clone()), ""),
        (
            Update,
            "status",
            ("other", other.clone(), other.clone()),
            r#"node "a" can only update pod status for pods with spec.nodeName set to itself"#,
        ),
        (
            Update,
            "status",
            ("mine", relabelled, mine.clone()),
            r#"node "a" cannot update labels through pod status"#,
        ),
        (
            Update,
            "status",
            ("mine", claiming, mine.clone()),
            r#"node "a" cannot update resource claim statues"#,
        ),
        (Create, "eviction", ("mine", json!({}), Value::Null), ""),
        (
            Create,
            "eviction",
            ("other", json!({}), Value::Null),
            "node a can only evict pods with spec.nodeName set to itself",
        ),
        (
            Update,
            "resize",
            ("mine", mine.clone(), mine.clone()),
            r#"unexpected pod subresource "resize", only 'status' and 'eviction' are allowed"#,
        ),
    ] {
        let name = write.0;
        let outcome = cluster.try_as_a(PODS, operation, strategy, write).await;
        let want =
            if want.is_empty() { String::new() } else { format!("pods {name:?} is forbidden: {want}") };
        assert_eq!(outcome, want);
    }
}

#[tokio::test]
async fn tokens_are_issued_for_own_pods_only() {
    let cluster = Cluster::with_nodes().await;
    let uid = |name: &'static str| {
        let registry = &cluster.registry;
        async move { meta::uid(&registry.find(PODS, "n", name).await.expect("read").expect("there")).to_owned() }
    };
    let (mine, other) = (uid("mine").await, uid("other").await);
    let request = |pod: &str, uid: &str, audiences: &[&str]| {
        json!({"spec": {
            "audiences": audiences,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid},
        }})
    };
    for (object, want) in [
        (request("mine", &mine, &["vault"]), String::new()),
        (json!({"spec": {}}), "node requested token not bound to a pod".to_owned()),
        (request("mine", "", &[]), "node requested token with a pod binding without a uid".to_owned()),
        (
            request("mine", "u", &[]),
            "the UID in the bound object reference (u) does not match the UID in record. The object might have been deleted and then recreated".to_owned(),
        ),
        (
            request("other", &other, &[]),
            "node requested token bound to a pod scheduled on a different node".to_owned(),
        ),
        (request("mine", &mine, &["a", "b"]), "node may only request 0 or 1 audiences".to_owned()),
        (
            request("mine", &mine, &["bank"]),
            r#"audience "bank" not found in pod spec volume, system:node:a is not authorized to request tokens for this audience"#.to_owned(),
        ),
    ] {
        let write = ("default", object, Value::Null);
        let outcome = cluster.try_as_a(("", "v1", "serviceaccounts"), Operation::Create, "token", write).await;
        let want = if want.is_empty() { want } else { format!("serviceaccounts \"default\" is forbidden: {want}") };
        assert_eq!(outcome, want);
    }
}

#[tokio::test]
async fn leases_csinodes_slices_and_claims_are_limited_to_own_node() {
    let cluster = Cluster::with_nodes().await;
    let leases = ("coordination.k8s.io", "v1", "leases");
    let slices = ("resource.k8s.io", "v1", "resourceslices");
    let csi = ("storage.k8s.io", "v1", "csinodes");
    let claims = ("", "v1", "persistentvolumeclaims");
    let named = |name: &str| json!({"metadata": {"name": name}});
    let claim = |status: Value| json!({"metadata": {"name": "c", "namespace": "n"}, "status": status});
    let slice = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
    use Operation::{Create, Delete, Update};
    for (resource, operation, strategy, write, want) in [
        (
            leases,
            Create,
            "",
            ("a", named("a"), Value::Null),
            r#"leases.coordination.k8s.io "a" is forbidden: can only access leases in the "kube-node-lease" system namespace"#,
        ),
        (csi, Create, "", ("a", named("a"), Value::Null), ""),
        (
            csi,
            Update,
            "",
            ("b", named("b"), named("b")),
            r#"csinodes.storage.k8s.io "b" is forbidden: can only access CSINode with the same name as the requesting node"#,
        ),
        (slices, Create, "", ("s", slice("a"), Value::Null), ""),
        (
            slices,
            Delete,
            "",
            ("s", Value::Null, slice("b")),
            r#"resourceslices.resource.k8s.io "s" is forbidden: can only delete ResourceSlice with the same NodeName as the requesting node"#,
        ),
        (claims, Update, "status", ("c", claim(json!({"capacity": {"storage": "1"}})), claim(json!({}))), ""),
        (
            claims,
            Update,
            "status",
            ("c", claim(json!({"phase": "Lost"})), claim(json!({}))),
            r#"persistentvolumeclaims "c" is forbidden: node "a" is not allowed to update fields other than status.quantity and status.conditions: status"#,
        ),
        (
            claims,
            Update,
            "",
            ("c", claim(json!({})), claim(json!({}))),
            r#"persistentvolumeclaims "c" is forbidden: may only update PVC status"#,
        ),
    ] {
        assert_eq!(cluster.try_as_a(resource, operation, strategy, write).await, want);
    }
}

/// Certificate requests with the subjects `O=system:nodes, CN=system:node:a`, and with a second common name
/// `system:kube-controller-manager` after or before the node's.
const OWN: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlHdU1HSUNBUUF3THpFVk1CTUdBMVVFQ2d3TWMzbHpkR1Z0T201dlpHVnpNUll3RkFZRFZRUUREQTF6ZVhOMApaVzA2Ym05a1pUcGhNQ293QlFZREsyVndBeUVBai8yNDFycEtCVW8vODdWTWxGOERWV3hVNUs3MXo1SFp0YUl2CkM5Y3ZzbnVnQURBRkJnTXJaWEFEUVFCWkM2VXpadExVVVJwUDhxRHFkRm9oYmdXOG9iOWlkQjE0ZVNnY2JKdkkKUVFlRFFCUU80ek4vZGZOSUtOTGl0QkdITUJsVmRIelhQRnlKa3QxOTBmc0wKLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";
const NODE_FIRST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIWU1JR0xBZ0VBTUZneEZqQVVCZ05WQkFNTURYTjVjM1JsYlRwdWIyUmxPbUV4RlRBVEJnTlZCQW9NREhONQpjM1JsYlRwdWIyUmxjekVuTUNVR0ExVUVBd3dlYzNsemRHVnRPbXQxWW1VdFkyOXVkSEp2Ykd4bGNpMXRZVzVoCloyVnlNQ293QlFZREsyVndBeUVBai8yNDFycEtCVW8vODdWTWxGOERWV3hVNUs3MXo1SFp0YUl2QzljdnNudWcKQURBRkJnTXJaWEFEUVFETEluSWxrdm5uc3BkOGxNaFhNbmpudzlNQWE4UkJBbWtDY0hVaHRMRHh6V0F4cXhEKwo3L1BSaW92MW4zOU1FSWttRVRVV3prbFJ3c0htcStybW92c00KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";
const NODE_LAST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIWU1JR0xBZ0VBTUZneEp6QWxCZ05WQkFNTUhuTjVjM1JsYlRwcmRXSmxMV052Ym5SeWIyeHNaWEl0YldGdQpZV2RsY2pFVk1CTUdBMVVFQ2d3TWMzbHpkR1Z0T201dlpHVnpNUll3RkFZRFZRUUREQTF6ZVhOMFpXMDZibTlrClpUcGhNQ293QlFZREsyVndBeUVBai8yNDFycEtCVW8vODdWTWxGOERWV3hVNUs3MXo1SFp0YUl2QzljdnNudWcKQURBRkJnTXJaWEFEUVFEenBLSG0vRm0rTGp5bXBFcFNaNDZocGtTUmNtSDhYanVEOXJkbkJaT2NIdEhCVXpKKwovalZ5RUQ4R05EK0VrUEhmRU1DbUZTRVhLaDdGZkpkTCtEMFAKLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";

#[tokio::test]
async fn certificate_request_with_two_common_names_is_rejected() {
    let cluster = Cluster::with_nodes().await;
    let requests = ("certificates.k8s.io", "v1", "certificatesigningrequests");
    for (request, is_allowed) in [(OWN, true), (NODE_FIRST, false), (NODE_LAST, false)] {
        let spec = json!({"signerName": "kubernetes.io/kube-apiserver-client-kubelet", "request": request});
        let object = json!({"metadata": {"name": "r"}, "spec": spec});
        let result = cluster.try_as_a(requests, Operation::Create, "", ("r", object, Value::Null)).await;
        assert_eq!(result.is_empty(), is_allowed, "{result}");
        assert!(
            is_allowed || result.ends_with("can only create a node CSR with CN=system:node:a"),
            "{result}"
        );
    }
}
