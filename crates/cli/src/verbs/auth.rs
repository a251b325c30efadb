//! `kubectl auth can-i` and `kubectl auth whoami`.

use http::Method;
use machinery::field::show_str;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{EVERYWHERE, OUTPUT};
use crate::printer::{Printer, TabWriter, escape_terminal};
use crate::session::{Request, Session};
use crate::verbs::Verb;

pub const VERB: Verb = Verb::group(
    "auth",
    "Inspect authorization",
    &[
        Verb::new(
            "can-i",
            "Check whether an action is allowed",
            "VERB [TYPE | TYPE/NAME | NONRESOURCEURL]",
            &[CAN_I, EVERYWHERE],
            |session, matches| Box::pin(can_i(session, matches)),
        ),
        Verb::new(
            "whoami",
            "Experimental: Check self subject attributes",
            "",
            &[OUTPUT],
            |session, matches| Box::pin(whoami(session, matches)),
        ),
    ],
);

const CAN_I: &[Flag] = &[
    switch("list", "If true, prints all allowed actions; not supported."),
    switch("quiet", "If true, suppress output and just return the exit code.").short('q'),
    option("subresource", "SubResource such as pod/log or deployment/scale"),
];

async fn can_i(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if matches.on("list") {
        return fail("--list is not supported");
    }
    let attributes = match matches.operands.as_slice() {
        [verb, path] if path.starts_with('/') => {
            json!({"nonResourceAttributes": {"verb": verb, "path": path}})
        }
        [verb, resource] => {
            let (operand, name) = resource.split_once('/').unwrap_or((resource, ""));
            resource_attributes(session, matches, verb, operand, name).await?
        }
        [verb, resource, name] => resource_attributes(session, matches, verb, resource, name).await?,
        _ => {
            return fail(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples.",
            );
        }
    };
    let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": attributes});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = session.send(&Request::new(Method::POST, path).body(body)).await?;
    let allowed = review["status"]["allowed"] == true;
    if !matches.on("quiet") {
        let mut text = if allowed { "yes" } else { "no" }.to_owned();
        for key in ["reason", "evaluationError"] {
            let reason = review["status"][key].as_str().unwrap_or_default();
            if !reason.is_empty() && !allowed {
                text.push_str(&format!(" - {}", escape_terminal(reason)));
            }
        }
        session.io.out.line(&text);
    }
    if allowed { Ok(()) } else { Err(CliError::Ended { text: String::new(), status: 1 }) }
}

async fn resource_attributes(
    session: &mut Session,
    matches: &Matches,
    verb: &str,
    operand: &str,
    name: &str,
) -> Result<Value, CliError> {
    let ns = if matches.on("all-namespaces") { String::new() } else { session.namespace()? };
    let mut attributes = json!({"verb": verb, "namespace": ns});
    if !name.is_empty() {
        attributes["name"] = json!(name);
    }
    match matches.text("subresource") {
        "" => {}
        sub => attributes["subresource"] = json!(sub),
    }
    if operand == "*" {
        attributes["resource"] = json!("*");
        attributes["group"] = json!("*");
    } else if let Ok(info) = session.resource(operand).await {
        if !info.key.namespaced {
            session.io.err.line(&match info.key.group.as_str() {
                "" => format!("Warning: resource '{}' is not namespace scoped\n", info.key.resource),
                group => format!(
                    "Warning: resource '{}' is not namespace scoped in group '{group}'\n",
                    info.key.resource
                ),
            });
        }
        attributes["resource"] = json!(info.key.resource);
        attributes["group"] = json!(info.key.group);
        attributes["version"] = json!("*");
    } else {
        let (resource, group) = operand.split_once('.').unwrap_or((operand, ""));
        session.io.err.line(&match group {
            "" => format!("Warning: the server doesn't have a resource type '{resource}'\n"),
            group => {
                format!("Warning: the server doesn't have a resource type '{resource}' in group '{group}'\n")
            }
        });
        attributes["resource"] = json!(resource);
        attributes["group"] = json!(group);
    }
    Ok(json!({"resourceAttributes": attributes}))
}

async fn whoami(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if !matches.operands.is_empty() {
        return fail(format!(
            "unknown command {} for \"kubectl auth whoami\"",
            show_str(&matches.operands[0])
        ));
    }
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = session.send(&Request::new(Method::POST, path).body(body)).await?;
    let text = match Printer::read(matches)? {
        Some(mut printer) => printer.print(&review)?,
        None => {
            let user = &review["status"]["userInfo"];
            let list = |value: &Value| {
                let items = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                format!("[{}]", items.collect::<Vec<_>>().join(" "))
            };
            let mut writer = TabWriter::default();
            writer.row(&["ATTRIBUTE", "VALUE"]);
            for (title, key) in [("Username", "username"), ("UID", "uid")] {
                if let Some(value) = user[key].as_str().filter(|value| !value.is_empty()) {
                    writer.row(&[title, &escape_terminal(value)]);
                }
            }
            if user["groups"].is_array() {
                writer.row(&["Groups", &escape_terminal(&list(&user["groups"]))]);
            }
            for (key, value) in user["extra"].as_object().into_iter().flatten() {
                writer.row(&[format!("Extra: {}", escape_terminal(key)), escape_terminal(&list(value))]);
            }
            writer.flush()
        }
    };
    session.io.out.text(&text);
    Ok(())
}
