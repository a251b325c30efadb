//! Node selectors and node affinity: required and preferred nodes of a pod.

use objects::core::v1::{NodeSelector, NodeSelectorTerm, PodSpec, PreferredSchedulingTerm};

use super::labels::{Labels, Operator, Requirement};

/// One term: all its label and field expressions must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    labels: Box<[Requirement]>,
    fields: Box<[Requirement]>,
    /// Empty and invalid terms match no node.
    matches_nothing: bool,
}

impl Term {
    fn of(term: &NodeSelectorTerm) -> Self {
        let labels = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let read = |list: &[objects::core::v1::NodeSelectorRequirement]| -> Option<Box<[Requirement]>> {
            list.iter().map(|item| Requirement::of(&item.key, &item.operator, item.values.as_ref())).collect()
        };
        let empty = labels.is_empty() && fields.is_empty();
        // Fields can only be compared with one value.
        let comparable = fields.iter().all(|field| {
            matches!(field.operator.as_str(), "In" | "NotIn")
                && field.values.as_ref().is_some_and(|v| v.len() == 1)
        });
        match (read(labels), read(fields)) {
            (Some(labels), Some(fields)) => Self { labels, fields, matches_nothing: empty || !comparable },
            _ => Self { labels: Box::default(), fields: Box::default(), matches_nothing: true },
        }
    }

    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        let field = |key: &str| (key == "metadata.name").then_some(name);
        !self.matches_nothing
            && self.labels.iter().all(|requirement| requirement.matches(labels))
            && self.fields.iter().all(|requirement| requirement.matches_value(field(&requirement.key)))
    }

    /// Node names that this term is limited to, if it names any.
    fn names(&self) -> Option<Vec<&str>> {
        let mut names: Option<Vec<&str>> = None;
        for requirement in &self.fields {
            if &*requirement.key != "metadata.name" || requirement.operator != Operator::In {
                continue;
            }
            let listed = requirement.values.iter().map(|value| &**value);
            names = Some(match names {
                None => listed.collect(),
                Some(before) => listed.filter(|name| before.contains(name)).collect(),
            });
        }
        names
    }
}

/// Terms of which one must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms(Box<[Term]>);

impl Terms {
    #[must_use]
    pub fn of(selector: &NodeSelector) -> Self {
        Self(selector.node_selector_terms.iter().map(Term::of).collect())
    }

    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.0.iter().any(|term| term.matches(name, labels))
    }

    /// Only nodes that can match, if every term names some, as those of daemon pods do.
    #[must_use]
    pub fn names(&self) -> Option<Vec<&str>> {
        if self.0.is_empty() {
            return None;
        }
        let mut all = Vec::new();
        for term in &self.0 {
            all.extend(term.names()?);
        }
        all.sort_unstable();
        all.dedup();
        Some(all)
    }
}

/// Required node names and labels of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Required {
    selector: Box<[(Box<str>, Box<str>)]>,
    pub terms: Option<Terms>,
}

impl Required {
    #[must_use]
    pub fn of(spec: &PodSpec) -> Self {
        let selector = spec.node_selector.iter().flatten();
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            selector: selector.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect(),
            terms: required.map(Terms::of),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.terms.is_none()
    }

    #[must_use]
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        self.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.terms.as_ref().is_none_or(|terms| terms.matches(name, labels))
    }
}

/// Preferred terms of a pod, each with its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferred(Box<[(Term, i64)]>);

impl Preferred {
    #[must_use]
    pub fn of(terms: Option<&Vec<PreferredSchedulingTerm>>) -> Self {
        let terms = terms.into_iter().flatten();
        let weighed = terms.filter(|term| {
            let empty = |list: Option<usize>| list.unwrap_or(0) == 0;
            // A preference without expressions prefers nothing.
            !(term.weight == 0
                || empty(term.preference.match_expressions.as_ref().map(Vec::len))
                    && empty(term.preference.match_fields.as_ref().map(Vec::len)))
        });
        Self(weighed.map(|term| (Term::of(&term.preference), i64::from(term.weight))).collect())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn score(&self, name: &str, labels: &Labels) -> i64 {
        self.0.iter().filter(|(term, _)| term.matches(name, labels)).map(|(_, weight)| weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn required(spec: serde_json::Value) -> Required {
        let mut spec = spec;
        spec["containers"] = json!([]);
        Required::of(&serde_json::from_value(spec).unwrap())
    }

    fn affinity(terms: serde_json::Value) -> serde_json::Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn required_terms_match_vectors() {
        let labels = Labels::of(Some(&vectors::node_labels()));
        for vector in vectors::node_affinities() {
            let matches = required(vector.spec).matches(vectors::NODE_NAME, &labels);
            assert_eq!(matches, vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn node_names_are_known_only_if_every_term_has_some() {
        let named = |names: &[&str]| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]});
        let both = json!({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["a", "b"]},
            {"key": "metadata.name", "operator": "In", "values": ["b"]},
        ]});
        let other = json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]});
        for (terms, expected) in [
            (json!([named(&["b", "a"])]), Some(vec!["a", "b"])),
            (json!([named(&["a"]), named(&["c"])]), Some(vec!["a", "c"])),
            (json!([both]), Some(vec!["b"])),
            (json!([named(&["a"]), other]), None),
        ] {
            assert_eq!(required(affinity(terms)).terms.unwrap().names(), expected);
        }
    }

    #[test]
    fn preferred_terms_sum_weights() {
        let terms = json!([
            {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}},
            {"weight": 3, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}},
            {"weight": 90, "preference": {}},
        ]);
        let preferred = Preferred::of(Some(&serde_json::from_value(terms).unwrap()));
        assert_eq!(preferred.score("n", &Labels::from([("zone", "a"), ("disk", "x")])), 8);
        assert_eq!(preferred.score("n", &Labels::from([("zone", "b")])), 0);
    }
}
