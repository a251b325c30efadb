//! OpenAPI v2 documents of extension servers: the part of one group version, and its merge into the document of all.

use bytes::Bytes;
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const KINDS: &str = "x-kubernetes-group-version-kind";
const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";

/// The paths of one group version in another server's document, with the definitions and parameters they refer to.
#[derive(Debug)]
pub struct RemoteSpec {
    /// Name of its APIService.
    group: String,
    version: String,
    group_priority: i32,
    /// The filtered document, encoded. Decoded, it would take many times the memory.
    json: Bytes,
}

/// The parts of a document that are merged.
#[derive(Default)]
struct Spec {
    paths: Map<String, Value>,
    definitions: Map<String, Value>,
    parameters: Map<String, Value>,
}

impl Spec {
    fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let mut document: Map<String, Value> = serde_json::from_slice(bytes)?;
        let mut part = |name: &str| match document.remove(name) {
            Some(Value::Object(part)) => part,
            _ => Map::new(),
        };
        Ok(Self { paths: part("paths"), definitions: part("definitions"), parameters: part("parameters") })
    }

    /// Names of the definitions that paths refer to, transitively.
    fn used(&self) -> BTreeSet<String> {
        let (mut definitions, mut parameters) = (BTreeSet::new(), BTreeSet::new());
        let mut pending: Vec<&Value> = self.paths.values().collect();
        while let Some(value) = pending.pop() {
            for_each_reference(value, &mut |reference| {
                if let Some(name) = reference.strip_prefix(DEFINITIONS) {
                    if definitions.insert(name.to_owned()) {
                        pending.extend(self.definitions.get(name));
                    }
                } else if let Some(name) = reference.strip_prefix(PARAMETERS)
                    && parameters.insert(name.to_owned())
                {
                    pending.extend(self.parameters.get(name));
                }
            });
        }
        definitions
    }

    /// Retains some paths, and drops the definitions used only by others.
    fn retain_paths(&mut self, is_retained: impl Fn(&str) -> bool) {
        let before = self.used();
        self.paths.retain(|path, _| is_retained(path));
        let used = self.used();
        self.definitions.retain(|name, _| used.contains(name) || !before.contains(name));
    }

    fn rename(&mut self, prefix: &str, names: &BTreeMap<String, String>) {
        if names.is_empty() {
            return;
        }
        let mut rename = |reference: &mut String| {
            if let Some(new) = reference.strip_prefix(prefix).and_then(|name| names.get(name)) {
                *reference = format!("{prefix}{new}");
            }
        };
        for part in [&mut self.paths, &mut self.definitions, &mut self.parameters] {
            part.values_mut().for_each(|value| replace_references(value, &mut rename));
        }
        let renamed = if prefix == DEFINITIONS { &mut self.definitions } else { &mut self.parameters };
        *renamed = std::mem::take(renamed)
            .into_iter()
            .map(|(name, value)| (names.get(&name).cloned().unwrap_or(name), value))
            .collect();
    }
}

impl RemoteSpec {
    /// The part of a document for a group version.
    pub fn new(
        document: &[u8],
        (group, version): (&str, &str),
        group_priority: i32,
    ) -> Result<Self, serde_json::Error> {
        let mut spec = Spec::parse(document)?;
        let below = format!("/apis/{group}/{version}/");
        spec.retain_paths(|path| path.starts_with(&below));
        let Spec { paths, definitions, parameters } = spec;
        let json = serde_json::json!({"paths": paths, "definitions": definitions, "parameters": parameters});
        let (group, version) = (group.to_owned(), version.to_owned());
        Ok(Self { group, version, group_priority, json: Bytes::from(json.to_string()) })
    }
}

/// The document of this server, as far as merging needs it.
pub struct OwnSpec<'a> {
    pub has_path: &'a dyn Fn(&str) -> bool,
    pub definition: &'a dyn Fn(&str) -> Option<Value>,
    pub parameters: &'a Map<String, Value>,
}

/// Additions to this server's document from those of other servers.
#[derive(Default)]
pub struct MergedSpecs {
    pub paths: BTreeMap<String, Value>,
    pub definitions: BTreeMap<String, Value>,
    pub parameters: BTreeMap<String, Value>,
    /// Further kinds of definitions that this server also has.
    kinds: BTreeMap<String, Vec<Value>>,
}

impl MergedSpecs {
    /// Merges documents in the order of their groups' priorities, then of the names of their APIServices: of
    /// conflicting documents, the first keeps its names. As in Kubernetes, priorities of versions do not matter.
    pub fn new<'a>(own: &OwnSpec<'_>, specs: impl Iterator<Item = &'a RemoteSpec>) -> Self {
        let mut specs: Vec<&RemoteSpec> = specs.collect();
        let mut priorities: HashMap<&str, i32> = HashMap::new();
        for spec in &specs {
            let highest = priorities.entry(&spec.group).or_insert(spec.group_priority);
            *highest = spec.group_priority.max(*highest);
        }
        specs.sort_by_key(|spec| {
            let priority = priorities.get(&*spec.group).copied().unwrap_or_default();
            (Reverse(priority), format!("{}.{}", spec.version, spec.group))
        });
        let mut merged = Self::default();
        for spec in specs {
            // Filtered documents always decode.
            merged.add(own, Spec::parse(&spec.json).unwrap_or_default());
        }
        merged
    }

    /// Adds the kinds of other servers to a definition of this server.
    pub fn add_kinds(&self, name: &str, definition: &mut Value) {
        if let (Some(kinds), Some(map)) = (self.kinds.get(name), definition.as_object_mut())
            && let Some(known) = map.entry(KINDS).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
        {
            known.extend(kinds.iter().cloned());
        }
    }

    fn add(&mut self, own: &OwnSpec<'_>, mut spec: Spec) {
        let is_taken = |path: &str| self.paths.contains_key(path) || (own.has_path)(path);
        if spec.paths.keys().any(|path| is_taken(path)) {
            spec.retain_paths(|path| !is_taken(path));
        }
        if spec.paths.is_empty() {
            return;
        }
        let known = |name: &str| self.definitions.get(name).cloned().or_else(|| (own.definition)(name));
        let names = renames(&spec.definitions, known, is_same_definition);
        spec.rename(DEFINITIONS, &names);
        let known = |name: &str| self.parameters.get(name).or_else(|| own.parameters.get(name)).cloned();
        let names = renames(&spec.parameters, known, |one, other| one == other);
        spec.rename(PARAMETERS, &names);
        for (name, definition) in spec.definitions {
            match self.definitions.get_mut(&name) {
                Some(known) => {
                    let added = added_kinds(known, &[], &definition);
                    if let (false, Some(map)) = (added.is_empty(), known.as_object_mut())
                        && let Some(kinds) =
                            map.entry(KINDS).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
                    {
                        kinds.extend(added);
                    }
                }
                None => match (own.definition)(&name) {
                    Some(known) => {
                        let earlier = self.kinds.entry(name).or_default();
                        let added = added_kinds(&known, earlier, &definition);
                        earlier.extend(added);
                    }
                    None => drop(self.definitions.insert(name, definition)),
                },
            }
        }
        let is_new = |name: &str| !own.parameters.contains_key(name);
        self.parameters.extend(spec.parameters.into_iter().filter(|(name, _)| is_new(name)));
        self.paths.extend(spec.paths);
    }
}

/// New names for entries that another document has with the same name but different content.
fn renames(
    added: &Map<String, Value>,
    known: impl Fn(&str) -> Option<Value>,
    is_same: impl Fn(&Value, &Value) -> bool,
) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for (name, value) in added {
        if known(name).is_none_or(|known| is_same(&known, value)) {
            continue;
        }
        let new = (2_u32..).map(|number| format!("{name}_v{number}")).find(|new| match known(new) {
            // An earlier document was renamed to the same name.
            Some(known) => is_same(&known, value),
            None => !added.contains_key(new) && !taken.contains(new),
        });
        if let Some(new) = new {
            taken.insert(new.clone());
            names.insert(name.clone(), new);
        }
    }
    names
}

/// Compares definitions except for their kinds.
fn is_same_definition(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return one == other };
    let count = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key(KINDS));
    count(one) == count(other)
        && one.iter().all(|(field, value)| field == KINDS || other.get(field) == Some(value))
}

/// Kinds of a definition that are in neither the known one nor `earlier`.
fn added_kinds(known: &Value, earlier: &[Value], definition: &Value) -> Vec<Value> {
    let kinds = |of: &Value| of.get(KINDS).and_then(Value::as_array).cloned().unwrap_or_default();
    let present = kinds(known);
    let mut added = kinds(definition);
    added.retain(|kind| !present.contains(kind) && !earlier.contains(kind));
    added
}

/// Calls a function for each reference. Decoding limits the depth.
fn for_each_reference(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                visit(reference);
            }
            map.values().for_each(|below| for_each_reference(below, visit));
        }
        Value::Array(items) => items.iter().for_each(|below| for_each_reference(below, visit)),
        _ => {}
    }
}

fn replace_references(value: &mut Value, replace: &mut impl FnMut(&mut String)) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref") {
                replace(reference);
            }
            map.values_mut().for_each(|below| replace_references(below, replace));
        }
        Value::Array(items) => items.iter_mut().for_each(|below| replace_references(below, replace)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The document of an extension server: paths of `v1` of a group that refer to a definition `Spec`.
    fn document(group: &str, spec: &Value) -> Vec<u8> {
        let operation = |parameter: &str, definition: &str| {
            json!({"get": {
                "parameters": [{"$ref": format!("#/parameters/{parameter}")}],
                "responses": {"200": {"schema": {"$ref": format!("#/definitions/{definition}")}}},
            }})
        };
        let kind = json!([{"group": group, "version": "v1", "kind": "Options"}]);
        let paths = json!({
            format!("/apis/{group}/v1/parts"): operation("pretty", "Part"),
            format!("/apis/{group}/v2/parts"): operation("pretty", "Unused"),
            "/version": operation("pretty", "Info"),
        });
        let definitions = json!({
            "Part": {"properties": {"spec": {"$ref": "#/definitions/Spec"}, "options": {"$ref": "#/definitions/Options"}}},
            "Spec": spec, "Options": {"type": "object", KINDS: kind}, "Unused": {}, "Info": {},
            "Unreferenced": {"type": "string"},
        });
        let parameters = json!({"pretty": {"in": "query", "name": "pretty", "description": group}});
        let document =
            json!({"swagger": "2.0", "paths": paths, "definitions": definitions, "parameters": parameters});
        document.to_string().into_bytes()
    }

    fn remote(group: &str, priority: i32, spec: &Value) -> RemoteSpec {
        RemoteSpec::new(&document(group, spec), (group, "v1"), priority).expect("a document")
    }

    fn merged(specs: &[RemoteSpec]) -> MergedSpecs {
        let known = json!({"type": "object", KINDS: [{"group": "", "version": "v1", "kind": "Options"}]});
        let parameters = Map::from_iter([("pretty".to_owned(), json!({"in": "query", "name": "pretty"}))]);
        let own = OwnSpec {
            has_path: &|path| path == "/version",
            definition: &|name| (name == "Options").then(|| known.clone()),
            parameters: &parameters,
        };
        MergedSpecs::new(&own, specs.iter())
    }

    #[test]
    fn document_keeps_paths_of_its_group_version_and_their_definitions() {
        let merged = merged(&[remote("a.example.com", 100, &json!({"type": "object"}))]);
        assert_eq!(merged.paths.keys().collect::<Vec<_>>(), ["/apis/a.example.com/v1/parts"]);
        // A definition that no path of the server refers to is retained, as in Kubernetes.
        assert_eq!(merged.definitions.keys().collect::<Vec<_>>(), ["Part", "Spec", "Unreferenced"]);
        let mut options =
            json!({"type": "object", KINDS: [{"group": "", "version": "v1", "kind": "Options"}]});
        merged.add_kinds("Options", &mut options);
        assert_eq!(options[KINDS].as_array().map(Vec::len), Some(2), "{options}");
        assert_eq!(options[KINDS][1]["group"], "a.example.com");
    }

    #[test]
    fn conflicting_names_stay_with_group_of_higher_priority() {
        let (one, other) = (json!({"type": "object"}), json!({"type": "string"}));
        let merged = merged(&[remote("a.example.com", 100, &one), remote("b.example.com", 200, &other)]);
        assert_eq!(merged.paths.len(), 2);
        assert_eq!((&merged.definitions["Spec"], &merged.definitions["Spec_v2"]), (&other, &one));
        // As in Kubernetes, types are compared before their references are renamed.
        assert_eq!(
            merged.definitions.keys().collect::<Vec<_>>(),
            ["Part", "Spec", "Spec_v2", "Unreferenced"]
        );
        let parameter = |group: &str| {
            merged.paths[&format!("/apis/{group}/v1/parts")]["get"]["parameters"][0]["$ref"].clone()
        };
        assert_eq!(
            parameter("b.example.com"),
            "#/parameters/pretty_v2",
            "this server has another of the name"
        );
        assert_eq!(parameter("a.example.com"), "#/parameters/pretty_v3");
        assert_eq!(merged.parameters.keys().collect::<Vec<_>>(), ["pretty_v2", "pretty_v3"]);
    }

    #[test]
    fn equal_definitions_are_shared() {
        let spec = json!({"type": "object"});
        let merged = merged(&[remote("a.example.com", 100, &spec), remote("b.example.com", 100, &spec)]);
        assert_eq!(merged.definitions.keys().collect::<Vec<_>>(), ["Part", "Spec", "Unreferenced"]);
    }

    #[test]
    fn document_that_is_not_an_object_is_rejected() {
        assert!(RemoteSpec::new(b"[]", ("a.example.com", "v1"), 1).is_err());
        let empty = RemoteSpec::new(b"{\"paths\": 3}", ("a.example.com", "v1"), 1).expect("an object");
        assert!(merged(&[empty]).paths.is_empty());
    }
}
