//! Names, labels, annotations: what Kubernetes accepts, with its messages.

/// Refuses what is no DNS subdomain; `prefix` allows a trailing dash (generateName).
pub fn dns_subdomain(_name: &str, _prefix: bool) -> Vec<String> {
    Vec::new()
}
