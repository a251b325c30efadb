//! `kubectl scale`.

use std::time::Duration;

use serde_json::json;

use crate::arguments::{Flag, Matches, number, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, FILES, OUTPUT, SELECTOR, time_limit};
use crate::manifest;
use crate::resource::Selection;
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{MERGE, Writes};

pub const VERB: Verb = Verb::new(
    "scale",
    "Set a new size for a deployment, replica set, or replication controller",
    "[--resource-version=version] [--current-replicas=count] --replicas=COUNT (-f FILENAME | TYPE NAME)",
    &[FLAGS, FILES, SELECTOR, OUTPUT, DRY_RUN],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("all", "Select all resources in the namespace of the specified resource types"),
    number("current-replicas", "-1", "Precondition for current size."),
    number("replicas", "0", "The new desired number of replicas. Required."),
    option("resource-version", "Precondition for resource version."),
    option(
        "timeout",
        "The length of time to wait before giving up on a scale operation, zero means don't wait.",
    )
    .default("0s"),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if matches.explicit("replicas").is_none() {
        return fail("required flag(s) \"replicas\" not set");
    }
    let replicas = matches.int("replicas");
    if replicas < 0 {
        return fail("The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0");
    }
    let current = matches.int("current-replicas");
    if current < -1 {
        return fail("The --current-replicas must specify an integer of -1 or greater");
    }
    let limit = time_limit(matches.text("timeout"))?;
    let mut writes = Writes::read(matches, "")?;
    let manifests = manifest::load(matches, &session.io)?;
    let objects = session.objects_of_manifests(&manifests, &Selection::read(matches)).await?;
    if objects.is_empty() {
        return fail("no objects passed to scale");
    }
    for (target, mut object) in objects {
        if writes.dry_run == DryRun::Client {
            writes.report(session, &object, "scaled")?;
            continue;
        }
        let mut patch = json!({"spec": {"replicas": replicas}});
        if current != -1 || matches.explicit("resource-version").is_some() {
            let scale = session.read(&target.subresource("scale")).await?;
            let have = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if current != -1 && have != current {
                return fail(format!("Expected replicas to be {current}, was {have}"));
            }
            let version = scale["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            if let Some(want) = matches.explicit("resource-version").filter(|want| *want != version) {
                return fail(format!("Expected resource version to be {want}, was {version}"));
            }
            patch["metadata"]["resourceVersion"] = json!(version);
        }
        writes.patch(session, &target, Some("scale"), MERGE, patch).await?;
        if !limit.is_zero() && writes.dry_run == DryRun::None {
            let ends = tokio::time::Instant::now() + limit;
            loop {
                object = session.read(&target.path()).await?;
                let count = |part: &str, key: &str| object[part][key].as_i64().unwrap_or(0);
                if count("status", "replicas") == count("spec", "replicas") {
                    break;
                }
                if tokio::time::Instant::now() > ends {
                    return fail("timed out waiting for the condition");
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        writes.report(session, &object, "scaled")?;
    }
    Ok(())
}
