//! `kubectl api-versions`.

use crate::error::{CliError, fail};
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb = Verb::new(
    "api-versions",
    "Print the supported API versions on the server, in the form of \"group/version\"",
    "",
    &[],
    |session, matches| Box::pin(run(session, &matches.operands)),
);

async fn run(session: &mut Session, operands: &[String]) -> Result<(), CliError> {
    if !operands.is_empty() {
        return fail(format!(
            "unexpected arguments: [{}]\nSee 'kubectl api-versions -h' for help and examples",
            operands.join(" ")
        ));
    }
    let mut versions = session.discovery().await?.group_versions.clone();
    versions.sort();
    for version in versions {
        session.io.out.line(&version);
    }
    Ok(())
}
