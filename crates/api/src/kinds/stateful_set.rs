//! StatefulSet.

use crate::kind::{Scale, ScaleSelector, keep_status};
use crate::pod_spec::checks::{dns_label, non_negative_field};
use crate::pod_spec::defaults;
use crate::pod_spec::options::Options;
use crate::pod_spec::{claim_spec, layout, warnings};
use crate::value::Fields;
use crate::workload::rolling_update::{amount, validate_at_most_all, validate_int_or_percent};
use crate::workload::template::{self, Wording};
use crate::{Kind, Scope, scale, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use serde_json::json;

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update: workload::keep_spec,
    validate_name: names::dns_label,
    validate: |set| validate_spec(set, None),
    validate_update,
    validate_status_update,
    warnings,
    counts_generation: true,
    scale: Some(Scale {
        spec_replicas: "spec.replicas",
        status_replicas: "status.replicas",
        selector: ScaleSelector::Computed(|set| scale::selector_text(set.at("spec.selector"))),
    }),
    table: &crate::tables::workloads::STATEFUL_SET,
    ..Kind::new("apps", "v1", "StatefulSet", "statefulsets", Scope::Namespaced)
};

fn default(set: &mut Value) {
    let spec = set.child_mut("spec");
    spec.default_if_zero("podManagementPolicy", "OrderedReady");
    let strategy = spec.child_mut("updateStrategy");
    if strategy.text("type").is_empty() {
        strategy.set("type", "RollingUpdate");
        strategy.child_mut("rollingUpdate");
    }
    if strategy.text("type") == "RollingUpdate"
        && let Some(rolling) = strategy.field_mut("rollingUpdate")
    {
        rolling.default_to("partition", 0);
    }
    let retention = spec.child_mut("persistentVolumeClaimRetentionPolicy");
    retention.default_if_zero("whenDeleted", "Retain");
    retention.default_if_zero("whenScaled", "Retain");
    spec.default_to("replicas", 1);
    spec.default_to("revisionHistoryLimit", 10);
    defaults::default_template(spec.child_mut("template"));
    for claim in spec.items_mut("volumeClaimTemplates") {
        claim.set("apiVersion", "v1");
        claim.set("kind", "PersistentVolumeClaim");
        claim.child_mut("spec").default_to("volumeMode", "Filesystem");
        claim.child_mut("status").default_if_zero("phase", "Pending");
    }
}

fn prepare_create(set: &mut Value) {
    workload::zero_status(set, &["availableReplicas", "replicas"]);
    drop_max_unavailable(set, &Value::Null);
    workload::drop_disabled_template_fields(set, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    drop_max_unavailable(new, old);
    workload::drop_disabled_template_fields(new, old, "spec.template");
}

/// The feature is disabled: the field is retained only if the old object has it.
fn drop_max_unavailable(new: &mut Value, old: &Value) {
    const ROLLING: &str = "spec.updateStrategy.rollingUpdate";
    if !old.at(ROLLING).has("maxUnavailable")
        && let Some(rolling) = new.at_mut(ROLLING)
    {
        rolling.unset("maxUnavailable");
    }
}

const WORDING: Wording = Wording { empty_selector: "statefulset", deadline: "StatefulSet" };

fn validate_spec(set: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let spec = set.field("spec");
    let path = Path::new("spec");
    let policy = spec.text("podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid_named(&path.child("podManagementPolicy"), policy, detail));
    }
    validate_strategy(spec.field("updateStrategy"), &path.child("updateStrategy"), &mut errors);
    let retention_path = path.child("persistentVolumeClaimRetentionPolicy");
    for name in ["whenDeleted", "whenScaled"] {
        let policy = spec.field("persistentVolumeClaimRetentionPolicy").text(name);
        if !matches!(policy, "Retain" | "Delete") {
            let supported = ["Retain", "Delete"];
            let path = retention_path.child(name);
            errors.push(FieldError::not_supported(&path, &Value::from(policy), &supported));
        }
    }
    if old.is_none() {
        let path = path.child("volumeClaimTemplates");
        for (index, claim) in spec.items("volumeClaimTemplates").iter().enumerate() {
            let item = path.index(index);
            claim_spec::validate_claim_spec(claim.field("spec"), &item.child("spec"), &mut errors);
        }
    }
    non_negative_field(spec, "replicas", &path, &mut errors);
    non_negative_field(spec, "minReadySeconds", &path, &mut errors);
    let start = spec.field("ordinals").int("start");
    crate::pod_spec::checks::non_negative(start, &path.child("ordinals.start"), &mut errors);
    let service = spec.text("serviceName");
    if old.is_none() && !service.is_empty() {
        dns_label(service, &path.child("serviceName"), &mut errors);
    }
    validate_pods(spec, old, &path, &mut errors);
    errors
}

fn validate_pods(spec: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut ErrorList) {
    let selector = spec.field("selector");
    let selector_path = path.child("selector");
    template::validate_selector(selector, &WORDING, &selector_path, errors);
    let template_path = path.child("template");
    let pods = spec.field("template");
    if template::is_usable(selector) {
        template::validate_match(selector, pods, &template_path, errors);
        let with_claims = with_claim_volumes(spec);
        let before = errors.len();
        template::validate_pod_template(&with_claims, None, &template_path, errors);
        // An invalid stored template is tolerated: older versions did not validate it.
        if let Some(old) = old.filter(|_| errors.len() > before) {
            let mut old_errors = Vec::new();
            let old_pods = with_claim_volumes(old.field("spec"));
            template::validate_pod_template(&old_pods, None, &template_path, &mut old_errors);
            if !old_errors.is_empty() {
                errors.truncate(before);
            }
        }
        // Labels and annotations are validated twice, as in Kubernetes.
        crate::pod_spec::template::validate_metadata(pods, &Options::default(), &template_path, errors);
    } else {
        let shown = template::show_selector(selector);
        errors.push(FieldError::invalid_shown(&selector_path, shown, ""));
    }
    template::validate_runs_forever(pods, &WORDING, &template_path, errors);
}

/// The template in the form of its pods: with a volume for every claim, and without names set by the controller.
fn with_claim_volumes(spec: &Value) -> Value {
    let mut template = spec.field("template").clone();
    let claims = spec.items("volumeClaimTemplates");
    let Some(pod) = template.field_mut("spec") else { return template };
    pod.unset("subdomain");
    pod.unset("hostname");
    if claims.is_empty() {
        return template;
    }
    let name = |claim: &Value| claim.field("metadata").text("name").to_owned();
    let mut volumes: Vec<Value> = Vec::new();
    for claim in claims {
        let name = name(claim);
        if !volumes.iter().any(|volume| volume.text("name") == name) {
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        }
    }
    let claimed = |volume: &&Value| !claims.iter().any(|claim| name(claim) == volume.text("name"));
    volumes.extend(pod.items("volumes").iter().filter(claimed).cloned());
    pod.set("volumes", volumes);
    template
}

fn validate_strategy(strategy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    let rolling = strategy.field("rollingUpdate");
    let rolling_path = path.child("rollingUpdate");
    match strategy.text("type") {
        "" => errors.push(FieldError::required(path, "")),
        "OnDelete" => {
            if !rolling.is_null() {
                let shown = layout::internal_json("RollingUpdateStatefulSetStrategy", rolling);
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                errors.push(FieldError::invalid_shown(&rolling_path, shown, detail));
            }
        }
        "RollingUpdate" => {
            non_negative_field(rolling, "partition", &rolling_path, errors);
            let unavailable = rolling.field("maxUnavailable");
            if !unavailable.is_null() {
                let path = rolling_path.child("maxUnavailable");
                validate_int_or_percent(unavailable, &path, errors);
                if amount(unavailable) == 0 {
                    errors.push(FieldError::invalid(&path, unavailable, "cannot be 0"));
                }
                validate_at_most_all(unavailable, &path, errors);
            }
        }
        _ => {
            let shown = layout::internal_json("StatefulSetUpdateStrategy", strategy);
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid_shown(path, shown, detail));
        }
    }
}

/// Mutable fields of the spec.
const MUTABLE: [&str; 7] = [
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = validate_spec(new, Some(old));
    let (new, old) = (new.field("spec"), old.field("spec"));
    let mut names = [new, old].into_iter().filter_map(Value::as_object).flat_map(|spec| spec.keys());
    if names.any(|name| !MUTABLE.contains(&name.as_str()) && new.field(name) != old.field(name)) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(FieldError::forbidden(&Path::new("spec"), detail));
    }
    errors
}

fn validate_status_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let status = new.field("status");
    let counters = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    workload::status::validate_counters(status, &counters, &path, &mut errors);
    let limited = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    workload::status::validate_at_most_replicas(status, &limited, &path, &mut errors);
    let detail = "cannot be greater than status.readyReplicas";
    workload::status::validate_available(status, detail, &path, &mut errors);
    workload::status::validate_collisions(status, old.field("status"), &path, &mut errors);
    errors
}

fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let mut found = workload::template_warnings(new, old, "spec.template", false);
    let path = Path::new("spec");
    let path = path.child("volumeClaimTemplates");
    for (index, claim) in new.field("spec").items("volumeClaimTemplates").iter().enumerate() {
        let item = path.index(index);
        let nested = item.child("Spec");
        let path = if old.is_some() { &nested } else { &item };
        warnings::warn_claim_spec(claim.field("spec"), path, &mut found);
    }
    if new.field("spec").int("revisionHistoryLimit") < 0 {
        let message = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
        found.push(message.to_owned());
    }
    found
}
