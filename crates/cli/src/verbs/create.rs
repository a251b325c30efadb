//! `kubectl create -f`; its generators are in `generators`.

use http::Method;
use serde_json::json;

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, FIELD_MANAGER, FILES, OUTPUT, SELECTOR, VALIDATE};
use crate::manifest;
use crate::session::{Request, Session};
use crate::verbs::{Verb, apply, generators};
use crate::writes::Writes;

pub const VERB: Verb = Verb::new(
    "create",
    "Create a resource from a file or from stdin",
    "-f FILENAME",
    &[FLAGS, FILES, SELECTOR, OUTPUT, DRY_RUN, FIELD_MANAGER, VALIDATE],
    |session, matches| Box::pin(run(session, matches)),
)
.verbs(generators::VERBS);

const FLAGS: &[Flag] = &[
    option("raw", "Raw URI to POST to the server."),
    switch("save-config", "If true, the configuration of current object will be saved in its annotation."),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if !matches.operands.is_empty() {
        let operands = matches.operands.join(" ");
        return fail(format!("Unexpected args: [{operands}]\nSee 'kubectl create -h' for help and examples"));
    }
    if matches.all("filename").is_empty() {
        return fail("must specify one of -f and -k");
    }
    let mut writes = Writes::with_validation(matches, "kubectl-create")?;
    let manifests = manifest::load(matches, &session.io)?;
    if let Some(path) = matches.explicit("raw") {
        for manifest in manifests {
            let answer = session.exchange(&Request::new(Method::POST, path).body(manifest.object)).await?;
            session.io.out.bytes(answer.body());
        }
        return Ok(());
    }
    if manifests.is_empty() {
        return fail("no objects passed to create");
    }
    let selector = machinery::selector::LabelSelector::parse(matches.text("selector"))
        .map_err(|error| CliError::Text(error.to_string()))?;
    let mut errors = Vec::new();
    for manifest in manifests {
        let labels = manifest.object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        if !selector.matches(&labels) {
            continue;
        }
        let outcome = async {
            let target = session.target_of(&manifest.object, &manifest.source).await?;
            let mut object = manifest.object.clone();
            if target.resource.key.namespaced {
                object["metadata"]["namespace"] = json!(target.ns);
            }
            if matches.on("save-config") {
                object = apply::with_last_applied(&object);
            }
            let created = writes.create(session, &target, object).await;
            created.map_err(|error| {
                error.during(format!("error when creating {}", machinery::field::show_str(&manifest.source)))
            })
        }
        .await;
        match outcome {
            Ok(created) => writes.report(session, &created, "created")?,
            Err(error) => errors.push(error),
        }
    }
    CliError::all(errors)
}
