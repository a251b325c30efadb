//! The node route controller. Watches nodes; creates the provider's routes to the nodes' pods, and reports them in
//! node conditions.
//!
//! Invariant: within the cluster CIDRs there is exactly one route for each pod CIDR of each node.

use std::collections::BTreeSet;

use async_trait::async_trait;
use client::{ClientError, Patch};
use ipnet::IpNet;
use objects::core::v1::{Node, NodeAddress, NodeCondition};
use objects::meta::v1::Time;
use runtime::{Action, Cache, Change, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::node_addresses::current;
use crate::{ProviderError, Route, Settings};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-route-controller",
    resource: "nodes",
    identity: "system:serviceaccount:kube-system:route-controller",
    workers: 1,
};

const UNAVAILABLE: &str = "NetworkUnavailable";

#[derive(Debug, thiserror::Error)]
enum RouteError {
    #[error("failed to list routes")]
    List(#[source] ProviderError),
    #[error("failed to create or delete some of {0} routes")]
    Some(usize),
    #[error("failed to update the NetworkUnavailable condition of node {0}")]
    Write(String, #[source] ClientError),
}

struct RouteLoop {
    nodes: Cache<Node>,
    settings: Option<Settings>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    // All routes are reconciled together, regardless of the node that changed.
    let nodes = ctx.watch::<Node>(|change| match change {
        Change::Updated { old, new } if ranges(old) == ranges(new) && current(old) == current(new) => {
            Vec::new()
        }
        _ => vec![Key::new("", "routes")],
    });
    Box::new(RouteLoop { nodes, settings: crate::settings(ctx) })
}

#[async_trait]
impl Loop for RouteLoop {
    async fn reconcile(&self, _key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(settings) = &self.settings else { return Ok(Action::Done) };
        let Some(provider) = settings.provider.routes() else { return Ok(Action::Done) };
        let cluster = &settings.cluster_name;
        let routes = provider.list(cluster).await.map_err(RouteError::List)?;
        let mut nodes = self.nodes.all();
        nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let owned: Vec<&Node> = nodes.iter().map(|node| &**node).collect();
        let plan = plan(&owned, &routes, &settings.cluster_cidrs);
        let changes = plan.delete.len() + plan.create.len();
        let mut failed = false;
        for route in &plan.delete {
            if let Err(error) = provider.delete(cluster, route).await {
                failed = true;
                tracing::warn!(
                    route = route.name,
                    to = route.destination,
                    error = error.text(),
                    "failed to delete route"
                );
            }
        }
        let mut missing: BTreeSet<&str> = BTreeSet::new();
        for (node, route) in &plan.create {
            let hint = node.metadata.uid.as_deref().unwrap_or_default();
            if let Err(error) = provider.create(cluster, hint, route).await {
                failed = true;
                missing.insert(&route.target_node);
                let note = format!(
                    "Could not create route {hint} {} for node {}: {}",
                    route.destination,
                    route.target_node,
                    error.text()
                );
                ctx.recorder.warning(*node, "FailedToCreateRoute", note);
            }
        }
        for node in owned {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            if ranges(node).is_empty() && !plan.named.contains(name) {
                continue;
            }
            let reachable = !ranges(node).is_empty() && !missing.contains(name);
            if let Some(condition) = condition(node, reachable, Time(ctx.clock.now())) {
                let patch = Patch::Strategic(json!({ "status": { "conditions": [condition] } }));
                match ctx.client.patch::<Node>("", name, Some("status"), &patch).await {
                    Err(error) if error.is_not_found() => {}
                    written => drop(written.map_err(|error| RouteError::Write(name.to_owned(), error))?),
                }
            }
        }
        if failed {
            return Err(RouteError::Some(changes).into());
        }
        Ok(Action::RequeueAfter(settings.route_reconciliation_period))
    }
}

fn ranges(node: &Node) -> &[String] {
    node.spec.as_ref().and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default()
}

/// Changes of routes.
#[derive(Debug, Default, PartialEq)]
struct RouteChanges<'a> {
    delete: Vec<Route>,
    create: Vec<(&'a Node, Route)>,
    /// Nodes with a route.
    named: BTreeSet<String>,
}

fn plan<'a>(nodes: &[&'a Node], routes: &[Route], cluster_cidrs: &[String]) -> RouteChanges<'a> {
    let mut plan = RouteChanges::default();
    let mut retained: BTreeSet<(String, String)> = BTreeSet::new();
    let node_of = |name: &str| nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
    for route in routes {
        if !route.target_node.is_empty() {
            plan.named.insert(route.target_node.clone());
        }
        let node = node_of(&route.target_node);
        let wanted = node.is_some_and(|node| {
            let same = |known: &Vec<NodeAddress>| {
                let now = current(node);
                known.len() == now.len() && known.iter().all(|address| now.contains(address))
            };
            ranges(node).contains(&route.destination) && route.target_addresses.as_ref().is_none_or(same)
        });
        if wanted && !route.blackhole {
            retained.insert((route.target_node.clone(), route.destination.clone()));
        } else if is_managed(&route.destination, cluster_cidrs) {
            plan.delete.push(route.clone());
        }
    }
    for node in nodes {
        let name = node.metadata.name.clone().unwrap_or_default();
        for range in ranges(node) {
            if !retained.contains(&(name.clone(), range.clone())) {
                let route = Route {
                    name: String::new(),
                    target_node: name.clone(),
                    target_addresses: Some(current(node).to_vec()),
                    destination: range.clone(),
                    blackhole: false,
                };
                plan.create.push((node, route));
            }
        }
    }
    plan
}

/// True if a route is within the cluster CIDRs; others are not managed.
fn is_managed(destination: &str, cluster_cidrs: &[String]) -> bool {
    let Ok(destination) = destination.trim().parse::<IpNet>() else { return false };
    let cluster = cluster_cidrs.iter().filter_map(|text| text.trim().parse::<IpNet>().ok());
    cluster
        .into_iter()
        .any(|cidr| cidr.contains(&destination.network()) || cidr.contains(&destination.broadcast()))
}

/// The NetworkUnavailable condition of a node, if it differs.
fn condition(node: &Node, reachable: bool, now: Time) -> Option<NodeCondition> {
    let (status, reason, message) = if reachable {
        ("False", "RouteCreated", "RouteController created a route")
    } else {
        ("True", "NoRouteCreated", "RouteController failed to create a route")
    };
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let old = conditions.iter().find(|condition| condition.type_ == UNAVAILABLE);
    if old.is_some_and(|old| old.status == status && old.reason.as_deref() == Some(reason)) {
        return None;
    }
    Some(NodeCondition {
        type_: UNAVAILABLE.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ranges: &[&str]) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": format!("uid-{name}") },
            "spec": { "podCIDRs": ranges },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] },
        }))
        .expect("a node")
    }

    fn route(target: &str, destination: &str) -> Route {
        let (target, destination) = (target.to_owned(), destination.to_owned());
        Route { name: format!("to-{target}"), target_node: target, destination, ..Route::default() }
    }

    #[test]
    fn route_plan_follows_nodes() {
        let (a, b) = (node("a", &["10.1.0.0/24"]), node("b", &["10.1.1.0/24", "fd01::/64"]));
        let cidrs = ["10.1.0.0/16".to_owned(), "fd01::/48".to_owned()];
        let moved = Route { target_addresses: Some(vec![]), ..route("b", "fd01::/64") };
        let blackhole = Route { blackhole: true, ..route("a", "10.1.0.0/24") };
        let routes = [
            route("b", "10.1.1.0/24"),
            moved.clone(),
            route("gone", "10.1.7.0/24"),
            route("somebody", "172.16.0.0/24"),
            blackhole.clone(),
        ];
        let plan = plan(&[&a, &b], &routes, &cidrs);
        assert_eq!(plan.delete, [moved, route("gone", "10.1.7.0/24"), blackhole]);
        let created: Vec<&str> = plan.create.iter().map(|(_, route)| route.destination.as_str()).collect();
        assert_eq!(created, ["10.1.0.0/24", "fd01::/64"]);
    }

    #[test]
    fn only_routes_within_cluster_cidrs_are_managed() {
        let cidrs = ["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()];
        for (text, expected) in [
            ("10.1.0.0/16", true),
            ("0.0.0.0/0", false),
            ("11.0.0.0/8", false),
            ("fd12::/16", true),
            ("::/0", false),
            ("10.0.0.0/33", false),
            ("x", false),
        ] {
            assert_eq!(is_managed(text, &cidrs), expected, "{text}");
        }
        assert!(is_managed("0.0.0.0/0", &["0.0.0.0/0".to_owned()]));
    }

    #[test]
    fn network_condition_is_written_only_on_change() {
        let mut node = node("a", &["10.1.0.0/24"]);
        let now = || Time(base::clock::Clock::system().now());
        let made = condition(&node, true, now()).expect("a condition");
        assert_eq!((made.status.as_str(), made.reason.as_deref()), ("False", Some("RouteCreated")));
        node.status.get_or_insert_default().conditions = Some(vec![made]);
        assert!(condition(&node, true, now()).is_none());
        assert_eq!(condition(&node, false, now()).map(|condition| condition.status).as_deref(), Some("True"));
    }
}
