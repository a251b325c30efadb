//! Selectors of autoscalers' targets: pods selected by several autoscalers are scaled by none of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use runtime::Key;

/// Labels of a pod.
pub type Labels = BTreeMap<String, String>;

/// Selectors as text and parsed, by name of the autoscaler.
type ByName = BTreeMap<Arc<str>, (String, LabelSelector)>;

/// Last observed selectors, by namespace and name of the autoscaler.
#[derive(Default)]
pub struct Selectors(Mutex<HashMap<Arc<str>, ByName>>);

impl Selectors {
    pub fn record(&self, key: &Key, text: &str, selector: LabelSelector) {
        let mut all = self.0.lock();
        let known = all.entry(key.namespace.clone()).or_default();
        known.insert(key.name.clone(), (text.to_owned(), selector));
    }

    pub fn remove(&self, key: &Key) {
        let mut all = self.0.lock();
        if let Some(known) = all.get_mut(&key.namespace) {
            known.remove(&key.name);
            if known.is_empty() {
                all.remove(&key.namespace);
            }
        }
    }

    /// Names of the autoscalers of a namespace that select any of these pods.
    pub fn selecting(&self, namespace: &str, pods: &BTreeSet<&Labels>) -> Vec<Arc<str>> {
        let all = self.0.lock();
        // Many autoscalers with one selector cost as much as one.
        let mut verdicts: HashMap<&str, bool> = HashMap::new();
        let mut names = Vec::new();
        for (name, (text, selector)) in all.get(namespace).into_iter().flatten() {
            let selects = |labels: &&Labels| {
                let labels: Vec<_> = labels.iter().collect();
                selector.matches(labels.as_slice())
            };
            if *verdicts.entry(text).or_insert_with(|| pods.iter().any(selects)) {
                names.push(name.clone());
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn overlapping_autoscalers_are_detected() {
        let selectors = Selectors::default();
        let record = |namespace: &str, name: &str, text: &str| {
            selectors.record(&Key::new(namespace, name), text, LabelSelector::parse(text).expect("valid"));
        };
        record("n", "b", "app=web");
        record("n", "a", "app=web");
        record("n", "c", "app in (web,db),tier=front");
        record("n", "d", "app=db");
        record("other", "e", "app=web");
        let (front, back) = (labels(&[("app", "web"), ("tier", "front")]), labels(&[("app", "web")]));
        let of = |pods: &[&Labels]| -> Vec<String> {
            let names = selectors.selecting("n", &pods.iter().copied().collect());
            names.iter().map(ToString::to_string).collect()
        };
        assert_eq!(of(&[&back]), ["a", "b"]);
        assert_eq!(of(&[&back, &front]), ["a", "b", "c"]);
        assert!(of(&[]).is_empty());
        selectors.remove(&Key::new("n", "a"));
        assert_eq!(of(&[&back]), ["b"]);
        // A changed selector replaces the old one.
        record("n", "b", "app=db");
        assert!(of(&[&back]).is_empty());
    }
}
