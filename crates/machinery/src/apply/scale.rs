//! managedFields of the scale subresource: its field `spec.replicas` has another path in the scaled object.

use super::managed::{self, Managed};
use super::manager::field_set;
use serde_json::Value;

/// The version of scale objects.
const SCALE_VERSION: &str = "autoscaling/v1";

/// Entries of a scale object: the owners of the scaled object's replicas, whose path there is `replicas`.
pub fn to_scale(parent: &Value, replicas: &[&str]) -> Vec<Value> {
    let owned = field_set(replicas);
    let managers = managed::entries(parent).and_then(|e| managed::decode(e.clone()).ok()).unwrap_or_default();
    let scaled = managers.into_iter().filter(|m| m.set.intersects(&owned)).map(|m| Managed {
        api_version: SCALE_VERSION.to_owned(),
        set: field_set(&["spec", "replicas"]),
        stored: None,
        ..m
    });
    managed::encode(scaled.collect())
}

/// Entries of the scaled object after its scale was written: `scale` has the entries that [`super::update`] or
/// [`super::apply`] computed for the scale object.
pub fn to_parent(parent: &Value, scale: &Value, api_version: &str, replicas: &[&str]) -> Vec<Value> {
    let owned = field_set(replicas);
    let read =
        |object| managed::entries(object).and_then(|e| managed::decode(e.clone()).ok()).unwrap_or_default();
    let mut scaled: Vec<Managed> = read(scale);
    let mut managers = Vec::new();
    for mut manager in read(parent) {
        if manager.set.intersects(&owned) {
            match scaled.iter().position(|m| same_manager(m, &manager)) {
                Some(at) => drop(scaled.remove(at)),
                None => {
                    let left = manager.set.difference(&owned);
                    manager.set_fields(left);
                }
            }
        }
        if !manager.set.is_empty() {
            managers.push(manager);
        }
    }
    let in_scale = field_set(&["spec", "replicas"]);
    for manager in scaled.into_iter().filter(|m| m.set.intersects(&in_scale)) {
        let mut identity = manager.identity;
        if !identity.applies {
            identity.api_version = api_version.to_owned();
        }
        managers.push(Managed {
            identity,
            api_version: api_version.to_owned(),
            // Kubernetes looks times up among the parent's entries only: a new one has none.
            time: None,
            set: owned.clone(),
            stored: None,
        });
    }
    managed::encode(managers)
}

/// The same manager, in either object's version.
fn same_manager(scale: &Managed, parent: &Managed) -> bool {
    let (a, b) = (&scale.identity, &parent.identity);
    a.manager == b.manager && a.applies == b.applies && a.subresource == b.subresource
}
