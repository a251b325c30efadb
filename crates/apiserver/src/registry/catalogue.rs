//! The catalogue: served resources, discovery and OpenAPI at one moment.
//!
//! A catalogue is immutable. When a definition is added or removed, a new one replaces it for later requests; a
//! request finishes on the one it started with.

use super::version::Served;
use crate::aggregate::Backend;
use crate::discovery::{Discovery, GroupVersion};
use crate::openapi::{GroupDocuments, OpenApi, Part, RemoteSpec, Types};
use crate::shared_map::SharedMap;
use api::Text;
use api::runtime_config::RuntimeConfig;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Keys are names chosen by users: the hasher is seeded.
type ByName<T> = HashMap<Arc<str>, T>;

/// Resources of a group, by version and name, shared by catalogues in which they are unchanged.
type GroupResources = ByName<ByName<Arc<Served>>>;

/// Everything served at one moment.
pub struct Catalogue {
    /// Sequence number within this process.
    pub generation: u64,
    /// By group.
    served: SharedMap<Arc<GroupResources>>,
    /// By group and version.
    backends: ByName<ByName<Backend>>,
    pub discovery: Discovery,
    pub openapi: Arc<OpenApi>,
}

/// One group version that a definition adds.
#[derive(Clone)]
pub struct Addition {
    pub served: Vec<Arc<Served>>,
    pub discovery: Arc<GroupVersion>,
    /// Types for OpenAPI; `None` if another server has the documents.
    pub types: Option<Arc<dyn Types>>,
    /// The server that handles its requests, if not this one.
    pub backend: Option<Backend>,
    /// Its part of that server's OpenAPI v2 document.
    pub v2: Option<Arc<RemoteSpec>>,
}

impl Addition {
    /// Its part of OpenAPI, if this server has the documents.
    fn part(&self) -> Option<Part> {
        let types = Arc::clone(self.types.as_ref()?);
        Some(Part { discovery: Arc::clone(&self.discovery), types, custom: true })
    }
}

/// The current catalogue and its sources.
pub struct Catalogues {
    current: ArcSwap<Catalogue>,
    /// Every built-in kind, for the server's own use.
    built_in: Arc<Catalogue>,
    /// The served built-in kinds.
    offered: Arc<Catalogue>,
    additions: Mutex<Additions>,
}

/// Additions of definitions and APIServices, by names chosen by the caller, with the groups that changed since the
/// last catalogue: only those are rebuilt.
#[derive(Default)]
pub struct Additions {
    by_name: BTreeMap<String, Addition>,
    names_by_group: HashMap<Text, BTreeSet<String>>,
    changed: HashSet<Text>,
}

impl Additions {
    pub fn insert(&mut self, name: String, addition: Addition) {
        self.remove(&name);
        let group = addition.discovery.group.clone();
        self.names_by_group.entry(group.clone()).or_default().insert(name.clone());
        self.changed.insert(group);
        self.by_name.insert(name, addition);
    }

    pub fn remove(&mut self, name: &str) -> Option<Addition> {
        let gone = self.by_name.remove(name)?;
        let group = gone.discovery.group.clone();
        if let Some(names) = self.names_by_group.get_mut(&group) {
            names.remove(name);
            if names.is_empty() {
                self.names_by_group.remove(&group);
            }
        }
        self.changed.insert(group);
        Some(gone)
    }

    pub fn get(&self, name: &str) -> Option<&Addition> {
        self.by_name.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// Additions to a group in the order of their names.
    fn of_group(&self, group: &str) -> impl Iterator<Item = &Addition> {
        let names = self.names_by_group.get(group).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name))
    }
}

impl Catalogue {
    pub fn served(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Served>> {
        self.served.get(group)?.get(version)?.get(resource)
    }

    /// The server of a group version, if it is another one.
    pub fn backend(&self, group: &str, version: &str) -> Option<&Backend> {
        if self.backends.is_empty() { None } else { self.backends.get(group)?.get(version) }
    }

    /// Reports whether discovery lists a resource, stored or not.
    pub fn shows(&self, group: &str, version: &str, resource: &str) -> bool {
        let shown = self.discovery.versions_of(group).iter().find(|shown| shown.version == version);
        shown.is_some_and(|shown| shown.resources.iter().any(|row| row.name == resource))
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.served.values().flat_map(|group| group.values()).flat_map(HashMap::values)
    }

    fn new(generation: u64, served: &[Arc<Served>], discovery: Discovery, openapi: OpenApi) -> Self {
        let mut catalogue = Self {
            generation,
            served: SharedMap::default(),
            backends: ByName::default(),
            discovery,
            openapi: Arc::new(openapi),
        };
        let mut by_group: ByName<GroupResources> = ByName::default();
        for served in served {
            insert(by_group.entry(Arc::from(served.kind.group())).or_default(), served);
        }
        catalogue.served = by_group.into_iter().map(|(name, group)| (name, Arc::new(group))).collect();
        catalogue
    }
}

fn insert(group: &mut GroupResources, served: &Arc<Served>) {
    let kind = &served.kind;
    let resources = group.entry(Arc::from(kind.version())).or_default();
    resources.insert(Arc::from(kind.resource()), Arc::clone(served));
}

impl Catalogues {
    /// The catalogue of the built-in kinds. `server_address` is the `host:port` in discovery.
    pub fn new(served: &[Arc<Served>], server_address: String, runtime: &RuntimeConfig) -> Self {
        let parts = crate::discovery::built_in(api::resources::RESOURCES.iter()).into_iter().map(Arc::new);
        let discovery = Discovery::new(parts, server_address.clone());
        let none = OpenApi::built_in(&RuntimeConfig::default());
        let built_in = Arc::new(Catalogue::new(0, served, discovery, none));
        let offered = if *runtime == RuntimeConfig::default() {
            Arc::clone(&built_in)
        } else {
            let names: HashSet<_> =
                runtime.resources().map(|row| (row.group, row.version, row.resource)).collect();
            let served: Vec<_> = served
                .iter()
                .filter(|served| {
                    let kind = &served.kind;
                    names.contains(&(kind.group(), kind.version(), kind.resource()))
                })
                .cloned()
                .collect();
            let parts = crate::discovery::built_in(runtime.resources()).into_iter().map(Arc::new);
            let discovery = Discovery::new(parts, server_address);
            Arc::new(Catalogue::new(0, &served, discovery, OpenApi::built_in(runtime)))
        };
        Self { current: ArcSwap::new(Arc::clone(&offered)), built_in, offered, additions: Mutex::default() }
    }

    /// The catalogue for a new request.
    pub fn load(&self) -> Arc<Catalogue> {
        self.current.load_full()
    }

    /// The served built-in kinds, without additions.
    pub fn offered(&self) -> &Catalogue {
        &self.offered
    }

    /// The built-in kinds, served or not, which never change.
    pub fn built_in(&self) -> &Catalogue {
        &self.built_in
    }

    /// Changes the additions of definitions and APIServices, and builds the next catalogue. Requests are not blocked:
    /// earlier ones finish on their catalogue.
    pub fn change(&self, change: impl FnOnce(&mut Additions)) -> u64 {
        let mut additions = self.additions.lock();
        change(&mut additions);
        let previous = self.current.load_full();
        let changed = std::mem::take(&mut additions.changed);
        if changed.is_empty() {
            return previous.generation;
        }
        let next = self.next(&previous, &additions, &changed);
        let generation = next.generation;
        self.current.store(Arc::new(next));
        generation
    }

    /// The previous catalogue with the changed groups rebuilt.
    fn next(&self, previous: &Catalogue, additions: &Additions, changed: &HashSet<Text>) -> Catalogue {
        let (mut served, mut backends) = (previous.served.clone(), previous.backends.clone());
        let mut discovery = HashMap::new();
        let mut documents = Vec::new();
        for name in changed {
            let group: &str = name;
            backends.remove(group);
            let mut versions = self.offered.discovery.versions_of(group).to_vec();
            merge(&mut versions, additions.of_group(group).map(|addition| &addition.discovery));
            discovery.insert(name.clone(), versions);
            let mut resources =
                self.offered.served.get(group).map(|group| GroupResources::clone(group)).unwrap_or_default();
            let mut parts = self.offered.openapi.parts_of(group);
            let mut remote = BTreeMap::new();
            for addition in additions.of_group(group) {
                addition.served.iter().for_each(|served| insert(&mut resources, served));
                parts.extend(addition.part());
                let GroupVersion { group, version, .. } = &*addition.discovery;
                if addition.types.is_none() {
                    remote.insert(format!("apis/{group}/{version}"), addition.v2.clone());
                }
                if let Some(backend) = &addition.backend {
                    let versions = backends.entry(Arc::from(&**group)).or_default();
                    versions.insert(Arc::from(&**version), backend.clone());
                }
            }
            if resources.is_empty() {
                served.remove(group);
            } else {
                served.insert(Arc::from(group), Arc::new(resources));
            }
            documents.push(GroupDocuments { group: name.clone(), parts, remote });
        }
        Catalogue {
            generation: previous.generation + 1,
            served,
            backends,
            discovery: previous.discovery.with_groups(discovery),
            openapi: Arc::new(previous.openapi.with_groups(documents)),
        }
    }
}

/// Adds resources to their group versions, which several definitions may share.
fn merge<'a>(versions: &mut Vec<Arc<GroupVersion>>, added: impl Iterator<Item = &'a Arc<GroupVersion>>) {
    let mut known: HashMap<(Text, Text), usize> = versions
        .iter()
        .enumerate()
        .map(|(at, version)| ((version.group.clone(), version.version.clone()), at))
        .collect();
    for version in added {
        match known.entry((version.group.clone(), version.version.clone())) {
            Entry::Occupied(at) => {
                let known = Arc::make_mut(&mut versions[*at.get()]);
                known.resources.extend(version.resources.iter().cloned());
            }
            Entry::Vacant(vacant) => {
                vacant.insert(versions.len());
                versions.push(Arc::clone(version));
            }
        }
    }
}
