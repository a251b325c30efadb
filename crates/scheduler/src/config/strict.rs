//! Known fields of a KubeSchedulerConfiguration: others are rejected, as by strict decoding.

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

/// Paths in the file, with `[]` for list items and `*` for any field, and their known fields.
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

/// Known fields that have no effect here.
const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    ("", &["parallelism", "enableContentionProfiling", "delayCacheUntilActive"]),
    ("clientConnection", &["acceptContentTypes", "contentType", "qps", "burst"]),
    ("leaderElection", &["leaseDuration", "renewDeadline", "retryPeriod"]),
];

/// Unknown fields of a file.
pub fn unknown_fields(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(file, "", "", &mut |path, shown, name| {
        if let Some((_, known)) = FIELDS.iter().find(|(known, _)| *known == path)
            && !known.contains(&name)
        {
            found.push(joined(shown, name));
        }
    });
    found
}

/// Fields of a file that are set but have no effect.
pub fn without_effect(file: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(file, "", "", &mut |path, shown, name| {
        if WITHOUT_EFFECT.iter().any(|(known, names)| *known == path && names.contains(&name)) {
            found.push(joined(shown, name));
        }
    });
    found
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Visits the fields of all known paths: the path as displayed, and the field's name.
fn walk(value: &Value, path: &str, shown: &str, visit: &mut impl FnMut(&str, &str, &str)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                visit(path, shown, name);
                let any = path == "profiles[].plugins";
                let below = joined(path, if any { "*" } else { name });
                walk(value, &below, &joined(shown, name), visit);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{path}[]"), &format!("{shown}[{index}]"), visit);
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
    fn unknown_fields_are_reported_with_paths() {
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
