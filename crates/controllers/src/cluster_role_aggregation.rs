//! The cluster role aggregation loop. Watches cluster roles; writes the rules of all selected roles to each role with
//! an aggregation rule.

use std::sync::Arc;

use async_trait::async_trait;
use client::Patch;
use objects::rbac::v1::{ClusterRole, PolicyRule};
use runtime::{Action, Cache, Context, Descriptor, Key, Loop, LoopError};
use serde_json::json;

use crate::shared::selector;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "clusterrole-aggregation-controller",
    resource: "clusterroles.rbac.authorization.k8s.io",
    identity: "system:serviceaccount:kube-system:clusterrole-aggregation-controller",
    workers: 2,
};

struct Aggregation {
    roles: Cache<ClusterRole>,
}

pub fn build(ctx: &Context) -> Box<dyn Loop> {
    let roles = ctx.cache::<ClusterRole>();
    let all = roles.clone();
    ctx.watch::<ClusterRole>(move |_| {
        let aggregated = all.all().into_iter().filter(|role| role.aggregation_rule.is_some());
        aggregated.map(|role| Key::of(&*role)).collect()
    });
    Box::new(Aggregation { roles })
}

#[async_trait]
impl Loop for Aggregation {
    async fn reconcile(&self, key: &Key, ctx: &Context) -> Result<Action, LoopError> {
        let Some(role) = self.roles.get_key(key) else { return Ok(Action::Done) };
        let Some(rules) = plan(&role, &self.roles.all()) else { return Ok(Action::Done) };
        let patch = Patch::Apply {
            manager: DESCRIPTOR.name.to_owned(),
            force: true,
            object: json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": { "name": &*key.name },
                "rules": rules,
            }),
        };
        ctx.client.patch::<ClusterRole>("", &key.name, None, &patch).await?;
        Ok(Action::Done)
    }
}

/// Aggregated rules of the role, if they differ from its current ones. `roles` are sorted by name.
fn plan(role: &ClusterRole, roles: &[Arc<ClusterRole>]) -> Option<Vec<PolicyRule>> {
    let aggregation = role.aggregation_rule.as_ref()?;
    let mut rules: Vec<PolicyRule> = Vec::new();
    for wanted in aggregation.cluster_role_selectors.iter().flatten() {
        let selected = roles.iter().filter(|other| {
            other.metadata.name != role.metadata.name
                && selector::matches(wanted, other.metadata.labels.as_ref())
        });
        for rule in selected.flat_map(|other| other.rules.iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    (rules != role.rules.clone().unwrap_or_default()).then_some(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::fixture::meta;
    use objects::meta::v1::LabelSelector;
    use objects::rbac::v1::AggregationRule;

    #[test]
    fn rules_of_selected_roles_are_deduplicated() {
        let labels = Some([("to-admin".to_owned(), "true".to_owned())].into());
        let rule = |verb: &str| PolicyRule { verbs: vec![verb.into()], ..PolicyRule::default() };
        let role = |name: &str, selected: bool, rules: &[PolicyRule]| {
            let mut metadata = meta(name);
            metadata.labels = selected.then(|| labels.clone()).flatten();
            Arc::new(ClusterRole { metadata, rules: Some(rules.to_vec()), ..ClusterRole::default() })
        };
        let mut admin = ClusterRole { metadata: meta("admin"), ..ClusterRole::default() };
        admin.aggregation_rule = Some(AggregationRule {
            cluster_role_selectors: Some(vec![LabelSelector {
                match_labels: labels.clone(),
                ..Default::default()
            }]),
        });
        let roles = [
            role("a", true, &[rule("get"), rule("list")]),
            role("b", true, &[rule("list"), rule("watch")]),
            role("c", false, &[rule("delete")]),
        ];
        let rules = plan(&admin, &roles).expect("rules");
        assert_eq!(rules, [rule("get"), rule("list"), rule("watch")]);
        admin.rules = Some(rules);
        assert_eq!(plan(&admin, &roles), None);
        assert_eq!(plan(&roles[0], &roles), None);
    }
}
