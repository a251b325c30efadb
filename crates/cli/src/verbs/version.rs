//! `kubectl version`.

use base::version::GIT_VERSION;
use machinery::codec::yaml;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, option, switch};
use crate::error::{CliError, fail};
use crate::printer::pretty_json;
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb = Verb::new(
    "version",
    "Print the client and server version information",
    "",
    &[FLAGS],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("client", "If true, shows client version only (no server required)."),
    option("output", "One of 'yaml' or 'json'.").short('o'),
];

const KUSTOMIZE: &str = "none";

/// Version of the command: unlike that of a server, it has no versions that it emulates.
fn client_version() -> Value {
    let mut version = base::version::version();
    if let Some(fields) = version.as_object_mut() {
        fields.retain(|name, _| !name.starts_with("emulation") && !name.starts_with("minCompatibility"));
    }
    version
}

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if !matches.operands.is_empty() {
        let operands = matches.operands.join(" ");
        return fail(format!("extra arguments: [{operands}]"));
    }
    let output = matches.text("output");
    if !matches!(output, "" | "yaml" | "json") {
        return fail("--output must be 'yaml' or 'json'");
    }
    let mut versions = json!({
        "clientVersion": client_version(),
        "kustomizeVersion": KUSTOMIZE,
    });
    let mut failure = None;
    if !matches.on("client") {
        match session.read("/version").await {
            Ok(server) => versions["serverVersion"] = server,
            Err(error) => failure = Some(error),
        }
    }
    let text = match output {
        "json" => pretty_json(&versions).replace("    ", "  ") + "\n",
        "yaml" => String::from_utf8_lossy(&yaml::encode(&versions)).into_owned(),
        _ => {
            let mut text = format!("Client Version: {GIT_VERSION}\nKustomize Version: {KUSTOMIZE}\n");
            if let Value::String(server) = &versions["serverVersion"]["gitVersion"] {
                text.push_str(&format!("Server Version: {}\n", crate::printer::escape_terminal(server)));
            }
            text
        }
    };
    session.io.out.text(&text);
    failure.map_or(Ok(()), Err)
}
