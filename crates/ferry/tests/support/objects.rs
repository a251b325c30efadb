//! Waiting for what objects of a cluster say.

use super::kubectl::Kubectl;
use super::wait::until;

/// Waits until a field of an object is as wanted; `log` is told if that does not happen.
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
