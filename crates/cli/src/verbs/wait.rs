//! `kubectl wait`, and waiting for deletions.

use std::time::Duration;

use base::backoff::Backoff;
use machinery::jsonpath::{Missing, Template};
use serde_json::Value;
use tokio::time::Instant;

use crate::arguments::{Flag, Matches, option, repeated, switch};
use crate::error::{CliError, fail};
use crate::flags::{EVERYWHERE, FIELD_SELECTOR, FILES, OUTPUT, SELECTOR, time_limit};
use crate::manifest;
use crate::printer::{Printer, relaxed};
use crate::resource::{Selection, Target};
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb = Verb::new(
    "wait",
    "Wait for a specific condition on one or many resources",
    "([-f FILENAME] | resource.group/resource.name | resource.group [(-l label | --all)]) [--for=create|--for=delete|--for condition=available|--for=jsonpath='{}'[=value]]",
    &[FLAGS, FILES, SELECTOR, FIELD_SELECTOR, EVERYWHERE, OUTPUT],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    switch("all", "Select all resources in the namespace of the specified resource types"),
    repeated(
        "for",
        "The condition to wait on: [create|delete|condition=condition-name[=condition-value]|jsonpath='{JSONPath expression}'=[JSONPath value]].",
    ),
    option("timeout", "The length of time to wait before giving up. Zero means check once and don't wait.")
        .default("30s"),
];

/// Shortest and longest pause between two reads.
const POLL: Backoff = Backoff::new(Duration::from_millis(50), LONGEST_PAUSE);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A state of an object.
enum Condition {
    Create,
    Delete,
    Status(String, String),
    Path(Template, Option<String>),
}

impl Condition {
    fn parse(text: &str) -> Result<Self, CliError> {
        let lower = text.to_lowercase();
        if lower == "delete" {
            return Ok(Self::Delete);
        }
        if lower == "create" {
            return Ok(Self::Create);
        }
        if let Some(condition) = text.strip_prefix("condition=") {
            let (name, value) = condition.split_once('=').unwrap_or((condition, "true"));
            return Ok(Self::Status(name.to_owned(), value.to_owned()));
        }
        let Some(rest) = text.strip_prefix("jsonpath=") else {
            return fail(format!("unrecognized condition: {}", machinery::field::show_str(text)));
        };
        let rest = rest.trim_matches('\'');
        let end = rest.rfind('}').map_or(rest.len(), |at| at + 1);
        let (path, value) = match rest.starts_with('{') {
            true => (&rest[..end], rest[end..].strip_prefix('=')),
            false => rest.split_once('=').map_or((rest, None), |(path, value)| (path, Some(value))),
        };
        if value == Some("") {
            return fail("jsonpath wait has to have a value after equal sign");
        }
        let template = Template::parse(&relaxed(path))
            .map_err(|error| CliError::Text(format!("error parsing jsonpath {path}, {error}")))?;
        Ok(Self::Path(template, value.map(|value| value.trim_matches(['"', '\'']).to_owned())))
    }

    /// True if an object is in the state; `None` is an object that does not exist.
    fn is_met(&self, object: Option<&Value>) -> Result<bool, CliError> {
        let Some(object) = object else { return Ok(matches!(self, Self::Delete)) };
        match self {
            Self::Create => Ok(true),
            Self::Delete => Ok(false),
            Self::Status(name, value) => {
                let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
                let is_it = |condition: &&Value| {
                    condition["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case(name))
                };
                let Some(condition) = conditions.iter().find(is_it) else { return Ok(false) };
                let generation = object["metadata"]["generation"].as_i64();
                let observed = condition["observedGeneration"].as_i64();
                let observed = observed.or(object["status"]["observedGeneration"].as_i64());
                let is_old =
                    observed.zip(generation).is_some_and(|(observed, generation)| observed < generation);
                let status = condition["status"].as_str().unwrap_or_default();
                Ok(!is_old && status.eq_ignore_ascii_case(value))
            }
            Self::Path(template, value) => {
                let results = template.results(object, Missing::Allow);
                let results = results.map_err(|error| CliError::Text(error.to_string()))?;
                let found: Vec<_> = results.into_iter().flatten().collect();
                match (found.as_slice(), value) {
                    ([], _) => Ok(false),
                    (_, None) => Ok(true),
                    ([one], Some(_)) if one.is_object() || one.is_array() => {
                        fail("jsonpath leads to a nested object or list which is not supported")
                    }
                    ([one], Some(value)) => Ok(crate::printer::go_value(one).trim() == value.trim()),
                    _ => fail("given jsonpath expression matches more than one value"),
                }
            }
        }
    }
}

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    let conditions: Vec<Condition> =
        matches.all("for").iter().map(|text| Condition::parse(text)).collect::<Result<_, _>>()?;
    if conditions.is_empty() {
        return fail("unrecognized condition: []");
    }
    let limit = time_limit(matches.text("timeout"))?;
    let ends = Instant::now() + limit.min(Duration::from_secs(30 * 24 * 3600));
    let mut printer = Printer::read(matches)?;
    let selection = Selection::read(matches);
    let manifests = manifest::load(matches, &session.io)?;
    let mut targets = Vec::new();
    if manifests.is_empty() {
        for target in session.targets(&selection).await? {
            if target.name.is_empty() {
                let waits_for_creation =
                    conditions.iter().any(|condition| matches!(condition, Condition::Create));
                let mut found = session.objects_of(&target, &selection).await?;
                while found.is_empty() && waits_for_creation && Instant::now() < ends {
                    tokio::time::sleep(LONGEST_PAUSE).await;
                    found = session.objects_of(&target, &selection).await?;
                }
                targets.extend(found.into_iter().map(|(target, _)| target));
            } else {
                targets.push(target);
            }
        }
    } else {
        for manifest in &manifests {
            targets.push(session.target_of(&manifest.object, &manifest.source).await?);
        }
    }
    let deletes = conditions.iter().all(|condition| matches!(condition, Condition::Delete));
    if targets.is_empty() && !deletes {
        return fail("no matching resources found");
    }
    let mut errors = Vec::new();
    for target in &targets {
        for condition in &conditions {
            if matches!(condition, Condition::Delete) && is_gone(session, target).await? {
                continue;
            }
            match until(session, target, condition, ends).await {
                Ok(object) => {
                    let text = match &mut printer {
                        Some(printer) => printer.print(&object)?,
                        None => format!("{} condition met\n", target.title()),
                    };
                    session.io.out.text(&text);
                }
                Err(error) => errors.push(error),
            }
        }
    }
    CliError::all(errors)
}

async fn is_gone(session: &mut Session, target: &Target) -> Result<bool, CliError> {
    match session.read(&target.path()).await {
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

fn timed_out(target: &Target) -> CliError {
    CliError::Text(format!(
        "timed out waiting for the condition on {}/{}",
        target.resource.key.resource, target.name
    ))
}

async fn until(
    session: &mut Session,
    target: &Target,
    condition: &Condition,
    ends: Instant,
) -> Result<Value, CliError> {
    let mut poll = POLL;
    let mut last = Value::Null;
    loop {
        let object = match session.read(&target.path()).await {
            Ok(object) => Some(object),
            Err(error)
                if error.is_not_found() && matches!(condition, Condition::Delete | Condition::Create) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        if condition.is_met(object.as_ref())? {
            return Ok(object.unwrap_or(last));
        }
        last = object.unwrap_or(last);
        let pause = poll.next_delay();
        if Instant::now() + pause > ends {
            return Err(timed_out(target));
        }
        tokio::time::sleep(pause).await;
    }
}

/// Waits until an object is deleted, or replaced by another of its name.
pub async fn until_gone(
    session: &mut Session,
    target: &Target,
    uid: &str,
    ends: Instant,
) -> Result<(), CliError> {
    let mut poll = POLL;
    loop {
        match session.read(&target.path()).await {
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
            Ok(object) if !uid.is_empty() && object["metadata"]["uid"] != uid => return Ok(()),
            Ok(_) => {}
        }
        let pause = poll.next_delay();
        if Instant::now() + pause > ends {
            return Err(timed_out(target));
        }
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conditions_of_all_forms() {
        let object = json!({"metadata": {"generation": 2}, "status": {"phase": "Running", "observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Old", "status": "True", "observedGeneration": 1}]}});
        let met = |text: &str| {
            let condition = Condition::parse(text).map_err(|error| error.to_text())?;
            condition.is_met(Some(&object)).map_err(|error| error.to_text())
        };
        for text in [
            "condition=ready",
            "condition=Ready=true",
            "jsonpath={.status.phase}=Running",
            "jsonpath='{.status.phase}'=Running",
            "jsonpath={.status.phase}",
            "create",
        ] {
            assert_eq!(met(text), Ok(true), "{text}");
        }
        for text in [
            "condition=Old",
            "condition=Nope",
            "condition=Ready=False",
            "jsonpath={.status.phase}=X",
            "delete",
        ] {
            assert_eq!(met(text), Ok(false), "{text}");
        }
        assert_eq!(met("nope"), Err("error: unrecognized condition: \"nope\"".to_owned()));
        assert!(met("jsonpath={.status}=x").is_err() && met("jsonpath={.a}=").is_err());
        assert!(Condition::Delete.is_met(None).expect("checked"));
    }
}
