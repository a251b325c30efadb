//! Served resources of an established definition: storage, versions, discovery, OpenAPI.

use super::conditions::{ESTABLISHED, TERMINATING};
use super::conversion::{ConversionSettings, Webhook};
use super::known::{EntrySource, KnownDefinition, LastDecoded, SpecDigest};
use super::openapi::CustomTypes;
use super::rules::CustomRules;
use crate::cache::Entry;
use crate::discovery::{ApiResource, ApiSubresource, GroupVersion, compare_versions, storage_version_hash};
use crate::openapi::{Part, Types};
use crate::registry::catalogue::Addition;
use crate::registry::conditions::is_true;
use crate::registry::version::{Conversion, Convert, Served, Version};
use crate::registry::{Registry, Storage};
use crate::request_info::Verbs;
use api::custom::{CompileError, CompiledVersion, DefinitionSource, compile_lazily};
use api::value::{Fields, texts};
use api::{ResourceNames, Rules, Scope, Text};
use machinery::Value;
use machinery::schema::{TypeHandle, TypeSource};
use std::borrow::Cow;
use std::sync::{Arc, Weak};

const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// Verbs while the definition is being deleted.
const TERMINATING_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];
/// Ranks of groups and versions of definitions, as Kubernetes registers them.
const GROUP_PRIORITY: i32 = 1000;
const VERSION_PRIORITY: i32 = 100;

/// Served resources of one definition.
pub struct ServedDefinition {
    /// Digest of its spec: another spec requires another storage.
    spec: SpecDigest,
    /// The definition, for lazy compilation and publication.
    pub source: Arc<EntrySource>,
    names: Value,
    is_terminating: bool,
    pub storage: Arc<Storage>,
    versions: Vec<CompiledRow>,
    /// The stored version, served or not.
    pub stored: Arc<Served>,
    /// By group version.
    pub additions: Vec<Addition>,
}

/// One version that is served or stored.
#[derive(Clone)]
struct CompiledRow {
    is_served: bool,
    is_stored: bool,
    compiled: Arc<CompiledVersion>,
}

/// Dependencies of building served resources.
#[derive(Clone)]
pub struct Maker {
    pub registry: Weak<Registry>,
    pub store: Arc<dyn store::Store>,
    /// Types of built-in kinds that definitions refer to.
    pub types: Arc<dyn Types>,
    pub decoded: Arc<LastDecoded>,
    pub conversion: ConversionSettings,
}

/// Reports whether objects of a definition are served.
pub fn is_served(definition: &Value) -> bool {
    is_true(definition, ESTABLISHED)
}

impl ServedDefinition {
    /// Reports whether this matches the definition.
    pub fn is_current(&self, known: &KnownDefinition) -> bool {
        self.is_same_storage(&known.spec, &known.head)
            && self.is_terminating == is_true(&known.head, TERMINATING)
    }

    /// Reports whether the schema of any version has been compiled.
    #[cfg(test)]
    pub fn is_compiled(&self) -> bool {
        self.versions.iter().any(|row| row.compiled.is_complete())
    }

    fn is_same_storage(&self, spec: &SpecDigest, definition: &Value) -> bool {
        self.spec == *spec && self.names == *definition.field("status").field("acceptedNames")
    }
}

impl Maker {
    /// Builds the served resources of a definition. One whose deletion merely begins retains its storage, and with it
    /// open watches.
    pub fn make(
        &self,
        definition: &Value,
        spec: SpecDigest,
        entry: &Arc<Entry>,
        previous: Option<&ServedDefinition>,
    ) -> Result<ServedDefinition, CompileError> {
        let retained = previous.filter(|previous| previous.is_same_storage(&spec, definition));
        let source = match retained {
            Some(retained) => Arc::clone(&retained.source),
            None => Arc::new(EntrySource::new(Arc::clone(entry), Arc::clone(&self.decoded))),
        };
        source.replace(entry);
        let versions = match retained {
            Some(retained) => retained.versions.clone(),
            None => compile_all(definition, &source)?,
        };
        let is_terminating = is_true(definition, TERMINATING);
        let all: Vec<Arc<CompiledVersion>> = versions.iter().map(|row| Arc::clone(&row.compiled)).collect();
        let rules = |row: &CompiledRow| -> Arc<dyn Rules> {
            let names = names_of(definition, &row.compiled.version);
            Arc::new(CustomRules::new(
                names,
                Arc::clone(&row.compiled),
                all.clone(),
                deprecation(definition.field("spec"), &row.compiled.version),
                is_terminating,
            ))
        };
        let stored = versions.iter().find(|row| row.is_stored).or(versions.first());
        let stored = stored.ok_or_else(|| CompileError::NoVersion(String::new()))?;
        let conversion = self.conversion(definition, versions.len() > 1);
        let storage = match retained {
            Some(retained) => Arc::clone(&retained.storage),
            None => {
                let names = names_of(definition, &stored.compiled.version);
                let renames = !matches!(conversion, Some(Conversion::Batch(_)));
                Arc::new(Storage::custom(names, rules(stored), renames, Arc::clone(&self.store)))
            }
        };
        let verbs: &[&'static str] = if is_terminating { &TERMINATING_VERBS } else { &VERBS };
        let version = |row: &CompiledRow| {
            let compiled = &row.compiled;
            let schema = TypeHandle::lazy(Arc::clone(compiled) as Arc<dyn TypeSource>);
            // Reading from the store renames objects of the stored version.
            let is_plain = row.is_stored && matches!(conversion, Some(Conversion::Rename));
            let conversion = conversion.clone().filter(|_| !is_plain);
            let names = names_of(definition, &compiled.version);
            let storage = Arc::clone(&storage);
            let subresources =
                subresources(compiled).map(|name| (Cow::Borrowed(name), Verbs::of(&SUBRESOURCE_VERBS)));
            let verbs = Verbs::of(&VERBS);
            Arc::new(Version::new(names, rules(row), schema, storage, conversion, verbs, subresources))
        };
        let made: Vec<Arc<Version>> = versions.iter().map(version).collect();
        let several: Arc<[Arc<Version>]> = if made.len() > 1 { made.clone().into() } else { [].into() };
        let additions = versions.iter().zip(&made).filter(|(row, _)| row.is_served).map(|(row, version)| {
            let served = Arc::new(Served::new(Arc::clone(version), Arc::clone(&several)));
            let Part { discovery, types, .. } = self.part(definition, &row.compiled, verbs, &source);
            Addition { served: vec![served], discovery, types: Some(types), backend: None, v2: None }
        });
        let additions = additions.collect();
        let at = versions.iter().position(|row| row.is_stored).unwrap_or(0);
        let stored = Arc::new(Served::new(Arc::clone(&made[at]), Arc::clone(&several)));
        let names = definition.field("status").field("acceptedNames").clone();
        Ok(ServedDefinition { spec, source, names, is_terminating, storage, versions, stored, additions })
    }

    fn conversion(&self, definition: &Value, has_several: bool) -> Option<Conversion> {
        if !has_several {
            return None;
        }
        let conversion = definition.field("spec").field("conversion");
        if conversion.text("strategy") != "Webhook" {
            return Some(Conversion::Rename);
        }
        let webhook: Arc<dyn Convert> =
            Arc::new(Webhook::new(Weak::clone(&self.registry), definition, self.conversion.clone()));
        Some(Conversion::Batch(webhook))
    }

    /// The entry of one version in discovery and OpenAPI.
    fn part(
        &self,
        definition: &Value,
        compiled: &Arc<CompiledVersion>,
        verbs: &[&'static str],
        source: &Arc<EntrySource>,
    ) -> Part {
        let accepted = definition.field("status").field("acceptedNames");
        let text = |value: &str| Text::Owned(value.to_owned());
        let list = |field: &str| texts(accepted.items(field)).map(text).collect();
        let of_verbs =
            |verbs: &[&'static str]| verbs.iter().map(|verb| Text::Borrowed(*verb)).collect::<Vec<_>>();
        let stored =
            definition.field("spec").items("versions").iter().find(|version| version.flag("storage"));
        let kind = accepted.text("kind");
        let subresources = subresources(compiled).map(|name| {
            let (group, version, kind) =
                if name == "scale" { ("autoscaling", "v1", "Scale") } else { ("", "", kind) };
            ApiSubresource {
                name: text(name),
                group: text(group),
                version: text(version),
                kind: text(kind),
                verbs: of_verbs(&SUBRESOURCE_VERBS),
            }
        });
        let stored = stored.map_or("", |version| version.text("name"));
        let resource = ApiResource {
            name: text(accepted.text("plural")),
            singular: text(accepted.text("singular")),
            kind: text(kind),
            namespaced: scope_of(definition) == Scope::Namespaced,
            verbs: of_verbs(verbs),
            short_names: list("shortNames"),
            categories: list("categories"),
            storage_version_hash: storage_version_hash(&compiled.group, stored, kind).into(),
            response: (text(&compiled.group), text(&compiled.version)),
            subresources: subresources.collect(),
        };
        let discovery = GroupVersion {
            group: text(&compiled.group),
            version: text(&compiled.version),
            group_priority: GROUP_PRIORITY,
            version_priority: VERSION_PRIORITY,
            stale: false,
            resources: vec![resource],
        };
        let types = CustomTypes::new(definition, &compiled.version, source, Arc::clone(&self.types));
        Part { discovery: Arc::new(discovery), types: Arc::new(types), custom: true }
    }
}

/// The warning of a deprecated version.
fn deprecation(spec: &Value, version: &str) -> Option<String> {
    let of = spec.items("versions").iter().find(|known| known.text("name") == version)?;
    if !of.flag("deprecated") {
        return None;
    }
    if let Some(warning) = of.opt_text("deprecationWarning") {
        return Some(warning.to_owned());
    }
    let (group, kind) = (spec.text("group"), spec.field("names").text("kind"));
    let better =
        spec.items("versions").iter().filter(|known| known.flag("served") && !known.flag("deprecated"));
    let better = better
        .map(|known| known.text("name"))
        .filter(|name| compare_versions(name, version).is_gt())
        .max_by(|one, other| compare_versions(one, other));
    let instead = better.map(|better| format!("; use {group}/{better} {kind}")).unwrap_or_default();
    Some(format!("{group}/{version} {kind} is deprecated{instead}"))
}

fn compile_all(definition: &Value, source: &Arc<EntrySource>) -> Result<Vec<CompiledRow>, CompileError> {
    let versions = definition.field("spec").items("versions").iter();
    let used = versions.filter(|version| version.flag("served") || version.flag("storage"));
    let compiled = used.map(|version| {
        let compiled = Arc::new(compile_lazily(
            definition,
            version.text("name"),
            Arc::clone(source) as Arc<dyn DefinitionSource>,
        )?);
        Ok(CompiledRow { is_served: version.flag("served"), is_stored: version.flag("storage"), compiled })
    });
    compiled.collect()
}

fn subresources(compiled: &CompiledVersion) -> impl Iterator<Item = &'static str> {
    let status = compiled.has_status.then_some("status");
    let scale = compiled.scale.as_ref().map(|_| "scale");
    status.into_iter().chain(scale)
}

fn scope_of(definition: &Value) -> Scope {
    match definition.field("spec").text("scope") {
        "Cluster" => Scope::Cluster,
        _ => Scope::Namespaced,
    }
}

fn names_of(definition: &Value, version: &str) -> ResourceNames {
    let accepted = definition.field("status").field("acceptedNames");
    let text = |field: &str| accepted.text(field).to_owned();
    let group = definition.field("spec").text("group").to_owned();
    ResourceNames::new((group, version.to_owned()), text("kind"), text("plural"), scope_of(definition))
        .with_list_kind(text("listKind"))
}
