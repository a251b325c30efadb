//! Waits for fields of objects.

use super::{Kubectl, until};

/// Waits until a field of an object has the expected value; calls `log` on timeout.
pub fn wait_until(
    kubectl: &Kubectl,
    (object, field): (&str, &str),
    what: &str,
    fits: impl Fn(&str) -> bool,
    log: impl Fn() -> String,
) {
    until(&format!("{field} of {object} {what}"), || {
        match kubectl.attempt(&["get", object, "-o", &format!("jsonpath={field}")]) {
            Ok(text) if fits(&text) => Ok(()),
            other => {
                let described = kubectl.attempt(&["describe", object]).unwrap_or_default();
                Err(format!("{other:?}\n{described}\n{}", log()))
            }
        }
    });
}
