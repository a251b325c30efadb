//! Request options: parsed from the query (deletions also from the body) and validated as in Kubernetes.

use crate::wire::query::{Query, parse_uint};
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use machinery::status::{Result, Status};
use serde_json::json;

/// Handling of unknown and duplicate fields of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    /// Apply only: takes ownership of fields from other managers.
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub dry_run: bool,
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    pub orphan_dependents: Option<bool>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Unset,
    Exact,
    NotOlderThan,
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: String,
    pub resource_version_match: Match,
    pub limit: usize,
    pub continue_token: String,
    pub timeout_seconds: Option<i64>,
    pub allow_bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

fn check(kind: &str, errors: &ErrorList) -> Result<()> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", kind, "", errors)) }
}

/// Kind of write options: they differ in name and validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    Update,
    Patch,
    Apply,
}

impl WriteOptions {
    pub fn read(query: &Query, kind: WriteKind) -> Result<Self> {
        let mut errors = ErrorList::new();
        let manager = query.text("fieldManager");
        match kind {
            WriteKind::Apply if manager.is_empty() => {
                errors.push(FieldError::required(&Path::new("fieldManager"), "is required for apply patch"));
            }
            WriteKind::Patch if query.get("force").is_some_and(|force| !force.is_empty()) => {
                errors.push(FieldError::forbidden(
                    &Path::new("force"),
                    "may not be specified for non-apply patch",
                ));
            }
            _ => {}
        }
        validate_manager(manager, &mut errors);
        let dry_run = read_dry_run(query.all("dryRun"), &mut errors);
        let field_validation = match query.text("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                let path = Path::new("fieldValidation");
                errors.push(FieldError::not_supported(&path, &Value::from(other), &supported));
                FieldValidation::Warn
            }
        };
        let name = match kind {
            WriteKind::Create => "CreateOptions",
            WriteKind::Update => "UpdateOptions",
            WriteKind::Patch | WriteKind::Apply => "PatchOptions",
        };
        check(name, &errors)?;
        Ok(Self {
            dry_run,
            field_manager: manager.to_owned(),
            field_validation,
            force: query.flag("force").unwrap_or(false),
        })
    }
}

fn validate_manager(manager: &str, errors: &mut ErrorList) {
    let path = Path::new("fieldManager");
    if manager.len() > 128 {
        errors.push(FieldError::too_long(&path, 128));
    }
    for (at, c) in manager.char_indices() {
        if c.is_control() || (c.is_whitespace() && c != ' ') {
            let shown = if c.is_control() {
                format!("U+{:04X}", c as u32)
            } else {
                format!("U+{:04X} '{c}'", c as u32)
            };
            errors.push(FieldError::invalid_str(
                &path,
                manager,
                format!("invalid character {shown} (at position {at})"),
            ));
        }
    }
}

fn read_dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut ErrorList) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        let path = Path::new("dryRun");
        errors.push(FieldError::not_supported(&path, &json!(values), &["All"]));
    }
    !values.is_empty()
}

impl DeleteOptions {
    /// From the body if present, else from the query.
    pub fn read(query: &Query, body: Option<&Value>) -> Result<Self> {
        let mut errors = ErrorList::new();
        let mut options = Self::default();
        let (propagation, dry_run): (Option<String>, Vec<String>) = match body {
            Some(body) => {
                let preconditions = &body["preconditions"];
                options.uid = preconditions["uid"].as_str().map(str::to_owned);
                options.resource_version = preconditions["resourceVersion"].as_str().map(str::to_owned);
                options.grace_period_seconds = body["gracePeriodSeconds"].as_i64();
                options.orphan_dependents = body["orphanDependents"].as_bool();
                let dry_run = body["dryRun"].as_array().map_or_else(Vec::new, |values| {
                    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
                });
                (body["propagationPolicy"].as_str().map(str::to_owned), dry_run)
            }
            None => {
                options.grace_period_seconds = query.integer("gracePeriodSeconds")?;
                options.orphan_dependents = query.flag("orphanDependents");
                let named = |name| query.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
                (options.uid, options.resource_version) = (named("uid"), named("resourceVersion"));
                let propagation = query.get("propagationPolicy").map(str::to_owned);
                (propagation, query.all("dryRun").map(str::to_owned).collect())
            }
        };
        let path = Path::new("propagationPolicy");
        if let Some(policy) = &propagation
            && options.orphan_dependents.is_some()
        {
            errors.push(FieldError::invalid_str(
                &path,
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        options.propagation = match propagation.as_deref() {
            None => None,
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Background") => Some(Propagation::Background),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(&path, &Value::from(other), &supported));
                None
            }
        };
        options.dry_run = read_dry_run(dry_run.iter().map(String::as_str), &mut errors);
        check("DeleteOptions", &errors)?;
        // A negative grace period means one second, the shortest graceful one.
        options.grace_period_seconds = options.grace_period_seconds.map(|s| if s < 0 { 1 } else { s });
        Ok(options)
    }
}

impl ListOptions {
    pub fn read(query: &Query, watch: bool) -> Result<Self> {
        let options = Self {
            label_selector: query.text("labelSelector").to_owned(),
            field_selector: query.text("fieldSelector").to_owned(),
            resource_version: query.text("resourceVersion").to_owned(),
            resource_version_match: match query.text("resourceVersionMatch") {
                "Exact" => Match::Exact,
                "NotOlderThan" => Match::NotOlderThan,
                _ => Match::Unset,
            },
            // A negative limit is no limit.
            limit: usize::try_from(query.integer("limit")?.unwrap_or(0)).unwrap_or(0),
            continue_token: query.text("continue").to_owned(),
            timeout_seconds: query.integer("timeoutSeconds")?,
            allow_bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            send_initial_events: query.flag("sendInitialEvents"),
        };
        let matching = query.text("resourceVersionMatch");
        let errors = if watch { options.watch_errors(matching) } else { options.list_errors(matching) };
        check("ListOptions", &errors)?;
        Ok(options)
    }

    fn list_errors(&self, matching: &str) -> ErrorList {
        let path = Path::new("resourceVersionMatch");
        let mut errors = ErrorList::new();
        if !matching.is_empty() {
            if self.resource_version.is_empty() {
                let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                errors.push(FieldError::forbidden(&path, why));
            }
            if !self.continue_token.is_empty() {
                errors.push(FieldError::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if self.resource_version_match == Match::Unset {
                let supported = ["Exact", "NotOlderThan", ""];
                errors.push(FieldError::not_supported(&path, &Value::from(matching), &supported));
            }
            if self.resource_version_match == Match::Exact && self.resource_version == "0" {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(&path, why));
            }
        }
        if self.send_initial_events.is_some() {
            let path = Path::new("sendInitialEvents");
            errors.push(FieldError::forbidden(&path, "sendInitialEvents is forbidden for list"));
        }
        errors
    }

    fn watch_errors(&self, matching: &str) -> ErrorList {
        let path = Path::new("resourceVersionMatch");
        let mut errors = ErrorList::new();
        if self.send_initial_events.is_some() && self.resource_version_match != Match::NotOlderThan {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden(&path, why));
        }
        if !matching.is_empty() {
            if self.send_initial_events.is_none() {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(FieldError::forbidden(&path, why));
            }
            if self.resource_version_match != Match::NotOlderThan {
                errors.push(FieldError::not_supported(&path, &Value::from(matching), &["NotOlderThan"]));
            }
            if !self.continue_token.is_empty() {
                errors.push(FieldError::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
        }
        errors
    }

    /// The requested revision; `None` if absent.
    pub fn revision(&self) -> Result<Option<u64>> {
        if self.resource_version.is_empty() {
            return Ok(None);
        }
        parse_uint(&self.resource_version).map(Some).map_err(|why| {
            Status::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {:?}: {why}",
                self.resource_version
            ))
        })
    }
}
