//! Permissions follow the effect of a write: every write path of sample kinds, on existing and missing objects, with
//! each single permission, compared with the responses of Kubernetes.

use crate::test_server::{ADMIN, ALICE, TestServer};
use http::Method;
use machinery::Value;
use serde_json::json;

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// A kind with a valid object.
struct Sample {
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    kind: &'static str,
    namespaced: bool,
    /// Fields of the object besides metadata.
    rest: Value,
}

fn samples() -> Vec<Sample> {
    let row = |group, version, resource, kind, namespaced, rest| Sample {
        group,
        version,
        resource,
        kind,
        namespaced,
        rest,
    };
    let rbac = "rbac.authorization.k8s.io";
    let role_ref = |kind: &str| json!({"apiGroup": rbac, "kind": kind, "name": "empty"});
    let template = json!({
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let mut job = template["spec"].clone();
    job["restartPolicy"] = "Never".into();
    let about = json!({"kind": "Pod", "name": "p", "namespace": "n", "apiVersion": "v1"});
    vec![
        row("", "v1", "configmaps", "ConfigMap", true, json!({"data": {"k": "v"}})),
        row("", "v1", "secrets", "Secret", true, json!({})),
        row("", "v1", "serviceaccounts", "ServiceAccount", true, json!({})),
        row("", "v1", "pods", "Pod", true, json!({"spec": template["spec"]})),
        row("", "v1", "services", "Service", true, json!({"spec": {"ports": [{"port": 80}]}})),
        row("", "v1", "endpoints", "Endpoints", true, json!({})),
        row(
            "",
            "v1",
            "events",
            "Event",
            true,
            json!({"involvedObject": about, "reason": "r", "message": "m"}),
        ),
        row("", "v1", "limitranges", "LimitRange", true, json!({"spec": {"limits": []}})),
        row(
            "events.k8s.io",
            "v1",
            "events",
            "Event",
            true,
            json!({
                "regarding": about, "reason": "r", "action": "a", "type": "Normal",
                "reportingController": "c.example", "reportingInstance": "i",
                "eventTime": "2026-01-02T03:04:05.000000Z",
            }),
        ),
        row("coordination.k8s.io", "v1", "leases", "Lease", true, json!({"spec": {"holderIdentity": "x"}})),
        row("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", false, json!({"handler": "h"})),
        row(rbac, "v1", "roles", "Role", true, json!({"rules": []})),
        row(rbac, "v1", "rolebindings", "RoleBinding", true, json!({"roleRef": role_ref("Role")})),
        row(rbac, "v1", "clusterroles", "ClusterRole", false, json!({"rules": []})),
        row(
            rbac,
            "v1",
            "clusterrolebindings",
            "ClusterRoleBinding",
            false,
            json!({"roleRef": role_ref("ClusterRole")}),
        ),
        row(
            "apps",
            "v1",
            "deployments",
            "Deployment",
            true,
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        ),
        row("batch", "v1", "jobs", "Job", true, json!({"spec": {"template": {"spec": job}}})),
        row(
            "admissionregistration.k8s.io",
            "v1",
            "validatingwebhookconfigurations",
            "ValidatingWebhookConfiguration",
            false,
            json!({}),
        ),
    ]
}

impl Sample {
    fn collection(&self) -> String {
        let root = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        let namespace = if self.namespaced { "/namespaces/n" } else { "" };
        format!("{root}{namespace}/{}", self.resource)
    }

    fn object(&self) -> Value {
        let mut object = self.rest.clone();
        object["apiVersion"] = machinery::gvk::api_version(self.group, self.version).into();
        object["kind"] = self.kind.into();
        object["metadata"] = json!({"name": "x"});
        if self.namespaced {
            object["metadata"]["namespace"] = "n".into();
        }
        object
    }

    fn row(&self) -> &'static api::resources::Resource {
        let of = |row: &&api::resources::Resource| {
            (row.group, row.version, row.resource) == (self.group, self.version, self.resource)
        };
        api::resources::RESOURCES.iter().find(of).expect("a served resource")
    }

    fn creates_on_update(&self) -> bool {
        api::kinds::KINDS.iter().any(|kind| {
            (kind.group, kind.version, kind.resource) == (self.group, self.version, self.resource)
                && kind.create_on_update
        })
    }
}

/// One kind of write request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Post,
    Put,
    JsonPatch,
    MergePatch,
    StrategicPatch,
    Apply,
    Delete,
    DeleteCollection,
}

const WRITES: [Write; 8] = [
    Write::Post,
    Write::Put,
    Write::JsonPatch,
    Write::MergePatch,
    Write::StrategicPatch,
    Write::Apply,
    Write::Delete,
    Write::DeleteCollection,
];

impl Write {
    fn verb(self) -> &'static str {
        match self {
            Self::Post => "create",
            Self::Put => "update",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            _ => "patch",
        }
    }

    fn method(self) -> Method {
        match self {
            Self::Post => Method::POST,
            Self::Put => Method::PUT,
            Self::Delete | Self::DeleteCollection => Method::DELETE,
            _ => Method::PATCH,
        }
    }

    fn media(self) -> &'static str {
        match self {
            Self::JsonPatch => "application/json-patch+json",
            Self::MergePatch => "application/merge-patch+json",
            Self::StrategicPatch => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
            _ => "application/json",
        }
    }

    /// `present` is the stored object, if it exists.
    fn body(self, sample: &Sample, subresource: &str, present: Option<&Value>) -> String {
        let labels = json!({"metadata": {"labels": {"l": "v"}}});
        let body = match self {
            Self::Post => sample.object(),
            Self::Put => present.cloned().unwrap_or_else(|| sample.object()),
            Self::JsonPatch => json!([{"op": "add", "path": "/metadata/labels", "value": {"l": "v"}}]),
            Self::MergePatch | Self::StrategicPatch => labels,
            Self::Apply if subresource.is_empty() => sample.object(),
            Self::Apply => {
                let mut object = sample.object();
                object
                    .as_object_mut()
                    .expect("an object")
                    .retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata"));
                object
            }
            Self::Delete | Self::DeleteCollection => return String::new(),
        };
        body.to_string()
    }

    /// Response of Kubernetes to a user with only the verb of the request.
    fn expected(self, sample: &Sample, subresource: &str, exists: bool) -> Answer {
        match self {
            Self::Post if exists => Answer::Code(409),
            Self::Post => Answer::Code(201),
            Self::DeleteCollection => Answer::Code(200),
            _ if exists => Answer::Code(200),
            Self::Put if subresource.is_empty() && sample.creates_on_update() => Answer::NeedsCreate,
            Self::Apply if subresource.is_empty() => Answer::NeedsCreate,
            _ => Answer::Code(404),
        }
    }
}

enum Answer {
    Code(u16),
    /// 403 without the verb `create`, 201 with it.
    NeedsCreate,
}

/// One cell of the table: the request, and the object before it.
struct Cell<'a> {
    server: &'a TestServer,
    sample: &'a Sample,
    write: Write,
    subresource: &'a str,
    exists: bool,
    dry_run: bool,
}

impl Cell<'_> {
    fn path(&self) -> String {
        format!("{}/x", self.sample.collection())
    }

    async fn present(&self) -> Option<Value> {
        let (code, body) = self.server.ask(ADMIN, Method::GET, &self.path(), "application/json", "").await;
        (code == 200).then_some(body)
    }

    /// Creates or deletes the object as the cell requires.
    async fn prepare(&self) -> Option<Value> {
        let present = self.present().await;
        match (present, self.exists) {
            (None, true) => {
                self.server.create(&self.sample.collection(), &self.sample.object()).await;
                self.present().await
            }
            (Some(_), false) => {
                let path = format!("{}?gracePeriodSeconds=0&propagationPolicy=Background", self.path());
                let (code, body) =
                    self.server.ask(ADMIN, Method::DELETE, &path, "application/json", "").await;
                assert!(matches!(code, 200 | 202), "{path}: {code} {body}");
                assert!(self.present().await.is_none(), "{path} stays");
                None
            }
            (present, _) => present,
        }
    }

    /// Sends the write as alice with these permissions; returns her response, and whether the object changed.
    async fn run(&self, permissions: &[(&str, &str)]) -> (u16, Value, bool) {
        let before = self.prepare().await;
        self.server.grant(permissions);
        let mut path = match self.write {
            Write::Post | Write::DeleteCollection => self.sample.collection(),
            _ if self.subresource.is_empty() => self.path(),
            _ => format!("{}/{}", self.path(), self.subresource),
        };
        path.push_str(if self.write == Write::Apply {
            "?fieldManager=t&force=true"
        } else {
            "?fieldManager=t"
        });
        if matches!(self.write, Write::Delete | Write::DeleteCollection) {
            path = format!(
                "{}?gracePeriodSeconds=0&propagationPolicy=Background",
                path.split('?').next().unwrap_or("")
            );
        }
        if self.dry_run {
            path.push_str("&dryRun=All");
        }
        let body = self.write.body(self.sample, self.subresource, before.as_ref());
        let media = self.write.media();
        let (code, answer) = self.server.ask(ALICE, self.write.method(), &path, media, body).await;
        let changed = self.present().await != before;
        (code, answer, changed)
    }

    async fn check(&self) {
        let row = self.sample.row();
        let resource = match self.subresource {
            "" => self.sample.resource.to_owned(),
            name => format!("{}/{name}", self.sample.resource),
        };
        let Cell { write, subresource, exists, dry_run, .. } = self;
        let case = |verb: &str| {
            format!(
                "{} of {}/{subresource} (group {:?}), exists: {exists}, dry run: {dry_run}, with {verb}",
                format_args!("{write:?}"),
                row.resource,
                row.group
            )
        };
        for verb in VERBS {
            let (code, answer, changed) = self.run(&[(verb, &resource)]).await;
            let case = case(verb);
            let forbidden = |code: u16, answer: &Value, wanted: &str| {
                assert_eq!(code, 403, "{case}: {answer}");
                let message = answer["message"].as_str().unwrap_or("");
                let words = format!(
                    "is forbidden: User \"alice\" cannot {wanted} resource {resource:?} in API group {:?}",
                    self.sample.group
                );
                assert!(message.contains(&words), "{case}: {message}");
                assert!(!changed, "{case}: refused and carried out");
            };
            if verb != write.verb() {
                forbidden(code, &answer, write.verb());
                continue;
            }
            match write.expected(self.sample, subresource, *exists) {
                Answer::Code(want) => assert_eq!(code, want, "{case}: {answer}"),
                Answer::NeedsCreate => forbidden(code, &answer, "create"),
            }
            assert!(!(changed && *dry_run), "{case}: a dry run changed something");
        }
        if let Answer::NeedsCreate = write.expected(self.sample, subresource, *exists) {
            let (code, answer, changed) = self.run(&[(write.verb(), &resource), ("create", &resource)]).await;
            assert_eq!((code, changed), (201, !dry_run), "{}: {answer}", case("both verbs"));
        }
    }
}

async fn server() -> TestServer {
    let server = TestServer::start();
    server.create("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    let accounts = "/api/v1/namespaces/n/serviceaccounts";
    server.create(accounts, &json!({"metadata": {"name": "default", "namespace": "n"}})).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    server
        .create(&format!("{rbac}/clusterroles"), &json!({"metadata": {"name": "empty"}, "rules": []}))
        .await;
    let role = json!({"metadata": {"name": "empty", "namespace": "n"}, "rules": []});
    server.create(&format!("{rbac}/namespaces/n/roles"), &role).await;
    server
}

#[test]
fn samples_cover_every_create_on_update_kind() {
    let samples = samples();
    // Versions that are off by default use the same code, and are not served here.
    let is_served = |kind: &&&api::Kind| {
        let names = (kind.group, kind.version, kind.resource);
        api::resources::RESOURCES.iter().any(|row| (row.group, row.version, row.resource) == names)
    };
    for kind in api::kinds::KINDS.iter().filter(|kind| kind.create_on_update).filter(is_served) {
        let has = |sample: &Sample| {
            (sample.group, sample.version, sample.resource) == (kind.group, kind.version, kind.resource)
        };
        assert!(samples.iter().any(has), "no sample of {}/{}", kind.group, kind.resource);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_need_the_permission_of_their_effect() {
    let server = server().await;
    for sample in &samples() {
        // Both have objects that the test fixtures need.
        let spares = |write: Write| {
            write == Write::DeleteCollection
                && matches!(sample.resource, "serviceaccounts" | "roles" | "clusterroles")
        };
        for write in WRITES.into_iter().filter(|write| !spares(*write)) {
            for exists in [false, true] {
                for dry_run in [false, true] {
                    let subresource = "";
                    Cell { server: &server, sample, write, subresource, exists, dry_run }.check().await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subresource_writes_create_nothing() {
    let server = server().await;
    for sample in &samples() {
        if !sample.row().subresources.iter().any(|row| row.name == "status") {
            continue;
        }
        for write in [Write::Put, Write::JsonPatch, Write::MergePatch, Write::StrategicPatch, Write::Apply] {
            for exists in [false, true] {
                for dry_run in [false, true] {
                    let subresource = "status";
                    Cell { server: &server, sample, write, subresource, exists, dry_run }.check().await;
                }
            }
        }
    }
}
