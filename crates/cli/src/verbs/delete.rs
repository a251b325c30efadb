//! `kubectl delete`.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, number, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, EVERYWHERE, FIELD_SELECTOR, FILES, SELECTOR, time_limit};
use crate::manifest;
use crate::resource::{Selection, Target, kind_group};
use crate::session::{Request, Session};
use crate::verbs::{Verb, wait};

pub const VERB: Verb = Verb::new(
    "delete",
    "Delete resources by file names, stdin, resources and names, or by resources and label selector",
    "([-f FILENAME] | TYPE [(NAME | -l label | --all)])",
    &[FLAGS, FILES, SELECTOR, FIELD_SELECTOR, EVERYWHERE, DRY_RUN],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("all", "Delete all resources, in the namespace of the specified resource types."),
    option("cascade", "Must be \"background\", \"orphan\", or \"foreground\".").default("background").bare("background"),
    switch("force", "If true, immediately remove resources from API and bypass graceful deletion."),
    number("grace-period", "-1", "Period of time in seconds given to the resource to terminate gracefully."),
    switch("ignore-not-found", "Treat \"resource not found\" as a successful delete."),
    switch("now", "If true, resources are signaled for immediate shutdown (same as --grace-period=1)."),
    option("output", "Output mode. Use \"-o name\" for shorter output (resource/name).").short('o'),
    option("timeout", "The length of time to wait before giving up on a delete, zero means determine a timeout from the size of the object").default("0s"),
    switch("wait", "If true, wait for resources to be gone before returning.").default("true"),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let selection = Selection::read(matches);
    let dry_run = DryRun::read(matches)?;
    let propagation = propagation(matches)?;
    let (force, grace) = (matches.on("force"), grace_period(matches)?);
    let limit = match matches.text("timeout") {
        "0s" | "0" => time_limit("-1s")?,
        text => time_limit(text)?,
    };
    let mut errors = Vec::new();
    let targets = targets(session, matches, &selection, &mut errors).await?;
    check_flags(matches, &selection)?;
    if grace == 0 && force {
        session.io.err.line("Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.");
    } else if grace > 0 && force {
        return fail("--force and --grace-period greater than 0 cannot be specified together");
    }
    let has_selector = !selection.selector.is_empty() || !selection.field_selector.is_empty();
    let ignore = matches.on("ignore-not-found")
        || ((selection.all || has_selector) && matches.explicit("ignore-not-found").is_none());
    let mut warn_cluster = session.globals.overrides.namespace.is_some() && !selection.everywhere;
    let mut deleted: Vec<(Target, String)> = Vec::new();
    let found = !targets.is_empty();
    for (target, source) in targets {
        if warn_cluster && !target.resource.key.namespaced {
            session
                .io
                .err
                .line("Warning: deleting cluster-scoped resources, not scoped to the provided namespace");
            warn_cluster = false;
        }
        let mut options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation});
        if grace >= 0 {
            options["gracePeriodSeconds"] = json!(grace);
        }
        if dry_run == DryRun::Client {
            deleted.push((target.clone(), String::new()));
            print(session, matches, &target, grace, dry_run);
            continue;
        }
        let mut request = Request::new(Method::DELETE, target.path()).body(options);
        if dry_run == DryRun::Server {
            request = request.query("dryRun", "All");
        }
        match session.send(&request).await {
            Ok(answer) => {
                print(session, matches, &target, grace, dry_run);
                deleted.push((target, uid(&answer)));
            }
            Err(error) if ignore && error.is_not_found() => {}
            Err(error) if source.is_empty() => errors.push(error),
            Err(error) => errors
                .push(error.during(format!("error when deleting {}", machinery::field::show_str(&source)))),
        }
    }
    CliError::all(errors)?;
    if !found {
        session.io.out.line("No resources found");
        return Ok(());
    }
    if !matches.on("wait") || dry_run != DryRun::None {
        return Ok(());
    }
    wait_until_gone(session, &deleted, limit).await
}

fn propagation(matches: &Matches) -> Result<&'static str, CliError> {
    match matches.text("cascade") {
        "background" | "true" => Ok("Background"),
        "foreground" => Ok("Foreground"),
        "orphan" | "false" => Ok("Orphan"),
        other => fail(format!(
            "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
        )),
    }
}

/// The grace period in seconds; negative for the object's own.
fn grace_period(matches: &Matches) -> Result<i64, CliError> {
    let (force, mut grace) = (matches.on("force"), matches.int("grace-period"));
    if matches.on("now") {
        if grace != -1 {
            return fail("--now and --grace-period cannot be specified together");
        }
        grace = 1;
    }
    if grace == 0 && !force {
        // kubectl deletes immediately only with --force.
        grace = 1;
    }
    if force && grace < 0 {
        grace = 0;
    }
    Ok(grace)
}

/// The objects to delete, each with the manifest that names it; manifests of unknown kinds are added to `errors`.
async fn targets(
    session: &mut Session,
    matches: &Matches,
    selection: &Selection,
    errors: &mut Vec<CliError>,
) -> Result<Vec<(Target, String)>, CliError> {
    let manifests = manifest::load(matches, &session.io)?;
    let mut targets: Vec<(Target, String)> = Vec::new();
    if manifests.is_empty() {
        for target in session.targets(selection).await? {
            if target.name.is_empty() {
                let found = session.objects_of(&target, selection).await?;
                targets.extend(found.into_iter().map(|(target, _)| (target, String::new())));
            } else {
                targets.push((target, String::new()));
            }
        }
        return Ok(targets);
    }
    if !matches.operands.is_empty() {
        return fail(
            "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well",
        );
    }
    for manifest in &manifests {
        match session.target_of(&manifest.object, &manifest.source).await {
            Ok(target) => targets.push((target, manifest.source.clone())),
            Err(error) => errors.push(error),
        }
    }
    Ok(targets)
}

fn check_flags(matches: &Matches, selection: &Selection) -> Result<(), CliError> {
    if !matches!(matches.text("output"), "" | "name") {
        return fail(format!(
            "unexpected -o output mode: {}. We only support '-o name'",
            matches.text("output")
        ));
    }
    if selection.all && !selection.selector.is_empty() {
        return fail("cannot set --all and --selector at the same time");
    }
    if selection.all && !selection.field_selector.is_empty() {
        return fail("cannot set --all and --field-selector at the same time");
    }
    Ok(())
}

async fn wait_until_gone(
    session: &mut Session,
    deleted: &[(Target, String)],
    limit: Duration,
) -> Result<(), CliError> {
    let ends = tokio::time::Instant::now() + limit.min(Duration::from_secs(30 * 24 * 3600));
    for (target, uid) in deleted {
        match wait::until_gone(session, target, uid, ends).await {
            Err(CliError::Client { error, .. }) if error.is_forbidden() || error.code() == Some(405) => {
                return Ok(());
            }
            outcome => outcome?,
        }
    }
    Ok(())
}

/// The uid of a deleted object, from the object or a status.
fn uid(answer: &Value) -> String {
    let found =
        if answer["kind"] == "Status" { &answer["details"]["uid"] } else { &answer["metadata"]["uid"] };
    found.as_str().unwrap_or_default().to_owned()
}

fn print(session: &mut Session, matches: &Matches, target: &Target, grace: i64, dry_run: DryRun) {
    if matches.text("output") == "name" {
        session.io.out.line(&target.title());
        return;
    }
    let mut operation = if grace == 0 { "force deleted" } else { "deleted" }.to_owned();
    if target.resource.key.namespaced {
        operation.push_str(&format!(" from {} namespace", target.ns));
    }
    operation.push_str(dry_run.suffix());
    session.io.out.line(&format!("{} \"{}\" {operation}", kind_group(&target.resource), target.name));
}
