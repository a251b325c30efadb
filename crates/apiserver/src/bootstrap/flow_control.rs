//! Default priority levels and flow schemas.

use super::BootstrapObject;
use crate::registry::update::{Change, UpdateStrategy};
use crate::registry::{Registry, WriteContext, WriteRecord};
use crate::user::UserInfo;
use crate::wire::options::DeleteOptions;
use api::value::Fields;
use machinery::status::Result;
use machinery::{Value, meta};
use serde_json::json;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const MANAGER: &str = "api-priority-and-fairness-config-producer-v1";
/// Mandatory objects, whose specs users cannot change.
const MANDATORY: [&str; 2] = ["exempt", "catch-all"];

/// Specs with this annotation are updated with the server's version; users remove it to keep their own.
const AUTOUPDATE_ANNOTATION: &str = "apf.kubernetes.io/autoupdate-spec";

/// Name, shares, lendable percentage, and queues with hand size (none: excess is rejected).
type Level = (&'static str, i64, i64, Option<(i64, i64)>);

const LEVELS: [Level; 7] = [
    ("catch-all", 5, 0, None),
    ("global-default", 20, 50, Some((128, 6))),
    ("leader-election", 10, 0, Some((16, 4))),
    ("node-high", 40, 25, Some((64, 6))),
    ("system", 30, 33, Some((64, 6))),
    ("workload-high", 40, 50, Some((128, 6))),
    ("workload-low", 100, 90, Some((128, 6))),
];
const QUEUE_LENGTH: i64 = 50;

/// Requests that a schema matches.
#[derive(Clone, Copy)]
enum Requests {
    All,
    Probes,
    LeaderElection,
    NodeStatus,
}

struct Schema {
    name: &'static str,
    precedence: i64,
    level: &'static str,
    /// Flow distinguisher; empty: none.
    distinguisher: &'static str,
    /// `Group/NAME`, `User/NAME`, `ServiceAccount/NAMESPACE`.
    subjects: &'static [&'static str],
    requests: Requests,
}

const ALL_USERS: &[&str] = &["Group/system:unauthenticated", "Group/system:authenticated"];

const fn schema(
    name: &'static str,
    precedence: i64,
    level: &'static str,
    distinguisher: &'static str,
    subjects: &'static [&'static str],
    requests: Requests,
) -> Schema {
    Schema { name, precedence, level, distinguisher, subjects, requests }
}

static SCHEMAS: [Schema; 11] = [
    schema("exempt", 1, "exempt", "", &["Group/system:masters"], Requests::All),
    schema("probes", 2, "exempt", "", ALL_USERS, Requests::Probes),
    schema(
        "system-leader-election",
        100,
        "leader-election",
        "ByUser",
        &["User/system:kube-controller-manager", "User/system:kube-scheduler", "ServiceAccount/kube-system"],
        Requests::LeaderElection,
    ),
    schema("system-node-high", 400, "node-high", "ByUser", &["Group/system:nodes"], Requests::NodeStatus),
    schema("system-nodes", 500, "system", "ByUser", &["Group/system:nodes"], Requests::All),
    schema(
        "kube-controller-manager",
        800,
        "workload-high",
        "ByNamespace",
        &["User/system:kube-controller-manager"],
        Requests::All,
    ),
    schema(
        "kube-scheduler",
        800,
        "workload-high",
        "ByNamespace",
        &["User/system:kube-scheduler"],
        Requests::All,
    ),
    schema(
        "kube-system-service-accounts",
        900,
        "workload-high",
        "ByNamespace",
        &["ServiceAccount/kube-system"],
        Requests::All,
    ),
    schema(
        "service-accounts",
        9000,
        "workload-low",
        "ByUser",
        &["Group/system:serviceaccounts"],
        Requests::All,
    ),
    schema("global-default", 9900, "global-default", "ByUser", ALL_USERS, Requests::All),
    schema("catch-all", 10000, "catch-all", "ByUser", ALL_USERS, Requests::All),
];

fn objects() -> impl Iterator<Item = BootstrapObject> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let levels = std::iter::once(("exempt", exempt)).chain(LEVELS.iter().map(level));
    let levels = levels
        .map(|(name, spec)| wanted("PriorityLevelConfiguration", "prioritylevelconfigurations", name, spec));
    levels.chain(SCHEMAS.iter().map(|schema| wanted("FlowSchema", "flowschemas", schema.name, schema.spec())))
}

fn wanted(kind: &str, resource: &'static str, name: &str, spec: Value) -> BootstrapObject {
    let object = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "annotations": {AUTOUPDATE_ANNOTATION: "true"}},
        "spec": spec,
    });
    BootstrapObject { resource: (GROUP, "v1", resource), object, manager: MANAGER }
}

/// Creates missing objects, updates those that follow the server, and deletes those that followed an older version.
/// Users keep their own spec by setting the annotation to `false`, except for the mandatory objects.
pub async fn maintain(registry: &Registry) -> Result<()> {
    let wanted: Vec<BootstrapObject> = objects().collect();
    futures_util::future::try_join_all(wanted.iter().map(|wanted| keep(registry, wanted))).await?;
    for resource in ["prioritylevelconfigurations", "flowschemas"] {
        let ours = |name: &str| {
            wanted.iter().any(|wanted| wanted.resource.2 == resource && meta::name(&wanted.object) == name)
        };
        for object in registry.find_all((GROUP, "v1", resource), "", AUTOUPDATE_ANNOTATION).await? {
            let name = meta::name(&object);
            if follows(&object) == Some(true) && !ours(name) {
                let served = registry.builtin(GROUP, "v1", resource)?;
                let (user, record) = (UserInfo::server(), WriteRecord::default());
                let context = WriteContext::server(&user, &record, "");
                match registry.delete(served, name, &DeleteOptions::default(), &context).await {
                    Err(status) if status.code == 404 => {}
                    outcome => drop(outcome?),
                }
            }
        }
    }
    Ok(())
}

/// Value of the annotation, if valid.
fn follows(object: &Value) -> Option<bool> {
    match meta::annotation(object, AUTOUPDATE_ANNOTATION)? {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

async fn keep(registry: &Registry, wanted: &BootstrapObject) -> Result<()> {
    let name = meta::name(&wanted.object);
    let Some(present) = registry.find(wanted.resource, "", name).await? else {
        return match super::create(registry, wanted.resource, wanted.object.clone(), wanted.manager).await {
            Err(status) if status.reason == "AlreadyExists" => Ok(()),
            outcome => outcome.map(drop),
        };
    };
    if revised(&present, wanted).is_none() {
        return Ok(());
    }
    let served = registry.builtin(GROUP, "v1", wanted.resource.2)?;
    let (user, record) = (UserInfo::server(), WriteRecord::default());
    let context =
        WriteContext { manager: wanted.manager.to_owned(), ..WriteContext::server(&user, &record, "") };
    let outcome = registry
        .update(served, name, UpdateStrategy::main(served.governing()), true, &context, |old| {
            Ok(Change::Replace(revised(old, wanted).unwrap_or_else(|| old.clone())))
        })
        .await;
    match outcome {
        // A concurrent deletion wins; the next run creates it again.
        Err(status) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// The updated object; `None` if it is up to date.
fn revised(present: &Value, wanted: &BootstrapObject) -> Option<Value> {
    let untouched = meta::generation(present) == 1;
    let follow = MANDATORY.contains(&meta::name(present)) || follows(present).unwrap_or(untouched);
    let spec = spec_for(present, wanted);
    let differs = follow && *present.field("spec") != spec;
    if !differs && follows(present) == Some(follow) {
        return None;
    }
    let mut new = present.clone();
    if differs {
        new.set("spec", spec);
    }
    let annotations = meta::metadata_mut(&mut new).entry("annotations").or_insert_with(|| json!({}));
    annotations[AUTOUPDATE_ANNOTATION] = follow.to_string().into();
    Some(new)
}

/// The desired spec; users may change the shares of the exempt level.
fn spec_for(present: &Value, wanted: &BootstrapObject) -> Value {
    let mut spec = wanted.object.field("spec").clone();
    let own = present.field("spec").field("exempt");
    if spec.has("exempt") && own.is_object() {
        spec.set("exempt", own.clone());
    }
    spec
}

fn level((name, shares, lendable, queues): &Level) -> (&'static str, Value) {
    let response = match queues {
        None => json!({"type": "Reject"}),
        Some((queues, hand)) => json!({
            "type": "Queue",
            "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": QUEUE_LENGTH},
        }),
    };
    let limited =
        json!({"nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response});
    (name, json!({"type": "Limited", "limited": limited}))
}

impl Schema {
    fn spec(&self) -> Value {
        let mut rule = self.requests.rule();
        rule["subjects"] = self.subjects.iter().map(|text| subject(text)).collect();
        let mut spec = json!({
            "matchingPrecedence": self.precedence,
            "priorityLevelConfiguration": {"name": self.level},
            "rules": [rule],
        });
        if !self.distinguisher.is_empty() {
            spec["distinguisherMethod"] = json!({"type": self.distinguisher});
        }
        spec
    }
}

impl Requests {
    fn rule(self) -> Value {
        let leases = |verbs: &[&str]| {
            json!({
                "verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "namespaces": ["*"],
            })
        };
        match self {
            Self::All => json!({
                "resourceRules": [{
                    "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                    "clusterScope": true,
                }],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }),
            Self::Probes => json!({
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
            }),
            Self::LeaderElection => json!({"resourceRules": [leases(&["get", "create", "update"])]}),
            Self::NodeStatus => json!({
                "resourceRules": [
                    {
                        "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
                        "namespaces": ["*"], "clusterScope": true,
                    },
                    leases(&["*"]),
                ],
            }),
        }
    }
}

fn subject(text: &str) -> Value {
    let (kind, name) = text.split_once('/').unwrap_or(("", text));
    match kind {
        "Group" => json!({"kind": kind, "group": {"name": name}}),
        "User" => json!({"kind": kind, "user": {"name": name}}),
        _ => json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": name, "name": "*"}}),
    }
}
