//! Parameters of operations with their documentation.

use super::route::{Parameter, ParameterLocation};
use api::docs::Docs;
use std::collections::HashMap;
use std::sync::Arc;

/// Name and type of query parameters.
type Names = &'static [(&'static str, &'static str)];

pub const LIST: Names = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("shardSelector", "string"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];

pub const DELETE: Names = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

/// List parameters of deletecollection.
pub const DELETE_COLLECTION: Names = &[
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("shardSelector", "string"),
    ("timeoutSeconds", "integer"),
];

pub const WRITE: Names = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
pub const FORCE: Names = &[("force", "boolean")];
pub const PRETTY: Names = &[("pretty", "string")];

const LOG: Names = &[
    ("container", "string"),
    ("follow", "boolean"),
    ("insecureSkipTLSVerifyBackend", "boolean"),
    ("limitBytes", "integer"),
    ("previous", "boolean"),
    ("sinceSeconds", "integer"),
    ("stream", "string"),
    ("tailLines", "integer"),
    ("timestamps", "boolean"),
];

const ATTACH: Names = &[
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];

const EXEC: Names = &[
    ("command", "string"),
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];

/// Query parameters from the options kinds of `connect` subresources and logs.
pub fn of_options(kind: &str) -> Names {
    match kind {
        "log" => LOG,
        "PodAttachOptions" => ATTACH,
        "PodExecOptions" => EXEC,
        "PodPortForwardOptions" => &[("ports", "integer")],
        "NodeProxyOptions" | "PodProxyOptions" | "ServiceProxyOptions" => &[("path", "string")],
        _ => &[],
    }
}

/// Documentation of parameters, deduplicated.
pub struct Parameters {
    texts: HashMap<&'static str, Arc<str>>,
    docs: Arc<Docs>,
}

impl Parameters {
    pub fn new(docs: Arc<Docs>) -> Self {
        let mut texts = HashMap::new();
        let names = [LIST, DELETE, WRITE, FORCE, PRETTY, LOG, EXEC].concat();
        for (name, _) in names.into_iter().chain([("namespace", ""), ("path", ""), ("ports", "")]) {
            let of_delete = || docs.of_field("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", name);
            if let Some(text) = docs.of_parameter(name).or_else(of_delete) {
                texts.insert(name, Arc::from(text));
            }
        }
        Parameters { texts, docs }
    }

    /// Query parameters whose documentation may differ between kinds.
    pub fn query(&self, names: Names, of: &str) -> Vec<Parameter> {
        names
            .iter()
            .map(|&(name, kind)| {
                let own = if of.is_empty() { None } else { self.docs.of_parameter(&format!("{of}.{name}")) };
                let text = own.map_or_else(|| self.text(name), Arc::from);
                Parameter { name, location: ParameterLocation::Query, kind, text }
            })
            .collect()
    }

    /// A parameter in the path: `namespace`, `path`, or `name` with the kind it names.
    pub fn path(&self, name: &'static str, kind: &str) -> Parameter {
        let text = match name {
            "name" => Arc::from(format!("name of the {kind}")),
            _ => self.text(name),
        };
        Parameter { name, location: ParameterLocation::Path, kind: "string", text }
    }

    fn text(&self, name: &str) -> Arc<str> {
        self.texts.get(name).cloned().unwrap_or_else(|| Arc::from(""))
    }
}
