//! DaemonSet.

use crate::kind::keep_status;
use crate::pod_spec::checks::{non_negative, non_negative_field};
use crate::pod_spec::defaults;
use crate::pod_spec::layout;
use crate::validation::label_selector;
use crate::value::Fields;
use crate::workload::rolling_update::{amount, validate_at_most_all, validate_int_or_percent};
use crate::workload::template::{self, Wording};
use crate::{Kind, Scope, workload};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::selector::LabelSelector;
use machinery::{Value, meta, names};

pub static KIND: Kind = Kind {
    default,
    prepare_create,
    prepare_update,
    prepare_status_update,
    validate: |set| {
        let mut errors = Vec::new();
        validate_spec(set, None, &mut errors);
        errors
    },
    validate_update,
    validate_status_update,
    warnings: |new, old| match old {
        Some(old) if new.at("spec.template") == old.at("spec.template") => Vec::new(),
        _ => workload::template_warnings(new, old, "spec.template", false),
    },
    counts_generation: true,
    field_annotation: Some(TEMPLATE_GENERATION),
    table: &crate::tables::workloads::DAEMON_SET,
    ..Kind::new("apps", "v1", "DaemonSet", "daemonsets", Scope::Namespaced)
};

/// Number of template changes, in the annotation that old controllers read.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn default(set: &mut Value) {
    let spec = set.child_mut("spec");
    let strategy = spec.child_mut("updateStrategy");
    strategy.default_if_zero("type", "RollingUpdate");
    if strategy.text("type") == "RollingUpdate" {
        let rolling = strategy.child_mut("rollingUpdate");
        rolling.default_to("maxUnavailable", 1);
        rolling.default_to("maxSurge", 0);
    }
    spec.default_to("revisionHistoryLimit", 10);
    defaults::default_template(spec.child_mut("template"));
    if meta::annotation(set, TEMPLATE_GENERATION).is_none() {
        set_template_generation(set, 0);
    }
}

/// Template generation of the annotation; 0 if absent or invalid.
pub(crate) fn template_generation(set: &Value) -> i64 {
    meta::annotation(set, TEMPLATE_GENERATION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(set: &mut Value, generation: i64) {
    set.child_mut("metadata").child_mut("annotations").set(TEMPLATE_GENERATION, generation.to_string());
}

fn prepare_create(set: &mut Value) {
    workload::zero_status(
        set,
        &["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"],
    );
    let generation = template_generation(set).max(1);
    set_template_generation(set, generation);
    workload::drop_disabled_template_fields(set, &Value::Null, "spec.template");
}

fn prepare_update(new: &mut Value, old: &Value) {
    workload::drop_disabled_template_fields(new, old, "spec.template");
    keep_status(new, old);
    let changed = new.at("spec.template") != old.at("spec.template");
    set_template_generation(new, template_generation(old) + i64::from(changed));
}

fn prepare_status_update(new: &mut Value, old: &Value) {
    workload::keep_spec(new, old);
    set_template_generation(new, template_generation(old));
}

const WORDING: Wording = Wording { empty_selector: "daemonset", deadline: "DaemonSet" };

fn validate_spec(set: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    let spec = set.field("spec");
    let path = Path::new("spec");
    let selector = spec.field("selector");
    let selector_path = path.child("selector");
    let allow = old.is_some_and(|old| label_selector::has_invalid_label_value(old.at("spec.selector")));
    if !selector.is_null() {
        errors.extend(names::validate_label_selector(selector, allow, &selector_path));
    }
    let template_path = path.child("template");
    let pods = spec.field("template");
    let labels = pods.at("metadata.labels");
    if LabelSelector::from_object(Some(selector)).is_ok_and(|s| !s.matches(&labels.as_object())) {
        let metadata = template_path.child("metadata");
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(&metadata.child("labels"), labels, detail));
    }
    if !selector.is_null() && label_selector::is_empty(selector) {
        let detail = "empty selector is invalid for daemonset";
        errors.push(FieldError::invalid_shown(&selector_path, template::show_selector(selector), detail));
    }
    let old = old.map(|old| old.at("spec.template"));
    template::validate_pod_template(pods, old, &template_path, errors);
    template::validate_runs_forever(pods, &WORDING, &template_path, errors);
    non_negative_field(spec, "minReadySeconds", &path, errors);
    non_negative(template_generation(set), &path.child("templateGeneration"), errors);
    validate_strategy(spec.field("updateStrategy"), &path.child("updateStrategy"), errors);
    non_negative_field(spec, "revisionHistoryLimit", &path, errors);
}

fn validate_strategy(strategy: &Value, path: &Path<'_>, errors: &mut ErrorList) {
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let path = path.child("rollingUpdate");
            let rolling = strategy.field("rollingUpdate");
            let (unavailable, surge) = (rolling.field("maxUnavailable"), rolling.field("maxSurge"));
            let (unavailable_path, surge_path) = (path.child("maxUnavailable"), path.child("maxSurge"));
            validate_int_or_percent(unavailable, &unavailable_path, errors);
            validate_int_or_percent(surge, &surge_path, errors);
            validate_at_most_all(unavailable, &unavailable_path, errors);
            validate_at_most_all(surge, &surge_path, errors);
            match (amount(unavailable) != 0, amount(surge) != 0) {
                (true, true) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.push(FieldError::invalid(&surge_path, surge, detail));
                }
                (false, false) => {
                    let detail = "cannot be 0 when maxSurge is 0";
                    errors.push(FieldError::required(&unavailable_path, detail));
                }
                _ => {}
            }
        }
        _ => {
            let shown = layout::internal_json("DaemonSetUpdateStrategy", strategy);
            let error = FieldError::not_supported(path, &Value::Null, &["RollingUpdate", "OnDelete"]);
            errors.push(FieldError { value: Some(shown), ..error });
        }
    }
}

fn validate_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    template::validate_selector_unchanged(new, old, &mut errors);
    validate_spec(new, Some(old), &mut errors);
    errors
}

fn validate_status_update(new: &Value, old: &Value) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("status");
    let counters = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    workload::status::validate_counters(new.field("status"), &counters, &path, &mut errors);
    workload::status::validate_collisions(new.field("status"), old.field("status"), &path, &mut errors);
    errors
}
