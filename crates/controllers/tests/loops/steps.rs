//! Steps of a scenario: actions of a client on a server, and their expected results.

use std::time::{Duration, Instant};

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};
use testkit::Client;

/// Longer than the timeout of a request whose response is lost.
pub const PATIENCE: Duration = Duration::from_secs(150);
pub const CORE: &str = "/api/v1/namespaces";

pub enum Step {
    /// In a collection; retried while a prerequisite is missing.
    Create(String, Value),
    Merge(String, Value),
    Delete(String),
    Until(String, &'static str, Want),
    Gone(String),
}

#[derive(Clone, Debug)]
pub enum Want {
    Is(Value),
    Something,
    Nothing,
}

pub struct Scenario {
    pub name: &'static str,
    pub steps: Vec<Step>,
}

pub fn create(path: &str, object: Value) -> Step {
    Step::Create(path.to_owned(), object)
}

pub fn merge(path: &str, patch: Value) -> Step {
    Step::Merge(path.to_owned(), patch)
}

pub fn delete(path: &str) -> Step {
    Step::Delete(path.to_owned())
}

pub fn is(path: &str, pointer: &'static str, value: Value) -> Step {
    Step::Until(path.to_owned(), pointer, Want::Is(value))
}

pub fn some(path: &str, pointer: &'static str) -> Step {
    Step::Until(path.to_owned(), pointer, Want::Something)
}

pub fn none(path: &str, pointer: &'static str) -> Step {
    Step::Until(path.to_owned(), pointer, Want::Nothing)
}

pub fn gone(path: &str) -> Step {
    Step::Gone(path.to_owned())
}

/// Waits until `accept` returns true for what `observe` returns; on timeout reports the last observation.
async fn wait<T: std::fmt::Debug>(
    what: &str,
    mut observe: impl AsyncFnMut() -> T,
    accept: impl Fn(&T) -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut first = None;
    loop {
        let seen = observe().await;
        if accept(&seen) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{what}: seen first: {first:?}, last: {seen:?}"));
        }
        first.get_or_insert(seen);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An action, retried if it is too early.
async fn act(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Result<(), String> {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ if body.is_some() => "application/json",
        _ => "",
    };
    let text = body.map(Value::to_string).unwrap_or_default();
    let attempt = async || {
        let reply = client.request(method.clone(), path, kind, text.clone()).await?;
        let why = reply.body["message"].as_str().unwrap_or_default().to_owned();
        anyhow::Ok((reply.status.as_u16(), why))
    };
    let done = |seen: &Result<(u16, String)>| {
        let repeated =
            |code: u16, why: &str| why.ends_with("already exists") || code == 404 && method == Method::DELETE;
        seen.as_ref().is_ok_and(|(code, why)| (200..300).contains(code) || repeated(*code, why))
    };
    wait(&format!("{method} {path}"), attempt, done).await
}

/// Runs a scenario in a namespace of its own name.
pub async fn run(client: &Client, scenario: Scenario) -> Result<(), String> {
    let namespace = json!({"metadata": {"name": scenario.name.replace('_', "-")}});
    act(client, Method::POST, CORE, Some(&namespace)).await?;
    for step in scenario.steps {
        match step {
            Step::Create(path, object) => act(client, Method::POST, &path, Some(&object)).await?,
            Step::Merge(path, patch) => act(client, Method::PATCH, &path, Some(&patch)).await?,
            Step::Delete(path) => act(client, Method::DELETE, &path, None).await?,
            Step::Until(path, pointer, want) => {
                let seen =
                    async || client.get(&path).await.map(|reply| reply.body.to_string()).unwrap_or_default();
                let reached = |text: &String| {
                    let body: Value = serde_json::from_str(text).unwrap_or_default();
                    let found = body.pointer(pointer).filter(|value| !value.is_null());
                    match &want {
                        Want::Is(value) => found == Some(value),
                        Want::Something => found.is_some(),
                        Want::Nothing => found.is_none() && body["kind"] != "Status",
                    }
                };
                wait(&format!("{path} {pointer} {want:?}"), seen, reached).await?;
            }
            Step::Gone(path) => {
                let seen = async || {
                    let reply = client.get(&path).await;
                    reply.map_or((0, String::new()), |reply| (reply.status.as_u16(), reply.body.to_string()))
                };
                wait(&format!("{path} goes"), seen, |(code, _)| *code == 404).await?;
            }
        }
    }
    Ok(())
}
