//! Selection of resources, namespaces, families, labels and annotations, by the rules of kube-state-metrics' flags.

use super::kinds::KINDS;
use regex::Regex;
use std::collections::BTreeMap;

#[derive(Debug, thiserror::Error)]
pub enum StateMetricsError {
    #[error("{0:?} is not of the form resource=[name,name],resource=[*]")]
    AllowList(String),
    #[error("resource {resource} does not exist. Available resources: {available}")]
    Resource { resource: String, available: String },
    #[error("invalid pattern {pattern:?}")]
    Pattern { pattern: String, source: Box<regex::Error> },
    #[error("allowlist and denylist are both set, they are mutually exclusive, only one of them can be set")]
    BothLists,
}

/// Names of labels or annotations by resource; `*` stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(BTreeMap<String, Vec<String>>);

/// Names of one resource.
#[derive(Clone, Copy, Debug)]
pub enum Allowed<'a> {
    None,
    All,
    Only(&'a [String]),
}

impl AllowList {
    /// Parses `pods=[app,team],nodes=[*]`.
    pub fn parse(text: &str) -> Result<Self, StateMetricsError> {
        let invalid = || StateMetricsError::AllowList(text.to_owned());
        let mut lists = BTreeMap::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (resource, tail) = rest.split_once("=[").ok_or_else(invalid)?;
            let (names, tail) = tail.split_once(']').ok_or_else(invalid)?;
            let resource = resource.trim();
            let names: Vec<String> = match names.trim() {
                "" => Vec::new(),
                names => names.split(',').map(|name| name.trim().to_owned()).collect(),
            };
            if resource.contains([',', '[']) || names.iter().any(|name| name.is_empty() || name.contains('['))
            {
                return Err(invalid());
            }
            if resource != "*" {
                known(resource)?;
            }
            lists.insert(resource.to_owned(), names);
            rest = match tail.strip_prefix(',') {
                Some(more) if !more.trim().is_empty() => more,
                None if tail.trim().is_empty() => "",
                _ => return Err(invalid()),
            };
        }
        Ok(Self(lists))
    }

    /// Names that a resource may show. The list of `*` takes precedence over others.
    pub(super) fn of(&self, resource: &str) -> Allowed<'_> {
        match self.0.get("*").or_else(|| self.0.get(resource)).map(Vec::as_slice) {
            None | Some([]) => Allowed::None,
            Some([first, ..]) if first == "*" => Allowed::All,
            Some(names) => Allowed::Only(names),
        }
    }
}

fn known(resource: &str) -> Result<(), StateMetricsError> {
    if KINDS.iter().any(|kind| kind.resource == resource) {
        return Ok(());
    }
    let available: Vec<_> = KINDS.iter().map(|kind| kind.resource).collect();
    Err(StateMetricsError::Resource { resource: resource.to_owned(), available: available.join(",") })
}

/// Families to serve, by patterns of their names.
#[derive(Clone, Debug, Default)]
pub struct FamilyFilter {
    allow: Vec<Regex>,
    deny: Vec<Regex>,
    opt_in: Vec<Regex>,
}

impl FamilyFilter {
    pub fn new(allow: &[String], deny: &[String], opt_in: &[String]) -> Result<Self, StateMetricsError> {
        if !allow.is_empty() && !deny.is_empty() {
            return Err(StateMetricsError::BothLists);
        }
        let compile = |patterns: &[String]| {
            let compile = |pattern: &String| {
                Regex::new(pattern).map_err(|source| StateMetricsError::Pattern {
                    pattern: pattern.clone(),
                    source: Box::new(source),
                })
            };
            patterns.iter().map(compile).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { allow: compile(allow)?, deny: compile(deny)?, opt_in: compile(opt_in)? })
    }

    pub(super) fn accepts(&self, name: &str, is_opt_in: bool) -> bool {
        let matches = |patterns: &[Regex]| patterns.iter().any(|pattern| pattern.is_match(name));
        (self.allow.is_empty() || matches(&self.allow))
            && !matches(&self.deny)
            && (!is_opt_in || matches(&self.opt_in))
    }
}

/// Settings of the component.
#[derive(Clone, Debug, Default)]
pub struct StateMetricsConfig {
    /// Resources to serve; all if empty.
    pub(super) resources: Vec<String>,
    /// Namespaces of namespaced objects; all if empty.
    pub namespaces: Vec<String>,
    pub labels: AllowList,
    pub annotations: AllowList,
    pub families: FamilyFilter,
}

impl StateMetricsConfig {
    /// Serves these resources only; all if there are none.
    pub fn with_resources(self, resources: Vec<String>) -> Result<Self, StateMetricsError> {
        resources.iter().try_for_each(|resource| known(resource))?;
        Ok(Self { resources, ..self })
    }

    pub(super) fn serves(&self, resource: &str) -> bool {
        self.resources.is_empty() || self.resources.iter().any(|one| one == resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_list_is_parsed() {
        let list =
            AllowList::parse("pods=[app.kubernetes.io/component, app],nodes=[*],jobs=[]").expect("valid");
        assert!(matches!(list.of("pods"), Allowed::Only([first, second])
            if first == "app.kubernetes.io/component" && second == "app"));
        assert!(matches!(list.of("nodes"), Allowed::All));
        assert!(matches!(list.of("jobs"), Allowed::None));
        assert!(matches!(list.of("services"), Allowed::None));
        let all = AllowList::parse("*=[app],pods=[*]").expect("valid");
        assert!(matches!(all.of("pods"), Allowed::Only([name]) if name == "app"));
        for text in
            ["pods", "pods=[", "pods=[a]x", "pods=[a],", "pods=[a,,b]", "=[a]", "pods=[[a]", "ghosts=[a]"]
        {
            assert!(AllowList::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn families_are_chosen_by_patterns() {
        let patterns = |text: &str| vec![text.to_owned()];
        let allow = FamilyFilter::new(&patterns("^kube_pod_.*"), &[], &[]).expect("valid");
        assert!(allow.accepts("kube_pod_info", false) && !allow.accepts("kube_node_info", false));
        assert!(!allow.accepts("kube_pod_nodeselectors", true));
        let deny = FamilyFilter::new(&[], &patterns("info$"), &patterns("nodeselectors")).expect("valid");
        assert!(!deny.accepts("kube_pod_info", false) && deny.accepts("kube_pod_nodeselectors", true));
        assert!(FamilyFilter::new(&patterns("a"), &patterns("b"), &[]).is_err());
        assert!(FamilyFilter::new(&patterns("("), &[], &[]).is_err());
        assert!(StateMetricsConfig::default().with_resources(vec!["ghosts".to_owned()]).is_err());
    }
}
