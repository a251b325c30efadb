//! `kubectl replace`.

use serde_json::json;

use crate::arguments::{Flag, Matches, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, FIELD_MANAGER, FILES, OUTPUT, VALIDATE};
use crate::manifest;
use crate::session::Session;
use crate::verbs::{Verb, apply};
use crate::writes::Writes;

pub const VERB: Verb = Verb::new(
    "replace",
    "Replace a resource by file name or stdin",
    "-f FILENAME",
    &[FLAGS, FILES, OUTPUT, DRY_RUN, FIELD_MANAGER, VALIDATE],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] =
    &[switch("save-config", "If true, the configuration of current object will be saved in its annotation.")];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if matches.all("filename").is_empty() {
        return fail("must specify one of -f and -k");
    }
    let mut writes = Writes::with_validation(matches, "kubectl-replace")?;
    let mut errors = Vec::new();
    for manifest in manifest::load(matches, &session.io)? {
        let outcome = async {
            let target = session.target_of(&manifest.object, &manifest.source).await?;
            let mut object = manifest.object.clone();
            if target.resource.key.namespaced {
                object["metadata"]["namespace"] = json!(target.ns);
            }
            let has_annotation = object["metadata"]["annotations"][apply::LAST_APPLIED].is_string();
            if matches.on("save-config") || has_annotation {
                object = apply::with_last_applied(&object);
            }
            if writes.dry_run == DryRun::Client {
                return Ok(object);
            }
            let replaced = writes.replace(session, &target, object).await;
            replaced.map_err(|error| {
                error.during(format!("error when replacing {}", machinery::field::show_str(&manifest.source)))
            })
        }
        .await;
        match outcome {
            Ok(object) => writes.report(session, &object, "replaced")?,
            Err(error) => errors.push(error),
        }
    }
    CliError::all(errors)
}
