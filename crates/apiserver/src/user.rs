//! User of a request.

use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// Form in objects, without empty parts.
    pub fn to_value(&self) -> serde_json::Value {
        let mut user = serde_json::json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            user["uid"] = self.uid.clone().into();
        }
        if !self.extra.is_empty() {
            user["extra"] = serde_json::json!(self.extra);
        }
        user
    }

    /// This server itself.
    pub fn server() -> Self {
        Self {
            name: "system:apiserver".to_owned(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            ..Self::default()
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}
