//! `kubectl apply`: three-way patches with the last applied configuration, or server-side apply.

use machinery::field::{self, show_str};
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, DryRun, FIELD_MANAGER, FILES, OUTPUT, SELECTOR, VALIDATE};
use crate::manifest::{self, Manifest};
use crate::patches;
use crate::resource::Target;
use crate::session::{Request, Session};
use crate::verbs::Verb;
use crate::writes::{APPLY, MERGE, STRATEGIC, Writes};

pub const VERB: Verb = Verb::new(
    "apply",
    "Apply a configuration to a resource by file name or stdin",
    "-f FILENAME",
    &[FLAGS, FILES, SELECTOR, OUTPUT, DRY_RUN, FIELD_MANAGER, VALIDATE],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("force-conflicts", "If true, server-side apply will force the changes against conflicts."),
    switch("overwrite", "Automatically resolve conflicts between the modified and live configuration.")
        .default("true"),
    switch("server-side", "If true, apply runs in the server instead of the client."),
];

pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Largest number of further patches when the object changed in between.
const ATTEMPTS: usize = 5;

const CONFLICT: &str = "
Please review the fields above--they currently have other managers. Here
are the ways you can resolve this warning:
* If you intend to manage all of these fields, please re-run the apply
  command with the `--force-conflicts` flag.
* If you do not intend to manage all of the fields, please edit your
  manifest to remove references to the fields that should keep their
  current managers.
* You may co-own fields by updating your manifest to match the existing
  value; in this case, you'll become the manager if the other manager(s)
  stop managing the field (remove it from their configuration).
See https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts";

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if !matches.operands.is_empty() {
        return fail(format!(
            "Unexpected args: [{}]\nSee 'kubectl apply -h' for help and examples",
            matches.operands.join(" ")
        ));
    }
    if matches.all("filename").is_empty() {
        return fail("must specify one of -f and -k");
    }
    if !matches.on("overwrite") {
        return fail("--overwrite=false is not supported; remove the conflicting fields from the manifest");
    }
    let server_side = matches.on("server-side");
    if matches.on("force-conflicts") && !server_side {
        return fail("--force-conflicts only works with --server-side");
    }
    let manager = if server_side { "kubectl" } else { "kubectl-client-side-apply" };
    let mut writes = Writes::with_validation(matches, manager)?;
    if writes.dry_run == DryRun::Client && server_side {
        return fail(
            "--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)",
        );
    }
    let manifests = manifest::load(matches, &session.io)?;
    if manifests.is_empty() {
        return fail("no objects passed to apply");
    }
    let selector = machinery::selector::LabelSelector::parse(matches.text("selector"))
        .map_err(|error| CliError::Text(error.to_string()))?;
    let whole = writes.printer.is_some();
    let (mut errors, mut applied) = (Vec::new(), Vec::new());
    for manifest in manifests {
        let labels = manifest.object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
        if !selector.matches(&labels) {
            continue;
        }
        let outcome = match server_side {
            true => on_server(session, matches, &writes, &manifest).await,
            false => on_client(session, &writes, &manifest).await,
        };
        match outcome {
            Ok((object, operation)) => {
                if whole && !matches!(matches.text("output"), "name") {
                    applied.push(object);
                } else {
                    writes.report(session, &object, operation)?;
                }
            }
            Err(error) => errors.push(error),
        }
    }
    if let Some(printer) = writes.printer.as_mut().filter(|_| !applied.is_empty()) {
        let object = match applied.len() {
            1 => applied.remove(0),
            _ => {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": applied})
            }
        };
        let text = printer.print(&object)?;
        session.io.out.text(&text);
    }
    CliError::all(errors)
}

/// The target of a manifest, and its object with the namespace in it.
async fn prepare(session: &mut Session, manifest: &Manifest) -> Result<(Target, Value), CliError> {
    let target = session.target_of(&manifest.object, &manifest.source).await?;
    let mut object = manifest.object.clone();
    if target.resource.key.namespaced {
        object["metadata"]["namespace"] = json!(target.ns);
    }
    if target.name.is_empty() {
        if let Some(prefix) = object["metadata"]["generateName"].as_str() {
            return fail(format!("from {prefix}: cannot use generate name with apply"));
        }
        return fail("resource name may not be empty");
    }
    Ok((target, object))
}

async fn on_server(
    session: &mut Session,
    matches: &Matches,
    writes: &Writes,
    manifest: &Manifest,
) -> Result<(Value, &'static str), CliError> {
    let (target, object) = prepare(session, manifest).await?;
    let mut request = Request::new(http::Method::PATCH, target.path())
        .queries(crate::flags::write_query(writes.dry_run, &writes.manager, writes.validation))
        .query("force", matches.on("force-conflicts").to_string())
        .body(object);
    request.content_type = APPLY;
    match session.send(&request).await {
        Ok(applied) => Ok((applied, "serverside-applied")),
        Err(CliError::Client { error, .. }) if error.is_conflict() => fail(format!("{error}{CONFLICT}")),
        Err(error) => Err(error),
    }
}

async fn on_client(
    session: &mut Session,
    writes: &Writes,
    manifest: &Manifest,
) -> Result<(Value, &'static str), CliError> {
    let (target, object) = prepare(session, manifest).await?;
    let modified = with_last_applied(&object);
    let source = show_str(&manifest.source);
    let mut attempt = 0;
    loop {
        let current = match session.read(&target.path()).await {
            Ok(current) => current,
            Err(error) if error.is_not_found() => {
                let mut created = modified.clone();
                prune_nulls(&mut created);
                let created = writes.create(session, &target, created).await;
                let created =
                    created.map_err(|error| error.during(format!("error when creating {source}")))?;
                return Ok((created, "created"));
            }
            Err(error) => {
                let step = format!(
                    "error when retrieving current configuration of:\n{}\nfrom server for: {source}",
                    description(&target)
                );
                return Err(error.during(step));
            }
        };
        let annotation = current["metadata"]["annotations"][LAST_APPLIED].as_str();
        if annotation.is_none() && attempt == 0 {
            let resource = format!("{}/{}", target.resource.key.qualified(), target.name);
            session.io.err.line(&format!("Warning: resource {resource} is missing the {LAST_APPLIED} annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically."));
        }
        let original = annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
        let key = &target.resource.key;
        let schemas = match is_built_in(&key.group) {
            true => session.schemas(&key.api_version()).await.ok(),
            false => None,
        };
        let node = schemas
            .as_ref()
            .and_then(|schemas| schemas.kind(&key.group, &key.version, &target.resource.kind).ok());
        let patch = patches::three_way(&original, &modified, &current, node);
        if patch == json!({}) {
            warn_if_deleted(session, &current);
            return Ok((current, "unchanged"));
        }
        if writes.dry_run == DryRun::Client {
            let patch = patches::three_way(&original, &modified, &current, None);
            let mut local = current;
            machinery::patch::merge::apply(&mut local, &patch)
                .map_err(|error| CliError::Text(format!("{error:?}")))?;
            return Ok((local, "configured"));
        }
        let content_type = if node.is_some() { STRATEGIC } else { MERGE };
        let mut patched = writes.patch(session, &target, None, content_type, patch.clone()).await;
        if content_type == STRATEGIC
            && matches!(&patched, Err(CliError::Client { error, .. }) if error.code() == Some(415))
        {
            let patch = patches::three_way(&original, &modified, &current, None);
            patched = writes.patch(session, &target, None, MERGE, patch).await;
        }
        match patched {
            Ok(patched) => {
                warn_if_deleted(session, &patched);
                return Ok((patched, "configured"));
            }
            Err(CliError::Client { error, .. }) if error.is_conflict() && attempt < ATTEMPTS => attempt += 1,
            Err(error) => {
                let step = format!(
                    "error when applying patch:\n{}\nto:\n{}\nfor: {source}",
                    field::json(&patch),
                    description(&target)
                );
                return Err(error.during(step));
            }
        }
    }
}

/// True if the kinds of a group are Kubernetes' own, so that their schemas have merge keys.
fn is_built_in(group: &str) -> bool {
    !group.contains('.') || group.ends_with(".k8s.io")
}

fn warn_if_deleted(session: &mut Session, object: &Value) {
    if object["metadata"]["deletionTimestamp"].is_string() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        session
            .io
            .err
            .line(&format!("Warning: Detected changes to resource {name} which is currently being deleted."));
    }
}

fn description(target: &Target) -> String {
    let key = &target.resource.key;
    let version = if key.group.is_empty() { format!("/{}", key.version) } else { key.api_version() };
    format!(
        "Resource: {}, GroupVersionKind: {}\nName: {}, Namespace: {}",
        show_str(&format!("{version}, Resource={}", key.resource)),
        show_str(&format!("{version}, Kind={}", target.resource.kind)),
        show_str(&target.name),
        show_str(&target.ns),
    )
}

/// The object with itself in an annotation.
pub fn with_last_applied(object: &Value) -> Value {
    let mut object = object.clone();
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    let text = field::json(&object) + "\n";
    object["metadata"]["annotations"][LAST_APPLIED] = json!(text);
    object
}

/// Removes members that are null, which a new object does not have.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotation_contains_the_object_without_itself() {
        let object = json!({"metadata": {"name": "a", "annotations": {LAST_APPLIED: "old"}}, "x": "<"});
        let with = with_last_applied(&object);
        let want = "{\"metadata\":{\"annotations\":{},\"name\":\"a\"},\"x\":\"\\u003c\"}\n";
        assert_eq!(with["metadata"]["annotations"][LAST_APPLIED], want);
    }
}
