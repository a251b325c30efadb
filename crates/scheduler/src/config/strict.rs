//! Fields that a KubeSchedulerConfiguration may have: others are refused, as strict decoding does it.

use serde_json::Value;

/// Names of the extension points in `plugins`.
const POINTS: &[&str] = &[
    "multiPoint",
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
    "placementGenerate",
    "placementScore",
];

/// Places in the file, with `[]` for items of lists and `*` for any field, and the fields they may have.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "apiVersion",
            "kind",
            "parallelism",
            "leaderElection",
            "clientConnection",
            "enableProfiling",
            "enableContentionProfiling",
            "percentageOfNodesToScore",
            "podInitialBackoffSeconds",
            "podMaxBackoffSeconds",
            "profiles",
            "extenders",
            "delayCacheUntilActive",
        ],
    ),
    ("clientConnection", &["kubeconfig", "acceptContentTypes", "contentType", "qps", "burst"]),
    (
        "leaderElection",
        &[
            "leaderElect",
            "leaseDuration",
            "renewDeadline",
            "retryPeriod",
            "resourceLock",
            "resourceName",
            "resourceNamespace",
        ],
    ),
    ("profiles[]", &["schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig"]),
    ("profiles[].pluginConfig[]", &["name", "args"]),
    ("profiles[].plugins", POINTS),
    ("profiles[].plugins.*", &["enabled", "disabled"]),
    ("profiles[].plugins.*.enabled[]", &["name", "weight"]),
    ("profiles[].plugins.*.disabled[]", &["name", "weight"]),
    (
        "extenders[]",
        &[
            "urlPrefix",
            "filterVerb",
            "preemptVerb",
            "prioritizeVerb",
            "weight",
            "bindVerb",
            "enableHTTPS",
            "tlsConfig",
            "httpTimeout",
            "nodeCacheCapable",
            "managedResources",
            "ignorable",
        ],
    ),
    (
        "extenders[].tlsConfig",
        &["insecure", "serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"],
    ),
    ("extenders[].managedResources[]", &["name", "ignoredByScheduler"]),
];

/// Fields that are known and change nothing here.
const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    ("", &["parallelism", "enableProfiling", "enableContentionProfiling", "delayCacheUntilActive"]),
    ("clientConnection", &["acceptContentTypes", "contentType", "qps", "burst"]),
    ("leaderElection", &["leaseDuration", "renewDeadline", "retryPeriod"]),
];

/// The fields of a file that do not exist.
pub fn unknown_fields(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(file, "", "", &mut |place, shown, name| {
        if let Some((_, known)) = FIELDS.iter().find(|(known, _)| *known == place)
            && !known.contains(&name)
        {
            found.push(joined(shown, name));
        }
    });
    found
}

/// The fields of a file that are set and change nothing.
pub fn without_effect(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(file, "", "", &mut |place, shown, name| {
        if WITHOUT_EFFECT.iter().any(|(known, names)| *known == place && names.contains(&name)) {
            found.push(joined(shown, name));
        }
    });
    found
}

fn joined(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

/// Visits the fields of all known places: the place, as it is shown, and the field's name.
fn walk(value: &Value, place: &str, shown: &str, visit: &mut impl FnMut(&str, &str, &str)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                visit(place, shown, name);
                let any = place == "profiles[].plugins";
                let below = joined(place, if any { "*" } else { name });
                walk(value, &below, &joined(shown, name), visit);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{place}[]"), &format!("{shown}[{index}]"), visit);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_found_where_fields_are_known() {
        let file = json!({
            "apiVersion": "x", "kind": "y", "parallelism": 4, "profile": [],
            "profiles": [{"schedulerName": "a", "plugins": {"filtr": {}, "score": {"enabled": [{"nam": "x"}]}},
                          "pluginConfig": [{"name": "x", "args": {"anything": 1}}]}],
            "extenders": [{"urlPrefix": "u", "tlsConfig": {"insecur": true}}],
        });
        assert_eq!(
            unknown_fields(&file),
            [
                "extenders[0].tlsConfig.insecur",
                "profile",
                "profiles[0].plugins.filtr",
                "profiles[0].plugins.score.enabled[0].nam",
            ]
        );
        assert_eq!(without_effect(&file), ["parallelism"]);
    }
}
