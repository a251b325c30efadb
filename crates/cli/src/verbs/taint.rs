//! `kubectl taint`.

use machinery::field::show_str;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, FIELD_MANAGER, OUTPUT, SELECTOR};
use crate::resource::Selection;
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{MERGE, Writes};

pub const VERB: Verb = Verb::new(
    "taint",
    "Update the taints on one or more nodes",
    "NODE NAME KEY_1=VAL_1:TAINT_EFFECT_1 ... KEY_N=VAL_N:TAINT_EFFECT_N",
    &[FLAGS, SELECTOR, OUTPUT, DRY_RUN, FIELD_MANAGER],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("all", "Select all nodes in the cluster"),
    switch(
        "overwrite",
        "If true, allow taints to be overwritten, otherwise reject taint updates that overwrite existing taints.",
    ),
];

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A taint to add, or one to remove; a removal without effect is of all effects.
struct TaintChange {
    key: String,
    value: String,
    effect: String,
    removes: bool,
}

impl TaintChange {
    fn parse(operand: &str) -> Result<Self, CliError> {
        let removes = operand.ends_with('-');
        let text = operand.trim_end_matches('-');
        let (pair, effect) = text.split_once(':').unwrap_or((text, ""));
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key.is_empty() || (!removes && effect.is_empty()) {
            return fail(format!("invalid taint spec: {operand}"));
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            return fail(format!("invalid taint effect: {effect}, unsupported taint effect"));
        }
        Ok(Self { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned(), removes })
    }

    /// True if a taint has the key and the effect.
    fn concerns(&self, taint: &Value) -> bool {
        taint["key"] == self.key.as_str()
            && (self.effect.is_empty() || taint["effect"] == self.effect.as_str())
    }
}

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let is_change =
        |operand: &String| operand.contains(':') || operand.contains('=') || operand.ends_with('-');
    let first = matches.operands.iter().position(is_change).unwrap_or(matches.operands.len());
    let (names, changes) = matches.operands.split_at(first);
    if names.is_empty() {
        return fail("one or more resources must be specified as <resource> <name>");
    }
    if changes.is_empty() {
        return fail("at least one taint update is required");
    }
    let changes: Vec<TaintChange> =
        changes.iter().map(|operand| TaintChange::parse(operand)).collect::<Result<_, _>>()?;
    let selection = Selection { operands: names.to_vec(), ..Selection::read(matches) };
    let mut writes = Writes::read(matches, "kubectl-taint")?;
    for (target, node) in session.objects(&selection).await? {
        if target.resource.kind != "Node" {
            return fail(format!(
                "invalid resource type {}, only node types are supported",
                show_str(&target.resource.key.resource)
            ));
        }
        let mut taints: Vec<Value> = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let taken =
            |change: &TaintChange| !change.removes && taints.iter().any(|taint| change.concerns(taint));
        if !matches.on("overwrite") && changes.iter().any(taken) {
            return fail(format!(
                "node {} already has a taint(s) with same effect(s) and --overwrite is false",
                target.name
            ));
        }
        let (mut added, mut removed) = (false, false);
        for change in &changes {
            let before = taints.len();
            taints.retain(|taint| !change.concerns(taint));
            if change.removes {
                if taints.len() == before {
                    let shown = if change.effect.is_empty() {
                        change.key.clone()
                    } else {
                        format!("{}:{}", change.key, change.effect)
                    };
                    return fail(format!("taint {} not found", show_str(&shown)));
                }
                removed = true;
                continue;
            }
            let mut taint = json!({"key": change.key, "effect": change.effect});
            if !change.value.is_empty() {
                taint["value"] = json!(change.value);
            }
            taints.push(taint);
            added = true;
        }
        let operation = match (added, removed) {
            (true, true) => "modified",
            (false, true) => "untainted",
            _ => "tainted",
        };
        let value = if taints.is_empty() { Value::Null } else { json!(taints) };
        let object = match writes.dry_run {
            DryRun::Client => node,
            _ => writes.patch(session, &target, None, MERGE, json!({"spec": {"taints": value}})).await?,
        };
        writes.report(session, &object, operation)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_specification_is_parsed() {
        let parse = |operand: &str| {
            TaintChange::parse(operand)
                .map(|change| (change.key, change.value, change.effect, change.removes))
                .map_err(|error| error.to_text())
        };
        assert_eq!(parse("a=b:NoSchedule"), Ok(("a".into(), "b".into(), "NoSchedule".into(), false)));
        assert_eq!(parse("a:NoExecute"), Ok(("a".into(), String::new(), "NoExecute".into(), false)));
        assert_eq!(parse("a-"), Ok(("a".into(), String::new(), String::new(), true)));
        assert_eq!(parse("a:NoSchedule-"), Ok(("a".into(), String::new(), "NoSchedule".into(), true)));
        assert_eq!(parse("a=b"), Err("error: invalid taint spec: a=b".into()));
        assert!(parse("a:Nope").is_err());
    }
}
