use super::*;
use crate::admission::test_cluster::Cluster;
use crate::user::UserInfo;
use serde_json::json;

const LABEL: &str = "policies";

impl Cluster {
    async fn validating(&self, name: &str, spec: Value, binding: Value) {
        self.policy(
            ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
            name,
            spec,
            binding,
        )
        .await;
    }

    async fn mutating(&self, name: &str, mut spec: Value, binding: Value) {
        if spec.get("reinvocationPolicy").is_none() {
            spec["reinvocationPolicy"] = "Never".into();
        }
        self.policy(["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"], name, spec, binding)
            .await;
    }

    /// A policy for config maps in namespaces with the label, and its binding.
    async fn policy(&self, resources: [&str; 2], name: &str, mut spec: Value, mut binding: Value) {
        if spec.get("matchConstraints").is_none() {
            let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
            spec["matchConstraints"] = json!({"resourceRules": [rule]});
        }
        binding["policyName"] = name.into();
        binding["matchResources"] = json!({"namespaceSelector": {"matchLabels": {LABEL: "true"}}});
        for (resource, spec) in resources.into_iter().zip([spec, binding]) {
            let object = json!({"metadata": {"name": name}, "spec": spec});
            self.create((GROUP, "v1", resource), object).await.expect("configured");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_validation_rejects_write() {
    let cluster = Cluster::with_label(LABEL).await;
    let spec = json!({
        "variables": [{"name": "size", "expression": "has(object.data) ? object.data.size() : 0"}],
        "matchConditions": [{"name": "c", "expression": "object.metadata.name != 'skipped'"}],
        "validations": [
            {"expression": "variables.size < 2", "messageExpression": "'has ' + string(variables.size) + ' entries'"},
            {"expression": "!('bad' in object.data)", "message": "not this", "reason": "Forbidden"},
            {"expression": "object.data.k != 'broken' || object.nosuch == 1"},
            {"expression": "request.userInfo.username == 'alice' && namespaceObject.metadata.name == 'n'"},
        ],
    });
    cluster.validating("p", spec, json!({"validationActions": ["Deny"]})).await;
    cluster.config_map("n", "good", json!({"k": "v"})).await.expect("allowed");
    cluster.config_map("quiet", "other", json!({"bad": "1", "b": "2"})).await.expect("not looked at");
    cluster.config_map("n", "skipped", json!({"bad": "1"})).await.expect("skipped");
    let prefix =
        "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: ";
    for (data, code, reason, message) in [
        (json!({"k": "1", "b": "2"}), 422, "Invalid", "has 2 entries"),
        (json!({"bad": "1"}), 403, "Forbidden", "not this"),
        (
            json!({"k": "broken"}),
            422,
            "Invalid",
            "expression 'object.data.k != 'broken' || object.nosuch == 1' resulted in error: no such key: nosuch",
        ),
    ] {
        let status = cluster.config_map("n", "x", data).await.expect_err(message);
        assert_eq!((status.code, status.reason), (code, reason));
        assert_eq!(status.message, format!("{prefix}{message}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_warn_audit_and_provide_params() {
    let cluster = Cluster::with_label(LABEL).await;
    let limit = json!({"metadata": {"name": "limit", "namespace": "quiet"}, "data": {"max": "5"}});
    cluster.create(("", "v1", "configmaps"), limit).await.expect("made");
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "validations": [{
            "expression": "int(object.data.n) <= int(params.data.max)",
            "messageExpression": "'more than ' + params.data.max",
        }],
        "auditAnnotations": [{"key": "n", "valueExpression": "'n is ' + object.data.n"}],
    });
    let reference = json!({"name": "limit", "namespace": "quiet", "parameterNotFoundAction": "Deny"});
    let binding = json!({"paramRef": reference, "validationActions": ["Warn", "Audit"]});
    cluster.validating("p", spec.clone(), binding).await;
    let (_, warnings, notes) = cluster.config_map("n", "much", json!({"n": "9"})).await.expect("warned of");
    assert_eq!(
        warnings,
        ["Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': more than 5"]
    );
    assert!(notes.contains(&("p/n".to_owned(), "n is 9".to_owned())), "{notes:?}");
    let failure =
        notes.iter().find(|(key, _)| key == "validation.policy.admission.k8s.io/validation_failure");
    assert!(failure.is_some_and(|(_, value)| value.contains("more than 5")), "{notes:?}");
    let (_, warnings, _) = cluster.config_map("n", "little", json!({"n": "5"})).await.expect("fine");
    assert!(warnings.is_empty());

    let missing = json!({"name": "nowhere", "namespace": "quiet", "parameterNotFoundAction": "Deny"});
    cluster.validating("q", spec, json!({"paramRef": missing, "validationActions": ["Deny"]})).await;
    let status = cluster.config_map("n", "x", json!({"n": "1"})).await.expect_err("no params");
    assert_eq!(
        status.message,
        "configmaps \"x\" is forbidden: ValidatingAdmissionPolicy 'q' with binding 'q' denied request: failed to \
         configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorizer_checks_decide_validation() {
    let cluster = Cluster::with_label(LABEL).await;
    let check = "authorizer.group('').resource('secrets').namespace('n').check('get').allowed()";
    let spec = json!({"validations": [{"expression": check, "message": "must read secrets"}]});
    cluster.validating("p", spec, json!({"validationActions": ["Deny"]})).await;
    let status = cluster.config_map("n", "x", json!({})).await.expect_err("alice may not");
    assert!(status.message.ends_with("must read secrets"), "{}", status.message);
    let admin = UserInfo {
        name: "admin".to_owned(),
        groups: vec!["system:masters".to_owned()],
        ..UserInfo::default()
    };
    let object = json!({"metadata": {"name": "x", "namespace": "n"}});
    cluster.create_as(&admin, ("", "v1", "configmaps"), object).await.expect("masters may");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutations_apply_in_sequence() {
    let cluster = Cluster::with_label(LABEL).await;
    let merge =
        |text: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}});
    let patch = |text: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": text}});
    let spec = json!({
        "variables": [{"name": "v", "expression": "object.metadata.name + '-' + request.operation"}],
        "mutations": [
            merge("Object{metadata: Object.metadata{labels: {'mutated': variables.v}}}"),
            patch("[JSONPatch{op: 'test', path: '/metadata/labels/mutated', value: 'x-CREATE'}, \
                    JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/twice'), value: 'yes'}]"),
        ],
    });
    cluster.mutating("p", spec, json!({})).await;
    let (made, ..) = cluster.config_map("n", "x", json!({"k": "v"})).await.expect("changed");
    assert_eq!(made["metadata"]["labels"], json!({"mutated": "x-CREATE", "example.com/twice": "yes"}));
    let (made, ..) = cluster.config_map("n", "y", json!({"k": "v"})).await.expect("the test fails");
    assert_eq!(made["metadata"]["labels"], json!({"mutated": "y-CREATE"}));
    let (made, ..) = cluster.config_map("quiet", "x", json!({})).await.expect("not looked at");
    assert!(made["metadata"].get("labels").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_are_reinvoked_after_later_mutations() {
    let cluster = Cluster::with_label(LABEL).await;
    let label = |key: &str, value: &str| {
        let text = format!("Object{{metadata: Object.metadata{{labels: {{'{key}': {value}}}}}}}");
        json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}}])
    };
    let seen = "string(has(object.metadata.labels) && 'b' in object.metadata.labels)";
    let spec = json!({"reinvocationPolicy": "IfNeeded", "mutations": label("a", seen)});
    cluster.mutating("a", spec, json!({})).await;
    cluster.mutating("b", json!({"mutations": label("b", "'1'")}), json!({})).await;
    let (made, ..) = cluster.config_map("n", "x", json!({})).await.expect("changed");
    assert_eq!(made["metadata"]["labels"], json!({"a": "true", "b": "1"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_mutation_rejects_write() {
    let cluster = Cluster::with_label(LABEL).await;
    for (name, text, want) in [
        (
            "a",
            "Object{metadata: Object.wrong{}}",
            "unexpected type name \"Object.wrong\", expected \"Object.metadata\"",
        ),
        ("b", "Object{nosuch: 1}", ".nosuch: field not declared in schema"),
        ("c", "Object{metadata: Object.metadata{labels: {'x': object.nosuch}}}", "no such key: nosuch"),
    ] {
        let conditions = json!([{"name": "c", "expression": format!("object.metadata.name == '{name}'")}]);
        let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": text}});
        let spec = json!({"matchConditions": conditions, "mutations": [mutation]});
        cluster.mutating(name, spec, json!({})).await;
        let status = cluster.config_map("n", name, json!({})).await.expect_err(want);
        assert_eq!((status.code, status.reason), (403, "Invalid"));
        let prefix = format!("policy '{name}' with binding '{name}' denied request: ");
        assert!(status.message.starts_with(&prefix) && status.message.contains(want), "{}", status.message);
    }
}

/// Resource rules for autoscalers in one version.
fn about_autoscalers(version: &str, match_policy: &str) -> Value {
    json!({"matchPolicy": match_policy, "resourceRules": [{
        "operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": [version],
        "resources": ["horizontalpodautoscalers"],
    }]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equivalent_rules_match_all_versions() {
    let new = "object.spec.metrics[0].resource.target.averageUtilization";
    let old = "object.spec.targetCPUUtilizationPercentage";
    for (version, field) in [("v2", new), ("v1", old)] {
        let spec = |match_policy: &str| {
            let message = format!(
                "'utilization is ' + string({field}) + ' in ' + request.kind.version + ' of ' + \
                 request.requestKind.version + ', ' + object.apiVersion"
            );
            json!({
                "matchConstraints": about_autoscalers(version, match_policy),
                "validations": [{"expression": format!("{field} < 70"), "messageExpression": message}],
            })
        };
        let cluster = Cluster::with_label(LABEL).await;
        cluster.validating("p", spec("Equivalent"), json!({"validationActions": ["Deny"]})).await;
        for client in ["v1", "v2"] {
            cluster.autoscaler(client, &format!("good-{client}"), 60).await.expect("allowed");
            let refused = cluster.autoscaler(client, "bad", 80).await.expect_err("refused");
            let want = format!("utilization is 80 in {version} of {client}, autoscaling/{version}");
            assert!(refused.message.ends_with(&want), "{}", refused.message);
        }
        let cluster = Cluster::with_label(LABEL).await;
        cluster.validating("p", spec("Exact"), json!({"validationActions": ["Deny"]})).await;
        for client in ["v1", "v2"] {
            let outcome = cluster.autoscaler(client, "bad", 80).await;
            assert_eq!(outcome.is_err(), client == version, "{version}: {outcome:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equivalent_rules_match_other_groups() {
    let cluster = Cluster::with_label(LABEL).await;
    let rule =
        json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]});
    let spec = json!({
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.message != 'bad'", "message": "not this"}],
    });
    cluster.validating("p", spec, json!({"validationActions": ["Deny"]})).await;
    let event = |name: &str, note: &str| {
        json!({
            "metadata": {"name": name, "namespace": "n"}, "note": note, "type": "Normal", "reason": "R",
            "eventTime": "2026-01-01T00:00:00.000000Z", "action": "A", "reportingController": "example.com/c",
            "reportingInstance": "i", "regarding": {"kind": "Pod", "namespace": "n", "name": "p"},
        })
    };
    let events = ("events.k8s.io", "v1", "events");
    cluster.try_create(events, event("good", "good")).await.expect("allowed");
    let refused = cluster.try_create(events, event("bad", "bad")).await.expect_err("refused");
    assert_eq!(
        refused.message,
        "events.events.k8s.io \"bad\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: \
         not this"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutation_in_other_version_is_converted_back() {
    let cluster = Cluster::with_label(LABEL).await;
    let merge = "Object{spec: Object.spec{minReplicas: 3, behavior: \
        Object.spec.behavior{scaleDown: Object.spec.behavior.scaleDown{stabilizationWindowSeconds: 7}}}}";
    let spec = json!({
        "matchConstraints": about_autoscalers("v2", "Equivalent"),
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": merge}}],
    });
    cluster.mutating("p", spec, json!({})).await;
    for client in ["v1", "v2"] {
        let (made, ..) = cluster.autoscaler(client, client, 60).await.expect("changed");
        assert_eq!(made["spec"]["minReplicas"], 3, "{made}");
        assert_eq!(made["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"], 7, "{made}");
        assert_eq!(made["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60, "{made}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expression_cost_is_bounded() {
    let endless = "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, true)))";
    // Two authorizer checks fit into one expression; fifteen such expressions exceed the total budget.
    let question = "authorizer.path('/a').check('get').allowed() || authorizer.path('/b').check('get').allowed() || true";
    let many: Vec<Value> = vec![json!({"expression": question}); 15];
    for (validations, conditions, want) in [
        (
            json!([{"expression": endless}]),
            json!([]),
            "resulted in error: operation cancelled: actual cost limit exceeded",
        ),
        (json!(many), json!([]), "running out of cost budget, no further validation rules will be run"),
        (
            json!([{"expression": "true"}]),
            json!([{"name": "c", "expression": endless}]),
            "cost limit exceeded",
        ),
    ] {
        for (failure_policy, refuses) in [("Fail", true), ("Ignore", false)] {
            let cluster = Cluster::with_label(LABEL).await;
            let spec = json!({
                "validations": validations, "matchConditions": conditions, "failurePolicy": failure_policy,
            });
            cluster.validating("p", spec, json!({"validationActions": ["Deny"]})).await;
            match cluster.config_map("n", "x", json!({})).await {
                Ok(_) => assert!(!refuses, "{want}"),
                Err(status) => assert!(refuses && status.message.contains(want), "{}", status.message),
            }
        }
    }
}

#[tokio::test]
async fn expressions_before_authorizer_check_are_evaluated_once() {
    let cluster = Cluster::with_label(LABEL).await;
    let questions = (0..10).map(
        |index| json!({"expression": format!("authorizer.path('/p{index}').check('get').allowed() || true")}),
    );
    let spec = json!({"validations": questions.collect::<Vec<_>>()});
    cluster.validating("p", spec, json!({"validationActions": ["Deny"]})).await;
    let before = evaluation::EVALUATIONS.get();
    cluster.config_map("n", "x", json!({"k": "v"})).await.expect("allowed");
    // Each is evaluated up to its authorizer check and once more; the first also up to its inline limit.
    assert_eq!(evaluation::EVALUATIONS.get() - before, 21);
}
