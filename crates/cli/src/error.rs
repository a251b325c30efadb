//! Errors of commands, with kubectl's messages.

use client::{ClientError, KubeconfigError, TransportError};
use machinery::field;

#[derive(Debug)]
pub enum CliError {
    /// The server rejected the request, or could not be reached. `step` is the one that failed, such as `error when
    /// creating "x"`.
    Client { error: ClientError, step: String },
    /// A message that `error: ` precedes.
    Text(String),
    /// A message that is printed as it is.
    Plain(String),
    /// Help, which is not a failure.
    Help(String),
    /// Several failures of one command.
    Many(Vec<CliError>),
    /// A command ended with a status of its own.
    Ended { text: String, status: u8 },
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        Self::Client { error, step: String::new() }
    }
}

impl From<KubeconfigError> for CliError {
    fn from(error: KubeconfigError) -> Self {
        Self::Text(chain(&error))
    }
}

/// An error `error: TEXT`.
pub fn fail<T>(text: impl Into<String>) -> Result<T, CliError> {
    Err(CliError::Text(text.into()))
}

impl CliError {
    /// The failures of a command, if there are any.
    pub fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Many(errors)),
        }
    }

    /// The same error with the step that failed.
    #[must_use]
    pub fn during(self, step: impl Into<String>) -> Self {
        match self {
            Self::Client { error, .. } => Self::Client { error, step: step.into() },
            other => other,
        }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Client { error, .. } if error.is_not_found())
    }

    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Help(_) => 0,
            Self::Ended { status, .. } => *status,
            _ => 1,
        }
    }

    /// The message of a command that ends with this error.
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) if !text.starts_with("error: ") => format!("error: {text}"),
            Self::Client { error, step } => client_text(error, step, true),
            other => other.message(),
        }
    }

    /// The message as one of several.
    fn message(&self) -> String {
        match self {
            Self::Client { error, step } => client_text(error, step, false),
            Self::Text(text) | Self::Plain(text) | Self::Help(text) => text.clone(),
            Self::Many(errors) => errors.iter().map(Self::message).collect::<Vec<_>>().join("\n"),
            Self::Ended { text, .. } => text.clone(),
        }
    }
}

/// An error and its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn client_text(error: &ClientError, step: &str, alone: bool) -> String {
    let with_step = |message: &str| match step {
        "" => message.to_owned(),
        step => format!("{step}: {message}"),
    };
    match error {
        ClientError::Status { status, .. } => {
            let message = status.message.as_deref().unwrap_or_default();
            match status.reason.as_deref().unwrap_or_default() {
                "Invalid" if alone => invalid(status),
                "Unauthorized" => {
                    format!("error: You must be logged in to the server ({})", with_step(message))
                }
                "" => format!("Error from server: {}", with_step(message)),
                reason => format!("Error from server ({reason}): {}", with_step(message)),
            }
        }
        ClientError::Transport { source, .. } => match &**source {
            TransportError::Connect { address, source }
                if source.kind() == std::io::ErrorKind::ConnectionRefused =>
            {
                format!(
                    "The connection to the server {address} was refused - did you specify the right host or port?"
                )
            }
            other => format!("Unable to connect to the server: {}", chain(other)),
        },
        other => format!("error: {}", with_step(&chain(other))),
    }
}

/// The causes of an invalid object, one per line.
fn invalid(status: &client::Status) -> String {
    let message = status.message.as_deref().unwrap_or_default();
    let Some(details) = &status.details else {
        return match message {
            "" => "The request is invalid".to_owned(),
            message => format!("The request is invalid: {message}"),
        };
    };
    let (kind, name) =
        (details.kind.as_deref().unwrap_or_default(), details.name.as_deref().unwrap_or_default());
    let causes = details.causes.as_deref().unwrap_or_default();
    let mut head = "The request is invalid".to_owned();
    if !kind.is_empty() || !name.is_empty() {
        head = format!("The {kind} {} is invalid", field::show_str(name));
    } else if causes.is_empty() {
        head = format!("{head}: {message}");
    }
    let mut lines: Vec<String> = Vec::new();
    for cause in causes {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let line = format!("{}: {}", part(&cause.field), part(&cause.message));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.as_slice() {
        [] => head,
        [line] => format!("{head}: {line}"),
        lines => format!("{head}: \n* {}", lines.join("\n* ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(status: serde_json::Value) -> CliError {
        let status = serde_json::from_value(status).expect("a status");
        ClientError::Status { status: Box::new(status), retry_after: None }.into()
    }

    #[test]
    fn refusals_have_kubectls_texts() {
        let error = refusal(json!({"reason": "NotFound", "message": "pods \"x\" not found", "code": 404}));
        assert_eq!(error.to_text(), "Error from server (NotFound): pods \"x\" not found");
        let error = error.during("error when deleting \"f\"");
        assert_eq!(
            error.to_text(),
            "Error from server (NotFound): error when deleting \"f\": pods \"x\" not found"
        );
        let error = refusal(json!({"reason": "Invalid", "details": {"kind": "Pod", "name": "x", "causes": [
            {"field": "a", "message": "Required value"}, {"field": "a", "message": "Required value"},
            {"field": "b", "message": "bad"}]}}));
        assert_eq!(error.to_text(), "The Pod \"x\" is invalid: \n* a: Required value\n* b: bad");
        assert_eq!(refusal(json!({"message": "no"})).to_text(), "Error from server: no");
        assert_eq!(CliError::Text("x".to_owned()).to_text(), "error: x");
        assert_eq!(
            (
                CliError::Ended { text: String::new(), status: 7 }.exit_status(),
                CliError::Help(String::new()).exit_status()
            ),
            (7, 0)
        );
    }
}
