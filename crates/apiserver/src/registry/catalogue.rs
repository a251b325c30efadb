//! The catalogue: served resources, discovery and OpenAPI of one moment.
//!
//! A catalogue never changes. When a definition comes or goes, a new one takes the place of the old for requests to come;
//! a request works on the one it began with.

use super::version::Served;
use crate::aggregate::Backend;
use crate::discovery::{Discovery, GroupVersion};
use crate::openapi::{OpenApi, Part, Types};
use api::Text;
use api::runtime_config::RuntimeConfig;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Lookups by names that users choose: the hasher is seeded.
type ByName<T> = HashMap<Text, T>;

/// Everything that is served at one moment.
pub struct Catalogue {
    /// Counts catalogues of this process.
    pub generation: u64,
    served: ByName<ByName<ByName<Arc<Served>>>>,
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
    /// The server that answers its requests, if that is another one.
    pub backend: Option<Backend>,
}

impl Addition {
    /// Its part of OpenAPI, if this server has the documents.
    fn part(&self) -> Option<Part> {
        let types = Arc::clone(self.types.as_ref()?);
        Some(Part { discovery: Arc::clone(&self.discovery), types, custom: true })
    }
}

/// The present catalogue, and what it is made of.
pub struct Catalogues {
    current: ArcSwap<Catalogue>,
    /// Every built-in kind, for the server's own use.
    built_in: Arc<Catalogue>,
    /// Those of them that are served.
    offered: Arc<Catalogue>,
    additions: Mutex<BTreeMap<String, Addition>>,
}

impl Catalogue {
    pub fn served(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Served>> {
        self.served.get(group)?.get(version)?.get(resource)
    }

    /// The server that answers for a group version, if it is another one.
    pub fn backend(&self, group: &str, version: &str) -> Option<&Backend> {
        if self.backends.is_empty() { None } else { self.backends.get(group)?.get(version) }
    }

    /// Reports whether discovery shows a resource, stored or not.
    pub fn shows(&self, group: &str, version: &str, resource: &str) -> bool {
        let of_version = |shown: &&Arc<GroupVersion>| shown.group == group && shown.version == version;
        let shown = self.discovery.versions().iter().find(of_version);
        shown.is_some_and(|shown| shown.resources.iter().any(|row| row.name == resource))
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.served.values().flat_map(HashMap::values).flat_map(HashMap::values)
    }

    fn new(generation: u64, served: &[Arc<Served>], discovery: Discovery, openapi: OpenApi) -> Self {
        let mut catalogue = Self {
            generation,
            served: ByName::default(),
            backends: ByName::default(),
            discovery,
            openapi: Arc::new(openapi),
        };
        served.iter().for_each(|served| catalogue.insert(served));
        catalogue
    }

    fn insert(&mut self, served: &Arc<Served>) {
        let kind = &served.kind;
        let text = |name: &str| Text::Owned(name.to_owned());
        let versions = self.served.entry(text(kind.group())).or_default();
        let resources = versions.entry(text(kind.version())).or_default();
        resources.insert(text(kind.resource()), Arc::clone(served));
    }
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

    /// The catalogue for a request that begins now.
    pub fn load(&self) -> Arc<Catalogue> {
        self.current.load_full()
    }

    /// The built-in kinds that are served, without additions.
    pub fn offered(&self) -> &Catalogue {
        &self.offered
    }

    /// The built-in kinds, served or not, which never change.
    pub fn built_in(&self) -> &Catalogue {
        &self.built_in
    }

    /// Changes what definitions add, by names of the caller's choice, and makes the next catalogue of it. Requests are not
    /// held up: those that began earlier end on the catalogue they have.
    pub fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Addition>)) -> u64 {
        let mut additions = self.additions.lock();
        change(&mut additions);
        let previous = self.current.load_full();
        let next = self.next(&previous, &additions);
        let generation = next.generation;
        self.current.store(Arc::new(next));
        generation
    }

    fn next(&self, previous: &Catalogue, additions: &BTreeMap<String, Addition>) -> Catalogue {
        let served: Vec<Arc<Served>> = self.offered.all().cloned().collect();
        let mut versions: Vec<Arc<GroupVersion>> = self.offered.discovery.versions().to_vec();
        merge(&mut versions, additions.values().map(|addition| &addition.discovery));
        let discovery = Discovery::new(versions, self.offered.discovery.server_address());
        let parts = additions.values().filter_map(Addition::part);
        let remote = additions.values().filter(|addition| addition.types.is_none());
        let remote = remote
            .map(|Addition { discovery, .. }| format!("apis/{}/{}", discovery.group, discovery.version));
        let openapi = previous.openapi.with_additions(parts, remote.collect());
        let mut next = Catalogue::new(previous.generation + 1, &served, discovery, openapi);
        for addition in additions.values() {
            addition.served.iter().for_each(|served| next.insert(served));
            if let Some(backend) = &addition.backend {
                let GroupVersion { group, version, .. } = &*addition.discovery;
                next.backends.entry(group.clone()).or_default().insert(version.clone(), backend.clone());
            }
        }
        next
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
