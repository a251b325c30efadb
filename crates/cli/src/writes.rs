//! Flags of writes and lines about their results, shared by verbs.

use http::Method;
use serde_json::Value;

use crate::arguments::Matches;
use crate::error::CliError;
use crate::flags::{DryRun, field_validation, write_query};
use crate::printer::{Format, Printer, title};
use crate::resource::Target;
use crate::session::{Request, Session};

pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// Settings of the writes of one command.
#[derive(Debug)]
pub struct Writes {
    pub dry_run: DryRun,
    pub manager: String,
    pub validation: Option<&'static str>,
    pub printer: Option<Printer>,
}

impl Writes {
    /// `manager` is the verb's own field manager.
    pub fn read(matches: &Matches, manager: &str) -> Result<Self, CliError> {
        let specified = matches.text("field-manager");
        Ok(Self {
            dry_run: DryRun::read(matches)?,
            manager: if specified.is_empty() { manager.to_owned() } else { specified.to_owned() },
            validation: None,
            printer: Printer::read(matches)?,
        })
    }

    /// As [`Writes::read`], for a verb with `--validate`.
    pub fn with_validation(matches: &Matches, manager: &str) -> Result<Self, CliError> {
        Ok(Self { validation: Some(field_validation(matches)?), ..Self::read(matches, manager)? })
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        write_query(self.dry_run, &self.manager, self.validation)
    }

    /// Creates an object, or returns it unchanged in a client's dry run.
    pub async fn create(
        &self,
        session: &mut Session,
        target: &Target,
        object: Value,
    ) -> Result<Value, CliError> {
        if self.dry_run == DryRun::Client {
            return Ok(object);
        }
        let path = target.resource.key.path(&target.ns, "", None);
        session.send(&Request::new(Method::POST, path).queries(self.query()).body(object)).await
    }

    pub async fn replace(
        &self,
        session: &mut Session,
        target: &Target,
        object: Value,
    ) -> Result<Value, CliError> {
        session.send(&Request::new(Method::PUT, target.path()).queries(self.query()).body(object)).await
    }

    /// Patches an object or its subresource.
    pub async fn patch(
        &self,
        session: &mut Session,
        target: &Target,
        subresource: Option<&str>,
        content_type: &'static str,
        patch: Value,
    ) -> Result<Value, CliError> {
        let path = subresource.map_or_else(|| target.path(), |name| target.subresource(name));
        let mut request = Request::new(Method::PATCH, path).queries(self.query()).body(patch);
        request.content_type = content_type;
        session.send(&request).await
    }

    /// Prints the result of an operation: a line, or the object if `-o` says so.
    pub fn report(&mut self, session: &mut Session, object: &Value, operation: &str) -> Result<(), CliError> {
        let text = match &mut self.printer {
            None => format!("{} {operation}{}\n", title(object), self.dry_run.suffix()),
            Some(Printer { format: Format::Name, .. }) => title(object) + "\n",
            Some(printer) => printer.print(object)?,
        };
        session.io.out.text(&text);
        Ok(())
    }
}
