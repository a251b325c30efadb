//! `kubectl label` and `kubectl annotate`.

use serde_json::{Map, Value, json};

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, EVERYWHERE, FIELD_MANAGER, FIELD_SELECTOR, FILES, OUTPUT, SELECTOR};
use crate::manifest;
use crate::resource::{Selection, Target};
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{MERGE, Writes};

pub const VERB: Verb = Verb::new(
    "label",
    "Update the labels on a resource",
    "[--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version]",
    FLAGS,
    |session, matches| Box::pin(run(session, matches, &LABELS)),
);

pub const FLAGS: &[&[Flag]] =
    &[OWN, FILES, SELECTOR, FIELD_SELECTOR, EVERYWHERE, OUTPUT, DRY_RUN, FIELD_MANAGER];

const OWN: &[Flag] = &[
    switch("all", "Select all resources, in the namespace of the specified resource types"),
    switch("list", "If true, display the labels or annotations for a given resource."),
    switch(
        "overwrite",
        "If true, allow existing values to be overwritten, otherwise reject updates that overwrite existing ones.",
    ),
    option(
        "resource-version",
        "If non-empty, the update will only succeed if this is the current resource-version for the object.",
    ),
];

/// The member of the metadata that a verb changes, and its words.
pub struct Wording {
    pub member: &'static str,
    pub noun: &'static str,
    pub manager: &'static str,
    pub done: &'static str,
    pub undone: &'static str,
    pub unchanged: &'static str,
}

const LABELS: Wording = Wording {
    member: "labels",
    noun: "label",
    manager: "kubectl-label",
    done: "labeled",
    undone: "unlabeled",
    unchanged: "not labeled",
};

/// `key=value` and `key-`, after the words that name objects.
type Changes = (Vec<(String, String)>, Vec<String>);

fn changes(operands: &[String], noun: &str) -> Result<Changes, CliError> {
    let (mut set, mut removed): Changes = (Vec::new(), Vec::new());
    for operand in operands {
        if let Some((key, value)) = operand.split_once('=').filter(|(key, _)| !key.is_empty()) {
            set.push((key.to_owned(), value.to_owned()));
        } else if let Some(key) = operand.strip_suffix('-').filter(|key| !key.is_empty()) {
            removed.push(key.to_owned());
        } else {
            return fail(format!("unknown {noun} format: {operand}"));
        }
    }
    match set.iter().find(|(key, _)| removed.contains(key)) {
        None => Ok((set, removed)),
        Some(_) if noun == "label" => fail("can not both modify and remove a label in the same command"),
        Some((key, _)) => {
            fail(format!("can not both modify and remove the following {noun}(s) in the same command: {key}"))
        }
    }
}

pub async fn run(session: &mut Session, matches: &Matches, operands: &Wording) -> Result<(), CliError> {
    let is_change = |operand: &String| operand.contains('=') || (operand.len() > 1 && operand.ends_with('-'));
    // The first words name objects.
    let first = matches.operands.iter().position(is_change).unwrap_or(matches.operands.len());
    let (names, rest) = matches.operands.split_at(first);
    let manifests = manifest::load(matches, &session.io)?;
    let (set, removed) = changes(rest, operands.noun)?;
    if names.is_empty() && manifests.is_empty() {
        return fail("one or more resources must be specified as <resource> <name> or <resource>/<name>");
    }
    if set.is_empty() && removed.is_empty() && !matches.on("list") {
        return fail(format!("at least one {} update is required", operands.noun));
    }
    let mut writes = Writes::read(matches, operands.manager)?;
    let selection = Selection { operands: names.to_vec(), ..Selection::read(matches) };
    let objects = session.objects_of_manifests(&manifests, &selection).await?;
    let many = objects.len() > 1;
    for (target, object) in objects {
        if matches.on("list") {
            list(session, operands, &target, &object, many);
            continue;
        }
        one(session, matches, operands, &mut writes, (&target, object), (&set, &removed)).await?;
    }
    Ok(())
}

fn list(session: &mut Session, operands: &Wording, target: &Target, object: &Value, many: bool) {
    let indent = if many { " " } else { "" };
    if many {
        session.io.out.line(&format!(
            "Listing {} for {}.{}/{}:",
            operands.member, target.resource.kind, target.resource.key.group, target.name
        ));
    }
    for (key, value) in object["metadata"][operands.member].as_object().into_iter().flatten() {
        let text = format!("{indent}{key}={}", value.as_str().unwrap_or_default());
        session.io.out.line(&crate::printer::escape_terminal(&text));
    }
}

async fn one(
    session: &mut Session,
    matches: &Matches,
    operands: &Wording,
    writes: &mut Writes,
    (target, mut object): (&Target, Value),
    (set, removed): (&[(String, String)], &[String]),
) -> Result<(), CliError> {
    let have = object["metadata"][operands.member].as_object().cloned().unwrap_or_default();
    if !matches.on("overwrite") {
        let taken: Vec<String> = set
            .iter()
            .filter_map(|(key, value)| {
                let old = have.get(key)?.as_str()?;
                (old != value)
                    .then(|| format!("'{key}' already has a value ({old}), and --overwrite is false"))
            })
            .collect();
        match taken.as_slice() {
            [] => {}
            [one] => return fail(one.clone()),
            many => return fail(format!("[{}]", many.join(", "))),
        }
    }
    let mut patch = Map::new();
    for key in removed {
        if have.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        } else if operands.member == "labels" {
            session.io.out.line(&format!("label {} not found.", machinery::field::show_str(key)));
        }
    }
    for (key, value) in set {
        if have.get(key) != Some(&json!(value)) {
            patch.insert(key.clone(), json!(value));
        }
    }
    let operation = match (patch.is_empty(), patch.values().all(Value::is_null)) {
        (true, _) if operands.member == "labels" => operands.unchanged,
        (false, true) if operands.member == "labels" => operands.undone,
        _ => operands.done,
    };
    if !patch.is_empty() {
        let mut body = json!({"metadata": {operands.member: patch}});
        if let Some(version) = matches.explicit("resource-version") {
            body["metadata"]["resourceVersion"] = json!(version);
        }
        object = match writes.dry_run {
            DryRun::Client => {
                let _ = machinery::patch::merge::apply(&mut object, &body);
                object
            }
            _ => writes.patch(session, target, None, MERGE, body).await?,
        };
    }
    writes.report(session, &object, operation)
}
