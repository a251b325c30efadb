//! Extenders: HTTP services that filter, score and bind pods, called with Kubernetes' protocol.

mod transport;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use objects::core::v1::{Container, Node, Pod};
use objects::{Json, PartialObject};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, ExtenderConfig};
use crate::cycle::Search;
use crate::framework::{Candidate, MAX_NODE_SCORE, Rejection};
use crate::plugins::PluginId;
use crate::state::{Cluster, PodInfo};

use transport::Transport;

/// Highest score of an extender.
const MAX_PRIORITY: i64 = 10;

/// Error of a call to an extender.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("failed {verb} with extender at URL {url}")]
    Reach { verb: String, url: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code { verb: String, url: String, code: u16 },
    #[error("failed {verb} with extender at URL {url}: no response within {limit:?}")]
    Timeout { verb: String, url: String, limit: Duration },
    #[error("{0}")]
    Refused(String),
    #[error("extender {url:?} claims a filtered node {node:?} which is not found in the input node list")]
    UnknownNode { url: String, node: String },
    #[error("expected at least one victim pod on node {0:?}")]
    NoVictims(String),
    #[error(
        "extender: {url} claims to preempt pod (UID: {uid}) on node: {node}, but the pod is not found on that node"
    )]
    UnknownVictim { url: String, uid: String, node: String },
}

#[derive(Clone)]
pub struct Extender {
    config: Arc<ExtenderConfig>,
    transport: Arc<Transport>,
    timeout: Duration,
    managed: Arc<HashSet<String>>,
}

#[derive(Serialize)]
struct Args<'a> {
    #[serde(rename = "Pod")]
    pod: Json<'a, Pod>,
    #[serde(rename = "Nodes")]
    nodes: Option<NodeList<Json<'a, Node>>>,
    #[serde(rename = "NodeNames")]
    names: Option<Vec<&'a str>>,
}

#[derive(Deserialize, Serialize)]
struct NodeList<N> {
    items: Vec<N>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FilterResult {
    #[serde(rename = "Nodes", alias = "nodes")]
    nodes: Option<NodeList<PartialObject>>,
    #[serde(rename = "NodeNames", alias = "nodeNames", alias = "nodenames")]
    names: Option<Vec<String>>,
    #[serde(rename = "FailedNodes", alias = "failedNodes")]
    failed: Option<BTreeMap<String, String>>,
    #[serde(rename = "FailedAndUnresolvableNodes", alias = "failedAndUnresolvableNodes")]
    unresolvable: Option<BTreeMap<String, String>>,
    #[serde(rename = "Error", alias = "error")]
    error: String,
}

#[derive(Deserialize)]
struct HostPriority {
    #[serde(rename = "Host", alias = "host")]
    host: String,
    #[serde(rename = "Score", alias = "score")]
    score: i64,
}

#[derive(Serialize)]
struct BindingArgs<'a> {
    #[serde(rename = "PodName")]
    name: &'a str,
    #[serde(rename = "PodNamespace")]
    namespace: &'a str,
    #[serde(rename = "PodUID")]
    uid: &'a str,
    #[serde(rename = "Node")]
    node: &'a str,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BindingResult {
    #[serde(rename = "Error", alias = "error")]
    error: String,
}

#[derive(Serialize)]
struct PreemptionArgs<'a> {
    #[serde(rename = "Pod")]
    pod: Json<'a, Pod>,
    #[serde(rename = "NodeNameToVictims", skip_serializing_if = "Option::is_none")]
    victims: Option<BTreeMap<&'a str, Victims<Json<'a, Pod>>>>,
    #[serde(rename = "NodeNameToMetaVictims", skip_serializing_if = "Option::is_none")]
    meta: Option<BTreeMap<&'a str, Victims<MetaPod>>>,
}

#[derive(Deserialize, Serialize)]
struct Victims<P> {
    #[serde(rename = "Pods", alias = "pods")]
    pods: Option<Vec<P>>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations", default)]
    violations: usize,
}

#[derive(Deserialize, Serialize)]
struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PreemptionResult {
    #[serde(rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
    meta: BTreeMap<String, Option<Victims<MetaPod>>>,
}

impl Extender {
    pub fn new(config: &ExtenderConfig) -> Result<Self, ConfigError> {
        let managed = config.managed_resources.iter().map(|resource| resource.name.clone()).collect();
        Ok(Self {
            timeout: config.timeout()?,
            transport: Arc::new(Transport::new(config)?),
            managed: Arc::new(managed),
            config: Arc::new(config.clone()),
        })
    }

    fn is_interested(&self, pod: &PodInfo) -> bool {
        let manages = |container: &Container| {
            let resources = container.resources.iter();
            let mut lists =
                resources.flat_map(|resources| resources.requests.iter().chain(&resources.limits));
            lists.any(|list| list.keys().any(|name| self.managed.contains(name)))
        };
        self.managed.is_empty()
            || pod.spec().is_some_and(|spec| {
                spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(manages)
            })
    }

    #[must_use]
    pub fn is_ignorable(&self) -> bool {
        self.config.ignorable
    }

    /// True if the extender binds pods itself.
    #[must_use]
    pub fn binds(&self, pod: &PodInfo) -> bool {
        !self.config.bind_verb.is_empty() && self.is_interested(pod)
    }

    pub async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ExtenderError> {
        let args = BindingArgs { name: &pod.name, namespace: &pod.namespace, uid: &pod.uid, node };
        let result: BindingResult = self.send(&self.config.bind_verb, &args).await?;
        if result.error.is_empty() { Ok(()) } else { Err(ExtenderError::Refused(result.error)) }
    }

    fn args<'a>(&self, cluster: &'a Cluster, pod: &'a PodInfo, slots: &[usize]) -> Args<'a> {
        let nodes = slots.iter().map(|slot| cluster.node_at(*slot));
        if self.config.node_cache_capable {
            return Args {
                pod: Json(&pod.pod),
                nodes: None,
                names: Some(nodes.map(|node| &*node.name).collect()),
            };
        }
        let items = nodes.filter_map(|node| node.node.as_deref().map(Json)).collect();
        Args { pod: Json(&pod.pod), nodes: Some(NodeList { items }), names: None }
    }

    async fn send<R: DeserializeOwned>(&self, verb: &str, args: &impl Serialize) -> Result<R, ExtenderError> {
        let url = format!("{}/{verb}", self.config.url_prefix.trim_end_matches('/'));
        let reach = |source| ExtenderError::Reach { verb: verb.to_owned(), url: url.clone(), source };
        let body = serde_json::to_vec(args).map_err(|error| reach(error.into()))?;
        let answer =
            tokio::time::timeout(self.timeout, self.transport.call(verb, body)).await.map_err(|_| {
                ExtenderError::Timeout { verb: verb.to_owned(), url: url.clone(), limit: self.timeout }
            })?;
        let (code, text) = answer.map_err(reach)?;
        if code != 200 {
            return Err(ExtenderError::Code { verb: verb.to_owned(), url, code });
        }
        serde_json::from_slice(&text).map_err(|error| reach(error.into()))
    }
}

/// Filters nodes with the extenders.
pub async fn filter(
    extenders: &[Extender],
    cluster: &Cluster,
    pod: &PodInfo,
    found: &mut Search<'_>,
) -> Result<(), ExtenderError> {
    for extender in extenders.iter().filter(|extender| extender.is_interested(pod)) {
        if found.feasible.is_empty() {
            break;
        }
        if extender.config.filter_verb.is_empty() {
            continue;
        }
        let args = extender.args(cluster, pod, &found.feasible);
        let result: Result<FilterResult, _> = extender.send(&extender.config.filter_verb, &args).await;
        let result = match result {
            Ok(result) if result.error.is_empty() => result,
            Ok(_) | Err(_) if extender.is_ignorable() => continue,
            Ok(result) => return Err(ExtenderError::Refused(result.error)),
            Err(error) => return Err(error),
        };
        let names: Vec<String> = match (result.names, result.nodes) {
            (Some(names), _) => names,
            (None, Some(nodes)) => nodes.items.into_iter().filter_map(|node| node.metadata.name).collect(),
            (None, None) => Vec::new(),
        };
        let mut retained = Vec::with_capacity(names.len());
        for name in names {
            match cluster.node(&name).filter(|node| found.feasible.contains(&node.slot)) {
                Some(node) => retained.push(node.slot),
                None => {
                    return Err(ExtenderError::UnknownNode {
                        url: extender.config.url_prefix.clone(),
                        node: name,
                    });
                }
            }
        }
        let unresolvable = result.unresolvable.unwrap_or_default();
        let mut failed = result.failed.unwrap_or_default();
        failed.retain(|name, _| !unresolvable.contains_key(name));
        let refusals = unresolvable
            .into_iter()
            .map(|(name, reason)| (name, Rejection::unresolvable(reason)))
            .chain(failed.into_iter().map(|(name, reason)| (name, Rejection::unschedulable(reason))));
        for (name, rejection) in refusals {
            if let Some(node) = cluster.node(&name) {
                found.diagnosis.reject(node.slot, PluginId::EXTENDER, rejection);
            }
        }
        if retained.len() != found.feasible.len() {
            found.diagnosis.rejecting.insert(PluginId::EXTENDER);
        }
        found.feasible = retained;
    }
    Ok(())
}

/// Adds the score of one more extender to a node's sum. Both numbers are external input: they saturate.
fn weighted(sum: i64, score: i64, weight: i64) -> i64 {
    let scaled = score.saturating_mul(weight).saturating_mul(MAX_NODE_SCORE / MAX_PRIORITY);
    sum.saturating_add(scaled)
}

/// Extenders' scores by node; a failing extender adds nothing.
pub async fn prioritize(
    extenders: &[Extender],
    cluster: &Cluster,
    pod: &PodInfo,
    feasible: &[usize],
) -> Option<Vec<i64>> {
    let mut sums: Option<Vec<i64>> = None;
    for extender in extenders.iter().filter(|extender| extender.is_interested(pod)) {
        if extender.config.prioritize_verb.is_empty() {
            continue;
        }
        let args = extender.args(cluster, pod, feasible);
        let answer: Result<Vec<HostPriority>, _> =
            extender.send(&extender.config.prioritize_verb, &args).await;
        let scores = match answer {
            Ok(scores) => scores,
            Err(error) => {
                tracing::debug!(%error, pod = pod.key(), "failed to prioritize with extender");
                continue;
            }
        };
        let sums = sums.get_or_insert_with(|| vec![0; feasible.len()]);
        for HostPriority { host, score } in scores {
            let at = cluster.node(&host).and_then(|node| feasible.iter().position(|slot| *slot == node.slot));
            if let Some(at) = at {
                sums[at] = weighted(sums[at], score, extender.config.weight);
            }
        }
    }
    sums
}

/// Lets extenders remove or change preemption candidates.
pub async fn preemption(
    extenders: &[Extender],
    pod: &PodInfo,
    mut candidates: Vec<Candidate>,
) -> Result<Vec<Candidate>, ExtenderError> {
    for extender in extenders.iter().filter(|extender| extender.is_interested(pod)) {
        if extender.config.preempt_verb.is_empty() || candidates.is_empty() {
            continue;
        }
        let brief = extender.config.node_cache_capable;
        let args = PreemptionArgs {
            pod: Json(&pod.pod),
            victims: (!brief).then(|| by_node(&candidates, |victim| Json(&*victim.pod))),
            meta: brief.then(|| by_node(&candidates, |victim| MetaPod { uid: victim.uid.to_string() })),
        };
        let answer: Result<PreemptionResult, _> = extender.send(&extender.config.preempt_verb, &args).await;
        let result = match answer {
            Ok(result) => result,
            Err(_) if extender.is_ignorable() => continue,
            Err(error) => return Err(error),
        };
        let mut changed = Vec::new();
        for (node, victims) in result.meta {
            let (pods, violations) =
                victims.map_or((Vec::new(), 0), |own| (own.pods.unwrap_or_default(), own.violations));
            if pods.is_empty() {
                if extender.is_ignorable() {
                    continue;
                }
                return Err(ExtenderError::NoVictims(node));
            }
            let Some(candidate) = candidates.iter().find(|candidate| *candidate.node == *node) else {
                continue;
            };
            let mut victims = Vec::new();
            for MetaPod { uid } in pods {
                match candidate.victims.iter().find(|victim| *victim.uid == *uid) {
                    Some(victim) => victims.push(Arc::clone(victim)),
                    None => {
                        let url = extender.config.url_prefix.clone();
                        return Err(ExtenderError::UnknownVictim { url, uid, node });
                    }
                }
            }
            changed.push(Candidate { node: Arc::clone(&candidate.node), victims, violations });
        }
        candidates = changed;
    }
    Ok(candidates)
}

fn by_node<'a, P>(
    candidates: &'a [Candidate],
    show: impl Fn(&'a Arc<PodInfo>) -> P,
) -> BTreeMap<&'a str, Victims<P>> {
    let one = |candidate: &'a Candidate| {
        let pods = candidate.victims.iter().map(&show).collect();
        (&*candidate.node, Victims { pods: Some(pods), violations: candidate.violations })
    };
    candidates.iter().map(one).collect()
}

#[cfg(test)]
mod tests;
