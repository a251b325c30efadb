//! `kubectl rollout`: status, restart, pause, resume, undo and history of workloads.

use std::time::Duration;

use machinery::field::show_str;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, number, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, FIELD_MANAGER, FILES, OUTPUT, SELECTOR, time_limit};
use crate::manifest;
use crate::printer::{TabWriter, now, title};
use crate::resource::{Selection, Target};
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{JSON_PATCH, STRATEGIC, Writes};

pub const VERB: Verb = Verb::group(
    "rollout",
    "Manage the rollout of a resource",
    &[
        Verb::new(
            "history",
            "View rollout history",
            "(TYPE NAME | TYPE/NAME) [flags]",
            &[FILES, SELECTOR],
            |session, matches| Box::pin(history(session, matches)),
        ),
        Verb::new(
            "pause",
            "Mark the provided resource as paused",
            "RESOURCE",
            CHANGES,
            |session, matches| Box::pin(pause(session, matches, true)),
        ),
        Verb::new("restart", "Restart a resource", "RESOURCE", CHANGES, |session, matches| {
            Box::pin(restart(session, matches))
        }),
        Verb::new("resume", "Resume a paused resource", "RESOURCE", CHANGES, |session, matches| {
            Box::pin(pause(session, matches, false))
        }),
        Verb::new(
            "status",
            "Show the status of the rollout",
            "(TYPE NAME | TYPE/NAME) [flags]",
            &[STATUS, FILES, SELECTOR],
            |session, matches| Box::pin(status(session, matches)),
        ),
        Verb::new(
            "undo",
            "Undo a previous rollout",
            "(TYPE NAME | TYPE/NAME) [flags]",
            &[UNDO, FILES, SELECTOR, OUTPUT, DRY_RUN],
            |session, matches| Box::pin(undo(session, matches)),
        ),
    ],
);

const CHANGES: &[&[Flag]] = &[FILES, SELECTOR, OUTPUT, FIELD_MANAGER];
const STATUS: &[Flag] = &[
    number("revision", "0", "Pin to a specific revision for showing its status."),
    option("timeout", "The length of time to wait before ending watch, zero means never.").default("0s"),
    switch("watch", "Watch the status of the rollout until it's done.").short('w').default("true"),
];
const UNDO: &[Flag] =
    &[number("to-revision", "0", "The revision to rollback to. Default to 0 (last revision).")];
const REVISION: &str = "deployment.kubernetes.io/revision";
const CAUSE: &str = "kubernetes.io/change-cause";

async fn objects(session: &mut Session, matches: &Matches) -> Result<Vec<(Target, Value)>, CliError> {
    let manifests = manifest::load(matches, &session.io)?;
    if matches.operands.is_empty() && manifests.is_empty() {
        return fail("required resource not specified");
    }
    let selection = Selection { types_alone: true, ..Selection::read(matches) };
    session.objects_of_manifests(&manifests, &selection).await
}

/// A rollout as kubectl describes it, and true if it is complete.
type RolloutState = (String, bool);

/// Reads the numbers of a workload's status.
struct Workload<'a> {
    object: &'a Value,
    /// Quoted.
    name: String,
}

impl Workload<'_> {
    fn spec(&self, key: &str) -> i64 {
        self.object["spec"][key].as_i64().unwrap_or(0)
    }

    fn status(&self, key: &str) -> i64 {
        self.object["status"][key].as_i64().unwrap_or(0)
    }

    fn is_observed(&self) -> bool {
        let generation = self.object["metadata"]["generation"].as_i64().unwrap_or(0);
        generation <= self.status("observedGeneration")
    }

    fn deployment(&self, revision: i64) -> Result<RolloutState, CliError> {
        let (object, name) = (self.object, &self.name);
        let own = object["metadata"]["annotations"][REVISION].as_str();
        let own: i64 = own.and_then(|text| text.parse().ok()).unwrap_or(0);
        if revision > 0 && revision != own {
            return fail(format!(
                "desired revision ({revision}) is different from the running revision ({own})"
            ));
        }
        if !self.is_observed() {
            return Ok(("Waiting for deployment spec update to be observed...".to_owned(), false));
        }
        let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let is_late = |condition: &Value| {
            condition["type"] == "Progressing" && condition["reason"] == "ProgressDeadlineExceeded"
        };
        if conditions.iter().any(is_late) {
            return fail(format!("deployment {name} exceeded its progress deadline"));
        }
        let (updated, desired) = (self.status("updatedReplicas"), self.spec("replicas"));
        let (replicas, available) = (self.status("replicas"), self.status("availableReplicas"));
        let waiting = format!("Waiting for deployment {name} rollout to finish:");
        Ok(if updated < desired {
            (format!("{waiting} {updated} out of {desired} new replicas have been updated..."), false)
        } else if replicas > updated {
            (format!("{waiting} {} old replicas are pending termination...", replicas - updated), false)
        } else if available < updated {
            (format!("{waiting} {available} of {updated} updated replicas are available..."), false)
        } else {
            (format!("deployment {name} successfully rolled out"), true)
        })
    }

    fn daemon_set(&self) -> RolloutState {
        if !self.is_observed() {
            return ("Waiting for daemon set spec update to be observed...".to_owned(), false);
        }
        let name = &self.name;
        let (updated, desired) =
            (self.status("updatedNumberScheduled"), self.status("desiredNumberScheduled"));
        let available = self.status("numberAvailable");
        let waiting = format!("Waiting for daemon set {name} rollout to finish:");
        if updated < desired {
            (format!("{waiting} {updated} out of {desired} new pods have been updated..."), false)
        } else if available < desired {
            (format!("{waiting} {available} of {desired} updated pods are available..."), false)
        } else {
            (format!("daemon set {name} successfully rolled out"), true)
        }
    }

    fn stateful_set(&self) -> RolloutState {
        if !self.is_observed() || self.status("observedGeneration") == 0 {
            return ("Waiting for statefulset spec update to be observed...".to_owned(), false);
        }
        let (desired, ready) = (self.spec("replicas"), self.status("readyReplicas"));
        if ready < desired {
            return (format!("Waiting for {} pods to be ready...", desired - ready), false);
        }
        let updated = self.status("updatedReplicas");
        let rolling = &self.object["spec"]["updateStrategy"]["rollingUpdate"];
        if let Some(partition) = rolling["partition"].as_i64() {
            let desired = desired.saturating_sub(partition);
            return if updated < desired {
                (
                    format!(
                        "Waiting for partitioned roll out to finish: {updated} out of {desired} new pods have been updated..."
                    ),
                    false,
                )
            } else {
                (format!("partitioned roll out complete: {updated} new pods have been updated..."), true)
            };
        }
        let revision = |key: &str| self.object["status"][key].as_str().unwrap_or_default();
        let (current, update) = (revision("currentRevision"), revision("updateRevision"));
        if update == current {
            let count = self.status("currentReplicas");
            (format!("statefulset rolling update complete {count} pods at revision {current}..."), true)
        } else {
            (
                format!(
                    "waiting for statefulset rolling update to complete {updated} pods at revision {update}..."
                ),
                false,
            )
        }
    }
}

/// The state of a rollout.
fn state(object: &Value, revision: i64) -> Result<RolloutState, CliError> {
    let name = show_str(object["metadata"]["name"].as_str().unwrap_or_default());
    let workload = Workload { object, name };
    let strategy = object["spec"]["updateStrategy"]["type"].as_str().unwrap_or_default();
    match object["kind"].as_str().unwrap_or_default() {
        "Deployment" => workload.deployment(revision),
        "DaemonSet" | "StatefulSet" if strategy != "RollingUpdate" => {
            fail("rollout status is only available for RollingUpdate strategy type")
        }
        "DaemonSet" => Ok(workload.daemon_set()),
        "StatefulSet" => Ok(workload.stateful_set()),
        kind => {
            let group = object["apiVersion"]
                .as_str()
                .and_then(|version| version.split_once('/'))
                .map_or("", |(group, _)| group);
            let shown = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
            fail(format!("no status viewer has been implemented for {shown}"))
        }
    }
}

async fn status(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let limit = time_limit(matches.text("timeout"))?;
    let found = objects(session, matches).await?;
    if found.is_empty() {
        let ns = session.namespace()?;
        session.io.err.line(&format!("No resources found in {ns} namespace."));
    }
    let ends = tokio::time::Instant::now() + limit;
    for (target, mut object) in found {
        let mut last = String::new();
        loop {
            let (text, done) = state(&object, matches.int("revision"))?;
            if text != last {
                session.io.out.line(&text);
                last = text;
            }
            if done || !matches.on("watch") {
                break;
            }
            if !limit.is_zero() && tokio::time::Instant::now() > ends {
                return fail("timed out waiting for the condition");
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
            object = match session.read(&target.path()).await {
                Err(error) if error.is_not_found() => return fail("object has been deleted"),
                read => read?,
            };
        }
    }
    Ok(())
}

async fn restart(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let mut writes = Writes::read(matches, "kubectl-rollout")?;
    let mut errors = Vec::new();
    for (target, object) in objects(session, matches).await? {
        let kind = target.resource.kind.as_str();
        if !matches!(kind, "Deployment" | "DaemonSet" | "StatefulSet") {
            errors.push(CliError::Text(format!(
                "{} {} restarting is not supported",
                target.resource.key.qualified(),
                show_str(&target.name)
            )));
            continue;
        }
        if kind == "Deployment" && object["spec"]["paused"] == true {
            errors.push(CliError::Text(format!(
                "{} {} can't restart paused deployment (run rollout resume first)",
                target.resource.key.qualified(),
                show_str(&target.name)
            )));
            continue;
        }
        let time = machinery::codec::time::format(
            machinery::codec::time::Instant { seconds: now(), nanos: 0 },
            false,
        );
        let annotations = json!({"kubectl.kubernetes.io/restartedAt": time});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        match writes.patch(session, &target, None, STRATEGIC, patch).await {
            Ok(object) => writes.report(session, &object, "restarted")?,
            Err(error) => errors.push(error),
        }
    }
    CliError::all(errors)
}

async fn pause(session: &mut Session, matches: &Matches, paused: bool) -> Result<(), CliError> {
    let mut writes = Writes::read(matches, "kubectl-rollout")?;
    let (done, already, noun) = match paused {
        true => ("paused", "is already paused", "pausing"),
        false => ("resumed", "is not paused", "resuming"),
    };
    let mut errors = Vec::new();
    for (target, object) in objects(session, matches).await? {
        let resource = target.resource.key.qualified();
        let problem = match target.resource.kind.as_str() {
            "Deployment" if (object["spec"]["paused"] == true) == paused => already.to_owned(),
            "Deployment" => {
                let patch = json!({"spec": {"paused": if paused { json!(true) } else { Value::Null }}});
                let object = writes.patch(session, &target, None, STRATEGIC, patch).await?;
                writes.report(session, &object, done)?;
                continue;
            }
            _ => format!("{noun} is not supported"),
        };
        errors.push(CliError::Text(format!("error: {resource} {} {problem}", show_str(&target.name))));
    }
    CliError::all(errors)
}

/// Revisions of a workload, oldest first: number, cause and the template or data of each.
async fn revisions(
    session: &mut Session,
    target: &Target,
    object: &Value,
) -> Result<Vec<(i64, String, Value)>, CliError> {
    let is_deployment = target.resource.kind == "Deployment";
    let resource =
        session.resource(if is_deployment { "replicasets.apps" } else { "controllerrevisions.apps" }).await?;
    let all = Target { resource, ns: target.ns.clone(), name: String::new() };
    let uid = object["metadata"]["uid"].clone();
    let mut found = Vec::new();
    for (_, owned) in session.objects_of(&all, &Selection::default()).await? {
        let owners = owned["metadata"]["ownerReferences"].as_array().map_or(&[][..], Vec::as_slice);
        if !owners.iter().any(|owner| owner["uid"] == uid && owner["controller"] == true) {
            continue;
        }
        let annotations = &owned["metadata"]["annotations"];
        let cause = annotations[CAUSE].as_str().unwrap_or("<none>").to_owned();
        let (number, content) = match is_deployment {
            true => (
                annotations[REVISION].as_str().and_then(|text| text.parse().ok()),
                &owned["spec"]["template"],
            ),
            false => (owned["revision"].as_i64(), &owned["data"]),
        };
        found.extend(number.map(|number| (number, cause, content.clone())));
    }
    found.sort_by_key(|(number, ..)| *number);
    Ok(found)
}

async fn history(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    for (target, object) in objects(session, matches).await? {
        if !matches!(target.resource.kind.as_str(), "Deployment" | "DaemonSet" | "StatefulSet") {
            let kind = &target.resource.kind;
            return fail(format!("no history viewer has been implemented for {}", show_str(kind)));
        }
        let found = revisions(session, &target, &object).await?;
        let mut writer = TabWriter::new(0, 2);
        writer.row(&["REVISION", "CHANGE-CAUSE"]);
        for (number, cause, _) in found {
            writer.row(&[number.to_string(), cause]);
        }
        let text = format!("{} \n{}\n", title(&object), writer.flush());
        session.io.out.text(&text);
    }
    Ok(())
}

async fn undo(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let mut writes = Writes::read(matches, "kubectl-rollout")?;
    let wanted = matches.int("to-revision");
    for (target, object) in objects(session, matches).await? {
        let kind = target.resource.kind.as_str();
        if !matches!(kind, "Deployment" | "DaemonSet" | "StatefulSet") {
            return fail(format!("no rollbacker has been implemented for {}", show_str(kind)));
        }
        if kind == "Deployment" && object["spec"]["paused"] == true {
            return fail(
                "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
            );
        }
        let found = revisions(session, &target, &object).await?;
        let chosen = match wanted {
            0 => found.len().checked_sub(2).and_then(|index| found.get(index)),
            wanted => found.iter().find(|(number, ..)| *number == wanted),
        };
        let Some((number, _, content)) = chosen else {
            return match (wanted, kind) {
                (0, "Deployment") => {
                    fail(format!("no rollout history found for deployment {}", show_str(&target.name)))
                }
                (0, _) => fail("no last revision to roll back to"),
                (wanted, _) => fail(format!("unable to find specified revision {wanted} in history")),
            };
        };
        let mut template =
            if kind == "Deployment" { content.clone() } else { content["spec"]["template"].clone() };
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
        }
        if let Some(members) = template.as_object_mut() {
            members.remove("$patch");
        }
        let is_same = |left: &Value, right: &Value| {
            left["spec"] == right["spec"]
                && left["metadata"]["labels"] == right["metadata"]["labels"]
                && left["metadata"]["annotations"] == right["metadata"]["annotations"]
        };
        if is_same(&template, &object["spec"]["template"]) {
            writes.report(
                session,
                &object,
                &format!("skipped rollback (current template already matches revision {number})"),
            )?;
            continue;
        }
        let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
        let restored = match writes.dry_run {
            crate::flags::DryRun::Client => object,
            _ => writes.patch(session, &target, None, JSON_PATCH, patch).await?,
        };
        writes.report(session, &restored, "rolled back")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollout_states_have_kubectl_messages() {
        let object = |status: Value| json!({"kind": "Deployment", "metadata": {"name": "web", "generation": 2}, "spec": {"replicas": 3}, "status": status});
        let text = |status: Value| state(&object(status), 0).map_err(|error| error.to_text());
        let waiting = "Waiting for deployment \"web\" rollout to finish:";
        let rows = [
            (json!({}), ("Waiting for deployment spec update to be observed...".to_owned(), false)),
            (
                json!({"observedGeneration": 2, "updatedReplicas": 1}),
                (format!("{waiting} 1 out of 3 new replicas have been updated..."), false),
            ),
            (
                json!({"observedGeneration": 2, "updatedReplicas": 3, "replicas": 4}),
                (format!("{waiting} 1 old replicas are pending termination..."), false),
            ),
            (
                json!({"observedGeneration": 2, "updatedReplicas": 3, "replicas": 3, "availableReplicas": 2}),
                (format!("{waiting} 2 of 3 updated replicas are available..."), false),
            ),
            (
                json!({"observedGeneration": 2, "updatedReplicas": 3, "replicas": 3, "availableReplicas": 3}),
                ("deployment \"web\" successfully rolled out".to_owned(), true),
            ),
        ];
        for (status, want) in rows {
            assert_eq!(text(status), Ok(want));
        }
        assert!(text(json!({"observedGeneration": 2, "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]})).is_err());
        assert!(state(&json!({"kind": "Pod"}), 0).is_err());
    }
}
