//! May they do it. The answer comes from an [`Authorizer`].

use crate::context::Context;
use crate::user::UserInfo;
use machinery::status::{Status, qualified};

/// What somebody wants to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub verb: String,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Of requests that are not about a resource.
    pub path: String,
}

impl Attributes {
    pub fn of(context: &Context) -> Self {
        let info = &context.info;
        Self {
            verb: info.verb.to_owned(),
            is_resource: info.is_resource,
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            path: context.path.clone(),
        }
    }

    pub fn impersonate(group: &str, resource: &str, subresource: &str, name: &str) -> Self {
        Self {
            verb: "impersonate".to_owned(),
            is_resource: true,
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// 403 in Kubernetes' words.
    pub fn forbidden(&self, user: &UserInfo, reason: &str) -> Status {
        let who = &user.name;
        if !self.is_resource {
            let why = format!("User {who:?} cannot {} path {:?}", self.verb, self.path);
            let why = if reason.is_empty() { why } else { format!("{why}: {reason}") };
            return Status::forbidden("", "", "", why);
        }
        let resource = if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        };
        let mut why =
            format!("User {who:?} cannot {} resource {resource:?} in API group {:?}", self.verb, self.group);
        if self.namespace.is_empty() {
            why.push_str(" at the cluster scope");
        } else {
            why.push_str(&format!(" in the namespace {:?}", self.namespace));
        }
        if !reason.is_empty() {
            why.push_str(&format!(": {reason}"));
        }
        let mut status = Status::forbidden(&self.group, &self.resource, &self.name, &why);
        let what = qualified(&self.group, &self.resource);
        status.message = if self.name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} {:?} is forbidden: {why}", self.name)
        };
        status
    }
}

/// Decides who may do what.
pub trait Authorizer: Send + Sync {
    /// `None`: allowed. Otherwise the reason for the refusal, possibly empty.
    fn refuses(&self, user: &UserInfo, attributes: &Attributes) -> Option<String>;
}

/// Members of `system:masters` may do everything; everybody may ask how the server is and what it is.
#[derive(Debug, Default)]
pub struct Masters;

const PUBLIC_PATHS: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

impl Authorizer for Masters {
    fn refuses(&self, user: &UserInfo, attributes: &Attributes) -> Option<String> {
        let public = !attributes.is_resource
            && attributes.verb == "get"
            && PUBLIC_PATHS.contains(&attributes.path.as_str());
        (!public && !user.is_in("system:masters")).then(String::new)
    }
}
