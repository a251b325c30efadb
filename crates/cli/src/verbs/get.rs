//! `kubectl get`: objects in tables that the server makes, or whole.

use client::ResourceInfo;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::arguments::{Flag, Matches, list, number, option, switch};
use crate::error::{CliError, fail};
use crate::flags::{EVERYWHERE, FIELD_SELECTOR, FILES, OUTPUT, SELECTOR};
use crate::manifest;
use crate::printer::{Format, Printer, TabWriter, TableOptions, TablePrinter, table_of};
use crate::resource::{Selection, Target, kind_group, list_error, list_request};
use crate::session::{Request, Session};
use crate::verbs::Verb;
use crate::verbs::sort::{self, SortKey};

pub const VERB: Verb = Verb::new(
    "get",
    "Display one or many resources",
    "[(-o|--output=)json|yaml|name|jsonpath|custom-columns|go-template|wide] (TYPE[.VERSION][.GROUP] [NAME | -l label] | TYPE[.VERSION][.GROUP]/NAME ...) [flags]",
    &[FLAGS, FILES, SELECTOR, FIELD_SELECTOR, EVERYWHERE, OUTPUT],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    number("chunk-size", "500", "Return large lists in chunks rather than all at once."),
    switch("ignore-not-found", "If the requested object does not exist the command will return exit code 0."),
    list(
        "label-columns",
        "Accepts a comma separated list of labels that are going to be presented as columns.",
    )
    .short('L'),
    switch("no-headers", "When using the default or custom-column output format, don't print headers."),
    switch("output-watch-events", "Output watch event objects when --watch or --watch-only is used."),
    option("raw", "Raw URI to request from the server."),
    switch("server-print", "If true, have the server return the appropriate table output.").default("true"),
    switch("show-kind", "If present, list the resource type for the requested object(s)."),
    switch("show-labels", "When printing, show all labels as the last column"),
    option("sort-by", "If non-empty, sort list types using this field specification."),
    option("subresource", "If specified, gets the subresource of the requested object."),
    switch("watch", "After listing/getting the requested object, watch for changes.").short('w'),
    switch("watch-only", "Watch for changes to the requested object(s), without listing/getting first."),
];

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
/// Formats that only get has.
const MORE: [&str; 3] = ["custom-columns", "custom-columns-file", "wide"];

/// Flags of one run.
struct Get<'a> {
    matches: &'a Matches,
    selection: Selection,
    wide: bool,
    sort: Option<SortKey>,
}

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if let Some(path) = matches.explicit("raw") {
        let answer = session.exchange(&Request::get(path)).await?;
        session.io.out.bytes(answer.body());
        return Ok(());
    }
    let manifests = manifest::load(matches, &session.io)?;
    if matches.operands.is_empty() && manifests.is_empty() {
        session.io.err.line("You must specify the type of resource to get. Use \"kubectl api-resources\" for a complete list of supported resources.\n");
        return fail(
            "Required resource not specified.\nUse \"kubectl explain <resource>\" for a detailed description of that resource (e.g. kubectl explain pods).\nSee 'kubectl get -h' for help and examples",
        );
    }
    if !matches.operands.is_empty() && !manifests.is_empty() {
        return fail(
            "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well",
        );
    }
    let output = matches.text("output");
    let wide = output == "wide";
    if matches.on("show-labels") && !wide && !output.is_empty() {
        return fail(format!("--show-labels option cannot be used with {output} printer"));
    }
    let printer = if wide { None } else { Printer::parse(output, matches, &MORE)? };
    let sort = match matches.text("sort-by") {
        "" => None,
        path => Some(SortKey::parse(path)?),
    };
    let selection = Selection { types_alone: true, ..Selection::read(matches) };
    let get = Get { matches, selection, wide, sort };
    let (targets, implied) = if manifests.is_empty() {
        let targets = session.targets(&get.selection).await?;
        let implied = targets.len() == 1 && !targets[0].name.is_empty();
        (targets, implied)
    } else {
        let mut targets = Vec::new();
        for manifest in &manifests {
            targets.push(session.target_of(&manifest.object, &manifest.source).await?);
        }
        let implied = targets.len() == 1;
        (targets, implied)
    };
    if matches.on("watch") || matches.on("watch-only") {
        return get.watch(session, &targets, printer).await;
    }
    match printer {
        Some(printer) => get.whole(session, &targets, printer, implied).await,
        None => get.tables(session, &targets).await,
    }
}

impl Get<'_> {
    fn request(&self, target: &Target, token: &str) -> Request {
        let subresource = self.matches.text("subresource");
        if !target.name.is_empty() {
            let path = if subresource.is_empty() { target.path() } else { target.subresource(subresource) };
            return Request::get(path);
        }
        let mut request = list_request(target, &self.selection, token);
        let size = self.matches.int("chunk-size");
        request.query.retain(|(key, _)| *key != "limit");
        if size > 0 && self.sort.is_none() {
            request = request.query("limit", size.to_string());
        }
        request
    }

    /// The answers of a target, page by page.
    async fn pages(
        &self,
        session: &mut Session,
        target: &Target,
        accept: &'static str,
    ) -> Result<Vec<Value>, CliError> {
        let mut pages = Vec::new();
        let mut token = String::new();
        loop {
            let mut request = self.request(target, &token);
            request.accept = accept;
            if self.sort.is_some() && accept == TABLE {
                request = request.query("includeObject", "Object");
            }
            let page =
                session.send(&request).await.map_err(|error| list_error(error, target, &self.selection))?;
            token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            pages.push(page);
            if token.is_empty() {
                return Ok(pages);
            }
        }
    }

    fn table_printer(&self, resource: &ResourceInfo, with_namespace: bool, with_kind: bool) -> TablePrinter {
        let matches = self.matches;
        TablePrinter::new(TableOptions {
            no_headers: matches.on("no-headers"),
            wide: self.wide,
            with_namespace,
            kind: (with_kind || matches.on("show-kind")).then(|| kind_group(resource)),
            show_labels: matches.on("show-labels"),
            label_columns: matches.all("label-columns"),
        })
    }

    async fn tables(&self, session: &mut Session, targets: &[Target]) -> Result<(), CliError> {
        let mut errors = Vec::new();
        let mut answers: Vec<(&Target, Value)> = Vec::new();
        for target in targets {
            match self.pages(session, target, TABLE).await {
                Ok(pages) => answers.extend(pages.into_iter().map(|page| (target, table_of(&page)))),
                Err(error) if error.is_not_found() && self.matches.on("ignore-not-found") => {}
                Err(error) => errors.push(error),
            }
        }
        if let Some(key) = &self.sort {
            for (_, table) in &mut answers {
                sort::table(table, key)?;
            }
        }
        let key_of = |target: &Target| (target.resource.key.clone(), target.resource.kind.clone());
        let with_kind = answers.windows(2).any(|pair| key_of(pair[0].0) != key_of(pair[1].0));
        let (mut printed, mut with_namespace) = (false, false);
        let mut all_namespaced = !self.selection.everywhere;
        let mut at = 0;
        while at < answers.len() {
            let target = answers[at].0;
            let end = answers[at..].iter().position(|(other, _)| key_of(other) != key_of(target));
            let end = end.map_or(answers.len(), |length| at + length);
            // As in kubectl, the column stays once a resource had it.
            with_namespace |= self.selection.everywhere && target.resource.key.namespaced;
            let mut printer = self.table_printer(&target.resource, with_namespace, with_kind);
            let mut writer = TabWriter::default();
            for (target, table) in &answers[at..end] {
                all_namespaced &= target.resource.key.namespaced;
                printer.print(table, None, &mut writer);
            }
            let text = writer.flush();
            if !text.is_empty() {
                if printed && !self.matches.on("no-headers") {
                    session.io.out.line("");
                }
                session.io.out.text(&text);
                printed = true;
            }
            at = end;
        }
        if !printed && errors.is_empty() && !self.matches.on("ignore-not-found") {
            let message = if all_namespaced {
                format!("No resources found in {} namespace.", session.namespace()?)
            } else {
                "No resources found".to_owned()
            };
            session.io.err.line(&message);
        }
        CliError::all(errors)
    }

    async fn whole(
        &self,
        session: &mut Session,
        targets: &[Target],
        mut printer: Printer,
        implied: bool,
    ) -> Result<(), CliError> {
        if let Format::Columns(columns) = &mut printer.format {
            columns.no_headers = self.matches.on("no-headers");
        }
        let (mut items, mut errors) = (Vec::new(), Vec::new());
        for target in targets {
            match self.pages(session, target, "application/json").await {
                Ok(pages) => items.extend(pages.into_iter().flat_map(|page| members(page, target))),
                Err(error) if error.is_not_found() && self.matches.on("ignore-not-found") => {}
                Err(error) if implied => return Err(error),
                Err(error) => errors.push(error),
            }
        }
        if items.is_empty() && self.matches.on("ignore-not-found") {
            return CliError::all(errors);
        }
        if let Some(key) = &self.sort {
            sort::objects(&mut items, key)?;
        }
        let object = match (implied, items.len()) {
            (true, 1) => items.remove(0),
            _ => {
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
            }
        };
        let text = printer.print(&object)?;
        session.io.out.text(&text);
        CliError::all(errors)
    }

    async fn watch(
        &self,
        session: &mut Session,
        targets: &[Target],
        mut printer: Option<Printer>,
    ) -> Result<(), CliError> {
        let [target] = targets else {
            return fail("you may only specify a single resource type");
        };
        let accept = if printer.is_some() { "application/json" } else { TABLE };
        let mut table_printer = self.table_printer(&target.resource, self.selection.everywhere, false);
        let mut writer = TabWriter::default();
        let show_events = self.matches.on("output-watch-events");
        let mut show = |session: &mut Session, event: &str, object: Value| -> Result<(), CliError> {
            match &mut printer {
                None => {
                    table_printer.print(&table_of(&object), show_events.then_some(event), &mut writer);
                    let text = writer.flush();
                    session.io.out.text(&text);
                }
                Some(printer) => {
                    for item in members(object, target) {
                        let item = if show_events { json!({"type": event, "object": item}) } else { item };
                        let text = printer.print(&item)?;
                        session.io.out.text(&text);
                    }
                }
            }
            Ok(())
        };
        let mut version = String::new();
        for page in self.pages(session, target, accept).await? {
            page["metadata"]["resourceVersion"].as_str().unwrap_or_default().clone_into(&mut version);
            if !self.matches.on("watch-only") {
                show(session, "ADDED", page)?;
            }
        }
        let collection = Target { name: String::new(), ..target.clone() };
        let mut request = list_request(&collection, &self.selection, "");
        request.query.retain(|(key, _)| *key != "limit");
        request = request.query("watch", "true").query("resourceVersion", version);
        if !target.name.is_empty() {
            request = request.query("fieldSelector", format!("metadata.name={}", target.name));
        }
        request.accept = accept;
        let mut events = Events::new(session.stream(&request).await?.into_body());
        while let Some(event) = events.next().await? {
            let kind = event["type"].as_str().unwrap_or_default().to_owned();
            if kind == "ERROR" {
                let message = event["object"]["message"].as_str().unwrap_or("the watch failed");
                return fail(format!("an error on the server: {message}"));
            }
            let Value::Object(mut event) = event else { continue };
            if let Some(object) = event.remove("object").filter(|_| kind != "BOOKMARK") {
                show(session, &kind, object)?;
            }
        }
        Ok(())
    }
}

/// The objects of a list, or an object alone, with their types.
fn members(mut object: Value, target: &Target) -> Vec<Value> {
    let Some(Value::Array(items)) = object.get_mut("items").map(Value::take) else { return vec![object] };
    let (api_version, kind) = (target.resource.key.api_version(), &target.resource.kind);
    let typed = |mut item: Value| {
        if item["kind"].is_null() {
            item["apiVersion"] = json!(api_version);
            item["kind"] = json!(kind);
        }
        item
    };
    items.into_iter().map(typed).collect()
}

/// Events of a watch, one JSON object per line.
pub struct Events {
    body: client::Body,
    buffer: Vec<u8>,
}

impl Events {
    /// Longest event that is read.
    const LONGEST: usize = 64 << 20;

    pub fn new(body: client::Body) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// The next event; nothing at the end of the watch.
    pub async fn next(&mut self) -> Result<Option<Value>, CliError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=searched + at).collect();
                return match serde_json::from_slice(&line) {
                    Ok(event) => Ok(Some(event)),
                    Err(error) => fail(format!("unable to decode an event from the watch stream: {error}")),
                };
            }
            searched = self.buffer.len();
            if searched > Self::LONGEST {
                return fail("an event of the watch stream is too long");
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return fail(crate::error::chain(&error)),
            }
        }
    }
}
