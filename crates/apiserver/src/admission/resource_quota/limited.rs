//! `limitedResources` of a ResourceQuotaConfiguration: resources that may be used only where a quota covers them.

use super::ledger::QuotaRejection;
use super::scopes;
use super::usage::Amounts;
use api::value::{Fields, texts};
use machinery::Value;
use serde::Deserialize;
use std::collections::BTreeSet;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct LimitedResource {
    api_group: String,
    resource: String,
    /// Substrings of quota resource names.
    match_contains: Vec<String>,
    /// Scope selectors, as in quotas.
    match_scopes: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Configuration {
    #[serde(default)]
    limited_resources: Vec<LimitedResource>,
}

const GROUP: &str = "resourcequota.admission.k8s.io";
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];

/// Reads the configuration of the plugin.
pub fn read(text: &[u8]) -> Result<Vec<LimitedResource>, String> {
    let parse = crate::configuration::parse::<Configuration>;
    let found = parse(text, GROUP, &["v1"], "ResourceQuotaConfiguration")
        .or_else(|why| parse(text, GROUP, &["v1beta1", "v1alpha1"], "Configuration").map_err(|_| why))?;
    let unnamed = found.limited_resources.iter().position(|limited| limited.resource.is_empty());
    if let Some(index) = unnamed {
        return Err(format!("limitedResources[{index}].resource: Required value"));
    }
    let scopes = found.limited_resources.iter().flat_map(|limited| &limited.match_scopes);
    for scope in scopes {
        let (name, operator) = (scope.text("scopeName"), scope.text("operator"));
        if !SCOPES.contains(&name) {
            return Err(format!("limitedResources.matchScopes: scopeName {name:?} is not known"));
        }
        if !OPERATORS.contains(&operator) {
            return Err(format!("limitedResources.matchScopes: operator {operator:?} is not known"));
        }
    }
    Ok(found.limited_resources)
}

/// Rejects use of a limited resource that no quota covers.
pub fn check(
    limited: &[LimitedResource],
    resource: (&str, &str),
    object: &Value,
    wanted: &Amounts,
    quotas: &[Value],
    covered: &BTreeSet<String>,
) -> Result<(), QuotaRejection> {
    let mut names = BTreeSet::new();
    let of_resource =
        limited.iter().filter(|one| (one.api_group.as_str(), one.resource.as_str()) == resource);
    for limited in of_resource {
        let used = wanted.iter().filter(|(_, amount)| amount.sign() > 0).map(|(name, _)| name.as_str());
        let named = |name: &&str| limited.match_contains.iter().any(|part| name.contains(part.as_str()));
        names.extend(used.filter(named));
    }
    let uncovered: Vec<&str> = names.into_iter().filter(|name| !covered.contains(*name)).collect();
    if !uncovered.is_empty() {
        return Err(format!("insufficient quota to consume: {}", uncovered.join(",")).into());
    }
    let wanted = limited.iter().flat_map(|limited| &limited.match_scopes);
    let mut uncovered = Vec::new();
    for scope in wanted.filter(|scope| scopes::holds(scope, resource, object)) {
        let is_covered = quotas.iter().flat_map(scopes::of).any(|known| {
            known.text("scopeName") == scope.text("scopeName") && scopes::holds(&known, resource, object)
        });
        if !is_covered {
            let values: Vec<&str> = texts(scope.items("values")).collect();
            let (name, operator) = (scope.text("scopeName"), scope.text("operator"));
            uncovered.push(format!("{{{name} {operator} [{}]}}", values.join(" ")));
        }
    }
    match uncovered.is_empty() {
        true => Ok(()),
        false => {
            let scopes = uncovered.join(" ");
            Err(QuotaRejection::Plain(format!("insufficient quota to match these scopes: [{scopes}]")))
        }
    }
}
