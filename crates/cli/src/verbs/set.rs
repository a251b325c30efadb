//! `kubectl set image` and `kubectl set env`.

use machinery::field::show_str;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, FIELD_MANAGER, FILES, OUTPUT, SELECTOR};
use crate::manifest;
use crate::resource::{Selection, Target};
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{STRATEGIC, Writes};

pub const VERB: Verb = Verb::group(
    "set",
    "Set specific features on objects",
    &[
        Verb::new(
            "env",
            "Update environment variables on a pod template",
            "RESOURCE/NAME KEY_1=VAL_1 ... KEY_N=VAL_N",
            &[ENV, FILES, SELECTOR, OUTPUT, DRY_RUN, FIELD_MANAGER],
            |session, matches| Box::pin(env(session, matches)),
        ),
        Verb::new(
            "image",
            "Update the image of a pod template",
            "(-f FILENAME | TYPE NAME) CONTAINER_NAME_1=CONTAINER_IMAGE_1 ... CONTAINER_NAME_N=CONTAINER_IMAGE_N",
            &[IMAGE, FILES, SELECTOR, OUTPUT, DRY_RUN, FIELD_MANAGER],
            |session, matches| Box::pin(image(session, matches)),
        ),
    ],
);

const IMAGE: &[Flag] =
    &[switch("all", "Select all resources, in the namespace of the specified resource types")];
const ENV: &[Flag] = &[
    switch("all", "If true, select all resources in the namespace of the specified resource types"),
    option("containers", "The names of containers in the selected pod templates to change")
        .short('c')
        .default("*"),
];

async fn objects(
    session: &mut Session,
    matches: &Matches,
    names: &[String],
) -> Result<Vec<(Target, Value)>, CliError> {
    let manifests = manifest::load(matches, &session.io)?;
    if manifests.is_empty() && names.is_empty() {
        return fail("one or more resources must be specified as <resource> <name> or <resource>/<name>");
    }
    let selection = Selection { operands: names.to_vec(), ..Selection::read(matches) };
    session.objects_of_manifests(&manifests, &selection).await
}

/// The pod specification of an object, by the path that patches need.
fn pod_spec(object: &Value) -> (&'static [&'static str], &Value) {
    const PATHS: [&[&str]; 3] =
        [&["spec", "jobTemplate", "spec", "template", "spec"], &["spec", "template", "spec"], &["spec"]];
    for path in PATHS {
        let found = path.iter().fold(object, |value, key| &value[*key]);
        if found["containers"].is_array() {
            return (path, found);
        }
    }
    (PATHS[2], &object["spec"])
}

fn nested(path: &[&str], value: Value) -> Value {
    path.iter().rev().fold(value, |value, key| json!({*key: value}))
}

async fn image(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let (changes, names): (Vec<String>, Vec<String>) =
        matches.operands.iter().cloned().partition(|operand| operand.contains('='));
    if changes.is_empty() {
        return fail("at least one image update is required");
    }
    let changes: Vec<(&str, &str)> = changes.iter().filter_map(|operand| operand.split_once('=')).collect();
    let mut writes = Writes::read(matches, "kubectl-set")?;
    for (target, object) in objects(session, matches, &names).await? {
        let (path, spec) = pod_spec(&object);
        let mut patch = json!({});
        for (name, image) in &changes {
            let mut found = false;
            for list in ["initContainers", "containers"] {
                for container in spec[list].as_array().into_iter().flatten() {
                    if *name != "*" && container["name"] != *name {
                        continue;
                    }
                    found = true;
                    if container["image"] != *image {
                        let change = json!({"name": container["name"], "image": image});
                        match &mut patch[list] {
                            Value::Array(changes) => changes.push(change),
                            other => *other = json!([change]),
                        }
                    }
                }
            }
            if !found {
                return fail(format!("unable to find container named {}", show_str(name)));
            }
        }
        write(
            session,
            &mut writes,
            &target,
            object.clone(),
            nested(path, patch.clone()),
            patch == json!({}),
            "image updated",
        )
        .await?;
    }
    Ok(())
}

async fn env(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let is_change = |operand: &String| operand.contains('=') || operand.ends_with('-');
    let (changes, names): (Vec<String>, Vec<String>) = matches.operands.iter().cloned().partition(is_change);
    if changes.is_empty() {
        return fail("at least one environment variable must be provided");
    }
    let mut writes = Writes::read(matches, "kubectl-set")?;
    let wanted = matches.text("containers");
    for (target, object) in objects(session, matches, &names).await? {
        let (path, spec) = pod_spec(&object);
        let mut patch = json!({});
        for list in ["initContainers", "containers"] {
            let mut changed = Vec::new();
            for container in spec[list].as_array().into_iter().flatten() {
                if wanted != "*" && container["name"] != wanted {
                    continue;
                }
                let have = |key: &str| {
                    container["env"].as_array().into_iter().flatten().find(|entry| entry["name"] == key)
                };
                let mut entries = Vec::new();
                for change in &changes {
                    match change.split_once('=') {
                        Some((key, value)) if have(key).is_none_or(|entry| entry["value"] != value) => {
                            entries.push(json!({"name": key, "value": value, "valueFrom": null}));
                        }
                        Some(_) => {}
                        None => {
                            let key = change.trim_end_matches('-');
                            entries.extend(have(key).map(|_| json!({"name": key, "$patch": "delete"})));
                        }
                    }
                }
                if !entries.is_empty() {
                    changed.push(json!({"name": container["name"], "env": entries}));
                }
            }
            if !changed.is_empty() {
                patch[list] = json!(changed);
            }
        }
        write(
            session,
            &mut writes,
            &target,
            object.clone(),
            nested(path, patch.clone()),
            patch == json!({}),
            "env updated",
        )
        .await?;
    }
    Ok(())
}

/// Writes a change of a pod template; nothing is printed about one without effect.
async fn write(
    session: &mut Session,
    writes: &mut Writes,
    target: &Target,
    object: Value,
    patch: Value,
    is_same: bool,
    operation: &str,
) -> Result<(), CliError> {
    if is_same {
        return Ok(());
    }
    let updated = match writes.dry_run {
        DryRun::Client => object,
        _ => writes.patch(session, target, None, STRATEGIC, patch).await?,
    };
    writes.report(session, &updated, operation)
}
