//! `ferry audit`: searches the built-in audit log or any audit log for the author, time, source and reason of a
//! change.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde_json::Value;

use crate::cli::DataDir;
use crate::flags::parse_duration;

/// Line length limit: the largest object plus a margin.
const MAX_LINE: u64 = 64 << 20;

#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(subcommand)]
    pub question: AuditVerb,
}

#[derive(Debug, Subcommand)]
pub enum AuditVerb {
    /// Find who deleted an object, its collection or its namespace.
    WhoDeleted(ObjectArgs),
    /// Find who created an object.
    WhoCreated(ObjectArgs),
    /// Find who changed an object in any way.
    WhoChanged(ObjectArgs),
    /// Find who changed the number of replicas, with old and new value.
    WhoScaled(ObjectArgs),
    /// List all writes, optionally of one object.
    Log(LogArgs),
}

#[derive(Args, Debug)]
pub struct ObjectArgs {
    /// The object, such as pod/web-1 or deployments.apps/web.
    #[arg(value_name = "KIND/NAME")]
    pub object: String,

    #[command(flatten)]
    pub source: Source,
}

#[derive(Args, Debug)]
pub struct LogArgs {
    /// The object, such as pod/web-1, or only a kind.
    #[arg(value_name = "KIND[/NAME]")]
    pub object: Option<String>,

    /// Only requests of this user.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    #[command(flatten)]
    pub source: Source,
}

#[derive(Args, Debug)]
pub struct Source {
    /// The object's namespace.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "default")]
    pub namespace: String,

    /// Search all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,

    /// Only requests newer than this duration, such as 2h.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,

    /// Audit logs to read instead of the cluster's own; files ending in .gz are decompressed.
    #[arg(long, value_name = "FILE")]
    pub file: Vec<PathBuf>,

    #[command(flatten)]
    pub data_dir: DataDir,

    /// Output format: a table, or the events as JSON.
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

/// Category of requests to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestFilter {
    Deleted,
    Created,
    Changed,
    Scaled,
    Anything,
}

pub fn run(arguments: &AuditArgs) -> Result<ExitCode> {
    let (filter, object, user, source) = match &arguments.question {
        AuditVerb::WhoDeleted(query) => (RequestFilter::Deleted, Some(&query.object), None, &query.source),
        AuditVerb::WhoCreated(query) => (RequestFilter::Created, Some(&query.object), None, &query.source),
        AuditVerb::WhoChanged(query) => (RequestFilter::Changed, Some(&query.object), None, &query.source),
        AuditVerb::WhoScaled(query) => (RequestFilter::Scaled, Some(&query.object), None, &query.source),
        AuditVerb::Log(query) => {
            (RequestFilter::Anything, query.object.as_ref(), query.user.as_deref(), &query.source)
        }
    };
    let object = object.map(|text| Object::parse(text)).transpose()?;
    if filter != RequestFilter::Anything && object.as_ref().is_some_and(|object| object.name.is_empty()) {
        bail!("an object is required, such as pod/web-1");
    }
    let search = Search {
        filter,
        object,
        user,
        namespace: (!source.all_namespaces).then_some(source.namespace.as_str()),
        after: source.since.map(|since| {
            let now = base::clock::Clock::system().now();
            now.saturating_sub(jiff::SignedDuration::try_from(since).unwrap_or_default()).unwrap_or(now)
        }),
    };
    let files = files(source)?;
    let mut found = Vec::new();
    let mut oldest: Option<String> = None;
    for file in &files {
        read(file, |event| {
            if oldest.is_none() {
                oldest = Some(time(&event).to_owned());
            }
            if search.matches(&event) {
                found.push(event);
            }
        })
        .with_context(|| format!("failed to read {}", file.display()))?;
    }
    let mut out = std::io::stdout().lock();
    if found.is_empty() {
        let since = oldest.map_or("the audit log is empty".to_owned(), |oldest| {
            format!("the audit log begins at {oldest}")
        });
        eprintln!("no matching request found: {since}");
        return Ok(ExitCode::FAILURE);
    }
    match source.output {
        Output::Json => found.iter().try_for_each(|event| writeln!(out, "{event}"))?,
        Output::Table => out.write_all(table(&found).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Files to read, oldest first.
fn files(source: &Source) -> Result<Vec<PathBuf>> {
    if !source.file.is_empty() {
        return Ok(source.file.clone());
    }
    let audit_log = cluster::audit_log_file(&source.data_dir.data_dir);
    if !audit_log.exists() {
        bail!("no audit log at {}; set --data-dir of the cluster, or --file", audit_log.display());
    }
    let mut files: Vec<PathBuf> =
        cluster::audit::log_file::backups(&audit_log)?.into_iter().map(|(_, path)| path).rev().collect();
    files.push(audit_log);
    Ok(files)
}

/// Reads every event of a file. Unparsable lines are skipped: the last one may still be incomplete.
fn read(path: &Path, mut each: impl FnMut(Value)) -> Result<()> {
    let file = File::open(path)?;
    let plain: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut lines = BufReader::new(plain);
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Ok(event) = serde_json::from_slice(&line) {
            each(event);
        }
    }
}

/// Parses an object reference; the kind may be written in any form that kubectl accepts.
#[derive(Debug, PartialEq, Eq)]
struct Object {
    group: Option<String>,
    resource: String,
    name: String,
}

impl Object {
    fn parse(text: &str) -> Result<Self> {
        let (kind, name) = text.split_once('/').unwrap_or((text, ""));
        let (kind, group) = match kind.split_once('.') {
            Some((kind, group)) => (kind, Some(group.to_owned())),
            None => (kind, None),
        };
        let kind = kind.to_ascii_lowercase();
        let known = api::resources::RESOURCES.iter().find(|row| {
            let named = row.resource == kind
                || row.singular == kind
                || row.kind.eq_ignore_ascii_case(&kind)
                || row.short_names.contains(&kind.as_str());
            named && group.as_ref().is_none_or(|group| row.group == *group)
        });
        // Other resources are named by their plural.
        let resource = known.map_or(kind, |row| row.resource.to_owned());
        let group = group.or_else(|| known.map(|row| row.group.to_owned()));
        Ok(Self { group, resource, name: name.to_owned() })
    }
}

struct Search<'a> {
    filter: RequestFilter,
    object: Option<Object>,
    user: Option<&'a str>,
    namespace: Option<&'a str>,
    after: Option<Timestamp>,
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or("")
}

fn time(event: &Value) -> &str {
    text(event, "requestReceivedTimestamp")
}

impl Search<'_> {
    fn matches(&self, event: &Value) -> bool {
        let code = event["responseStatus"]["code"].as_u64().unwrap_or(0);
        // Connections switch protocols.
        let succeeded = code == 101 || (200..300).contains(&code);
        let done = matches!(text(event, "stage"), "ResponseComplete") && succeeded;
        let recent = || {
            self.after.is_none_or(|after| time(event).parse::<Timestamp>().is_ok_and(|time| time >= after))
        };
        let by = || self.user.is_none_or(|user| who(event).split(" as ").any(|name| name == user));
        done && !is_dry_run(event) && by() && recent() && self.concerns(event)
    }

    fn concerns(&self, event: &Value) -> bool {
        let reference = &event["objectRef"];
        let verb = text(event, "verb");
        let subresource = text(reference, "subresource");
        let namespaced = |namespace: &str| {
            let own = text(reference, "namespace");
            own.is_empty() || own == namespace
        };
        let Some(object) = &self.object else {
            return matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection")
                && self.namespace.is_none_or(|namespace| namespace == "default" || namespaced(namespace));
        };
        // Deleting a namespace deletes everything in it.
        if self.filter == RequestFilter::Deleted
            && verb == "delete"
            && text(reference, "resource") == "namespaces"
        {
            let gone = text(reference, "name");
            let own = object.resource == "namespaces" && gone == object.name;
            return own || object.resource != "namespaces" && self.namespace == Some(gone);
        }
        let same_kind = text(reference, "resource") == object.resource
            && object.group.as_ref().is_none_or(|group| text(reference, "apiGroup") == group);
        if !same_kind || !self.namespace.is_none_or(namespaced) {
            return false;
        }
        let name = text(reference, "name");
        let named = object.name.is_empty() || name == object.name;
        let writes = matches!(verb, "create" | "update" | "patch" | "delete");
        match self.filter {
            RequestFilter::Deleted if verb == "deletecollection" => name.is_empty() || named,
            RequestFilter::Deleted => {
                named && (verb == "delete" || verb == "create" && subresource == "eviction")
            }
            RequestFilter::Created => {
                named && subresource.is_empty() && (verb == "create" || verb == "patch" && created(event))
            }
            RequestFilter::Changed => {
                named && matches!(verb, "update" | "patch" | "create") && subresource != "eviction"
            }
            RequestFilter::Scaled => named && (replicas(event).is_some() || subresource == "scale" && writes),
            RequestFilter::Anything => verb == "deletecollection" || named && writes,
        }
    }
}

fn is_dry_run(event: &Value) -> bool {
    text(event, "requestURI").split(['?', '&']).skip(1).any(|pair| pair.starts_with("dryRun="))
}

fn created(event: &Value) -> bool {
    event["responseStatus"]["code"] == 201
}

/// `FROM -> TO` as annotated by the server, or the number in an audited request.
fn replicas(event: &Value) -> Option<String> {
    let noted = event["annotations"].get("ferry.dev/replicas").and_then(Value::as_str);
    noted.map(str::to_owned).or_else(|| {
        let wanted = event["requestObject"]["spec"].get("replicas")?.as_i64()?;
        (text(&event["objectRef"], "subresource") == "scale").then(|| format!("-> {wanted}"))
    })
}

/// User name, with the impersonated user if there is one.
fn who(event: &Value) -> String {
    let user = text(&event["user"], "username");
    match text(&event["impersonatedUser"], "username") {
        "" => user.to_owned(),
        other => format!("{user} as {other}"),
    }
}

fn table(events: &[Value]) -> String {
    let scaled = events.iter().any(|event| replicas(event).is_some());
    let mut rows = vec![
        vec!["TIME", "WHO", "VERB", "OBJECT", "REPLICAS", "WHY", "FROM", "WITH"]
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for event in events {
        let reference = &event["objectRef"];
        let mut object = text(reference, "resource").to_owned();
        for part in ["name", "subresource"] {
            if !text(reference, part).is_empty() {
                object.push('/');
                object.push_str(text(reference, part));
            }
        }
        if !text(reference, "namespace").is_empty() {
            object.push_str(" in ");
            object.push_str(text(reference, "namespace"));
        }
        let cause = event["annotations"].get("ferry.dev/cause").and_then(Value::as_str).unwrap_or("-");
        let agent = text(event, "userAgent").split(' ').next().unwrap_or("");
        rows.push(vec![
            time(event).to_owned(),
            who(event),
            text(event, "verb").to_owned(),
            object,
            replicas(event).unwrap_or_else(|| "-".to_owned()),
            cause.to_owned(),
            event["sourceIPs"][0].as_str().unwrap_or("-").to_owned(),
            if agent.is_empty() { "-".to_owned() } else { agent.to_owned() },
        ]);
    }
    if !scaled {
        rows.iter_mut().for_each(|row| drop(row.remove(4)));
    }
    aligned(&rows)
}

/// Pads columns to three spaces apart. Escapes control characters, since user agents are chosen by clients.
fn aligned(rows: &[Vec<String>]) -> String {
    let clean =
        |cell: &String| cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(clean).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}   "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(verb: &str, resource: &str, name: &str, subresource: &str) -> Value {
        json!({
            "stage": "ResponseComplete", "verb": verb, "requestURI": "/x", "responseStatus": {"code": 200},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z",
            "user": {"username": "alice"}, "sourceIPs": ["10.0.0.7"], "userAgent": "kubectl/v1.36 (linux)",
            "objectRef": {"resource": resource, "namespace": "n", "name": name, "subresource": subresource},
        })
    }

    fn search(filter: RequestFilter, object: &str) -> Search<'static> {
        let object = Some(Object::parse(object).expect("an object"));
        Search { filter, object, user: None, namespace: Some("n"), after: None }
    }

    #[test]
    fn kind_is_accepted_in_all_kubectl_forms() {
        for text in ["pod/p", "pods/p", "po/p", "Pod/p"] {
            assert_eq!(Object::parse(text).expect("known").resource, "pods", "{text}");
        }
        let deployment = Object::parse("deploy/web").expect("known");
        assert_eq!(
            (deployment.group.as_deref(), deployment.resource.as_str()),
            (Some("apps"), "deployments")
        );
        assert_eq!(
            Object::parse("widgets.example.com/w").expect("any").group.as_deref(),
            Some("example.com")
        );
    }

    #[test]
    fn query_returns_matching_events() {
        let deleted = event("delete", "pods", "p", "");
        let all = event("deletecollection", "pods", "", "");
        let evicted = event("create", "pods", "p", "eviction");
        let mut namespace = event("delete", "namespaces", "n", "");
        namespace["objectRef"]["namespace"] = json!("n");
        let other = event("delete", "pods", "q", "");
        let mut elsewhere = deleted.clone();
        elsewhere["objectRef"]["namespace"] = json!("m");
        let mut refused = deleted.clone();
        refused["responseStatus"]["code"] = json!(403);
        let mut trial = deleted.clone();
        trial["requestURI"] = json!("/x?dryRun=All");
        let mut scaled = event("patch", "deployments", "web", "scale");
        scaled["objectRef"]["apiGroup"] = json!("apps");
        scaled["annotations"] =
            json!({"ferry.dev/replicas": "3 -> 100", "ferry.dev/cause": "horizontal-pod-autoscaler"});
        for (filter, object, event, want) in [
            (RequestFilter::Deleted, "pod/p", &deleted, true),
            (RequestFilter::Deleted, "pod/p", &all, true),
            (RequestFilter::Deleted, "pod/p", &evicted, true),
            (RequestFilter::Deleted, "pod/p", &namespace, true),
            (RequestFilter::Deleted, "pod/p", &other, false),
            (RequestFilter::Deleted, "pod/p", &elsewhere, false),
            (RequestFilter::Deleted, "pod/p", &refused, false),
            (RequestFilter::Deleted, "pod/p", &trial, false),
            (RequestFilter::Scaled, "deployment/web", &scaled, true),
            (RequestFilter::Changed, "deployment/web", &scaled, true),
            (RequestFilter::Scaled, "pod/p", &deleted, false),
            (RequestFilter::Created, "pod/p", &evicted, false),
        ] {
            assert_eq!(search(filter, object).matches(event), want, "{filter:?} {object} {event}");
        }
        let text = table(&[scaled]);
        let line = text.lines().nth(1).expect("a line");
        for part in [
            "alice",
            "patch",
            "deployments/web/scale in n",
            "3 -> 100",
            "horizontal-pod-autoscaler",
            "kubectl/v1.36",
        ] {
            assert!(line.contains(part), "{text}");
        }
    }

    #[test]
    fn log_with_invalid_lines_or_gzip_is_read() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let plain = directory.path().join("audit.log");
        std::fs::write(&plain, format!("rubbish\n{}\n{{\"half\":", event("delete", "pods", "p", "")))?;
        let packed = directory.path().join("audit.log.gz");
        let mut encoder = flate2::write::GzEncoder::new(File::create(&packed)?, flate2::Compression::fast());
        writeln!(encoder, "{}", event("delete", "pods", "p", ""))?;
        encoder.finish()?;
        for path in [plain, packed] {
            let mut events = 0;
            read(&path, |_| events += 1)?;
            assert_eq!(events, 1, "{}", path.display());
        }
        Ok(())
    }
}
