//! Priority and fairness of a new cluster: who shares what with whom.

use super::{Wanted, condition};
use machinery::Value;
use serde_json::json;

/// Specs with this annotation follow the server's version; users take it away to keep their own.
const FOLLOWS: &str = "apf.kubernetes.io/autoupdate-spec";

/// Name, shares, percentage that others may borrow, and queues with hand size (none: excess is refused).
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

/// Which requests a schema is about.
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
    /// How its flows are told apart; empty: they are not.
    distinguisher: &'static str,
    /// `Group/NAME`, `User/NAME`, `ServiceAccount/NAMESPACE`.
    subjects: &'static [&'static str],
    requests: Requests,
}

const EVERYBODY: &[&str] = &["Group/system:unauthenticated", "Group/system:authenticated"];

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
    schema("probes", 2, "exempt", "", EVERYBODY, Requests::Probes),
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
    schema("global-default", 9900, "global-default", "ByUser", EVERYBODY, Requests::All),
    schema("catch-all", 10000, "catch-all", "ByUser", EVERYBODY, Requests::All),
];

pub fn objects() -> impl Iterator<Item = Wanted> {
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    let levels = std::iter::once(("exempt", exempt)).chain(LEVELS.iter().map(level));
    let levels = levels.map(|(name, spec)| {
        wanted("PriorityLevelConfiguration", "prioritylevelconfigurations", name, spec, None)
    });
    levels.chain(SCHEMAS.iter().map(|schema| {
        let found = format!(
            "This FlowSchema references the PriorityLevelConfiguration object named {:?} and it exists",
            schema.level
        );
        let status = json!({"conditions": [condition("Dangling", "False", "Found", &found)]});
        wanted("FlowSchema", "flowschemas", schema.name, schema.spec(), Some(status))
    }))
}

fn wanted(kind: &str, resource: &'static str, name: &str, spec: Value, status: Option<Value>) -> Wanted {
    let mut object = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
        "metadata": {"name": name, "annotations": {FOLLOWS: "true"}},
        "spec": spec,
    });
    if let Some(status) = status {
        object["status"] = status;
    }
    Wanted {
        resource: ("flowcontrol.apiserver.k8s.io", "v1", resource),
        object,
        manager: "api-priority-and-fairness-config-producer-v1",
    }
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
