//! Computes the quotas that a write is charged to, and whether it fits. Pure.

use super::super::{Attributes, Operation};
use super::limited::LimitedResource;
use super::{limited, scopes, usage};
use api::value::Fields;
use machinery::{Value, meta};
use std::collections::BTreeSet;
use usage::Amounts;

/// Rejection of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum QuotaRejection {
    Forbidden(String),
    /// Returned as a plain 500, as in Kubernetes.
    Plain(String),
}

impl From<String> for QuotaRejection {
    fn from(message: String) -> Self {
        Self::Forbidden(message)
    }
}

/// A quota whose usage grows.
#[derive(Debug)]
pub struct Charge<'a> {
    pub quota: &'a Value,
    pub used: Amounts,
}

/// Quota updates that are due before the object is stored; an error reports the exceeded quota.
pub fn plan<'a>(
    attributes: &Attributes<'_>,
    object: &Value,
    old: Option<&Value>,
    quotas: &'a [Value],
    limited: &[LimitedResource],
) -> Result<Vec<Charge<'a>>, QuotaRejection> {
    let kind = &attributes.served.kind;
    let request = Request {
        resource: (kind.group(), kind.resource()),
        object,
        old: old.filter(|_| attributes.operation == Operation::Update),
        enforced: attributes.subresource() != "status",
        limited,
    };
    request.plan(quotas)
}

struct Request<'a> {
    resource: (&'a str, &'a str),
    object: &'a Value,
    old: Option<&'a Value>,
    /// A status update is charged, but never rejected.
    enforced: bool,
    /// Resources that a quota must cover.
    limited: &'a [LimitedResource],
}

impl Request<'_> {
    fn plan<'a>(&self, quotas: &'a [Value]) -> Result<Vec<Charge<'a>>, QuotaRejection> {
        let mut interesting = Vec::new();
        let mut covered = BTreeSet::new();
        for quota in quotas {
            let hard = usage::amounts(quota.at("status.hard"));
            let tracked: Vec<&str> =
                hard.keys().map(String::as_str).filter(|name| usage::tracks(self.resource, name)).collect();
            if tracked.is_empty() || !scopes::matches(quota, self.resource, self.object) {
                continue;
            }
            let name = meta::name(quota);
            if self.resource == ("", "pods") {
                usage::check_required(self.object, &tracked)
                    .map_err(|why| format!("failed quota: {name}: {why}"))?;
            }
            let used = usage::amounts(quota.at("status.used"));
            if tracked.iter().any(|resource| !used.contains_key(*resource)) {
                let tracked = tracked.join(",");
                return Err(format!("status unknown for quota: {name}, resources: {tracked}").into());
            }
            covered.extend(tracked.iter().map(|resource| (*resource).to_owned()));
            interesting.push((quota, hard, used));
        }
        if interesting.is_empty() && self.limited.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = usage::of(self.resource, self.object);
        let negative: Vec<&str> =
            wanted.iter().filter(|(_, amount)| amount.sign() < 0).map(|(name, _)| name.as_str()).collect();
        if !negative.is_empty() {
            return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")).into());
        }
        if self.grows(&wanted, &interesting) {
            limited::check(self.limited, self.resource, self.object, &wanted, quotas, &covered)?;
        }
        let mut charges = Vec::new();
        for (quota, hard, used) in interesting {
            let before = self.old.filter(|old| scopes::matches(quota, self.resource, old));
            let delta = match before {
                None => wanted.clone(),
                Some(old) => usage::growth(&wanted, &usage::of(self.resource, old)),
            };
            let requested: Amounts = delta
                .into_iter()
                .filter(|(name, amount)| !amount.is_zero() && hard.contains_key(name))
                .collect();
            if requested.is_empty() {
                continue;
            }
            let total = usage::sum(&used, &requested);
            let exceeded: Vec<&str> = requested
                .keys()
                .map(String::as_str)
                .filter(|name| total.get(*name) > hard.get(*name))
                .collect();
            if self.enforced && !exceeded.is_empty() {
                let part = |amounts: &Amounts| usage::describe(amounts, &exceeded);
                return Err(format!(
                    "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                    meta::name(quota),
                    part(&requested),
                    part(&used),
                    part(&hard)
                )
                .into());
            }
            charges.push(Charge { quota, used: total });
        }
        Ok(charges)
    }

    /// Reports whether the write increases any usage.
    fn grows(&self, wanted: &Amounts, interesting: &[(&Value, Amounts, Amounts)]) -> bool {
        let uses = |amounts: &Amounts| amounts.values().any(|amount| !amount.is_zero());
        let Some(old) = self.old else { return uses(wanted) };
        let newly = interesting.iter().any(|(quota, ..)| !scopes::matches(quota, self.resource, old));
        (newly && uses(wanted)) || uses(&usage::growth(wanted, &usage::of(self.resource, old)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn quota(hard: Value, used: Value) -> Value {
        json!({"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}})
    }

    fn pod(cpu: Option<&str>) -> Value {
        let resources = cpu.map_or(json!({}), |cpu| json!({"requests": {"cpu": cpu}}));
        json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    fn create<'a>(resource: (&'a str, &'a str), object: &'a Value) -> Request<'a> {
        Request { resource, object, old: None, enforced: true, limited: &[] }
    }

    #[test]
    fn quota_is_exhausted_by_last_unit() {
        let one =
            [quota(json!({"pods": "2", "requests.cpu": "1"}), json!({"pods": "1", "requests.cpu": "500m"}))];
        for (cpu, want) in [
            (Some("500m"), Ok(json!({"pods": "2", "requests.cpu": "1"}))),
            (
                Some("600m"),
                Err(
                    "exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=500m, limited: requests.cpu=1",
                ),
            ),
            (None, Err("failed quota: q: must specify requests.cpu for: c")),
        ] {
            let pod = pod(cpu);
            let got = create(("", "pods"), &pod).plan(&one);
            match want {
                Ok(used) => assert_eq!(usage::show(&got.expect("it fits")[0].used), used),
                Err(why) => assert_eq!(got.map(|_| ()), Err(why.to_owned().into())),
            }
        }
    }

    #[test]
    fn unrelated_quotas_are_not_charged() {
        let map = json!({});
        assert!(create(("", "configmaps"), &map).plan(&[quota(json!({"pods": "0"}), json!({}))]).is_ok());
        let new = [quota(json!({"configmaps": "1"}), json!({}))];
        let unknown = create(("", "configmaps"), &map).plan(&new);
        assert_eq!(
            unknown.map(|_| ()),
            Err("status unknown for quota: q, resources: configmaps".to_owned().into())
        );
        let full = [quota(json!({"count/deployments.apps": "1"}), json!({"count/deployments.apps": "1"}))];
        assert_eq!(
            create(("apps", "deployments"), &map).plan(&full).map(|_| ()),
            Err("exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=1, limited: count/deployments.apps=1".to_owned().into())
        );
    }

    #[test]
    fn updates_are_charged_for_growth_only() {
        let claim = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let quotas = [quota(json!({"requests.storage": "10Gi"}), json!({"requests.storage": "5Gi"}))];
        let (old, new, large) = (claim("5Gi"), claim("8Gi"), claim("11Gi"));
        let update = |object| Request {
            resource: ("", "persistentvolumeclaims"),
            object,
            old: Some(&old),
            enforced: true,
            limited: &[],
        };
        let charges = update(&new).plan(&quotas).expect("it fits");
        assert_eq!(usage::show(&charges[0].used), json!({"requests.storage": "8Gi"}));
        assert!(update(&large).plan(&quotas).is_err());
        assert!(update(&old).plan(&quotas).expect("nothing grows").is_empty());
    }

    #[test]
    fn limited_resource_needs_a_quota() {
        let limited = limited::read(
            br#"{"apiVersion": "resourcequota.admission.k8s.io/v1", "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {"resource": "persistentvolumeclaims", "matchContains": ["gold.storageclass"]},
                    {"resource": "pods", "matchScopes": [
                        {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}]}"#,
        )
        .expect("valid");
        let claim = |class: &str| json!({"spec": {"storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}}});
        let claims = ("", "persistentvolumeclaims");
        let (gold, plain) = (claim("gold"), claim("plain"));
        let create = |resource, object| Request { limited: &limited, ..create(resource, object) };
        let names = "gold.storageclass.storage.k8s.io/persistentvolumeclaims,gold.storageclass.storage.k8s.io/requests.storage";
        assert_eq!(
            create(claims, &gold).plan(&[]).map(|_| ()),
            Err(format!("insufficient quota to consume: {names}").into())
        );
        assert!(create(claims, &plain).plan(&[]).is_ok());
        let hard = json!({
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "5",
            "gold.storageclass.storage.k8s.io/requests.storage": "5Gi",
        });
        let used = json!({
            "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "0",
            "gold.storageclass.storage.k8s.io/requests.storage": "0",
        });
        assert_eq!(create(claims, &gold).plan(&[quota(hard, used)]).map(|charges| charges.len()), Ok(1));
        // An update that does not increase usage is admitted.
        let same = Request { old: Some(&gold), ..create(claims, &gold) };
        assert!(same.plan(&[]).is_ok());

        let mut high = pod(Some("1"));
        high["spec"]["priorityClassName"] = json!("high");
        let pods = ("", "pods");
        assert_eq!(
            create(pods, &high).plan(&[]).map(|_| ()),
            Err(QuotaRejection::Plain(
                "insufficient quota to match these scopes: [{PriorityClass In [high]}]".to_owned()
            ))
        );
        let mut scoped = quota(json!({"pods": "5"}), json!({"pods": "0"}));
        scoped["spec"]["scopeSelector"] = json!({"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]});
        assert!(create(pods, &high).plan(&[scoped]).is_ok());
        assert!(create(pods, &pod(Some("1"))).plan(&[]).is_ok());
    }
}
