//! `kubectl patch`.

use machinery::codec::yaml;

use crate::arguments::{Flag, Matches, option};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, FIELD_MANAGER, FILES, OUTPUT};
use crate::manifest;
use crate::resource::Selection;
use crate::session::Session;
use crate::verbs::Verb;
use crate::writes::{JSON_PATCH, MERGE, STRATEGIC, Writes};

pub const VERB: Verb = Verb::new(
    "patch",
    "Update fields of a resource",
    "(-f FILENAME | TYPE NAME) [-p PATCH|--patch-file FILE]",
    &[FLAGS, FILES, OUTPUT, DRY_RUN, FIELD_MANAGER],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    option("patch", "The patch to be applied to the resource JSON file.").short('p'),
    option("patch-file", "A file containing a patch to be applied to the resource."),
    option("subresource", "If specified, patch will operate on the subresource of the requested object."),
    option("type", "The type of patch being provided; one of [json merge strategic]").default("strategic"),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let (text, file) = (matches.text("patch"), matches.text("patch-file"));
    let content_type = match matches.text("type").to_lowercase().as_str() {
        "json" => JSON_PATCH,
        "merge" => MERGE,
        "strategic" => STRATEGIC,
        other => {
            return fail(format!(
                "--type must be one of [json merge strategic], not {}",
                machinery::field::show_str(other)
            ));
        }
    };
    let text = match (text, file) {
        ("", "") => return fail("must specify --patch or --patch-file containing the contents of the patch"),
        (text, "") => text.to_owned(),
        ("", file) => std::fs::read_to_string(file)
            .map_err(|error| CliError::Text(format!("unable to read patch file: {error}")))?,
        _ => return fail("cannot specify --patch and --patch-file together"),
    };
    let patch = yaml::decode(text.as_bytes())
        .map_err(|error| {
            CliError::Text(format!("unable to parse {}: {error}", machinery::field::show_str(&text)))
        })?
        .value;
    let mut writes = Writes::read(matches, "kubectl-patch")?;
    let manifests = manifest::load(matches, &session.io)?;
    let targets = if manifests.is_empty() {
        session.targets(&Selection::read(matches)).await?
    } else {
        let mut targets = Vec::new();
        for manifest in &manifests {
            targets.push(session.target_of(&manifest.object, &manifest.source).await?);
        }
        targets
    };
    let subresource = matches.explicit("subresource");
    for target in targets {
        let before = session.read(&target.path()).await?;
        if writes.dry_run == DryRun::Client {
            writes.report(session, &before, "patched")?;
            continue;
        }
        let patched = writes.patch(session, &target, subresource, content_type, patch.clone()).await?;
        let is_same = before["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"];
        writes.report(session, &patched, if is_same { "patched (no change)" } else { "patched" })?;
    }
    Ok(())
}
