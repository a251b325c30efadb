use super::*;
use crate::admission::Admission;
use crate::registry::allocate::{ServiceConfig, Services};
use crate::registry::{Warnings, WriteContext};
use crate::user::UserInfo;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use store::{Embedded, EmbeddedOptions};
use testkit::Responder;

struct Cluster {
    registry: Registry,
    _directory: tempfile::TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(EmbeddedOptions::new(directory.path().join("store"))).expect("a store");
        let registry =
            Registry::new(Arc::new(store), Admission::default(), Services::new(ServiceConfig::default()));
        let cluster = Self { registry, _directory: directory };
        for name in ["n", "quiet"] {
            let namespace =
                json!({"metadata": {"name": name, "labels": {"hooks": (name == "n").to_string()}}});
            cluster
                .create(&UserInfo::server(), ("", "v1", "namespaces"), namespace, false)
                .await
                .expect("made");
        }
        cluster
    }

    async fn create(
        &self,
        user: &UserInfo,
        resource: (&str, &str, &str),
        mut object: Value,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>)> {
        let served = self.registry.builtin(resource.0, resource.1, resource.2)?;
        object["kind"] = served.kind.kind.into();
        object["apiVersion"] = served.api_version.clone().into();
        let warnings = Warnings::default();
        let namespace = meta::namespace(&object).to_owned();
        let context = WriteContext { dry_run, ..WriteContext::server(user, &warnings, &namespace) };
        machinery::codec::typed::normalize(&mut object, served.schema).map_err(Status::internal)?;
        (served.kind.default)(&mut object);
        let written = self.registry.create(served, object, &context).await?;
        Ok((written.value(), warnings.take()))
    }

    async fn configure(&self, resource: &str, hook: Value) {
        let name = hook["name"].as_str().unwrap_or("").replace('.', "-");
        let configuration = json!({"metadata": {"name": name}, "webhooks": [hook]});
        self.create(&UserInfo::server(), (GROUP, "v1", resource), configuration, false)
            .await
            .expect("configured");
    }

    async fn config_map(&self, namespace: &str, name: &str) -> Result<(Value, Vec<String>)> {
        let alice = UserInfo { name: "alice".to_owned(), ..UserInfo::default() };
        let object = json!({"metadata": {"name": name, "namespace": namespace}, "data": {"k": "v"}});
        self.create(&alice, ("", "v1", "configmaps"), object, false).await
    }
}

fn hook(name: &str, responder: &Responder, more: Value) -> Value {
    let mut hook = json!({
        "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
        "clientConfig": {"url": format!("{}/{name}", responder.url), "caBundle": STANDARD.encode(&responder.certificate)},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "namespaceSelector": {"matchLabels": {"hooks": "true"}},
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
async fn hooks_change_and_refuse() {
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
    let cluster = Cluster::new().await;
    cluster.configure(MUTATING, hook("label.example.com", &responder, json!({}))).await;
    let condition = json!([{"name": "c", "expression": "object.metadata.name != 'skipped'"}]);
    cluster
        .configure(VALIDATING, hook("check.example.com", &responder, json!({"matchConditions": condition})))
        .await;

    let (made, warnings) = cluster.config_map("n", "good").await.expect("allowed");
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

    let refused = cluster.config_map("n", "bad").await.expect_err("refused");
    assert_eq!((refused.code, refused.reason), (403, "Forbidden"));
    assert_eq!(refused.message, r#"admission webhook "check.example.com" denied the request: not this"#);
    let refused = cluster.config_map("n", "silent").await.expect_err("refused");
    assert_eq!(
        refused.message,
        r#"admission webhook "check.example.com" denied the request without explanation"#
    );
    assert_eq!(refused.code, 400);

    let before = responder.seen().len();
    cluster.config_map("quiet", "bad").await.expect("another namespace");
    assert_eq!(responder.seen().len(), before);
    cluster.config_map("n", "skipped").await.expect("allowed");
    assert_eq!(responder.seen().len(), before + 1, "the condition keeps one of them away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_refuse_connections() {
    let responder = Responder::start(|_, review| {
        let stdin = review["request"]["object"]["stdin"] == true;
        response(review, json!({"allowed": !stdin, "status": {"message": "no input", "code": 403}}))
    })
    .await
    .expect("a server");
    let cluster = Cluster::new().await;
    let rules = json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/attach"]}]);
    cluster.configure(VALIDATING, hook("attach.example.com", &responder, json!({"rules": rules}))).await;
    let connect = async |subresource: &str, stdin: bool| {
        let (alice, warnings) =
            (UserInfo { name: "alice".to_owned(), ..UserInfo::default() }, Warnings::default());
        let context = WriteContext { subresource, ..WriteContext::server(&alice, &warnings, "n") };
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
async fn hooks_that_cannot_answer() {
    let responder = Responder::start(|path, review| match path {
        "/uid.example.com" => response(review, json!({"uid": "another"})),
        _ => (500, Value::Null),
    })
    .await
    .expect("a server");
    let cluster = Cluster::new().await;
    cluster
        .configure(VALIDATING, hook("ignored.example.com", &responder, json!({"failurePolicy": "Ignore"})))
        .await;
    cluster.config_map("n", "a").await.expect("ignored");
    let gone = json!({"clientConfig": {"url": "https://127.0.0.1:1/hook"}, "timeoutSeconds": 2});
    cluster.configure(MUTATING, hook("gone.example.com", &responder, gone)).await;
    let failed = cluster.config_map("n", "b").await.expect_err("it is not there");
    assert_eq!(
        failed.message,
        r#"Internal error occurred: failed calling webhook "gone.example.com": failed to call webhook: Post "https://127.0.0.1:1/hook?timeout=2s": dial tcp 127.0.0.1:1: connect: connection refused"#
    );
    assert_eq!(failed.code, 500);
    let cluster = Cluster::new().await;
    cluster.configure(VALIDATING, hook("uid.example.com", &responder, json!({}))).await;
    let failed = cluster.config_map("n", "b").await.expect_err("not an answer to this");
    assert!(
        failed.message.contains("received invalid webhook response: expected response.uid="),
        "{}",
        failed.message
    );
}
