//! Writes documents of version 3. Definitions of custom resources often share a group version: the document of a changed one
//! repeats the members of the last document that come from the others.

use super::document::{Output, Span};
use super::hot::{LastDocument, Layout, PartLayout};
use super::parameters::Parameters;
use super::route::{PathItem, Routes};
use super::{Dialect, OpenApi, Part, Source, Types, bearer_token, closure, fixed_routes, info, render};
use super::{resource_routes, types_of};
use api::docs::Docs;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The paths of one part, or of all parts that are written together.
struct Share<'a> {
    paths: Paths<'a>,
    types: BTreeSet<Arc<str>>,
}

enum Paths<'a> {
    New(BTreeMap<String, PathItem>),
    /// Members of the last document.
    Known(&'a PartLayout),
}

impl<'a> Share<'a> {
    fn new(routes: Routes) -> Self {
        let items = routes.finish();
        Self { types: types_of(&items), paths: Paths::New(items) }
    }

    fn known(layout: &'a PartLayout) -> Self {
        Self { types: layout.types.clone(), paths: Paths::Known(layout) }
    }

    fn names(&self) -> Vec<&str> {
        match &self.paths {
            Paths::New(items) => items.keys().map(String::as_str).collect(),
            Paths::Known(layout) => layout.paths.keys().map(String::as_str).collect(),
        }
    }

    fn write(&self, path: &str, plain: &[u8], output: &mut dyn Output) -> Option<Span> {
        match &self.paths {
            Paths::New(items) => Some(output.member(path, &render::v3(items.get(path)?))),
            Paths::Known(layout) => Some(output.repeat(path, layout.paths.get(path)?, plain)),
        }
    }

    /// The definition of one of its types in the last document.
    fn known_definition(&self, name: &str) -> Option<&'a Span> {
        match self.paths {
            Paths::New(_) => None,
            Paths::Known(layout) => layout.definitions.get(name),
        }
    }
}

/// Names of the types of a custom resource itself. All others are shared by the parts of a document.
fn own_types(part: &Part) -> impl Iterator<Item = Arc<str>> {
    let (group, version) = (&part.discovery.group, &part.discovery.version);
    let kinds = part.discovery.resources.iter().map(|resource| resource.kind.to_string());
    let names = kinds.flat_map(|kind| [format!("{kind}List"), kind]);
    names.filter_map(move |name| part.types.name_of(group, version, &name))
}

impl OpenApi {
    /// Writes a document. Returns the places of its members if later documents may repeat them.
    pub(super) fn write_v3(
        &self,
        source: &Source,
        last: Option<&LastDocument>,
        output: &mut dyn Output,
    ) -> Layout {
        let parts = source.parts();
        let is_custom = !parts.is_empty() && parts.iter().all(|part| part.custom);
        let docs = parts.first().filter(|_| is_custom).map(|part| part.types.docs());
        let docs = docs.unwrap_or_else(|| self.base.docs());
        let last = last.filter(|_| is_custom);
        let shares = match source {
            Source::Fixed(index) => {
                let (_, path, operation) = fixed_routes::all().swap_remove(*index);
                vec![Share::new(Routes::of(path, operation))]
            }
            Source::Group(group) => {
                let (path, operation) = fixed_routes::group(group);
                vec![Share::new(Routes::of(path, operation))]
            }
            Source::Version(parts) if is_custom => {
                let share = |part| {
                    let known = last.and_then(|last| last.part(part)).map(Share::known);
                    known.unwrap_or_else(|| Share::new(routes(std::slice::from_ref(part), &docs)))
                };
                parts.iter().map(share).collect()
            }
            Source::Version(parts) => vec![Share::new(routes(parts, &docs))],
        };
        output.member("openapi", &json!("3.0.0"));
        output.member("info", &info());
        let mut layout = Layout::default();
        if is_custom {
            let part =
                |(part, share): (&Part, &Share<'_>)| PartLayout::new(part.clone(), share.types.clone());
            layout.parts = parts.iter().zip(&shares).map(part).collect();
        }
        write_paths(&shares, last, &mut layout, output);
        output.open("components");
        self.write_schemas(parts, &shares, last, &docs, &mut layout, output);
        output.member("securitySchemes", &json!({"BearerToken": bearer_token()}));
        output.close();
        layout
    }

    fn write_schemas(
        &self,
        parts: &[Part],
        shares: &[Share<'_>],
        last: Option<&LastDocument>,
        docs: &Docs,
        layout: &mut Layout,
        output: &mut dyn Output,
    ) {
        let named: BTreeSet<Arc<str>> = shares.iter().flat_map(|share| &share.types).cloned().collect();
        if named.is_empty() {
            return;
        }
        let types: Vec<&Arc<dyn Types>> = match parts {
            [] => vec![&self.base],
            parts => parts.iter().map(|part| &part.types).collect(),
        };
        let own = parts.first().map(|part| (&*part.discovery.group, &*part.discovery.version));
        let owners: HashMap<Arc<str>, usize> = match layout.parts.is_empty() {
            true => HashMap::new(),
            false => {
                (0..).zip(parts).flat_map(|(at, part)| own_types(part).map(move |name| (name, at))).collect()
            }
        };
        let mentioned =
            |name: &str| types.iter().map(|types| types.mentioned(name)).find(|names| !names.is_empty());
        output.open("schemas");
        for name in closure(named, |name| mentioned(name).unwrap_or_default()) {
            let owner = owners.get(&name).copied();
            let known = match owner {
                Some(at) => shares[at].known_definition(&name),
                None => last.and_then(|last| last.layout.common.get(&name)),
            };
            let span = match (known, last) {
                (Some(span), Some(last)) => output.repeat(&name, span, &last.plain),
                _ => {
                    let mut of_parts = types.iter().skip(owner.unwrap_or_default());
                    let found = of_parts.find_map(|types| types.definition(&name, Dialect::V3, own, docs));
                    let Some(definition) = found else { continue };
                    output.member(&name, &definition)
                }
            };
            match owner {
                Some(at) => drop(layout.parts[at].definitions.insert(name, span)),
                None if layout.parts.is_empty() => {}
                None => drop(layout.common.insert(name, span)),
            }
        }
        output.close();
    }
}

/// Routes of the parts of a group version.
fn routes(parts: &[Part], docs: &Arc<Docs>) -> Routes {
    let mut routes = Routes::default();
    for part in parts {
        let (group, version) = (part.discovery.group.as_ref(), part.discovery.version.as_ref());
        if !part.custom {
            let (path, operation) = fixed_routes::resources(group, version);
            routes.add(path, operation);
        }
        resource_routes::add(&mut routes, part, &Parameters::new(Arc::clone(docs)));
    }
    routes
}

fn write_paths(
    shares: &[Share<'_>],
    last: Option<&LastDocument>,
    layout: &mut Layout,
    output: &mut dyn Output,
) {
    let plain = last.map_or(&[][..], |last| &last.plain);
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, share) in shares.iter().enumerate() {
        by_name.extend(share.names().into_iter().map(|name| (name, at)));
    }
    output.open("paths");
    for (path, at) in by_name {
        let span = shares[at].write(path, plain, output);
        if let (Some(part), Some(span)) = (layout.parts.get_mut(at), span) {
            part.paths.insert(path.to_owned(), span);
        }
    }
    output.close();
}

#[cfg(test)]
mod tests {
    use super::super::{BuiltIn, GroupDocuments};
    use super::*;
    use crate::discovery::{ApiResource, GroupVersion};
    use serde_json::Value;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
    const PATH: &str = "apis/example.com/v1";

    /// Types of one custom resource that count how often its definition is made.
    struct Counted {
        kind: String,
        text: &'static str,
        made: AtomicUsize,
        base: BuiltIn,
    }

    impl Types for Counted {
        fn name_of(&self, _: &str, _: &str, kind: &str) -> Option<Arc<str>> {
            kind.starts_with(&self.kind).then(|| Arc::from(format!("com.example.v1.{kind}")))
        }

        fn docs(&self) -> Arc<Docs> {
            self.base.docs()
        }

        fn mentioned(&self, name: &str) -> Vec<Arc<str>> {
            match name.strip_prefix("com.example.v1.").filter(|kind| kind.starts_with(&self.kind)) {
                Some(kind) if kind == self.kind => vec![Arc::from(format!("{META}.ObjectMeta"))],
                Some(_) => vec![Arc::from(format!("{META}.ListMeta"))],
                None => self.base.mentioned(name),
            }
        }

        fn definition(
            &self,
            name: &str,
            dialect: Dialect,
            own: Option<(&str, &str)>,
            docs: &Docs,
        ) -> Option<Value> {
            if !name.starts_with(&format!("com.example.v1.{}", self.kind)) {
                return self.base.definition(name, dialect, own, docs);
            }
            self.made.fetch_add(1, Ordering::Relaxed);
            Some(json!({"type": "object", "description": self.text}))
        }
    }

    fn counted(kind: &str, text: &'static str) -> (Arc<Counted>, Part) {
        let base = BuiltIn::new(api::schema::schema());
        let types = Arc::new(Counted { kind: kind.to_owned(), text, made: AtomicUsize::new(0), base });
        let resource = ApiResource {
            name: format!("{}s", kind.to_lowercase()).into(),
            singular: kind.to_lowercase().into(),
            kind: kind.to_owned().into(),
            namespaced: true,
            verbs: ["create", "delete", "get", "list", "patch"].map(Into::into).to_vec(),
            short_names: Vec::new(),
            categories: Vec::new(),
            storage_version_hash: "".into(),
            response: ("example.com".into(), "v1".into()),
            subresources: Vec::new(),
        };
        let discovery = GroupVersion {
            group: "example.com".into(),
            version: "v1".into(),
            group_priority: 1000,
            version_priority: 100,
            stale: false,
            resources: vec![resource],
        };
        let part = Part { discovery: Arc::new(discovery), types: types.clone(), custom: true };
        (types, part)
    }

    fn documents(parts: Vec<Part>) -> OpenApi {
        let base: Arc<dyn Types> = Arc::new(BuiltIn::new(api::schema::schema()));
        OpenApi::new(parts, base)
    }

    fn changed(openapi: &OpenApi, parts: Vec<Part>) -> OpenApi {
        openapi.with_groups(vec![GroupDocuments {
            group: "example.com".into(),
            parts,
            remote: BTreeMap::new(),
        }])
    }

    #[test]
    fn changed_definition_does_not_rebuild_others_of_its_document() {
        let (gears, gear) = counted("Gear", "A gear.");
        let (_, widget) = counted("Widget", "A widget.");
        let openapi = documents(vec![gear.clone(), widget.clone()]);
        let first = openapi.v3_group_version(PATH).expect("a document");
        assert_eq!(gears.made.load(Ordering::Relaxed), 2, "the kind and its list");

        let (_, other) = counted("Widget", "Another widget.");
        let (_, added) = counted("Bolt", "A bolt.");
        for parts in [
            vec![gear.clone(), other.clone()],
            vec![added.clone(), gear.clone(), other],
            vec![gear.clone(), widget.clone()],
            vec![gear.clone()],
            vec![gear.clone(), added],
        ] {
            let next = changed(&openapi, parts.clone()).v3_group_version(PATH).expect("a document");
            assert_eq!(gears.made.load(Ordering::Relaxed), 2, "made again");
            let (_, same_gear) = counted("Gear", "A gear.");
            let fresh: Vec<Part> = parts
                .into_iter()
                .map(|part| if part.is_same(&gear) { same_gear.clone() } else { part })
                .collect();
            let fresh = documents(fresh).v3_group_version(PATH).expect("a document");
            assert_eq!(next.plain(), fresh.plain());
            assert_eq!(next.hash, fresh.hash);
            let document: Value = serde_json::from_slice(&next.plain()).expect("JSON");
            assert!(document["components"]["schemas"].get(format!("{META}.ObjectMeta")).is_some());
        }
        assert_eq!(
            first.hash,
            documents(vec![gear, widget]).v3_group_version(PATH).expect("a document").hash
        );
    }

    #[test]
    fn document_that_is_no_longer_served_is_not_kept() {
        let (gears, gear) = counted("Gear", "A gear.");
        let openapi = documents(vec![gear.clone()]);
        openapi.v3_group_version(PATH).expect("a document");
        let without = changed(&openapi, Vec::new());
        assert!(without.v3_group_version(PATH).is_none());
        assert!(openapi.hot.last(PATH).is_none());
        changed(&without, vec![gear]).v3_group_version(PATH).expect("a document");
        assert_eq!(gears.made.load(Ordering::Relaxed), 4, "written as a whole");
    }

    #[test]
    fn protobuf_follows_a_document_of_repeated_members() {
        let (_, gear) = counted("Gear", "A gear.");
        let openapi = documents(vec![gear.clone()]);
        openapi.v3_group_version(PATH).expect("a document");
        let (_, widget) = counted("Widget", "A widget.");
        let next = changed(&openapi, vec![gear, widget]);
        let protobuf = next.v3_protobuf(PATH).expect("a document");
        assert_eq!(protobuf.hash, next.v3_group_version(PATH).expect("a document").hash);
        for text in ["A gear.", "A widget."] {
            assert!(memchr::memmem::find(&protobuf.plain(), text.as_bytes()).is_some(), "{text}");
        }
    }
}
