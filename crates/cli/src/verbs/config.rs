//! `kubectl config`: kubeconfig files.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use machinery::codec::yaml;
use machinery::field::show_str;
use serde_json::{Map, Value, json};

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::flags::OUTPUT;
use crate::printer::{Printer, TabWriter};
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb = Verb::group(
    "config",
    "Modify kubeconfig files",
    &[
        Verb::new("current-context", "Display the current-context", "", &[], |session, _| {
            Box::pin(async { current(session) })
        }),
        Verb::new("get-clusters", "Display clusters defined in the kubeconfig", "", &[], |session, _| {
            Box::pin(async { names(session, "clusters") })
        }),
        Verb::new(
            "get-contexts",
            "Describe one or many contexts",
            "[(-o|--output=)name)]",
            &[CONTEXTS],
            |session, matches| Box::pin(async { contexts(session, matches) }),
        ),
        Verb::new("get-users", "Display users defined in the kubeconfig", "", &[], |session, _| {
            Box::pin(async { names(session, "users") })
        }),
        Verb::new(
            "delete-context",
            "Delete the specified context from the kubeconfig",
            "NAME",
            &[],
            |session, matches| Box::pin(async { delete(session, matches, "contexts", "context") }),
        ),
        Verb::new(
            "delete-cluster",
            "Delete the specified cluster from the kubeconfig",
            "NAME",
            &[],
            |session, matches| Box::pin(async { delete(session, matches, "clusters", "cluster") }),
        ),
        Verb::new(
            "delete-user",
            "Delete the specified user from the kubeconfig",
            "NAME",
            &[],
            |session, matches| Box::pin(async { delete(session, matches, "users", "user") }),
        ),
        Verb::new(
            "set-cluster",
            "Set a cluster entry in kubeconfig",
            "NAME",
            &[CLUSTER],
            |session, matches| Box::pin(async { set(session, matches, "clusters", "cluster", CLUSTER) }),
        ),
        Verb::new(
            "set-context",
            "Set a context entry in kubeconfig",
            "[NAME | --current]",
            &[CONTEXT],
            |session, matches| Box::pin(async { set(session, matches, "contexts", "context", CONTEXT) }),
        ),
        Verb::new(
            "set-credentials",
            "Set a user entry in kubeconfig",
            "NAME",
            &[USER],
            |session, matches| Box::pin(async { set(session, matches, "users", "user", USER) }),
        ),
        Verb::new(
            "use-context",
            "Set the current-context in a kubeconfig file",
            "CONTEXT_NAME",
            &[],
            |session, matches| Box::pin(async { use_context(session, matches) }),
        )
        .aliases(&["use"]),
        Verb::new(
            "view",
            "Display merged kubeconfig settings or a specified kubeconfig file",
            "",
            &[VIEW, OUTPUT],
            |session, matches| Box::pin(async { view(session, matches) }),
        ),
    ],
);

const CONTEXTS: &[Flag] = &[
    switch(
        "no-headers",
        "When using the default or custom-column output format, don't print headers (default print headers).",
    ),
    option("output", "Output format. One of: (name).").short('o'),
];
const CLUSTER: &[Flag] = &[
    option("certificate-authority", "Path to certificate-authority file for the cluster entry in kubeconfig"),
    switch("embed-certs", "Embed the files for the entry in kubeconfig."),
    switch("insecure-skip-tls-verify", "insecure-skip-tls-verify for the cluster entry in kubeconfig"),
    option("proxy-url", "proxy-url for the cluster entry in kubeconfig"),
    option("server", "server for the cluster entry in kubeconfig"),
    option("tls-server-name", "tls-server-name for the cluster entry in kubeconfig"),
];
const CONTEXT: &[Flag] = &[
    switch("current", "Modify the current context"),
    option("cluster", "cluster for the context entry in kubeconfig"),
    option("namespace", "namespace for the context entry in kubeconfig").short('n'),
    option("user", "user for the context entry in kubeconfig"),
];
const USER: &[Flag] = &[
    option("client-certificate", "Path to client-certificate file for the user entry in kubeconfig"),
    option("client-key", "Path to client-key file for the user entry in kubeconfig"),
    switch("embed-certs", "Embed client cert/key for the user entry in kubeconfig"),
    option("password", "password for the user entry in kubeconfig"),
    option("token", "token for the user entry in kubeconfig"),
    option("username", "username for the user entry in kubeconfig"),
];
const VIEW: &[Flag] = &[
    switch("flatten", "Flatten the resulting kubeconfig file into self-contained output; not supported."),
    switch("minify", "Remove all information not used by current-context from the output"),
    switch("raw", "Display raw byte data and sensitive data"),
];

fn current(session: &mut Session) -> Result<(), CliError> {
    let merged = session.kubeconfig()?;
    match merged.current_context() {
        "" => fail("current-context is not set"),
        name => {
            session.io.out.line(name);
            Ok(())
        }
    }
}

fn entries(list: Option<&Value>) -> Vec<&Value> {
    let mut entries: Vec<&Value> = list.and_then(Value::as_array).into_iter().flatten().collect();
    entries.sort_by_key(|entry| entry["name"].as_str().unwrap_or_default().to_owned());
    entries
}

fn names(session: &mut Session, list: &str) -> Result<(), CliError> {
    let merged = session.kubeconfig()?;
    session.io.out.line("NAME");
    for entry in entries(merged.root.get(list)) {
        session.io.out.line(entry["name"].as_str().unwrap_or_default());
    }
    Ok(())
}

fn contexts(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let merged = session.kubeconfig()?;
    let as_names = match matches.text("output") {
        "" => false,
        "name" => true,
        other => return fail(format!("output must be one of '' or 'name': {other}")),
    };
    let mut errors = Vec::new();
    let all = entries(merged.root.get("contexts"));
    let mut chosen: Vec<&Value> = Vec::new();
    for name in &matches.operands {
        match all.iter().find(|entry| entry["name"] == name.as_str()) {
            Some(entry) => chosen.push(entry),
            None => errors.push(CliError::Text(format!("context {name} not found"))),
        }
    }
    if matches.operands.is_empty() {
        chosen = all;
    }
    let mut writer = TabWriter::default();
    if !as_names && !matches.on("no-headers") {
        writer.row(&["CURRENT", "NAME", "CLUSTER", "AUTHINFO", "NAMESPACE"]);
    }
    for entry in chosen {
        let text = |key: &str| entry["context"][key].as_str().unwrap_or_default().to_owned();
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        if as_names {
            writer.row(&[name]);
        } else {
            let mark = if name == merged.current_context() { "*" } else { "" };
            writer.row(&[mark.to_owned(), name, text("cluster"), text("user"), text("namespace")]);
        }
    }
    let text = writer.flush();
    session.io.out.text(&text);
    CliError::all(errors)
}

/// The file that changes go to: the first that exists, or the last of the list.
fn target_file(session: &Session) -> Result<PathBuf, CliError> {
    let paths = session.kubeconfig_paths();
    let existing = paths.iter().find(|path| path.exists()).or(paths.last());
    existing.cloned().ok_or_else(|| {
        CliError::Text("no kubeconfig file to write to: neither KUBECONFIG nor HOME is set".to_owned())
    })
}

fn read(path: &Path) -> Result<Value, CliError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let decoded = machinery::kubeconfig::decode(&bytes).map_err(|error| {
                CliError::Text(format!(
                    "error loading config file {}: {error}",
                    show_str(&path.display().to_string())
                ))
            })?;
            Ok(Value::Object(decoded))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(json!({})),
        Err(error) => {
            fail(format!("error loading config file {}: {error}", show_str(&path.display().to_string())))
        }
    }
}

/// Writes a file whole, readable by its owner only.
fn write(path: &Path, mut root: Value) -> Result<(), CliError> {
    for (key, value) in [
        ("apiVersion", json!("v1")),
        ("kind", json!("Config")),
        ("preferences", json!({})),
        ("current-context", json!("")),
    ] {
        if root[key].is_null() {
            root[key] = value;
        }
    }
    for list in ["clusters", "contexts", "users"] {
        if let Value::Array(entries) = &mut root[list] {
            entries.sort_by_key(|entry| entry["name"].as_str().unwrap_or_default().to_owned());
        }
    }
    let outcome = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
        base::file::replace(path, &yaml::encode(&root), base::file::PRIVATE).map_err(std::io::Error::other)
    });
    outcome.map_err(|error| CliError::Text(format!("error writing {}: {error}", path.display())))
}

fn use_context(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let [name] = matches.operands.as_slice() else {
        return fail(
            "Unexpected args: []\nSee 'kubectl config use-context -h' for help and examples"
                .replace("[]", &format!("[{}]", matches.operands.join(" "))),
        );
    };
    if session.kubeconfig()?.entry("contexts", name).is_none() {
        return fail(format!("no context exists with the name: {}", show_str(name)));
    }
    let path = target_file(session)?;
    let mut root = read(&path)?;
    root["current-context"] = json!(name);
    write(&path, root)?;
    session.io.out.line(&format!("Switched to context {}.", show_str(name)));
    Ok(())
}

fn set(
    session: &mut Session,
    matches: &Matches,
    list: &str,
    content: &str,
    flags: &[Flag],
) -> Result<(), CliError> {
    let path = target_file(session)?;
    let mut root = read(&path)?;
    let name = match matches.operands.as_slice() {
        [name] if !matches.on("current") => name.clone(),
        [] if matches.on("current") => match session.kubeconfig()?.current_context() {
            "" => return fail("no current context is set"),
            name => name.to_owned(),
        },
        operands => {
            return fail(format!(
                "Unexpected args: [{}]\nSee '{} -h' for help and examples",
                operands.join(" "),
                session.command
            ));
        }
    };
    if !root[list].is_array() {
        root[list] = json!([]);
    }
    let Value::Array(entries) = &mut root[list] else { return Ok(()) };
    let at = entries.iter().position(|entry| entry["name"] == name.as_str());
    let existed = at.is_some();
    let at = at.unwrap_or_else(|| {
        entries.push(json!({"name": name, content: {}}));
        entries.len() - 1
    });
    if !entries[at][content].is_object() {
        entries[at][content] = json!({});
    }
    let entry = &mut entries[at][content];
    for flag in flags {
        let Some(value) = matches.explicit(flag.name) else { continue };
        match flag.name {
            "current" | "embed-certs" => {}
            "insecure-skip-tls-verify" => entry[flag.name] = json!(value == "true"),
            "certificate-authority" | "client-certificate" | "client-key" => {
                let members = entry.as_object_mut();
                let data = format!("{}-data", flag.name);
                members.into_iter().for_each(|members| {
                    members.remove(flag.name);
                    members.remove(&data);
                });
                if matches.on("embed-certs") {
                    let bytes = std::fs::read(value).map_err(|error| {
                        CliError::Text(format!("could not read {} data from {value}: {error}", flag.name))
                    })?;
                    entry[&data] = json!(base64::prelude::BASE64_STANDARD.encode(bytes));
                } else {
                    let absolute =
                        std::path::absolute(value).map_err(|error| CliError::Text(error.to_string()))?;
                    entry[flag.name] = json!(absolute.display().to_string());
                }
            }
            "" => {}
            name => entry[name] = json!(value),
        }
    }
    write(&path, root)?;
    let line = match (content, existed) {
        ("cluster", _) => format!("Cluster {} set.", show_str(&name)),
        ("user", _) => format!("User {} set.", show_str(&name)),
        (_, true) => format!("Context {} modified.", show_str(&name)),
        (_, false) => format!("Context {} created.", show_str(&name)),
    };
    session.io.out.line(&line);
    Ok(())
}

fn delete(session: &mut Session, matches: &Matches, list: &str, noun: &str) -> Result<(), CliError> {
    let [name] = matches.operands.as_slice() else {
        return fail(format!(
            "Unexpected args: [{}]\nSee '{} -h' for help and examples",
            matches.operands.join(" "),
            session.command
        ));
    };
    let path = target_file(session)?;
    let mut root = read(&path)?;
    let shown = path.display();
    let entries = root[list].as_array_mut();
    let before = entries.as_ref().map_or(0, |entries| entries.len());
    if let Some(entries) = entries {
        entries.retain(|entry| entry["name"] != name.as_str());
    }
    if root[list].as_array().map_or(0, Vec::len) == before {
        return fail(format!("cannot delete {noun} {name}, not in {shown}"));
    }
    if noun == "context" && root["current-context"] == name.as_str() {
        session.io.err.line("warning: this removed your active context, use \"kubectl config use-context\" to select a different one");
    }
    write(&path, root)?;
    session.io.out.line(&format!("deleted {noun} {name} from {shown}"));
    Ok(())
}

fn view(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if matches.on("flatten") {
        return fail("--flatten is not supported");
    }
    let merged = session.kubeconfig()?;
    let mut root = Value::Object(merged.root.clone());
    if matches.on("minify") {
        let name =
            session.globals.overrides.context.clone().unwrap_or_else(|| merged.current_context().to_owned());
        let Some(context) = merged.entry("contexts", &name) else {
            return fail("cannot locate context ".to_owned() + &name);
        };
        let keep = |list: &str, name: &Value| -> Value {
            entries(merged.root.get(list))
                .into_iter()
                .filter(|entry| entry["name"] == *name)
                .cloned()
                .collect()
        };
        root["clusters"] = keep("clusters", &context["cluster"]);
        root["users"] = keep("users", &context["user"]);
        root["contexts"] = keep("contexts", &json!(name));
        root["current-context"] = json!(name);
    }
    for (key, value) in
        [("apiVersion", json!("v1")), ("kind", json!("Config")), ("current-context", json!(""))]
    {
        if root[key].is_null() {
            root[key] = value;
        }
    }
    for (list, content) in [("clusters", "cluster"), ("contexts", "context"), ("users", "user")] {
        root[list] = match entries(root.get(list)) {
            entries if entries.is_empty() => Value::Null,
            entries => entries.into_iter().cloned().collect(),
        };
        if !matches.on("raw") {
            for entry in root[list].as_array_mut().into_iter().flatten() {
                if let Some(members) = entry[content].as_object_mut() {
                    hide(members);
                }
            }
        }
    }
    if let Some(members) = root.as_object_mut() {
        members.remove("preferences");
    }
    let text = match Printer::read(matches)? {
        Some(mut printer) => printer.print(&root)?,
        None => String::from_utf8_lossy(&yaml::encode(&root)).into_owned(),
    };
    session.io.out.text(&text);
    Ok(())
}

/// Hides the members that are secret or long.
fn hide(members: &mut Map<String, Value>) {
    for (key, shown) in [
        ("certificate-authority-data", "DATA+OMITTED"),
        ("client-certificate-data", "DATA+OMITTED"),
        ("client-key-data", "DATA+OMITTED"),
        ("token", "REDACTED"),
        ("password", "REDACTED"),
    ] {
        if let Some(value) = members.get_mut(key).filter(|value| **value != "") {
            *value = json!(shown);
        }
    }
}
