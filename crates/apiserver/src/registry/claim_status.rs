//! Authorization of changes to the status of resource claims by its parts: the allocation and the consumers need the
//! permission for `resourceclaims/binding`, the status of devices that for `resourceclaims/driver` of each driver.

use super::{Registry, Served, WriteContext};
use crate::authorize;
use crate::user::UserInfo;
use machinery::Value;
use machinery::field::{ErrorList, FieldError, Path};
use std::collections::{BTreeMap, BTreeSet};

const GATE: &str = "DRAResourceClaimGranularStatusAuthorization";
const ASSOCIATED_NODE: &str = "associated-node:";
const ARBITRARY_NODE: &str = "arbitrary-node:";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

impl Registry {
    /// Validates the changes that a user makes to the status of a claim. Errors are as Kubernetes words them.
    pub(super) async fn validate_claim_status(
        &self,
        served: &Served,
        name: &str,
        new: &Value,
        old: &Value,
        context: &WriteContext<'_>,
    ) -> ErrorList {
        let kind = &served.kind;
        let is_status = (kind.group(), kind.resource(), context.subresource)
            == ("resource.k8s.io", "resourceclaims", "status");
        if !is_status || !base::features::enabled(GATE) {
            return ErrorList::new();
        }
        let (new, old) = (&new["status"], &old["status"]);
        let request = Request { registry: self, served, context, claim: name };
        let mut errors = request.binding(new, old).await;
        if !new["allocation"].is_null() {
            errors.extend(request.devices(new, old).await);
        }
        errors
    }
}

struct Request<'a> {
    registry: &'a Registry,
    served: &'a Served,
    context: &'a WriteContext<'a>,
    claim: &'a str,
}

impl Request<'_> {
    async fn binding(&self, new: &Value, old: &Value) -> ErrorList {
        if ["allocation", "reservedFor"].iter().all(|field| is_same(&new[*field], &old[*field])) {
            return ErrorList::new();
        }
        let verb = self.context.verb;
        match self.check(verb, "binding", "", "").await {
            Ok(()) => ErrorList::new(),
            Err(why) => {
                let why = format!(
                    "changing status.allocation or status.reservedFor requires \
                     resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {why}"
                );
                vec![FieldError::forbidden(&Path::new("status.allocation"), why)]
            }
        }
    }

    async fn devices(&self, new: &Value, old: &Value) -> ErrorList {
        let verb = self.context.verb;
        let mut verbs = vec![format!("{ARBITRARY_NODE}{verb}")];
        if is_on_node(self.context.user, allocated_node(&new["allocation"])) {
            verbs.insert(0, format!("{ASSOCIATED_NODE}{verb}"));
        }
        let mut errors = ErrorList::new();
        for driver in changed_drivers(new, old) {
            let mut first = None;
            for verb in &verbs {
                match self.check(verb, "driver", self.context.namespace, driver).await {
                    Ok(()) => {
                        first = None;
                        break;
                    }
                    Err(why) => first = first.or(Some(why)),
                }
            }
            if let Some(why) = first {
                let verbs = verbs.join(" ");
                let why = format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{verbs}]\" \
                     permission: {why}"
                );
                errors.push(FieldError::forbidden(&Path::new("status.devices"), why));
            }
        }
        errors
    }

    /// Checks a permission; the error is the message of the refusal.
    async fn check(&self, verb: &str, subresource: &str, namespace: &str, name: &str) -> Result<(), String> {
        let attributes = authorize::Attributes {
            verb,
            is_resource: true,
            group: self.served.kind.group(),
            version: self.served.kind.version(),
            resource: self.served.kind.resource(),
            subresource,
            namespace,
            name,
            ..authorize::Attributes::default()
        };
        let checked = self.registry.authorization.check(self.context.user, &attributes).await;
        checked.map_err(|status| {
            tracing::debug!(
                claim = self.claim,
                user = self.context.user.name,
                verb,
                subresource,
                "status change refused"
            );
            status.message
        })
    }
}

/// Equality in which missing and empty values are the same.
fn is_same(one: &Value, other: &Value) -> bool {
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    one == other || (is_empty(one) && is_empty(other))
}

/// Drivers with added, removed or changed device status.
fn changed_drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let by_id = |status: &'a Value| -> BTreeMap<[&'a str; 4], &'a Value> {
        let devices = status["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let id = |device: &'a Value| {
            ["driver", "pool", "device", "shareID"].map(|field| device[field].as_str().unwrap_or_default())
        };
        devices.iter().map(|device| (id(device), device)).collect()
    };
    let (new, old) = (by_id(new), by_id(old));
    let changed = new.iter().filter(|(id, device)| old.get(*id) != Some(device));
    let removed = old.iter().filter(|(id, _)| !new.contains_key(*id));
    changed.chain(removed).map(|([driver, ..], _)| *driver).collect()
}

/// The node of an allocation that is available on one node only.
fn allocated_node(allocation: &Value) -> Option<&str> {
    let [term] = allocation["nodeSelector"]["nodeSelectorTerms"].as_array()?.as_slice() else { return None };
    if term["matchExpressions"].as_array().is_some_and(|all| !all.is_empty()) {
        return None;
    }
    let [field] = term["matchFields"].as_array()?.as_slice() else { return None };
    let [node] = field["values"].as_array()?.as_slice() else { return None };
    (field["key"] == "metadata.name" && field["operator"] == "In").then(|| node.as_str()).flatten()
}

/// Reports whether the user is a service account whose token is bound to a pod of the node.
fn is_on_node(user: &UserInfo, node: Option<&str>) -> bool {
    let account = user.name.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':'));
    let is_account = account
        .is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains(':'));
    let own = user.extra.get(NODE_NAME).map(Vec::as_slice).unwrap_or_default();
    is_account && node.is_some_and(|node| !node.is_empty() && own == [node])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn user(name: &str, nodes: &[&str]) -> UserInfo {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        UserInfo {
            name: name.to_owned(),
            extra: [(NODE_NAME.to_owned(), nodes)].into(),
            ..UserInfo::default()
        }
    }

    #[test]
    fn service_account_of_allocated_node_is_associated() {
        let on = |node: &str| {
            json!({"nodeSelector": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}})
        };
        let one = on("n1");
        let node = allocated_node(&one);
        assert_eq!(node, Some("n1"));
        let account = "system:serviceaccount:drivers:plugin";
        assert!(is_on_node(&user(account, &["n1"]), node));
        for other in [
            user(account, &["n2"]),
            user(account, &["n1", "n2"]),
            user(account, &[]),
            user("admin", &["n1"]),
            user("system:serviceaccount:x", &["n1"]),
        ] {
            assert!(!is_on_node(&other, node), "{other:?}");
        }
        assert!(!is_on_node(&user(account, &[""]), Some("")));
        for any in [
            json!(null),
            json!({"nodeSelector": {"nodeSelectorTerms": []}}),
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]}}),
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]}]}}),
        ] {
            assert_eq!(allocated_node(&any), None, "{any}");
        }
    }

    #[test]
    fn drivers_of_changed_devices_are_found() {
        let device = |driver: &str, name: &str, data: &str| json!({"driver": driver, "pool": "p", "device": name, "data": data});
        let old = json!({"devices": [device("a", "0", "x"), device("b", "0", "x"), device("c", "0", "x")]});
        let new = json!({"devices": [device("a", "0", "x"), device("b", "0", "y"), device("d", "0", "x")]});
        assert_eq!(changed_drivers(&new, &old).into_iter().collect::<String>(), "bcd");
        assert!(changed_drivers(&old, &old).is_empty());
        assert!(is_same(&json!(null), &json!([])) && !is_same(&json!(null), &json!({})));
    }
}
