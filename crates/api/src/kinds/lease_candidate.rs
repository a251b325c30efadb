//! LeaseCandidate: a candidate of coordinated leader election.

use crate::kind::renamed_version;
use crate::kinds::lease::strategy_errors;
use crate::validation::checks::immutable;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::names::SemanticVersion;
use machinery::{Value, names};

pub static KIND: Kind = Kind {
    validate_name: |name, _| names::config_map_key(name),
    validate,
    validate_update: |new, old| {
        let mut errors = validate(new);
        let path = Path::new("spec");
        let field = |object| -> &Value { Fields::field(object, "spec").field("leaseName") };
        errors.extend(immutable(&path.child("leaseName"), field(new), field(old)));
        errors
    },
    create_on_update: true,
    unconditional_update: false,
    deprecation: Some(
        "coordination.k8s.io/v1beta1 LeaseCandidate is deprecated in v1.36+, unavailable in v1.39+",
    ),
    table: &crate::tables::node::LEASE_CANDIDATE,
    ..Kind::new("coordination.k8s.io", "v1beta1", "LeaseCandidate", "leasecandidates", Scope::Namespaced)
};

pub static KIND_V1ALPHA2: Kind = renamed_version!(
    KIND,
    "coordination.k8s.io",
    "v1beta1",
    "v1alpha2",
    Some("coordination.k8s.io/v1alpha2 LeaseCandidate is deprecated in v1.35+, unavailable in v1.38+")
);

fn validate(candidate: &Value) -> ErrorList {
    let (path, spec) = (Path::new("spec"), candidate.field("spec"));
    let mut errors = Vec::new();
    if spec.text("leaseName").is_empty() {
        errors.push(FieldError::required(&path.child("leaseName"), ""));
    }
    let version = |field: &str, errors: &mut ErrorList| {
        let text = spec.text(field);
        let version = SemanticVersion::parse(text).ok();
        if !text.is_empty() && version.is_none() {
            errors.push(FieldError::invalid_str(
                &path.child(field),
                text,
                "must be a valid semantic version",
            ));
        }
        version
    };
    let emulation = version("emulationVersion", &mut errors);
    let binary_path = path.child("binaryVersion");
    if spec.text("binaryVersion").is_empty() {
        errors.push(FieldError::required(&binary_path, ""));
    }
    let binary = version("binaryVersion", &mut errors);
    if let (false, false) = (spec.text("binaryVersion").is_empty(), spec.text("emulationVersion").is_empty())
        && binary.unwrap_or_default() < emulation.clone().unwrap_or_default()
    {
        let detail = "must be greater than or equal to `emulationVersion`";
        errors.push(FieldError::invalid_str(&binary_path, spec.text("binaryVersion"), detail));
    }
    match spec.text("strategy") {
        "" => errors.push(FieldError::required(&path.child("strategy"), "")),
        strategy => {
            if strategy == "OldestEmulationVersion"
                && emulation.unwrap_or_default() == SemanticVersion::default()
            {
                let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
                errors.push(FieldError::required(&path.child("emulationVersion"), detail));
            }
            errors.extend(strategy_errors(&path.child("strategy"), strategy));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(spec: &Value) -> Vec<String> {
        validate(&json!({"spec": spec})).iter().map(FieldError::to_string).collect()
    }

    #[test]
    fn candidate_without_versions_is_rejected() {
        let good = json!({
            "leaseName": "l", "binaryVersion": "1.36.0", "emulationVersion": "1.36.0",
            "strategy": "OldestEmulationVersion",
        });
        assert_eq!(errors(&good), Vec::<String>::new());
        assert_eq!(
            errors(&json!({"binaryVersion": "1.0", "strategy": "OldestEmulationVersion"})),
            [
                "spec.leaseName: Required value",
                "spec.binaryVersion: Invalid value: \"1.0\": must be a valid semantic version",
                "spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'",
            ]
        );
        let older = json!({
            "leaseName": "l", "binaryVersion": "1.35.0", "emulationVersion": "1.36.0", "strategy": "a.b/c",
        });
        assert_eq!(
            errors(&older),
            [
                "spec.binaryVersion: Invalid value: \"1.35.0\": must be greater than or equal to `emulationVersion`"
            ]
        );
    }
}
