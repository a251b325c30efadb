//! `kubectl logs`.

use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::arguments::{Flag, Matches, number, option, switch};
use crate::error::{CliError, chain, fail};
use crate::flags::{SELECTOR, duration};
use crate::pods::{container_names, default_container, listed};
use crate::resource::{Selection, Target};
use crate::session::{Request, Session};
use crate::verbs::Verb;

pub const VERB: Verb = Verb::new(
    "logs",
    "Print the logs for a container in a pod",
    "[-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]",
    &[FLAGS, SELECTOR],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("all-containers", "Get all containers' logs in the pod(s)."),
    option("container", "Print the logs of this container").short('c'),
    switch("follow", "Specify if the logs should be streamed.").short('f'),
    switch(
        "ignore-errors",
        "If watching / following pod logs, allow for any errors that occur to be non-fatal",
    ),
    number("limit-bytes", "0", "Maximum bytes of logs to return. Defaults to no limit."),
    switch("prefix", "Prefix each log line with the log source (pod name and container name)"),
    switch(
        "previous",
        "If true, print the logs for the previous instance of the container in a pod if it exists.",
    )
    .short('p'),
    option("since", "Only return logs newer than a relative duration like 5s, 2m, or 3h.").default("0s"),
    option("since-time", "Only return logs after a specific date (RFC3339)."),
    number("tail", "-1", "Lines of recent log file to display."),
    switch("timestamps", "Include timestamps on each line in the log output"),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let selector = matches.text("selector");
    let operands = &matches.operands;
    let (operand, container) = match operands.as_slice() {
        [] if selector.is_empty() => {
            return fail(
                "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command\nSee 'kubectl logs -h' for help and examples",
            );
        }
        [] => ("", ""),
        [_, ..] if !selector.is_empty() => return fail("only a selector (-l) or a POD name is allowed"),
        [operand] => (operand.as_str(), ""),
        [operand, container] if matches.text("container").is_empty() => {
            (operand.as_str(), container.as_str())
        }
        [_, _] => return fail("only one of -c or an inline [CONTAINER] arg is allowed"),
        _ => {
            return fail(
                "logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]\nSee 'kubectl logs -h' for help and examples",
            );
        }
    };
    let container = if container.is_empty() { matches.text("container") } else { container };
    if matches.explicit("since").is_some() && matches.explicit("since-time").is_some() {
        return fail("at most one of `sinceTime` or `sinceSeconds` may be specified");
    }
    let ns = session.namespace()?;
    let pods = if selector.is_empty() {
        let found = session.pod(operand).await;
        vec![found.map_err(|error| not_found(error, operand, &ns))?]
    } else {
        let selection = Selection {
            operands: vec!["pods".to_owned()],
            selector: selector.to_owned(),
            ..Selection::default()
        };
        session.objects(&selection).await?
    };
    if pods.is_empty() {
        session.io.err.line(&format!("No resources found in {ns} namespace."));
        return Ok(());
    }
    for (target, pod) in &pods {
        for name in containers(session, matches, target, pod, container)? {
            if let Err(error) = print(session, matches, target, &name, !selector.is_empty()).await {
                if !matches.on("ignore-errors") {
                    return Err(error);
                }
                session.io.err.line(&error.to_text());
            }
        }
    }
    Ok(())
}

/// The error of a pod that does not exist, with its namespace.
fn not_found(error: CliError, operand: &str, ns: &str) -> CliError {
    match &error {
        CliError::Client { error: refused, .. } if refused.is_not_found() && !operand.contains('/') => {
            CliError::Text(format!(
                "error from server (NotFound): {refused} in namespace {}",
                machinery::field::show_str(ns)
            ))
        }
        _ => error,
    }
}

/// The containers whose logs are wanted.
fn containers(
    session: &mut Session,
    matches: &Matches,
    target: &Target,
    pod: &Value,
    named: &str,
) -> Result<Vec<String>, CliError> {
    let all = container_names(pod, &["initContainers", "containers", "ephemeralContainers"]);
    if matches.on("all-containers") {
        return Ok(all);
    }
    if !named.is_empty() {
        if !all.iter().any(|known| known == named) {
            return fail(format!(
                "container {named} is not valid for pod {} out of: {}",
                target.name,
                listed(pod)
            ));
        }
        return Ok(vec![named.to_owned()]);
    }
    let (name, note) = default_container(pod);
    if let Some(note) = note {
        session.io.err.line(&note);
    }
    Ok(vec![name])
}

async fn print(
    session: &mut Session,
    matches: &Matches,
    target: &Target,
    container: &str,
    selected: bool,
) -> Result<(), CliError> {
    let mut request = Request::get(target.subresource("log")).query("container", container);
    for (flag, key) in [("follow", "follow"), ("previous", "previous"), ("timestamps", "timestamps")] {
        if matches.on(flag) {
            request = request.query(key, "true");
        }
    }
    // With a selector, the last lines of each container.
    let tail = if selected && matches.explicit("tail").is_none() { 10 } else { matches.int("tail") };
    if tail >= 0 {
        request = request.query("tailLines", tail.to_string());
    }
    if matches.int("limit-bytes") > 0 {
        request = request.query("limitBytes", matches.text("limit-bytes"));
    }
    if let Some(since) = matches.explicit("since") {
        request = request.query("sinceSeconds", duration(since)?.as_secs_f64().ceil().to_string());
    }
    if let Some(time) = matches.explicit("since-time") {
        request = request.query("sinceTime", time);
    }
    request.accept = "*/*";
    let prefix = match matches.on("prefix") {
        true => format!("[pod/{}/{container}] ", target.name),
        false => String::new(),
    };
    let mut body = session.stream(&request).await?.into_body();
    let mut at_start = true;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| CliError::Text(chain(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        if prefix.is_empty() {
            session.io.out.bytes(&data);
            continue;
        }
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            if at_start {
                session.io.out.text(&prefix);
            }
            session.io.out.bytes(line);
            at_start = line.ends_with(b"\n");
        }
    }
    Ok(())
}
