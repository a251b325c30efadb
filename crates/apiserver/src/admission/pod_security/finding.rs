//! Violation of a check, and its message text.

use std::borrow::Cow;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub reason: Cow<'static, str>,
    pub detail: String,
}

impl Finding {
    pub fn new(reason: impl Into<Cow<'static, str>>, detail: String) -> Self {
        Self { reason: reason.into(), detail }
    }
}

pub fn reasons(findings: &[Finding]) -> String {
    let reasons: Vec<&str> = findings.iter().map(|finding| finding.reason.as_ref()).collect();
    reasons.join(", ")
}

pub fn details(findings: &[Finding]) -> String {
    let texts: Vec<String> =
        findings.iter().map(|finding| format!("{} ({})", finding.reason, finding.detail)).collect();
    texts.join(", ")
}

/// `"a", "b"`
pub fn quoted<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect();
    items.join(", ")
}

pub fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`
pub fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// Pod and containers with a forbidden setting, and its values.
#[derive(Default)]
pub struct Setters<'a> {
    pub pod: bool,
    pub containers: Vec<&'a str>,
    pub values: BTreeSet<&'a str>,
}

impl Setters<'_> {
    pub fn any(&self) -> bool {
        self.pod || !self.containers.is_empty()
    }

    /// `pod and container "a"`
    pub fn names(&self) -> String {
        let mut names = Vec::new();
        if self.pod {
            names.push("pod".to_owned());
        }
        if !self.containers.is_empty() {
            names.push(containers(&self.containers));
        }
        names.join(" and ")
    }
}
