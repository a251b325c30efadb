//! Labels of request metrics. Only names that this server defines become label values, so that clients cannot add
//! series by inventing verbs, resources or paths.

use crate::aggregate::Backend;
use crate::context::Context;
use crate::request_info::{RequestInfo, Verb};

/// Subresources whose requests are connections.
const CONNECTIONS: [&str; 5] = ["log", "exec", "portforward", "attach", "proxy"];

/// Paths with a label of their own, in the label `subresource`.
const PATHS: [&str; 8] = [
    "/healthz",
    "/livez",
    "/readyz",
    "/debug/pprof/",
    "/debug/pprof/cmdline",
    "/debug/pprof/heap",
    "/debug/pprof/profile",
    "/debug/pprof/symbol",
];

/// Paths whose label is `resource`.
const PAGES: [(&str, &str); 2] = [("/flagz", "flagz"), ("/statusz", "statusz")];

/// Labels of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    pub verb: &'static str,
    pub dry_run: &'static str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub scope: &'static str,
    /// True for a deprecated version.
    pub is_deprecated: bool,
}

/// Value of the label `component`.
pub const COMPONENT: &str = "apiserver";

impl<'a> Labels<'a> {
    /// `None` for resources that this server does not serve itself.
    pub fn of(context: &'a Context) -> Option<Self> {
        let info = &*context.info;
        let dry_run = dry_run(context);
        if !info.is_resource {
            let path = &*context.path;
            return Some(Self {
                verb: method(context),
                dry_run,
                group: "",
                version: "",
                resource: PAGES.iter().find(|(known, _)| *known == path).map_or("", |(_, name)| name),
                subresource: PATHS.into_iter().find(|known| *known == path).unwrap_or_default(),
                scope: "",
                is_deprecated: false,
            });
        }
        let is_deprecated = is_deprecated(context)?;
        Some(Self {
            verb: verb(context),
            dry_run,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            scope: scope(info),
            is_deprecated,
        })
    }

    /// Values of the labels that most families have.
    pub fn common(&self) -> [&'a str; 7] {
        [self.verb, self.group, self.version, self.resource, self.subresource, self.scope, COMPONENT]
    }

    /// The same with `dry_run`.
    pub fn with_dry_run(&self) -> [&'a str; 8] {
        let [verb, group, version, resource, subresource, scope, component] = self.common();
        [verb, self.dry_run, group, version, resource, subresource, scope, component]
    }
}

/// Reports whether the version of a served resource is deprecated; `None` if the resource or subresource is unknown.
fn is_deprecated(context: &Context) -> Option<bool> {
    let info = &context.info;
    let (group, version, resource) = (&*info.group, &*info.version, &*info.resource);
    let catalogue = &context.catalogue;
    if matches!(catalogue.backend(group, version), Some(Backend::Remote(_))) {
        return None;
    }
    if let Some(served) = catalogue.served(group, version, resource) {
        let is_known =
            info.subresource.is_empty() || served.subresources.iter().any(|row| row.name == info.subresource);
        return is_known.then(|| served.rules.deprecation().is_some());
    }
    let shown = catalogue.discovery.versions_of(group).iter().find(|shown| shown.version == version)?;
    let row = shown.resources.iter().find(|row| row.name == resource)?;
    let is_known =
        info.subresource.is_empty() || row.subresources.iter().any(|sub| sub.name == info.subresource);
    is_known.then_some(false)
}

fn dry_run(context: &Context) -> &'static str {
    match context.query.get("dryRun") {
        None => "",
        Some("All") => "All",
        Some(_) => "invalid",
    }
}

fn scope(info: &RequestInfo) -> &'static str {
    let is_collection = matches!(info.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
    let has_name = !info.name.is_empty() && (!is_collection || info.watch_prefix);
    if has_name || info.verb == Verb::Create {
        "resource"
    } else if info.in_namespace {
        "namespace"
    } else {
        "cluster"
    }
}

fn method(context: &Context) -> &'static str {
    match context.info.verb {
        Verb::Get | Verb::Head => "GET",
        Verb::Post => "POST",
        Verb::Put => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        _ => "other",
    }
}

fn verb(context: &Context) -> &'static str {
    let info = &context.info;
    if CONNECTIONS.contains(&&*info.subresource) {
        return "CONNECT";
    }
    match info.verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch if is_apply(context) => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETE",
        _ => "other",
    }
}

/// Reports whether a patch is a server-side apply.
fn is_apply(context: &Context) -> bool {
    let media = context.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media.is_some_and(|media| media.starts_with("application/apply-patch"))
}
