use super::*;
use crate::admission::test_cluster::Cluster;
use crate::chain::audit::{Audit, AuditConfig, Format, LogConfig, Mode, Rotation};
use crate::registry::{WriteContext, WriteRecord};
use crate::test_server::TestServer;
use crate::user::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use testbase::Responder;

const LABEL: &str = "hooks";

impl Cluster {
    async fn configure(&self, resource: &str, hook: Value) {
        let name = hook["name"].as_str().unwrap_or("").replace('.', "-");
        let configuration = json!({"metadata": {"name": name}, "webhooks": [hook]});
        self.create((GROUP, "v1", resource), configuration).await.expect("configured");
    }
}

fn hook(name: &str, responder: &Responder, more: Value) -> Value {
    let mut hook = json!({
        "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
        "clientConfig": {"url": format!("{}/{name}", responder.url), "caBundle": STANDARD.encode(&responder.certificate)},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {LABEL: "true"}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        hook[field] = value.clone();
    }
    hook
}

fn response(review: &Value, more: Value) -> (u16, Value) {
    let mut response = json!({"uid": review["request"]["uid"], "allowed": true});
    for (field, value) in more.as_object().into_iter().flatten() {
        response[field] = value.clone();
    }
    (200, json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_mutate_and_reject() {
    let responder = Responder::start(|path, review| {
        let name = review["request"]["name"].as_str().unwrap_or("");
        match path {
            "/label.example.com" => {
                let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
                let patch = STANDARD.encode(patch.to_string());
                response(review, json!({"patch": patch, "patchType": "JSONPatch", "warnings": ["hello"]}))
            }
            _ if name == "bad" => {
                response(review, json!({"allowed": false, "status": {"message": "not this", "code": 403}}))
            }
            _ if name == "silent" => response(review, json!({"allowed": false})),
            _ => response(review, json!({})),
        }
    })
    .await
    .expect("a server");
    let cluster = Cluster::with_label(LABEL).await;
    cluster.configure(MUTATING, hook("label.example.com", &responder, json!({}))).await;
    let condition = json!([{"name": "c", "expression": "object.metadata.name != 'skipped'"}]);
    cluster
        .configure(VALIDATING, hook("check.example.com", &responder, json!({"matchConditions": condition})))
        .await;

    let (made, warnings, _) = cluster.config_map("n", "good", json!({"k": "v"})).await.expect("allowed");
    assert_eq!(made["metadata"]["labels"], json!({"seen": "yes"}));
    assert_eq!(warnings, ["hello"]);
    let seen = responder.seen();
    assert_eq!(seen.len(), 2);
    let request = &seen[1].1["request"];
    assert_eq!(request["object"]["metadata"]["labels"]["seen"], "yes", "checked as it will be stored");
    assert_eq!(
        (&request["operation"], &request["userInfo"]["username"]),
        (&json!("CREATE"), &json!("alice"))
    );
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));

    let refused = cluster.config_map("n", "bad", json!({"k": "v"})).await.expect_err("refused");
    assert_eq!((refused.code, refused.reason), (403, "Forbidden"));
    assert_eq!(refused.message, r#"admission webhook "check.example.com" denied the request: not this"#);
    let refused = cluster.config_map("n", "silent", json!({"k": "v"})).await.expect_err("refused");
    assert_eq!(
        refused.message,
        r#"admission webhook "check.example.com" denied the request without explanation"#
    );
    assert_eq!(refused.code, 400);

    let before = responder.seen().len();
    cluster.config_map("quiet", "bad", json!({"k": "v"})).await.expect("another namespace");
    assert_eq!(responder.seen().len(), before);
    cluster.config_map("n", "skipped", json!({"k": "v"})).await.expect("allowed");
    assert_eq!(responder.seen().len(), before + 1, "the condition keeps one of them away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_reject_connections() {
    let responder = Responder::start(|_, review| {
        let stdin = review["request"]["object"]["stdin"] == true;
        response(review, json!({"allowed": !stdin, "status": {"message": "no input", "code": 403}}))
    })
    .await
    .expect("a server");
    let cluster = Cluster::with_label(LABEL).await;
    let rules = json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/attach"]}]);
    cluster.configure(VALIDATING, hook("attach.example.com", &responder, json!({"rules": rules}))).await;
    let connect = async |subresource: &str, stdin: bool| {
        let (alice, record) =
            (UserInfo { name: "alice".to_owned(), ..UserInfo::default() }, WriteRecord::default());
        let context = WriteContext { subresource, ..WriteContext::server(&alice, &record, "n") };
        let pods = cluster.registry.builtin("", "v1", "pods").expect("pods are served");
        let attributes = Attributes::new(pods, &context, Operation::Connect).named("p");
        let options = json!({"kind": "PodAttachOptions", "apiVersion": "v1", "stdin": stdin});
        cluster.registry.admission.connect(&cluster.registry, &attributes, options).await
    };
    connect("attach", false).await.expect("allowed");
    connect("exec", true).await.expect("no rule names it");
    let refused = connect("attach", true).await.expect_err("refused");
    assert_eq!(refused.message, r#"admission webhook "attach.example.com" denied the request: no input"#);
    let seen = responder.seen();
    let request = &seen[0].1["request"];
    assert_eq!(
        (&request["operation"], &request["kind"]["kind"], &request["name"], &request["options"]),
        (&json!("CONNECT"), &json!("PodAttachOptions"), &json!("p"), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_webhook_follows_failure_policy() {
    let responder = Responder::start(|path, review| match path {
        "/uid.example.com" => response(review, json!({"uid": "another"})),
        _ => (500, Value::Null),
    })
    .await
    .expect("a server");
    let cluster = Cluster::with_label(LABEL).await;
    cluster
        .configure(VALIDATING, hook("ignored.example.com", &responder, json!({"failurePolicy": "Ignore"})))
        .await;
    cluster.config_map("n", "a", json!({"k": "v"})).await.expect("ignored");
    let gone = json!({"clientConfig": {"url": "https://127.0.0.1:1/hook"}, "timeoutSeconds": 2});
    cluster.configure(MUTATING, hook("gone.example.com", &responder, gone)).await;
    let failed = cluster.config_map("n", "b", json!({"k": "v"})).await.expect_err("it is not there");
    assert_eq!(
        failed.message,
        r#"Internal error occurred: failed calling webhook "gone.example.com": failed to call webhook: Post "https://127.0.0.1:1/hook?timeout=2s": dial tcp 127.0.0.1:1: connect: connection refused"#
    );
    assert_eq!(failed.code, 500);
    let cluster = Cluster::with_label(LABEL).await;
    cluster.configure(VALIDATING, hook("uid.example.com", &responder, json!({}))).await;
    let failed = cluster.config_map("n", "b", json!({"k": "v"})).await.expect_err("not an answer to this");
    assert!(
        failed.message.contains("received invalid webhook response: expected response.uid="),
        "{}",
        failed.message
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_get_the_version_of_their_rules() {
    let responder = Responder::start(|path, review| match path {
        "/change.example.com" => {
            let path = "/spec/metrics/0/resource/target/averageUtilization";
            let patch = json!([{"op": "replace", "path": path, "value": 55}]);
            let patch = STANDARD.encode(patch.to_string());
            response(review, json!({"patch": patch, "patchType": "JSONPatch"}))
        }
        _ => response(review, json!({})),
    })
    .await
    .expect("a server");
    let cluster = Cluster::with_label(LABEL).await;
    let about = |version: &str, more: Value| {
        let rule = json!({
            "operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": [version],
            "resources": ["horizontalpodautoscalers"],
        });
        let mut hook = json!({"rules": [rule]});
        for (field, value) in more.as_object().into_iter().flatten() {
            hook[field] = value.clone();
        }
        hook
    };
    let condition = json!([{"name": "c", "expression": "object.spec.metrics[0].resource.target.averageUtilization > 50"}]);
    let change = about("v2", json!({"matchConditions": condition}));
    cluster.configure(MUTATING, hook("change.example.com", &responder, change)).await;
    cluster.configure(VALIDATING, hook("old.example.com", &responder, about("v1", json!({})))).await;
    let exact = about("v2", json!({"matchPolicy": "Exact"}));
    cluster.configure(VALIDATING, hook("exact.example.com", &responder, exact)).await;

    let (made, ..) = cluster.autoscaler("v1", "a", 60).await.expect("allowed");
    assert_eq!(made["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 55, "{made}");
    let seen = responder.seen();
    let seen: Vec<(&str, &Value)> =
        seen.iter().map(|(path, review)| (path.as_str(), &review["request"])).collect();
    let [("/change.example.com", changed), ("/old.example.com", checked)] = seen.as_slice() else {
        panic!("{seen:?}")
    };
    for (request, version, requested) in [(changed, "v2", "v1"), (checked, "v1", "v1")] {
        assert_eq!(request["object"]["apiVersion"], format!("autoscaling/{version}"));
        assert_eq!(
            (&request["kind"]["version"], &request["resource"]["version"]),
            (&json!(version), &json!(version))
        );
        assert_eq!(request["requestKind"]["version"], requested);
        assert_eq!(request["requestResource"]["version"], requested);
    }
    assert_eq!(checked["object"]["spec"]["targetCPUUtilizationPercentage"], 55);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_annotated_for_the_audit_log() {
    let responder = Responder::start(|path, review| match path {
        "/b-label.example.com" => {
            let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
            let patch = STANDARD.encode(patch.to_string());
            response(review, json!({"patch": patch, "patchType": "JSONPatch"}))
        }
        "/a-quiet.example.com" => response(
            review,
            json!({"auditAnnotations": {"note": "seen", "not/a/name": "dropped", "": "dropped"}}),
        ),
        "/c-open.example.com" | "/d-check.example.com" => (500, Value::Null),
        _ => response(review, json!({})),
    })
    .await
    .expect("a server");
    let cluster = Cluster::with_label(LABEL).await;
    let open = json!({"failurePolicy": "Ignore"});
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    cluster.configure(MUTATING, hook("a-quiet.example.com", &responder, again)).await;
    cluster.configure(MUTATING, hook("b-label.example.com", &responder, json!({}))).await;
    cluster.configure(MUTATING, hook("c-open.example.com", &responder, open.clone())).await;
    cluster.configure(VALIDATING, hook("d-check.example.com", &responder, open)).await;
    let (_, _, mut notes) = cluster.config_map("n", "a", json!({"k": "v"})).await.expect("allowed");
    notes.sort();
    let mutation = |hook: &str, mutated: bool| {
        format!(
            r#"{{"configuration":"{hook}-example-com","webhook":"{hook}.example.com","mutated":{mutated}}}"#
        )
    };
    let want = [
        ("a-quiet.example.com/note", "seen".to_owned()),
        ("failed-open.mutation.webhook.admission.k8s.io/round_0_index_2", "c-open.example.com".to_owned()),
        ("failed-open.validating.webhook.admission.k8s.io/round_0_index_0", "d-check.example.com".to_owned()),
        ("mutation.webhook.admission.k8s.io/round_0_index_0", mutation("a-quiet", false)),
        ("mutation.webhook.admission.k8s.io/round_0_index_1", mutation("b-label", true)),
        ("mutation.webhook.admission.k8s.io/round_0_index_2", mutation("c-open", false)),
        ("mutation.webhook.admission.k8s.io/round_1_index_0", mutation("a-quiet", false)),
        (
            "patch.webhook.admission.k8s.io/round_0_index_1",
            r#"{"configuration":"b-label-example-com","webhook":"b-label.example.com","patch":[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}],"patchType":"JSONPatch"}"#.to_owned(),
        ),
    ];
    assert_eq!(notes, want.map(|(key, value)| (key.to_owned(), value)));
}

/// Patches may contain request data, so they are recorded only at levels that record requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patch_annotations_need_the_request_level() {
    let responder = Responder::start(|_, review| {
        let patch = json!([{"op": "add", "path": "/data", "value": {"k": "v"}}]).to_string();
        response(review, json!({"patch": STANDARD.encode(patch), "patchType": "JSONPatch"}))
    })
    .await
    .expect("a server");
    let directory = tempfile::tempdir().expect("a directory");
    let (policy, log) = (directory.path().join("policy.yaml"), directory.path().join("audit.log"));
    let rules = "rules:\n- level: Metadata\n  namespaces: [brief]\n- level: Request\n  namespaces: [detailed]\n- level: None\n";
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).expect("written");
    let config = AuditConfig {
        policy_file: Some(policy),
        log: Some(LogConfig {
            path: log.clone(),
            rotation: Rotation { max_bytes: 0, max_backups: 0, max_age_days: 0, compress: false },
            format: Format::Json,
            mode: Mode::Blocking,
            buffer: 10,
            max_event_bytes: None,
        }),
        ..AuditConfig::default()
    };
    let clock = base::clock::Clock::system();
    let metrics = base::metrics::Metrics::new(&clock).expect("metrics");
    let mut server = TestServer::start();
    server.chain.audit = Audit::build(&config, &metrics, &clock).expect("usable");
    let all = hook("label.example.com", &responder, json!({"namespaceSelector": {}}));
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "c"}, "webhooks": [all]});
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    server.create(path, &configuration).await;
    for namespace in ["brief", "detailed"] {
        server.create("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        server.create(&path, &json!({"metadata": {"name": "m"}})).await;
    }
    let text = std::fs::read_to_string(&log).expect("an audit log");
    let noted = |namespace: &str, prefix: &str| {
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut of_map = events.filter(|event| {
            event["objectRef"]["resource"] == "configmaps" && event["objectRef"]["namespace"] == namespace
        });
        of_map.any(|event| {
            !event["annotations"][format!("{prefix}.webhook.admission.k8s.io/round_0_index_0")].is_null()
        })
    };
    assert!(noted("brief", "mutation") && noted("detailed", "mutation"), "{text}");
    assert!(!noted("brief", "patch") && noted("detailed", "patch"), "{text}");
}
