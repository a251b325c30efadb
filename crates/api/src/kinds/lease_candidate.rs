//! LeaseCandidate: a candidate of coordinated leader election.

use crate::kind::renamed_version;
use crate::kinds::lease::strategy_errors;
use crate::validation::checks::immutable;
use crate::value::Fields;
use crate::{Kind, Scope};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, names};
use std::cmp::Ordering;

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
        let version = SemanticVersion::parse(text);
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

/// A version as <https://semver.org> defines it, without its build metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SemanticVersion {
    numbers: [u64; 3],
    pre: Vec<Identifier>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl SemanticVersion {
    fn parse(text: &str) -> Option<Self> {
        let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
        let is_word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if build.is_some_and(|build| !build.split('.').all(is_word)) {
            return None;
        }
        let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
        let mut parts = core.split('.').map(number);
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        if parts.next().is_some() {
            return None;
        }
        let identifier = |word: &str| {
            let digits = word.bytes().all(|byte| byte.is_ascii_digit());
            match is_word(word) {
                true if digits => number(word).map(Identifier::Number),
                true => Some(Identifier::Text(word.to_owned())),
                false => None,
            }
        };
        let pre: Option<Vec<Identifier>> =
            pre.map_or(Some(Vec::new()), |pre| pre.split('.').map(identifier).collect());
        Some(Self { numbers, pre: pre? })
    }
}

/// A number without leading zeros.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) { None } else { text.parse().ok() }
}

impl PartialOrd for SemanticVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SemanticVersion {
    /// A pre-release sorts before its release.
    fn cmp(&self, other: &Self) -> Ordering {
        let pre = match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => self.pre.cmp(&other.pre),
        };
        self.numbers.cmp(&other.numbers).then(pre)
    }
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

    #[test]
    fn semantic_versions_are_ordered() {
        let sorted = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0", "1.0.1+build", "1.2.0"];
        let parsed: Vec<_> = sorted.iter().map(|text| SemanticVersion::parse(text).expect(text)).collect();
        assert!(parsed.windows(2).all(|pair| pair[0] < pair[1]));
        for text in ["1.0", "01.0.0", "1.0.0-", "1.0.0-01", "v1.0.0", "1.0.0+", "1.0.0.0", ""] {
            assert_eq!(SemanticVersion::parse(text), None, "{text}");
        }
    }
}
