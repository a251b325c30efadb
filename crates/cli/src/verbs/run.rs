//! `kubectl run`: a pod from flags.

use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, option, repeated, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, FIELD_MANAGER, OUTPUT};
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::Writes;

pub const VERB: Verb = Verb::new(
    "run",
    "Run a particular image on the cluster",
    "NAME --image=image [--env=\"key=value\"] [--port=port] [--dry-run=server|client] [--command] -- [COMMAND] [args...]",
    &[FLAGS, OUTPUT, DRY_RUN, FIELD_MANAGER],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    repeated("annotations", "Annotations to apply to the pod."),
    switch(
        "command",
        "If true and extra arguments are present, use them as the 'command' field in the container, rather than the 'args' field.",
    ),
    repeated("env", "Environment variables to set in the container."),
    option("image", "The image for the container to run."),
    option("image-pull-policy", "The image pull policy for the container."),
    option("labels", "Comma separated labels to apply to the pod. Will override previous values.").short('l'),
    option("overrides", "An inline JSON override for the generated object."),
    option("port", "The port that this container exposes."),
    switch("privileged", "If true, run the container in privileged mode."),
    option("restart", "The restart policy for this Pod. Legal values [Always, OnFailure, Never].")
        .default("Always"),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let Some(name) = matches.operands.first().filter(|_| matches.dash != Some(0)) else {
        return fail("NAME is required for run\nSee 'kubectl run -h' for help and examples");
    };
    let image = matches.text("image");
    if image.is_empty() {
        return fail("required flag(s) \"image\" not set");
    }
    let restart = matches.text("restart");
    if !matches!(restart, "Always" | "OnFailure" | "Never") {
        return fail(format!(
            "invalid restart policy: {restart}\nSee 'kubectl run -h' for help and examples"
        ));
    }
    let mut container = json!({"name": name, "image": image, "resources": {}});
    let operands = &matches.operands[1..];
    if !operands.is_empty() {
        container[if matches.on("command") { "command" } else { "args" }] = json!(operands);
    }
    let mut env = Vec::new();
    for pair in matches.all("env") {
        let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return fail(format!("invalid env: {pair}"));
        };
        env.push(json!({"name": key, "value": value}));
    }
    if !env.is_empty() {
        container["env"] = json!(env);
    }
    if let Some(policy) = matches.explicit("image-pull-policy") {
        container["imagePullPolicy"] = json!(policy);
    }
    if let Some(port) = matches.explicit("port") {
        let Ok(port) = port.parse::<u16>() else {
            return fail(format!(
                "strconv.Atoi: parsing {}: invalid syntax",
                machinery::field::show_str(port)
            ));
        };
        container["ports"] = json!([{"containerPort": port}]);
    }
    if matches.on("privileged") {
        container["securityContext"] = json!({"privileged": true});
    }
    let mut labels = json!({"run": name});
    if let Some(explicit) = matches.explicit("labels") {
        labels = pairs(explicit.split(','), "label")?;
    }
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "dnsPolicy": "ClusterFirst", "restartPolicy": restart}, "status": {}});
    let annotations = matches.all("annotations");
    if !annotations.is_empty() {
        pod["metadata"]["annotations"] = pairs(annotations.iter().map(String::as_str), "annotation")?;
    }
    if let Some(overrides) = matches.explicit("overrides") {
        let patch: Value = serde_json::from_str(overrides)
            .map_err(|error| CliError::Text(format!("Invalid JSON: {error}")))?;
        machinery::patch::merge::apply(&mut pod, &patch)
            .map_err(|error| CliError::Text(format!("{error:?}")))?;
    }
    let mut writes = Writes::read(matches, "kubectl-run")?;
    pod["metadata"]["namespace"] = json!(session.namespace()?);
    let target = session.target_of(&pod, "").await?;
    let created = writes.create(session, &target, pod).await?;
    writes.report(session, &created, "created")
}

fn pairs<'a>(parts: impl Iterator<Item = &'a str>, noun: &str) -> Result<Value, CliError> {
    let mut found = json!({});
    for part in parts.filter(|part| !part.is_empty()) {
        let Some((key, value)) = part.split_once('=') else {
            return fail(format!("unexpected {noun} format: {part}"));
        };
        found[key] = json!(value);
    }
    Ok(found)
}
