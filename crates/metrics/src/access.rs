//! Delegated authentication and authorization: the API server decides by TokenReview and SubjectAccessReview. Decisions
//! are cached for as long as Kubernetes' delegating servers keep them.

use client::{Client, ClientError};
use http::{Method, Uri};
use machinery::status::{Result, Status};
use objects::authentication::v1::{TokenReview, TokenReviewSpec};
use objects::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which decisions are cached.
const LIFETIME: Duration = Duration::from_secs(10);
/// Cached decisions, at most.
const MAX_ENTRIES: usize = 1024;
/// Paths that need no permission.
const PUBLIC: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteUser {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl RemoteUser {
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }
}

/// The action that a request needs the permission for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Resource { verb: &'static str, namespace: String, resource: String, name: String },
    Path { verb: String, path: String },
}

impl Action {
    fn of(method: &Method, uri: &Uri) -> Self {
        let path = uri.path();
        let other = || Self::Path { verb: method.as_str().to_ascii_lowercase(), path: path.to_owned() };
        let Some(rest) = path.strip_prefix("/apis/metrics.k8s.io/v1beta1/") else { return other() };
        let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
        let (namespace, resource, name) = match parts.as_slice() {
            ["namespaces", ns, resource] => (*ns, *resource, ""),
            ["namespaces", ns, resource, name, ..] => (*ns, *resource, *name),
            [resource] => ("", *resource, ""),
            [resource, name, ..] => ("", *resource, *name),
            [] => return other(),
        };
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if name.is_empty() => "deletecollection",
            Method::DELETE => "delete",
            _ if name.is_empty() && crate::serve::Query::parse(uri.query()).flag("watch") => "watch",
            _ if name.is_empty() => "list",
            _ => "get",
        };
        let [namespace, resource, name] = [namespace, resource, name].map(str::to_owned);
        Self::Resource { verb, namespace, resource, name }
    }

    fn review(&self, user: &RemoteUser) -> SubjectAccessReview {
        let mut spec = SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            uid: Some(user.uid.clone()),
            extra: Some(user.extra.clone()),
            ..SubjectAccessReviewSpec::default()
        };
        match self.clone() {
            Self::Resource { verb, namespace, resource, name } => {
                spec.resource_attributes = Some(ResourceAttributes {
                    group: Some(crate::serve::GROUP.to_owned()),
                    version: Some(crate::serve::VERSION.to_owned()),
                    verb: Some(verb.to_owned()),
                    namespace: Some(namespace),
                    resource: Some(resource),
                    name: Some(name),
                    ..ResourceAttributes::default()
                });
            }
            Self::Path { verb, path } => {
                spec.non_resource_attributes =
                    Some(NonResourceAttributes { verb: Some(verb), path: Some(path) });
            }
        }
        SubjectAccessReview { spec, ..SubjectAccessReview::default() }
    }

    fn refusal(&self, user: &RemoteUser) -> Status {
        match self {
            Self::Path { verb, path } => {
                let why = format!("User {:?} cannot {verb} path {path:?}", user.name);
                Status::new(403, "Forbidden", format!("forbidden: {why}"))
            }
            Self::Resource { verb, namespace, resource, name } => {
                let scope = if namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace {namespace:?}")
                };
                let group = crate::serve::GROUP;
                let why = format!(
                    "User {:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}",
                    user.name
                );
                Status::forbidden(group, resource, name, why)
            }
        }
    }
}

/// Values that are valid for a while.
struct Expiring<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K: Eq + Hash, V: Clone> Expiring<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock();
        entries.get(key).filter(|(_, until)| Instant::now() < *until).map(|(value, _)| value.clone())
    }

    fn insert(&self, key: K, value: V) {
        let mut entries = self.0.lock();
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert(key, (value, base::clock::deadline_after(LIFETIME)));
    }
}

/// Delegates decisions to an API server.
pub struct Access {
    client: Client,
    tokens: Expiring<String, Option<RemoteUser>>,
    decisions: Expiring<(RemoteUser, Action), bool>,
}

impl Access {
    pub fn new(client: Client) -> Self {
        Self { client, tokens: Expiring(Mutex::default()), decisions: Expiring(Mutex::default()) }
    }

    /// The user of a bearer token; `None` if it is not valid.
    pub async fn user_of_token(&self, token: &str) -> Result<Option<RemoteUser>> {
        let key = token.to_owned();
        if let Some(known) = self.tokens.get(&key) {
            return Ok(known);
        }
        let spec = TokenReviewSpec { token: key.clone(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer: TokenReview = self.client.post(path, &review).await.map_err(|error| failed(&error))?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| RemoteUser {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        self.tokens.insert(key, user.clone());
        Ok(user)
    }

    /// Fails if the user may not make a request.
    pub async fn authorize(&self, user: &RemoteUser, method: &Method, uri: &Uri) -> Result<()> {
        let is_public = |path: &str| {
            uri.path().strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if PUBLIC.iter().any(|path| is_public(path))
            || user.groups.iter().any(|group| group == "system:masters")
        {
            return Ok(());
        }
        let key = (user.clone(), Action::of(method, uri));
        let allowed = match self.decisions.get(&key) {
            Some(known) => known,
            None => {
                let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
                let review = key.1.review(user);
                let answer: SubjectAccessReview =
                    self.client.post(path, &review).await.map_err(|error| failed(&error))?;
                let allowed = answer.status.is_some_and(|status| status.allowed);
                self.decisions.insert(key.clone(), allowed);
                allowed
            }
        };
        if allowed { Ok(()) } else { Err(key.1.refusal(user)) }
    }
}

fn failed(error: &ClientError) -> Status {
    tracing::warn!(%error, "failed to delegate a decision to the API server");
    Status::internal(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(method: Method, uri: &str) -> Action {
        Action::of(&method, &uri.parse().expect("a uri"))
    }

    #[test]
    fn requests_name_verb_and_resource() {
        let resource = |verb, namespace: &str, resource: &str, name: &str| {
            let [namespace, resource, name] = [namespace, resource, name].map(str::to_owned);
            Action::Resource { verb, namespace, resource, name }
        };
        let base = "/apis/metrics.k8s.io/v1beta1";
        for (path, want) in [
            ("nodes", resource("list", "", "nodes", "")),
            ("nodes/a", resource("get", "", "nodes", "a")),
            ("pods", resource("list", "", "pods", "")),
            ("namespaces/n/pods", resource("list", "n", "pods", "")),
            ("namespaces/n/pods?watch=1", resource("watch", "n", "pods", "")),
            ("namespaces/n/pods/a", resource("get", "n", "pods", "a")),
        ] {
            assert_eq!(action(Method::GET, &format!("{base}/{path}")), want, "{path}");
        }
        assert_eq!(action(Method::DELETE, &format!("{base}/nodes/a")), resource("delete", "", "nodes", "a"));
        let path = Action::Path { verb: "get".to_owned(), path: "/metrics".to_owned() };
        assert_eq!(action(Method::GET, "/metrics"), path);
    }

    #[test]
    fn refusals_have_the_words_of_kubernetes() {
        let jane = RemoteUser { name: "jane".to_owned(), ..RemoteUser::default() };
        let refusal = action(Method::GET, "/apis/metrics.k8s.io/v1beta1/nodes").refusal(&jane);
        assert_eq!(
            refusal.message,
            "nodes.metrics.k8s.io is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \
             \"metrics.k8s.io\" at the cluster scope"
        );
        let refusal = action(Method::GET, "/metrics").refusal(&jane);
        assert_eq!(refusal.message, "forbidden: User \"jane\" cannot get path \"/metrics\"");
    }
}
