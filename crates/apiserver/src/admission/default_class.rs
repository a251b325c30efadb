//! Which class is the default one: DefaultStorageClass and DefaultIngressClass agree on how to choose.

use machinery::{Value, meta};

/// The newest of the classes that carry one of the annotations with the value `true`; among equals the first name.
pub fn choose<'a>(classes: &'a [Value], annotations: &[&str]) -> Option<&'a str> {
    let marked = |class: &&Value| annotations.iter().any(|key| meta::annotation(class, key) == Some("true"));
    let created = |class: &Value| meta::text(class, "creationTimestamp").to_owned();
    classes
        .iter()
        .filter(marked)
        .max_by(|a, b| created(a).cmp(&created(b)).then_with(|| meta::name(b).cmp(meta::name(a))))
        .map(meta::name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_default_wins() {
        let class = |name: &str, created: &str, default: &str| json!({"metadata": {"name": name, "creationTimestamp": created, "annotations": {"d": default}}});
        let classes = [
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("b", "2026-01-02T00:00:00Z", "true"),
            class("a", "2026-01-02T00:00:00Z", "true"),
            class("no", "2026-01-03T00:00:00Z", "false"),
        ];
        assert_eq!(choose(&classes, &["x", "d"]), Some("a"));
        assert_eq!(choose(&classes[3..], &["d"]), None);
    }
}
