//! OpenAPI documents, versions 2 and 3, as published by Kubernetes.
//!
//! Pure documents, no HTTP. Contract of the request chain:
//! - `/openapi/v2` accepts `application/json` (also for `*/*`) and [`V2_PROTOBUF`] or [`V2_PROTOBUF_OLD`], served as
//!   [`V2_PROTOBUF`]; anything else is 406 without a body.
//! - `/openapi/v3/{path}` likewise with [`V3_PROTOBUF`] and [`V3_PROTOBUF_OLD`]; an unknown path is 404 without a
//!   body. With `?hash=`: another hash than the document's is 301 to [`OpenApi::server_relative_url`]; the same one
//!   adds `Cache-Control: public, immutable` and `Expires` in one year.
//! - `/openapi/v3` is JSON, but declared as `text/plain; charset=utf-8`.
//! - All have `ETag` (the hash in quotes), `Last-Modified` and, except for the index, `Vary: Accept`; 304 when
//!   [`Document::matches`].
//!
//! They are built on first use, and compressed for clients with gzip and when other documents are used more recently.
//! An [`OpenApi`] is immutable: when custom resources or API services are added or removed, a new one replaces it.

mod definitions;
mod document;
mod fixed_routes;
mod gnostic;
mod hot;
mod parameters;
mod remote_spec;
mod render;
mod resource_routes;
mod route;
mod shared_parameters;
mod version_3;

#[cfg(test)]
mod reference_tests;

pub use definitions::BuiltIn;
pub use document::Document;
pub use remote_spec::RemoteSpec;
use remote_spec::{MergedSpecs, OwnSpec};

use crate::discovery::GroupVersion;
use crate::shared_map::SharedMap;
use api::Text;
use api::docs::Docs;
use api::runtime_config::RuntimeConfig;
use document::{Output, Writer};
use gnostic::Encoder;
use hot::HotDocuments;
use machinery::schema::Schema;
use parameters::Parameters;
use route::{PathItem, Routes};
use serde_json::{Value, json};
use shared_parameters::SharedParameters;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// Media types of the protobuf forms, and the older names that clients still request.
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
pub const V2_PROTOBUF_OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
pub const V3_PROTOBUF_OLD: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// OpenAPI version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    V2,
    V3,
}

impl Dialect {
    /// Reference to a type.
    pub fn reference(self, name: &str) -> String {
        match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }
    }
}

/// Source of the types of a group version: the built-in table, or a custom resource definition.
pub trait Types: Send + Sync {
    /// Full name of a kind's type.
    fn name_of(&self, group: &str, version: &str, kind: &str) -> Option<Arc<str>>;

    /// Documentation texts.
    fn docs(&self) -> Arc<Docs>;

    /// The types that the definition of a type refers to.
    fn mentioned(&self, name: &str) -> Vec<Arc<str>>;

    /// The definition of a type by its full name. `document` is the group version of the document, none for the
    /// document of all.
    fn definition(
        &self,
        name: &str,
        dialect: Dialect,
        document: Option<(&str, &str)>,
        docs: &Docs,
    ) -> Option<Value>;
}

/// One group version and its types.
#[derive(Clone)]
pub struct Part {
    pub discovery: Arc<GroupVersion>,
    pub types: Arc<dyn Types>,
    /// A custom resource: no protobuf, no strategic merge patch, no paths below `watch/`.
    pub custom: bool,
}

/// The documents of a set of group versions.
pub struct OpenApi {
    /// Types of non-resources: discovery, version.
    base: Arc<dyn Types>,
    v2: Forms,
    /// Version 3 documents of non-resource paths.
    fixed: Arc<Paths>,
    /// Version 3 documents of groups and their versions, by group.
    groups: SharedMap<Arc<Paths>>,
    index: OnceLock<Arc<Document>>,
    /// Version 3 documents of other servers, each with its part of that server's version 2 document.
    remote: BTreeMap<String, Option<Arc<RemoteSpec>>>,
    hot: Arc<HotDocuments>,
}

/// Documents of one group.
pub struct GroupDocuments {
    pub group: Text,
    pub parts: Vec<Part>,
    /// As in [`OpenApi`].
    pub remote: BTreeMap<String, Option<Arc<RemoteSpec>>>,
}

/// Version 3 documents by path.
type Paths = BTreeMap<Arc<str>, Arc<Path>>;

/// One version 3 document, shared by catalogues in which it is unchanged.
struct Path {
    source: Source,
    forms: Forms,
}

impl Path {
    fn new(source: Source) -> Arc<Self> {
        Arc::new(Self { source, forms: Forms::default() })
    }
}

/// The forms of a document that have been requested.
#[derive(Default)]
struct Forms {
    json: OnceLock<Arc<Document>>,
    protobuf: OnceLock<Arc<Document>>,
}

/// Subject of a version 3 document.
#[derive(Clone)]
enum Source {
    /// Index into the non-resource routes.
    Fixed(usize),
    /// A group of built-in kinds.
    Group(String),
    /// A group version, which several definitions may share.
    Version(Vec<Part>),
}

impl OpenApi {
    /// The documents of these group versions; `base` has the types of discovery.
    pub fn new(parts: Vec<Part>, base: Arc<dyn Types>) -> Self {
        let fixed = fixed_routes::all().into_iter().enumerate();
        let fixed = fixed.map(|(index, (name, ..))| (Arc::from(name), Path::new(Source::Fixed(index))));
        let mut groups: BTreeMap<Arc<str>, Paths> = BTreeMap::new();
        for part in &parts {
            let group = &*part.discovery.group;
            let paths = groups.entry(Arc::from(group)).or_default();
            if !part.custom && !group.is_empty() {
                let path = Arc::from(format!("apis/{group}"));
                paths.insert(path, Path::new(Source::Group(group.to_owned())));
            }
        }
        for (path, parts) in by_path(parts) {
            let group = group_of(&path).unwrap_or_default();
            groups.entry(Arc::from(group)).or_default().insert(path, Path::new(Source::Version(parts)));
        }
        OpenApi {
            base,
            v2: Forms::default(),
            fixed: Arc::new(fixed.collect()),
            groups: groups.into_iter().map(|(group, paths)| (group, Arc::new(paths))).collect(),
            index: OnceLock::new(),
            remote: BTreeMap::new(),
            hot: Arc::default(),
        }
    }

    /// These documents with other ones for the versions of some groups. Unchanged documents are shared.
    #[must_use]
    pub fn with_groups(&self, changed: Vec<GroupDocuments>) -> Self {
        let (mut groups, mut remote) = (self.groups.clone(), self.remote.clone());
        for GroupDocuments { group, parts, remote: added } in changed {
            remote.retain(|path, _| group_of(path) != Some(&*group));
            remote.extend(added);
            let known = self.groups.get(&group);
            let of_group = |path: &&Arc<Path>| matches!(path.source, Source::Group(_));
            let mut paths: Paths = known
                .into_iter()
                .flat_map(|paths| paths.iter())
                .filter(|(_, path)| of_group(path))
                .map(|(name, path)| (Arc::clone(name), Arc::clone(path)))
                .collect();
            for (name, parts) in by_path(parts) {
                let source = Source::Version(parts);
                let same =
                    known.and_then(|paths| paths.get(&name)).filter(|same| same.source.is_same(&source));
                let path = same.map_or_else(|| Path::new(source), Arc::clone);
                paths.insert(name, path);
            }
            let gone =
                known.into_iter().flat_map(|known| known.keys()).filter(|name| !paths.contains_key(*name));
            gone.for_each(|name| self.hot.remove(name));
            if paths.is_empty() {
                groups.remove(&group);
            } else {
                groups.insert(Arc::from(&*group), Arc::new(paths));
            }
        }
        let (v2, index) = (Forms::default(), OnceLock::new());
        let (base, fixed, hot) = (Arc::clone(&self.base), Arc::clone(&self.fixed), Arc::clone(&self.hot));
        OpenApi { base, v2, fixed, groups, index, remote, hot }
    }

    /// The parts of a group's versions.
    pub fn parts_of(&self, group: &str) -> Vec<Part> {
        let paths = self.groups.get(group).into_iter().flat_map(|paths| paths.values());
        paths.flat_map(|path| path.source.parts()).cloned().collect()
    }

    /// A version 3 document by its path.
    fn path(&self, name: &str) -> Option<&Arc<Path>> {
        match group_of(name) {
            Some(group) => self.groups.get(group)?.get(name),
            None => self.fixed.get(name),
        }
    }

    /// The documents of the served built-in kinds.
    pub fn built_in(runtime: &RuntimeConfig) -> Self {
        let base: Arc<dyn Types> = Arc::new(BuiltIn::new(api::schema::schema()));
        let versions = crate::discovery::built_in(runtime.resources());
        let mut extended: Option<Arc<dyn Types>> = None;
        let mut part = |version: GroupVersion| {
            let schema: &'static Schema = api::schema::of_version(&version.version);
            let types = match std::ptr::eq(schema, api::schema::schema()) {
                true => &base,
                false => extended.get_or_insert_with(|| Arc::new(BuiltIn::new(schema))),
            };
            Part { types: Arc::clone(types), discovery: Arc::new(version), custom: false }
        };
        OpenApi::new(versions.into_iter().map(&mut part).collect(), base.clone())
    }

    /// `/openapi/v2`.
    pub fn v2_json(&self) -> Arc<Document> {
        let build = || {
            let mut writer = Writer::compressing();
            self.write_v2(&mut writer);
            Arc::new(writer.finish())
        };
        self.v2.json.get_or_init(build).clone()
    }

    /// `/openapi/v2` as [`V2_PROTOBUF`].
    pub fn v2_protobuf(&self) -> Arc<Document> {
        let build = || {
            let json = self.v2_json();
            let mut encoder = Encoder::new(&gnostic::V2);
            self.write_v2(&mut encoder);
            Arc::new(json.in_protobuf(&encoder.finish()))
        };
        self.v2.protobuf.get_or_init(build).clone()
    }

    /// `/openapi/v3`: the index of documents. Needs their hashes, so it builds them all.
    pub fn v3_index(&self) -> Arc<Document> {
        self.index.get_or_init(|| Arc::new(self.build_index())).clone()
    }

    /// Reports whether `/openapi/v3/{path}` is served.
    #[cfg(test)]
    pub fn has_document(&self, path: &str) -> bool {
        self.path(path).is_some()
    }

    /// `/openapi/v3/{path}`: `api/v1`, `apis/apps/v1`, `version`, …
    pub fn v3_group_version(&self, path: &str) -> Option<Arc<Document>> {
        let Path { source, forms } = &**self.path(path)?;
        let build = || {
            let last = self.hot.last(path);
            let length = last.as_ref().map_or(0, |last| last.plain.len() + last.plain.len() / 8);
            let mut writer = Writer::plain(length);
            let layout = self.write_v3(source, last.as_deref(), &mut writer);
            let document = Arc::new(writer.finish());
            self.hot.insert(path, &document, layout);
            document
        };
        Some(forms.json.get_or_init(build).clone())
    }

    /// `/openapi/v3/{path}` as [`V3_PROTOBUF`].
    pub fn v3_protobuf(&self, path: &str) -> Option<Arc<Document>> {
        let Path { source, forms } = &**self.path(path)?;
        let json = self.v3_group_version(path)?;
        let build = || {
            let mut encoder = Encoder::new(&gnostic::V3);
            self.write_v3(source, None, &mut encoder);
            Arc::new(json.in_protobuf(&encoder.finish()))
        };
        Some(forms.protobuf.get_or_init(build).clone())
    }

    /// URL of a document with its hash, the redirect target of requests with another hash.
    pub fn server_relative_url(path: &str, document: &Document) -> String {
        format!("/openapi/v3/{path}?hash={}", document.hash)
    }

    fn build_index(&self) -> Document {
        // Holds the documentation while all documents are built, so that it is inflated once.
        let _docs = self.base.docs();
        let mut writer = Writer::plain(0);
        writer.open("paths");
        let paths: BTreeSet<&Arc<str>> = self.paths().map(|(path, _)| path).collect();
        for path in paths {
            if let Some(document) = self.v3_group_version(path) {
                let url = Self::server_relative_url(path, &document);
                writer.member(path, &json!({"serverRelativeURL": url}));
            }
        }
        for path in self.remote.keys() {
            writer.member(path, &json!({"serverRelativeURL": format!("/openapi/v3/{path}")}));
        }
        writer.close();
        writer.finish()
    }

    fn write_v2(&self, writer: &mut dyn Output) {
        let docs = self.base.docs();
        let mut routes = Routes::default();
        for (_, path, operation) in fixed_routes::all() {
            routes.add(path, operation);
        }
        let mut groups = BTreeSet::new();
        let parameters = Parameters::new(docs.clone());
        for part in self.parts() {
            let (group, version) = (part.discovery.group.as_ref(), part.discovery.version.as_ref());
            if !part.custom {
                if !group.is_empty() && groups.insert(group) {
                    let (path, operation) = fixed_routes::group(group);
                    routes.add(path, operation);
                }
                let (path, operation) = fixed_routes::resources(group, version);
                routes.add(path, operation);
            }
            resource_routes::add(&mut routes, part, &parameters);
        }
        let items = routes.finish();
        let mut shared = SharedParameters::default();
        writer.member("swagger", &json!("2.0"));
        writer.member("info", &info());
        writer.open("paths");
        for (path, item) in &items {
            writer.member(path, &render::v2(item, &mut shared));
        }
        let mut parameters = shared.finish();
        let mentioned =
            |name: &str| self.all_types().map(|types| types.mentioned(name)).find(|names| !names.is_empty());
        let names = closure(types_of(&items), |name| mentioned(name).unwrap_or_default());
        let definition =
            |name: &str| self.all_types().find_map(|types| types.definition(name, Dialect::V2, None, &docs));
        let own = OwnSpec {
            has_path: &|path| items.contains_key(path),
            definition: &|name| if names.contains(name) { definition(name) } else { None },
            parameters: &parameters,
        };
        let mut merged = MergedSpecs::new(&own, self.remote.values().flatten().map(|spec| &**spec));
        for (path, item) in &merged.paths {
            writer.member(path, item);
        }
        writer.close();
        writer.open("definitions");
        for name in &names {
            if let Some(mut definition) = definition(name) {
                merged.add_kinds(name, &mut definition);
                writer.member(name, &definition);
            }
        }
        for (name, definition) in &merged.definitions {
            writer.member(name, definition);
        }
        writer.close();
        parameters.extend(std::mem::take(&mut merged.parameters));
        writer.member("parameters", &Value::Object(parameters));
        writer.member("securityDefinitions", &json!({"BearerToken": bearer_token()}));
        writer.member("security", &json!([{"BearerToken": []}]));
    }

    /// All version 3 documents of this server, in no particular order.
    fn paths(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Path>)> {
        self.fixed.iter().chain(self.groups.values().flat_map(|paths| paths.iter()))
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.paths().flat_map(|(_, path)| path.source.parts())
    }

    /// All sources of types: the base, then every custom resource.
    fn all_types(&self) -> impl Iterator<Item = &Arc<dyn Types>> {
        let custom = self.parts().filter(|part| part.custom).map(|part| &part.types);
        [&self.base].into_iter().chain(custom)
    }
}

impl Source {
    fn parts(&self) -> &[Part] {
        match self {
            Self::Fixed(_) | Self::Group(_) => &[],
            Self::Version(parts) => parts,
        }
    }

    /// Reports whether both produce the same document.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fixed(one), Self::Fixed(other)) => one == other,
            (Self::Group(one), Self::Group(other)) => one == other,
            (Self::Version(one), Self::Version(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_same(other))
            }
            _ => false,
        }
    }
}

impl Part {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.types, &other.types) && Arc::ptr_eq(&self.discovery, &other.discovery)
    }
}

/// The parts of each group version, by the path of its document.
fn by_path(parts: Vec<Part>) -> BTreeMap<Arc<str>, Vec<Part>> {
    let mut found: BTreeMap<Arc<str>, Vec<Part>> = BTreeMap::new();
    for part in parts {
        let (group, version) = (&part.discovery.group, &part.discovery.version);
        let path = match group.is_empty() {
            true => format!("api/{version}"),
            false => format!("apis/{group}/{version}"),
        };
        found.entry(Arc::from(path)).or_default().push(part);
    }
    found
}

/// The group of the document at a path; `None` for those of non-resource paths.
fn group_of(path: &str) -> Option<&str> {
    match path.split_once('/')? {
        ("api", _) => Some(""),
        ("apis", rest) => rest.split('/').next(),
        _ => None,
    }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "1.36"})
}

fn bearer_token() -> Value {
    json!({"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"})
}

fn types_of(items: &BTreeMap<String, PathItem>) -> BTreeSet<Arc<str>> {
    items.values().flat_map(PathItem::types).cloned().collect()
}

/// These types and all that they refer to, sorted by name.
fn closure(names: BTreeSet<Arc<str>>, mentioned: impl Fn(&str) -> Vec<Arc<str>>) -> BTreeSet<Arc<str>> {
    let mut pending: Vec<Arc<str>> = names.iter().cloned().collect();
    let mut seen = names;
    while let Some(name) = pending.pop() {
        for name in mentioned(&name) {
            if seen.insert(name.clone()) {
                pending.push(name);
            }
        }
    }
    seen
}
