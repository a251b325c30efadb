//! Routes of resources: every verb and subresource in discovery, with Kubernetes' names and descriptions.

use super::Part;
use super::parameters::{self, Parameters};
use super::route::*;
use crate::discovery::{ApiResource, ApiSubresource, GroupVersion};
use api::kinds;
use std::sync::Arc;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const STREAMS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const LOGS: &[&str] =
    &["text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_ENCODINGS: &[&str] = &["application/json", "application/yaml"];
const CUSTOM_PATCHES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
const CONNECT: &[(&str, &str)] = &[
    ("get", "get"),
    ("create", "post"),
    ("update", "put"),
    ("delete", "delete"),
    ("patch", "patch"),
    ("", "options"),
    ("", "head"),
];

/// `CoreV1`, `RbacAuthorizationV1`, `ExampleComV1`.
pub fn title(group: &str, version: &str) -> String {
    format!("{}{}", group_title(group), capitalised(version))
}

/// `Core`, `RbacAuthorization`, `ExampleCom`.
pub fn group_title(group: &str) -> String {
    match group {
        "" => "Core".to_owned(),
        group => group.trim_end_matches(".k8s.io").split(['.', '-']).map(capitalised).collect(),
    }
}

/// A title with a lower-case first letter, for tags.
pub fn tag(title: &str) -> String {
    let mut characters = title.chars();
    characters.next().map_or_else(String::new, |first| first.to_lowercase().chain(characters).collect())
}

fn capitalised(name_part: &str) -> String {
    let mut characters = name_part.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// Adds every route of a group version.
pub fn add(routes: &mut Routes, part: &Part, parameters: &Parameters) {
    let version = &part.discovery;
    let root = match version.group.as_ref() {
        "" => format!("/api/{}", version.version),
        group => format!("/apis/{group}/{}", version.version),
    };
    for resource in &version.resources {
        Resource { routes, part, parameters, version, resource, root: &root }.add();
    }
}

/// One resource while its routes are written.
struct Resource<'a> {
    routes: &'a mut Routes,
    part: &'a Part,
    parameters: &'a Parameters,
    version: &'a GroupVersion,
    resource: &'a ApiResource,
    root: &'a str,
}

impl Resource<'_> {
    fn add(&mut self) {
        let namespaced = if self.resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{}{namespaced}/{}", self.root, self.resource.name);
        let item = format!("{collection}/{{name}}");
        let kind = self.resource.kind.to_string();
        for verb in self.resource.verbs.clone() {
            match verb.as_ref() {
                "list" => self.lists(&collection),
                "create" => self.collection_write(&collection),
                "deletecollection" => self.delete_collection(&collection),
                verb @ ("get" | "update" | "patch") => {
                    let own =
                        (self.version.group.to_string(), self.version.version.to_string(), kind.clone());
                    let operation = self.item(verb, "", own);
                    self.push(&item, operation);
                }
                "delete" => {
                    let operation = self.delete();
                    self.push(&item, operation);
                }
                "watch" if !self.part.custom => self.watches(),
                _ => {}
            }
        }
        for subresource in &self.resource.subresources {
            self.subresource(&item, subresource);
        }
    }

    /// Adds an operation with the parameters of its path.
    fn push(&mut self, path: &str, mut operation: Operation) {
        let kind = operation.kind.as_ref().map_or("", |kind| kind.kind.as_str());
        for (token, name) in [("{namespace}", "namespace"), ("{name}", "name"), ("{path}", "path")] {
            if path.contains(token) {
                operation.parameters.push(self.parameters.path(name, kind));
            }
        }
        if operation.action != "connect" {
            operation.parameters.extend(self.parameters.query(parameters::PRETTY, ""));
        }
        self.routes.add(path.to_owned(), operation);
    }

    /// An operation on the resource's own kind without parameters.
    fn operation(&self, method: &'static str, action: &'static str, id: String, text: String) -> Operation {
        let kind = GroupVersionKind {
            group: self.version.group.to_string(),
            version: self.version.version.to_string(),
            kind: self.resource.kind.to_string(),
        };
        Operation {
            method,
            id,
            text,
            tag: format!("{}_{}", tag(&group_title(&self.version.group)), self.version.version),
            action,
            kind: Some(kind),
            consumes: if self.part.custom { CUSTOM_ENCODINGS } else { ANYTHING },
            produces: if self.part.custom { CUSTOM_ENCODINGS } else { ENCODINGS },
            parameters: Vec::new(),
            body: None,
            answer: Content::Text,
            codes: OK,
        }
    }

    fn id(&self, verb: &str, middle: &str, suffix: &str) -> String {
        let namespaced = if self.resource.namespaced { "Namespaced" } else { "" };
        let title = title(&self.version.group, &self.version.version);
        format!("{verb}{title}{middle}{namespaced}{}{suffix}", self.resource.kind)
    }

    fn type_of(&self, group: &str, version: &str, kind: &str) -> Content {
        self.part.types.name_of(group, version, kind).map_or(Content::Text, Content::Type)
    }

    fn own_type(&self, suffix: &str) -> Content {
        self.type_of(&self.version.group, &self.version.version, &format!("{}{suffix}", self.resource.kind))
    }

    fn lists(&mut self, collection: &str) {
        let or_watch = if self.resource.verbs.iter().any(|verb| verb == "watch") { " or watch" } else { "" };
        let text = format!("list{or_watch} objects of kind {}", self.resource.kind);
        let mut operation = self.operation("get", "list", self.id("list", "", ""), text);
        operation.parameters = self.parameters.query(parameters::LIST, "");
        operation.answer = self.own_type("List");
        if !self.part.custom {
            operation.produces = STREAMS;
        }
        if self.resource.namespaced {
            let mut everywhere = operation.clone();
            let title = title(&self.version.group, &self.version.version);
            everywhere.id = format!("list{title}{}ForAllNamespaces", self.resource.kind);
            let path = format!("{}/{}", self.root, self.resource.name);
            self.push(&path, everywhere);
        }
        self.push(collection, operation);
    }

    fn collection_write(&mut self, collection: &str) {
        let text = format!("create {}", with_article(&self.resource.kind));
        let mut operation = self.operation("post", "post", self.id("create", "", ""), text);
        operation.parameters = self.parameters.query(parameters::WRITE, "");
        operation.answer = self.own_type("");
        operation.body = Some(Body { content: operation.answer.clone(), required: true });
        operation.codes = OK_CREATED_ACCEPTED;
        self.push(collection, operation);
    }

    fn delete_collection(&mut self, collection: &str) {
        let text = format!("delete collection of {}", self.resource.kind);
        let mut operation =
            self.operation("delete", "deletecollection", self.id("delete", "Collection", ""), text);
        operation.parameters = self.parameters.query(parameters::DELETE_COLLECTION, "");
        if !self.part.custom {
            operation.parameters.extend(self.parameters.query(parameters::DELETE, ""));
            operation.body = Some(delete_options());
        } else {
            operation.parameters = self.parameters.query(parameters::LIST, "");
        }
        operation.answer = meta("Status");
        self.push(collection, operation);
    }

    fn delete(&self) -> Operation {
        let text = format!("delete {}", with_article(&self.resource.kind));
        let mut operation = self.operation("delete", "delete", self.id("delete", "", ""), text);
        operation.parameters = self.parameters.query(parameters::DELETE, "");
        operation.body = Some(delete_options());
        let kind = kinds::find(&self.version.group, &self.resource.name);
        let returned = kind.is_some_and(|kind| kind.returns_deleted);
        operation.answer = if returned { self.own_type("") } else { meta("Status") };
        operation.codes = OK_ACCEPTED;
        operation
    }

    /// get, update or patch of an object or of its subresource, whose kind may differ.
    fn item(&self, verb: &str, sub: &str, kind: (String, String, String)) -> Operation {
        let of = if sub.is_empty() { String::new() } else { format!("{sub} of ") };
        let (method, action, name_part, text) = match verb {
            "get" => ("get", "get", "read", format!("read {of}the specified {}", self.resource.kind)),
            "update" => {
                ("put", "put", "replace", format!("replace {of}the specified {}", self.resource.kind))
            }
            _ => (
                "patch",
                "patch",
                "patch",
                format!("partially update {of}the specified {}", self.resource.kind),
            ),
        };
        let mut operation = self.operation(method, action, self.id(name_part, "", &capitalised(sub)), text);
        operation.answer = self.type_of(&kind.0, &kind.1, &kind.2);
        operation.kind = Some(GroupVersionKind { group: kind.0, version: kind.1, kind: kind.2 });
        match method {
            "put" => {
                operation.parameters = self.parameters.query(parameters::WRITE, "");
                operation.body = Some(Body { content: operation.answer.clone(), required: true });
                operation.codes = OK_CREATED;
            }
            "patch" => {
                operation.parameters = self.parameters.query(parameters::WRITE, "patch");
                operation.parameters.extend(self.parameters.query(parameters::FORCE, ""));
                operation.body = Some(Body { content: meta("Patch"), required: true });
                operation.consumes = if self.part.custom { CUSTOM_PATCHES } else { PATCHES };
                operation.codes = if self.part.custom { OK } else { OK_CREATED };
            }
            _ => {}
        }
        operation
    }

    /// The deprecated paths below `watch/`.
    fn watches(&mut self) {
        let kind = self.resource.kind.to_string();
        let namespaced = if self.resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{}/watch{namespaced}/{}", self.root, self.resource.name);
        let of_list = format!(
            "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list \
             operation instead."
        );
        let of_item = format!(
            "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list \
             operation instead, filtered to a single item with the 'fieldSelector' parameter."
        );
        let mut list = self.operation("get", "watchlist", self.id("watch", "", "List"), of_list);
        list.parameters = self.parameters.query(parameters::LIST, "");
        list.produces = STREAMS;
        list.answer = meta("WatchEvent");
        let item = Operation { action: "watch", id: self.id("watch", "", ""), text: of_item, ..list.clone() };
        if self.resource.namespaced {
            let title = title(&self.version.group, &self.version.version);
            let id = format!("watch{title}{kind}ListForAllNamespaces");
            let everywhere = Operation { id, ..list.clone() };
            self.push(&format!("{}/watch/{}", self.root, self.resource.name), everywhere);
        }
        self.push(&collection, list);
        self.push(&format!("{collection}/{{name}}"), item);
    }

    fn subresource(&mut self, item: &str, sub: &ApiSubresource) {
        let path = format!("{item}/{}", sub.name);
        let (group, version) = match sub.version.as_ref() {
            "" => (self.version.group.to_string(), self.version.version.to_string()),
            version => (sub.group.to_string(), version.to_owned()),
        };
        let kind = (group, version, sub.kind.to_string());
        if !parameters::of_options(&sub.kind).is_empty() {
            self.connect(&path, sub, &kind, "");
            if sub.name == "proxy" {
                self.connect(&format!("{path}/{{path}}"), sub, &kind, "WithPath");
            }
            return;
        }
        for verb in &sub.verbs {
            let operation = match verb.as_ref() {
                verb @ ("get" | "update" | "patch") => {
                    let mut operation = self.item(verb, &sub.name, kind.clone());
                    if sub.name == "log" {
                        operation.parameters = self.parameters.query(parameters::of_options("log"), "log");
                        operation.answer = Content::Text;
                        operation.produces = LOGS;
                    }
                    operation
                }
                "create" => self.create_subresource(sub, &kind),
                _ => continue,
            };
            self.push(&path, operation);
        }
    }

    fn create_subresource(&self, sub: &ApiSubresource, kind: &(String, String, String)) -> Operation {
        let text = format!("create {} of {}", sub.name, with_article(&self.resource.kind));
        let id = self.id("create", "", &capitalised(&sub.name));
        let mut operation = self.operation("post", "post", id, text);
        operation.parameters = self.parameters.query(parameters::WRITE, "");
        operation.answer = self.type_of(&kind.0, &kind.1, &kind.2);
        operation.body = Some(Body { content: operation.answer.clone(), required: true });
        operation.codes = OK_CREATED_ACCEPTED;
        operation.kind =
            Some(GroupVersionKind { group: kind.0.clone(), version: kind.1.clone(), kind: kind.2.clone() });
        operation
    }

    /// A `connect` subresource, with every method it accepts.
    fn connect(&mut self, path: &str, sub: &ApiSubresource, kind: &(String, String, String), suffix: &str) {
        for (verb, method) in CONNECT {
            let listed =
                if verb.is_empty() { sub.name == "proxy" } else { sub.verbs.iter().any(|v| v == verb) };
            if !listed {
                continue;
            }
            let text = format!(
                "connect {} requests to {} of {}",
                method.to_uppercase(),
                sub.name,
                self.resource.kind
            );
            let id = self.id("connect", &capitalised(method), &format!("{}{suffix}", capitalised(&sub.name)));
            let mut operation = self.operation(method, "connect", id, text);
            operation.produces = ANYTHING;
            operation.parameters = self.parameters.query(parameters::of_options(&sub.kind), &sub.kind);
            operation.kind = Some(GroupVersionKind {
                group: kind.0.clone(),
                version: kind.1.clone(),
                kind: kind.2.clone(),
            });
            self.push(path, operation);
        }
    }
}

fn meta(kind: &str) -> Content {
    Content::Type(Arc::from(format!("{META}.{kind}")))
}

fn delete_options() -> Body {
    Body { content: meta("DeleteOptions"), required: false }
}

/// `a Pod`, `an Event`, `Endpoints`.
fn with_article(kind: &str) -> String {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        return kind.to_owned();
    }
    let vowel = kind.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_titles_have_articles() {
        assert_eq!(title("", "v1"), "CoreV1");
        assert_eq!(title("rbac.authorization.k8s.io", "v1"), "RbacAuthorizationV1");
        assert_eq!(group_title("example.com"), "ExampleCom");
        assert_eq!(tag("FlowcontrolApiserver"), "flowcontrolApiserver");
        assert_eq!(with_article("Pod"), "a Pod");
        assert_eq!(with_article("Endpoints"), "Endpoints");
        assert_eq!(with_article("IngressClass"), "an IngressClass");
    }
}
