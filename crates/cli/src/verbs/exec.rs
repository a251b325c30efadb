//! `kubectl exec`: a command in a container, over a WebSocket.

use client::{Upgraded, escape};
use serde_json::Value;
use streaming::websocket::{Message, Reader, Writer};
use tokio::sync::mpsc;

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::pods::{container_names, default_container, listed};
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb = Verb::new(
    "exec",
    "Execute a command in a container",
    "(POD | TYPE/NAME) [-c CONTAINER] [flags] -- COMMAND [args...]",
    &[FLAGS],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    option("container", "Container name. If omitted, the first container in the pod is used.").short('c'),
    option("pod-running-timeout", "Accepted for compatibility.").default("1m0s"),
    switch("quiet", "Only print output from the remote session").short('q'),
    switch("stdin", "Pass stdin to the container").short('i'),
    switch("tty", "Stdin is a TTY").short('t'),
];

/// Protocols of the channels, the newest first.
const PROTOCOLS: &str = "v5.channel.k8s.io, v4.channel.k8s.io";
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const CLOSE: u8 = 255;

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let usage = "See 'kubectl exec -h' for help and examples";
    let Some(dash) = matches.dash else {
        return match matches.operands.len() {
            0 => fail("pod, type/name or --filename must be specified"),
            1 => fail("you must specify at least one command for the container"),
            _ => fail(format!(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\n{usage}"
            )),
        };
    };
    let (names, command) = matches.operands.split_at(dash);
    let [operand] = names else { return fail("pod, type/name or --filename must be specified") };
    if command.is_empty() {
        return fail("you must specify at least one command for the container");
    }
    let (target, pod) = session.pod(operand).await?;
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return fail(format!("cannot exec into a container in a completed pod; current phase is {phase}"));
    }
    let container = match matches.text("container") {
        "" => {
            let (name, note) = default_container(&pod);
            if let Some(note) = note.filter(|_| !matches.on("quiet")) {
                session.io.err.line(&note);
            }
            name
        }
        name if container_names(&pod, &["containers", "initContainers", "ephemeralContainers"])
            .iter()
            .any(|known| known == name) =>
        {
            name.to_owned()
        }
        name => {
            return fail(format!(
                "container {name} is not valid for pod {} out of: {}",
                target.name,
                listed(&pod)
            ));
        }
    };
    let (stdin, mut terminal) = (matches.on("stdin"), matches.on("tty"));
    if terminal && !session.io.input_is_terminal() {
        if !matches.on("quiet") {
            session.io.err.line("Unable to use a TTY - input is not a terminal or the right kind of file");
        }
        terminal = false;
    }
    let mut path = format!("{}?container={}", target.subresource("exec"), escape(&container));
    for operand in command {
        path.push_str(&format!("&command={}", escape(operand)));
    }
    path.push_str(&format!("&stdin={stdin}&stdout=true&stderr={}&tty={terminal}", !terminal));
    let (protocol, stream) = session.websocket(&path, PROTOCOLS).await?;
    stream_channels(session, stream, stdin, protocol.starts_with("v5")).await
}

/// Carries the streams of a command until it ends.
pub async fn stream_channels(
    session: &mut Session,
    stream: Upgraded,
    stdin: bool,
    can_close: bool,
) -> Result<(), CliError> {
    let (reader, writer) = tokio::io::split(stream);
    let (mut reader, mut writer) = (Reader::new(reader), Writer::client(writer));
    let (sender, mut input) = mpsc::channel::<Vec<u8>>(4);
    if stdin {
        read_input(session, sender);
    } else {
        drop(sender);
    }
    let broken = |error: streaming::StreamError| CliError::Text(crate::error::chain(&error));
    let mut open = stdin;
    loop {
        tokio::select! {
            piece = input.recv(), if open => match piece {
                Some(bytes) => writer.data(&[&[STDIN], &bytes]).await.map_err(broken)?,
                None => {
                    open = false;
                    if can_close {
                        writer.data(&[&[CLOSE, STDIN]]).await.map_err(broken)?;
                    }
                }
            },
            message = reader.next() => match message.map_err(broken)? {
                Message::Close(_) => return Ok(()),
                Message::Ping(payload) => writer.pong(&payload).await.map_err(broken)?,
                Message::Pong => {}
                Message::Data(data) => match data.split_first() {
                    Some((&STDOUT, bytes)) => session.io.out.bytes(bytes),
                    Some((&STDERR, bytes)) => session.io.err.bytes(bytes),
                    Some((&ERROR, bytes)) => return outcome(bytes),
                    _ => {}
                },
            },
        }
    }
}

/// Reads standard input on a thread: reads of it cannot be cancelled.
fn read_input(session: &Session, sender: mpsc::Sender<Vec<u8>>) {
    let io_input = session.io.input.clone();
    base::tasks::spawn_thread(move || {
        use std::io::Read as _;
        if let Some(input) = io_input {
            let _ = sender.blocking_send(input);
            return;
        }
        let mut buffer = vec![0; 32 << 10];
        while let Ok(length @ 1..) = std::io::stdin().lock().read(&mut buffer) {
            if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
}

/// The end of a command, from the status that the server sends.
fn outcome(status: &[u8]) -> Result<(), CliError> {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    if status["status"] == "Success" {
        return Ok(());
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let code = causes
        .filter(|cause| cause["reason"] == "ExitCode")
        .find_map(|cause| cause["message"].as_str()?.parse::<u8>().ok());
    match code {
        Some(code) if status["reason"] == "NonZeroExitCode" => {
            Err(CliError::Ended { text: format!("command terminated with exit code {code}"), status: code })
        }
        _ => fail(status["message"].as_str().unwrap_or("the command failed").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_come_from_the_status() {
        let status = streaming::CommandOutcome::Exit(3).status().to_string();
        let error = outcome(status.as_bytes()).expect_err("failed");
        assert_eq!(
            (error.exit_status(), error.to_text().as_str()),
            (3, "command terminated with exit code 3")
        );
        assert!(outcome(streaming::CommandOutcome::Exit(0).status().to_string().as_bytes()).is_ok());
        assert_eq!(outcome(b"junk").expect_err("failed").exit_status(), 1);
    }
}
