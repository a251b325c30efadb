//! Admin access to devices in use: only for claims of namespaces labelled for it.

use super::{Registry, Served};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::{Value, meta};

const LABEL: &str = "resource.kubernetes.io/admin-access";

impl Registry {
    /// Validates admin access of a new claim or claim template.
    pub(super) async fn validate_admin_access(&self, served: &Served, object: &Value) -> ErrorList {
        let kind = &served.kind;
        let spec = match (kind.group(), kind.resource()) {
            ("resource.k8s.io", "resourceclaims") => &object["spec"],
            ("resource.k8s.io", "resourceclaimtemplates") => &object["spec"]["spec"],
            _ => return ErrorList::new(),
        };
        let Some(index) = first_request(spec) else { return ErrorList::new() };
        let path = Path::new("spec.devices.requests");
        let path = path.index(index);
        let path = path.child("adminAccess");
        let labelled = async {
            let namespaces = self.builtin("", "v1", "namespaces")?;
            let namespace = self.get(namespaces, "", meta::namespace(object), "").await?.value();
            Ok::<_, machinery::status::Status>(namespace["metadata"]["labels"][LABEL] == "true")
        };
        match labelled.await {
            Ok(true) => ErrorList::new(),
            Ok(false) => {
                let why = format!(
                    "admin access to devices requires the `{LABEL}: true` label on the containing namespace"
                );
                vec![FieldError::forbidden(&path, why)]
            }
            Err(status) => {
                let why = format!("could not retrieve namespace to verify admin access: {}", status.message);
                vec![FieldError::internal(&path, why)]
            }
        }
    }
}

/// The first request of a claim for admin access. Requests with alternatives cannot have it.
fn first_request(spec: &Value) -> Option<usize> {
    spec["devices"]["requests"]
        .as_array()?
        .iter()
        .position(|request| request["exactly"]["adminAccess"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn admin_access_request_is_found() {
        let spec = |requests: Value| json!({"devices": {"requests": requests}});
        for (requests, first) in [
            (json!([]), None),
            (json!([{"exactly": {"adminAccess": false}}, {"exactly": {}}]), None),
            (json!([{"exactly": {}}, {"exactly": {"adminAccess": true}}]), Some(1)),
            (json!([{"firstAvailable": [{"adminAccess": true}]}]), None),
        ] {
            assert_eq!(first_request(&spec(requests.clone())), first, "{requests}");
        }
    }
}
