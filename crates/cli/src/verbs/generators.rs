//! Generators of `kubectl create`: objects from flags.

use base64::Engine as _;
use http::Method;
use serde_json::{Map, Value, json};

use crate::arguments::{Flag, Matches, list, number, option, repeated, switch};
use crate::error::{CliError, fail};
use crate::flags::{DRY_RUN, FIELD_MANAGER, OUTPUT, VALIDATE};
use crate::session::{Request, Session};
use crate::verbs::{Verb, apply};
use crate::writes::Writes;

const SAVE: &[Flag] =
    &[switch("save-config", "If true, the configuration of current object will be saved in its annotation.")];
const DATA: &[Flag] = &[
    repeated("from-literal", "Specify a key and literal value to insert (i.e. mykey=somevalue)"),
    repeated(
        "from-file",
        "Key file can be specified using its file path, or optionally with a key (key=path).",
    ),
    repeated("from-env-file", "Specify the path to a file to read lines of key=val pairs."),
];
const TYPE: &[Flag] = &[option("type", "The type of secret to create")];
const DEPLOYMENT: &[Flag] = &[
    list("image", "Image names to run. A deployment can have multiple images set for multi-container pod."),
    number("port", "-1", "The containerPort that this deployment exposes."),
    number("replicas", "1", "Number of replicas to create."),
];
const JOB: &[Flag] = &[
    option("image", "Image name to run."),
    option("from", "The name of the resource to create a Job from (only cronjob is supported)."),
];
const RULES: &[Flag] = &[
    list("verb", "Verb that applies to the resources contained in the rule"),
    list("resource", "Resource that the rule applies to"),
    list(
        "resource-name",
        "Resource in the white list that the rule applies to, repeat this flag for multiple items",
    ),
];
const CLUSTER_RULES: &[Flag] = &[list("non-resource-url", "A partial url that user should have access to.")];
const BINDING: &[Flag] = &[
    option("clusterrole", "ClusterRole this binding should reference"),
    list("user", "Usernames to bind to the role."),
    list("group", "Groups to bind to the role."),
    list("serviceaccount", "Service accounts to bind to the role, in the format <namespace>:<name>."),
];
const ROLE: &[Flag] = &[option("role", "Role this RoleBinding should reference")];
const TOKEN: &[Flag] = &[
    list("audience", "Audience of the requested token."),
    option("duration", "Requested lifetime of the issued token."),
    option("bound-object-kind", "Kind of an object to bind the token to."),
    option("bound-object-name", "Name of an object to bind the token to."),
    option("bound-object-uid", "UID of an object to bind the token to."),
];

/// Flags of every generator.
macro_rules! flags {
    ($($flags:expr),*) => { &[$($flags,)* SAVE, OUTPUT, DRY_RUN, FIELD_MANAGER, VALIDATE] };
}

pub const VERBS: &[Verb] = &[
    Verb::new(
        "clusterrole",
        "Create a cluster role",
        "NAME --verb=verb --resource=resource.group",
        flags!(RULES, CLUSTER_RULES),
        |session, matches| Box::pin(role(session, matches, "ClusterRole")),
    ),
    Verb::new(
        "clusterrolebinding",
        "Create a cluster role binding for a particular cluster role",
        "NAME --clusterrole=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
        flags!(BINDING),
        |session, matches| Box::pin(binding(session, matches, "ClusterRoleBinding")),
    ),
    Verb::new(
        "configmap",
        "Create a config map from a local file, directory or literal value",
        "NAME [--from-file=[key=]source] [--from-literal=key1=value1]",
        flags!(DATA),
        |session, matches| Box::pin(config_map(session, matches)),
    )
    .aliases(&["cm"]),
    Verb::new(
        "deployment",
        "Create a deployment with the specified name",
        "NAME --image=image -- [COMMAND] [args...]",
        flags!(DEPLOYMENT),
        |session, matches| Box::pin(deployment(session, matches)),
    )
    .aliases(&["deploy"]),
    Verb::new(
        "job",
        "Create a job with the specified name",
        "NAME --image=image [--from=cronjob/name] -- [COMMAND] [args...]",
        flags!(JOB),
        |session, matches| Box::pin(job(session, matches)),
    ),
    Verb::new(
        "namespace",
        "Create a namespace with the specified name",
        "NAME",
        flags!(),
        |session, matches| Box::pin(plain(session, matches, "Namespace")),
    )
    .aliases(&["ns"]),
    Verb::new(
        "role",
        "Create a role with single rule",
        "NAME --verb=verb --resource=resource.group",
        flags!(RULES),
        |session, matches| Box::pin(role(session, matches, "Role")),
    ),
    Verb::new(
        "rolebinding",
        "Create a role binding for a particular role or cluster role",
        "NAME --clusterrole=NAME|--role=NAME [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
        flags!(BINDING, ROLE),
        |session, matches| Box::pin(binding(session, matches, "RoleBinding")),
    ),
    Verb::group(
        "secret",
        "Create a secret using a specified subcommand",
        &[Verb::new(
            "generic",
            "Create a secret from a local file, directory, or literal value",
            "NAME [--type=string] [--from-file=[key=]source] [--from-literal=key1=value1]",
            flags!(DATA, TYPE),
            |session, matches| Box::pin(secret(session, matches)),
        )],
    ),
    Verb::new(
        "serviceaccount",
        "Create a service account with the specified name",
        "NAME",
        flags!(),
        |session, matches| Box::pin(plain(session, matches, "ServiceAccount")),
    )
    .aliases(&["sa"]),
    Verb::new(
        "token",
        "Request a service account token",
        "SERVICE_ACCOUNT_NAME",
        &[TOKEN, OUTPUT],
        |session, matches| Box::pin(token(session, matches)),
    ),
];

/// The name that is the only argument before `--`.
fn name(session: &Session, matches: &Matches) -> Result<String, CliError> {
    let operands = &matches.operands[..matches.dash.unwrap_or(matches.operands.len())];
    match operands {
        [name] => Ok(name.clone()),
        operands => fail(format!(
            "exactly one NAME is required, got {}\nSee '{} -h' for help and examples",
            operands.len(),
            session.command
        )),
    }
}

/// The words after `--`.
fn container_command(matches: &Matches) -> &[String] {
    &matches.operands[matches.dash.unwrap_or(matches.operands.len())..]
}

async fn finish(session: &mut Session, matches: &Matches, mut object: Value) -> Result<(), CliError> {
    let mut writes = Writes::with_validation(matches, "kubectl-create")?;
    let resource = session.resource_of(&object, "").await?;
    if resource.key.namespaced {
        object["metadata"]["namespace"] = json!(session.namespace()?);
    }
    if matches.on("save-config") {
        object = apply::with_last_applied(&object);
    }
    let target = session.target_of(&object, "").await?;
    let failed = format!("failed to create {}", object["kind"].as_str().unwrap_or_default().to_lowercase());
    let created = writes.create(session, &target, object).await.map_err(|error| match &error {
        CliError::Client { error: client::ClientError::Status { .. }, .. } => failure(&error, &failed),
        _ => error,
    })?;
    writes.report(session, &created, "created")
}

/// The message of an error that kubectl wraps: `error: failed to create job: ...`.
fn failure(error: &CliError, step: &str) -> CliError {
    let CliError::Client { error: client::ClientError::Status { status, .. }, .. } = error else {
        return CliError::Text(step.to_owned());
    };
    let message = status.message.clone().unwrap_or_default();
    CliError::Text(format!("{step}: {message}"))
}

async fn plain(session: &mut Session, matches: &Matches, kind: &str) -> Result<(), CliError> {
    let name = name(session, matches)?;
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    if kind == "Namespace" {
        object["spec"] = json!({});
        object["status"] = json!({});
    }
    finish_plainly(session, matches, object).await
}

/// As [`finish`], with the server's error as it is.
async fn finish_plainly(session: &mut Session, matches: &Matches, mut object: Value) -> Result<(), CliError> {
    let mut writes = Writes::with_validation(matches, "kubectl-create")?;
    let resource = session.resource_of(&object, "").await?;
    if resource.key.namespaced {
        object["metadata"]["namespace"] = json!(session.namespace()?);
    }
    if matches.on("save-config") {
        object = apply::with_last_applied(&object);
    }
    let target = session.target_of(&object, "").await?;
    let created = writes.create(session, &target, object).await?;
    writes.report(session, &created, "created")
}

/// The keys and values of `--from-literal`, `--from-file` and `--from-env-file`.
fn data(matches: &Matches) -> Result<Vec<(String, Vec<u8>)>, CliError> {
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    let read = |path: &str| {
        std::fs::read(path).map_err(|error| CliError::Text(format!("error reading {path}: {error}")))
    };
    for literal in matches.all("from-literal") {
        let Some((key, value)) = literal.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return fail(format!("invalid literal source {literal}, expected key=value"));
        };
        let value = value.trim_matches(|quote| quote == '"' || quote == '\'');
        found.push((key.to_owned(), value.as_bytes().to_vec()));
    }
    for source in matches.all("from-file") {
        let (key, path) = match source.split_once('=') {
            Some((key, path)) => (Some(key.to_owned()), path.to_owned()),
            None => (None, source.clone()),
        };
        let base =
            |path: &std::path::Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = std::path::PathBuf::from(path);
        if path.is_dir() {
            if key.is_some() {
                return fail("cannot give a key name for a directory path");
            }
            let entries = std::fs::read_dir(&path).map_err(|error| CliError::Text(error.to_string()))?;
            let mut files: Vec<_> =
                entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
            files.sort();
            for file in files {
                found.push((base(&file), read(&file.to_string_lossy())?));
            }
        } else {
            let bytes = read(&path.to_string_lossy())?;
            found.push((key.unwrap_or_else(|| base(&path)), bytes));
        }
    }
    for path in matches.all("from-env-file") {
        let text = String::from_utf8_lossy(&read(&path)?).into_owned();
        for line in
            text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            found.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    for (index, (key, _)) in found.iter().enumerate() {
        if found[..index].iter().any(|(other, _)| other == key) {
            return fail(format!("cannot add key {key:?}, another key by that name already exists"));
        }
    }
    Ok(found)
}

async fn config_map(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let mut object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name(session, matches)?}});
    for (key, bytes) in data(matches)? {
        match String::from_utf8(bytes) {
            Ok(text) => object["data"][key] = json!(text),
            Err(error) => {
                object["binaryData"][key] = json!(base64::prelude::BASE64_STANDARD.encode(error.as_bytes()))
            }
        }
    }
    finish(session, matches, object).await
}

async fn secret(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let mut object =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name(session, matches)?}});
    for (key, bytes) in data(matches)? {
        object["data"][key] = json!(base64::prelude::BASE64_STANDARD.encode(bytes));
    }
    if let Some(kind) = matches.explicit("type") {
        object["type"] = json!(kind);
    }
    finish(session, matches, object).await
}

/// The name of a container: the last part of its image.
fn container_name(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    let name = name.split('@').next().unwrap_or(name).split(':').next().unwrap_or(name);
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '-' })
        .collect()
}

async fn deployment(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let name = name(session, matches)?;
    let images = matches.all("image");
    let command = container_command(matches);
    if images.is_empty() {
        return fail("required flag(s) \"image\" not set");
    }
    if images.len() > 1 && !command.is_empty() {
        return fail("cannot specify multiple --image options and command");
    }
    let labels = json!({"app": name});
    let mut containers: Vec<Value> = images
        .iter()
        .map(|image| json!({"name": container_name(image), "image": image, "resources": {}}))
        .collect();
    if !command.is_empty() {
        containers[0]["command"] = json!(command);
    }
    if matches.int("port") >= 0 {
        containers[0]["ports"] = json!([{"containerPort": matches.int("port")}]);
    }
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
        "spec": {"replicas": matches.int("replicas"), "selector": {"matchLabels": labels}, "strategy": {},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}},
        "status": {},
    });
    finish(session, matches, object).await
}

async fn job(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let name = name(session, matches)?;
    let (image, from, command) = (matches.text("image"), matches.text("from"), container_command(matches));
    if image.is_empty() == from.is_empty() {
        return fail("either --image or --from must be specified");
    }
    if !from.is_empty() && !command.is_empty() {
        return fail("cannot specify --from and command");
    }
    let mut object =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "status": {}});
    if from.is_empty() {
        let mut container = json!({"name": name, "image": image, "resources": {}});
        if !command.is_empty() {
            container["command"] = json!(command);
        }
        let template = json!({"metadata": {}, "spec": {"containers": [container], "restartPolicy": "Never"}});
        object["spec"] = json!({"template": template});
        return finish(session, matches, object).await;
    }
    let Some(cron_name) = from
        .strip_prefix("cronjob/")
        .or_else(|| from.strip_prefix("cronjobs/"))
        .or_else(|| from.strip_prefix("cj/"))
    else {
        return fail("from must be an existing cronjob");
    };
    let ns = session.namespace()?;
    let resource = session.resource("cronjobs.batch").await?;
    let cron = session.read(&resource.key.path(&ns, cron_name, None)).await?;
    let template = &cron["spec"]["jobTemplate"];
    object["spec"] = template["spec"].clone();
    for key in ["labels", "annotations"] {
        if !template["metadata"][key].is_null() {
            object["metadata"][key] = template["metadata"][key].clone();
        }
    }
    object["metadata"]["annotations"]["cronjob.kubernetes.io/instantiate"] = json!("manual");
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "controller": true,
        "name": cron["metadata"]["name"], "uid": cron["metadata"]["uid"]}]);
    finish(session, matches, object).await
}

async fn role(session: &mut Session, matches: &Matches, kind: &str) -> Result<(), CliError> {
    let name = name(session, matches)?;
    let (verbs, urls) = (matches.all("verb"), matches.all("non-resource-url"));
    let resources = matches.all("resource");
    if verbs.is_empty() {
        return fail("at least one verb must be specified");
    }
    if resources.is_empty() && urls.is_empty() {
        return fail(match kind {
            "Role" => "at least one resource must be specified",
            _ => "one of aggregation-rule, resource or nonResourceURLs must be specified",
        });
    }
    let verbs = if verbs.iter().any(|verb| verb == "*") { vec!["*".to_owned()] } else { verbs };
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for operand in resources {
        let (operand, sub) =
            operand.split_once('/').map_or((operand.as_str(), None), |(operand, sub)| (operand, Some(sub)));
        let key = match operand {
            "*" => ("*".to_owned(), "*".to_owned()),
            operand => {
                let info = session.resource(operand).await.map_err(|error| match error {
                    CliError::Text(text) => CliError::Plain(text),
                    other => other,
                })?;
                (info.key.group, info.key.resource)
            }
        };
        let resource = sub.map_or_else(|| key.1.clone(), |sub| format!("{}/{sub}", key.1));
        match groups.iter_mut().find(|(group, _)| *group == key.0) {
            Some((_, resources)) => resources.push(resource),
            None => groups.push((key.0, vec![resource])),
        }
    }
    let names = matches.all("resource-name");
    let mut rules = Vec::new();
    for (group, resources) in groups {
        let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rules.push(rule);
    }
    if !urls.is_empty() {
        rules.push(json!({"nonResourceURLs": urls, "verbs": verbs}));
    }
    let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules});
    finish_plainly(session, matches, object).await
}

async fn binding(session: &mut Session, matches: &Matches, kind: &str) -> Result<(), CliError> {
    let name = name(session, matches)?;
    let (cluster_role, role) = (matches.text("clusterrole"), matches.text("role"));
    if cluster_role.is_empty() == role.is_empty() {
        return fail(match kind {
            "RoleBinding" => "exactly one of clusterrole or role must be specified",
            _ => "required flag(s) \"clusterrole\" not set",
        });
    }
    const GROUP: &str = "rbac.authorization.k8s.io";
    let mut subjects = Vec::new();
    for (flag, kind) in [("user", "User"), ("group", "Group")] {
        subjects.extend(
            matches.all(flag).into_iter().map(|name| json!({"apiGroup": GROUP, "kind": kind, "name": name})),
        );
    }
    for account in matches.all("serviceaccount") {
        let Some((ns, name)) =
            account.split_once(':').filter(|(ns, name)| !ns.is_empty() && !name.is_empty())
        else {
            return fail("serviceaccount must be <namespace>:<name>");
        };
        subjects.push(json!({"kind": "ServiceAccount", "name": name, "namespace": ns}));
    }
    let reference = match role {
        "" => json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": cluster_role}),
        role => json!({"apiGroup": GROUP, "kind": "Role", "name": role}),
    };
    let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "roleRef": reference});
    if !subjects.is_empty() {
        object["subjects"] = json!(subjects);
    }
    finish(session, matches, object).await
}

async fn token(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let name = name(session, matches)?;
    let ns = session.namespace()?;
    let mut spec = Map::new();
    let audiences = matches.all("audience");
    if !audiences.is_empty() {
        spec.insert("audiences".to_owned(), json!(audiences));
    }
    if let Some(explicit) = matches.explicit("duration") {
        spec.insert("expirationSeconds".to_owned(), json!(crate::flags::duration(explicit)?.as_secs()));
    }
    match matches.text("bound-object-kind") {
        "" => {}
        kind @ ("Pod" | "Secret" | "Node") => {
            let mut bound =
                json!({"apiVersion": "v1", "kind": kind, "name": matches.text("bound-object-name")});
            if let Some(uid) = matches.explicit("bound-object-uid") {
                bound["uid"] = json!(uid);
            }
            spec.insert("boundObjectRef".to_owned(), bound);
        }
        kind => {
            return fail(format!("supported --bound-object-kind values are Node, Pod, Secret, got {kind}"));
        }
    }
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec});
    let path = client::ResourceKey {
        group: String::new(),
        version: "v1".to_owned(),
        resource: "serviceaccounts".to_owned(),
        namespaced: true,
    }
    .path(&ns, &name, Some("token"));
    let issued = session.send(&Request::new(Method::POST, path).body(body)).await;
    let issued = issued.map_err(|error| failure(&error, "failed to create token"))?;
    let text = match crate::printer::Printer::read(matches)? {
        Some(mut printer) => printer.print(&issued)?,
        None => format!("{}\n", issued["status"]["token"].as_str().unwrap_or_default()),
    };
    session.io.out.text(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_named_after_images() {
        for (image, want) in [("busybox", "busybox"), ("a.b/c/Web_1:2", "web-1"), ("x@sha256:aa", "x")] {
            assert_eq!(container_name(image), want);
        }
    }
}
