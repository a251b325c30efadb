//! `kubectl cordon`, and the mechanism that `uncordon` and `drain` share with it.

use serde_json::{Value, json};

use crate::arguments::Matches;
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, SELECTOR};
use crate::resource::{Selection, Target};
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{STRATEGIC, Writes};

pub const VERB: Verb =
    Verb::new("cordon", "Mark node as unschedulable", "NODE", &[SELECTOR, DRY_RUN], |session, matches| {
        Box::pin(run(session, matches, true))
    });

pub async fn run(session: &mut Session, matches: &Matches, unschedulable: bool) -> Result<(), CliError> {
    for (target, node) in nodes(session, matches).await? {
        set(session, matches, &target, &node, unschedulable).await?;
    }
    Ok(())
}

/// The nodes of the command line.
pub async fn nodes(session: &mut Session, matches: &Matches) -> Result<Vec<(Target, Value)>, CliError> {
    let selector = matches.text("selector");
    if matches.operands.is_empty() && selector.is_empty() {
        let command = &session.command;
        return fail(format!(
            "USAGE: {} NODE [flags]\nSee '{command} -h' for help and examples",
            &command["kubectl ".len()..]
        ));
    }
    if !matches.operands.is_empty() && !selector.is_empty() {
        return fail("cannot specify both a node name and a --selector option");
    }
    let mut operands = vec!["nodes".to_owned()];
    operands.extend(
        matches
            .operands
            .iter()
            .map(|operand| operand.trim_start_matches("node/").trim_start_matches("nodes/").to_owned()),
    );
    session.objects(&Selection { operands, selector: selector.to_owned(), ..Selection::default() }).await
}

/// Sets or clears `unschedulable` of nodes.
pub async fn set(
    session: &mut Session,
    matches: &Matches,
    target: &Target,
    node: &Value,
    unschedulable: bool,
) -> Result<(), CliError> {
    let mut writes = Writes::read(matches, "")?;
    let verb = if unschedulable { "cordoned" } else { "uncordoned" };
    if (node["spec"]["unschedulable"] == true) == unschedulable {
        return writes.report(session, node, &format!("already {verb}"));
    }
    if writes.dry_run != DryRun::Client {
        let value = if unschedulable { json!(true) } else { Value::Null };
        writes.patch(session, target, None, STRATEGIC, json!({"spec": {"unschedulable": value}})).await?;
    }
    writes.report(session, node, verb)
}
