//! Compares every document with what a stock Kubernetes API server publishes.

use super::*;
use api::runtime_config::RuntimeConfig;
use std::path::{Path, PathBuf};

/// Fields whose values Ferry explains in its own words: everything else must be the same to the letter.
const OWN_WORDS: &[(&str, &str)] = &[
    ("io.k8s.api.admissionregistration.v1.MatchResources", "matchPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicySpec", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicySpec", "reinvocationPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "matchPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "reinvocationPolicy"),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "sideEffects"),
    ("io.k8s.api.admissionregistration.v1.Mutation", "patchType"),
    ("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations", "scope"),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", "scope"),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "failurePolicy"),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "matchPolicy"),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "sideEffects"),
    ("io.k8s.api.batch.v1.JobSpec", "completionMode"),
    ("io.k8s.api.batch.v1.JobSpec", "podReplacementPolicy"),
    ("io.k8s.api.batch.v1.PodFailurePolicyRule", "action"),
    ("io.k8s.api.core.v1.AppArmorProfile", "type"),
    ("io.k8s.api.core.v1.HostPathVolumeSource", "type"),
    ("io.k8s.api.core.v1.ModifyVolumeStatus", "status"),
    ("io.k8s.api.core.v1.PersistentVolumeClaimSpec", "volumeMode"),
    ("io.k8s.api.core.v1.PersistentVolumeSpec", "volumeMode"),
    ("io.k8s.api.core.v1.PodSecurityContext", "fsGroupChangePolicy"),
    ("io.k8s.api.core.v1.PodSecurityContext", "supplementalGroupsPolicy"),
    ("io.k8s.api.core.v1.PodSpec", "preemptionPolicy"),
    ("io.k8s.api.core.v1.ScopedResourceSelectorRequirement", "scopeName"),
    ("io.k8s.api.core.v1.SecurityContext", "procMount"),
    ("io.k8s.api.core.v1.ServiceSpec", "externalTrafficPolicy"),
    ("io.k8s.api.core.v1.ServiceSpec", "internalTrafficPolicy"),
    ("io.k8s.api.core.v1.ServiceSpec", "ipFamilyPolicy"),
    ("io.k8s.api.core.v1.TopologySpreadConstraint", "nodeAffinityPolicy"),
    ("io.k8s.api.core.v1.TopologySpreadConstraint", "nodeTaintsPolicy"),
    ("io.k8s.api.core.v1.VolumeMount", "mountPropagation"),
    ("io.k8s.api.networking.v1.HTTPIngressPath", "pathType"),
    ("io.k8s.api.resource.v1.DeviceTaint", "effect"),
    ("io.k8s.api.resource.v1.DeviceToleration", "effect"),
    ("io.k8s.api.scheduling.v1.PriorityClass", "preemptionPolicy"),
    ("io.k8s.api.storage.v1.StorageClass", "volumeBindingMode"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ValidationRule", "reason"),
];

/// Parameters that Ferry explains in its own words.
const OWN_PARAMETERS: &[&str] = &["shardSelector", "stream", "tailLines"];

fn reference() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reference/openapi");
    folder.is_dir().then_some(folder)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file reads"))
        .expect("reference documents are JSON")
}

fn parsed(document: &Document) -> Value {
    serde_json::from_slice(&document.plain()).expect("our documents are JSON")
}

/// Paths at which two values differ.
fn differences(path: &str, got: &Value, want: &Value, out: &mut Vec<String>) {
    match (got, want) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let below = format!("{path}/{key}");
                let name = a.get("name").and_then(Value::as_str).unwrap_or_default();
                if key == "description" && OWN_PARAMETERS.contains(&name) && b.contains_key(key) {
                    continue;
                }
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&below, a, b, out),
                    (Some(_), None) => out.push(format!("{below}: too much")),
                    _ => out.push(format!("{below}: missing")),
                }
            }
        }
        (a, b) if a == b => {}
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), a, b, out);
            }
        }
        (a, b) => {
            let short = |value: &Value| value.to_string().chars().take(120).collect::<String>();
            out.push(format!("{path}: got {} want {}", short(a), short(b)));
        }
    }
}

#[test]
fn v3_equals_the_reference() {
    let Some(folder) = reference() else {
        eprintln!("skipped: no reference data");
        return;
    };
    let openapi = OpenApi::built_in(&RuntimeConfig::default());
    let index = read(&folder.join("v3-index.json"));
    let got = parsed(&openapi.v3_index());
    let names =
        |index: &Value| index["paths"].as_object().expect("paths").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&got), names(&index));
    let mut wrong = Vec::new();
    for name in names(&index) {
        let want = read(&folder.join(format!("v3/{}.json", name.replace('/', "__"))));
        let document = openapi.v3_group_version(&name).expect("listed documents exist");
        differences(&name, &parsed(&document), &want, &mut wrong);
    }
    report("v3", &wrong);
}

#[test]
fn v2_equals_the_reference() {
    let Some(folder) = reference() else {
        eprintln!("skipped: no reference data");
        return;
    };
    let want = read(&folder.join("v2.json"));
    let mut wrong = Vec::new();
    differences("", &parsed(&OpenApi::built_in(&RuntimeConfig::default()).v2_json()), &want, &mut wrong);
    report("v2", &wrong);
}

/// Fails on every difference but in the texts that are Ferry's own.
fn report(what: &str, wrong: &[String]) {
    let own = |line: &&String| {
        let mut fields =
            OWN_WORDS.iter().map(|(name, field)| format!("/{name}/properties/{field}/description: got"));
        fields.any(|place| line.contains(&place))
    };
    let (ours, wrong): (Vec<&String>, Vec<&String>) = wrong.iter().partition(own);
    for line in &wrong {
        eprintln!("{what} {line}");
    }
    eprintln!("{what}: {} texts in our own words", ours.len());
    assert!(wrong.is_empty(), "{what}: {} differences", wrong.len());
}

#[test]
fn protobuf_forms_carry_the_hash_of_the_json() {
    let openapi = OpenApi::built_in(&RuntimeConfig::default());
    let json = openapi.v3_group_version("version").expect("a document");
    let protobuf = openapi.v3_protobuf("version").expect("a document");
    assert_eq!(json.hash, protobuf.hash);
    assert_eq!(json.hash.len(), 128);
    assert!(protobuf.plain().windows(14).any(|window| window == b"getCodeVersion"));
    assert!(json.matches(&format!("\"{}\"", json.hash)) && !json.matches(&json.hash));
    assert!(openapi.v3_group_version("apis/nope/v1").is_none());
    assert!(openapi.v3_protobuf("nope").is_none());
    let url = OpenApi::server_relative_url("version", &json);
    assert_eq!(url, format!("/openapi/v3/version?hash={}", json.hash));
}

/// Types of one custom resource over the built-in ones.
struct Widgets(BuiltIn);

impl Types for Widgets {
    fn name_of(&self, _: &str, _: &str, kind: &str) -> Option<Arc<str>> {
        Some(Arc::from(format!("com.example.v1.{kind}")))
    }

    fn docs(&self) -> Arc<Docs> {
        self.0.docs()
    }

    fn mentioned(&self, name: &str) -> Vec<Arc<str>> {
        match name {
            "com.example.v1.WidgetList" => vec![Arc::from("com.example.v1.Widget")],
            "com.example.v1.Widget" => vec![Arc::from("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")],
            other => self.0.mentioned(other),
        }
    }

    fn definition(
        &self,
        name: &str,
        dialect: Dialect,
        own: Option<(&str, &str)>,
        docs: &Docs,
    ) -> Option<Value> {
        match name.strip_prefix("com.example.v1.") {
            Some(_) => Some(json!({"type": "object"})),
            None => self.0.definition(name, dialect, own, docs),
        }
    }
}

#[test]
fn custom_resources_have_documents_too() {
    let resource = crate::discovery::ApiResource {
        name: "widgets".into(),
        singular: "widget".into(),
        kind: "Widget".into(),
        namespaced: true,
        verbs: ["create", "get", "list", "patch", "watch"].map(Into::into).to_vec(),
        short_names: Vec::new(),
        categories: Vec::new(),
        storage_version_hash: "".into(),
        response: ("example.com".into(), "v1".into()),
        subresources: Vec::new(),
    };
    let discovery = GroupVersion {
        group: "example.com".into(),
        version: "v1".into(),
        group_priority: 1000,
        version_priority: 100,
        stale: false,
        resources: vec![resource],
    };
    let types: Arc<dyn Types> = Arc::new(Widgets(BuiltIn::new(api::schema::schema())));
    let base: Arc<dyn Types> = Arc::new(BuiltIn::new(api::schema::schema()));
    let openapi = OpenApi::new(vec![Part { discovery: Arc::new(discovery), types, custom: true }], base);
    let document = parsed(&openapi.v3_group_version("apis/example.com/v1").expect("a document"));
    let list = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets"]["get"];
    assert_eq!(list["operationId"], "listExampleComV1NamespacedWidget");
    assert_eq!(list["tags"], json!(["exampleCom_v1"]));
    assert!(document["components"]["schemas"].get("com.example.v1.Widget").is_some());
    assert!(
        document["components"]["schemas"].get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").is_some()
    );
    assert!(
        document["paths"].as_object().is_some_and(|paths| paths.keys().all(|path| !path.contains("watch")))
    );
    let all = parsed(&openapi.v2_json());
    assert!(all["definitions"].get("com.example.v1.WidgetList").is_some());
    assert!(all["definitions"].get("io.k8s.apimachinery.pkg.apis.meta.v1.APIVersions").is_some());
}
