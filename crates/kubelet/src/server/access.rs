//! Authentication and authorization of kubelet API clients: certificates and tokens, delegated to the API server.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use base::pki::{SubjectUser, expiry_of_certificate, user_of_certificate};
use client::Client;
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use objects::authentication::v1::{TokenReview, TokenReviewSpec};
use objects::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;

use super::route::Route;
use super::{Reply, text};

/// Cache lifetime of decisions.
const ALLOWED_LIFETIME: Duration = Duration::from_secs(300);
const DENIED_LIFETIME: Duration = Duration::from_secs(30);
const KNOWN: Duration = Duration::from_secs(120);
/// Maximum number of cached decisions.
const CACHE_SIZE: usize = 1024;

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    name: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

/// Client of a connection.
#[derive(Debug)]
pub struct Caller {
    certified: Option<User>,
    /// End of the certificate's validity, in seconds since the epoch.
    expires: i64,
}

impl Caller {
    /// The user that a verified certificate names.
    pub fn of_certificate(certificate: Option<&CertificateDer<'_>>) -> Self {
        let certified = certificate.and_then(|der| {
            let SubjectUser { name, mut groups, .. } = user_of_certificate(der)
                .inspect_err(|error| tracing::warn!(%error, "client certificate rejected"))
                .ok()?;
            groups.push("system:authenticated".to_owned());
            Some(User { name, groups, ..User::default() })
        });
        let expires = certificate.and_then(|der| expiry_of_certificate(der).ok()).unwrap_or(i64::MIN);
        Self { certified, expires }
    }

    /// Name of the user of the certificate.
    pub fn user(&self) -> Option<&str> {
        self.certified.as_ref().map(|user| user.name.as_str())
    }

    /// Reports whether the certificate has expired. Connections may outlive certificates, so this is checked for every request.
    fn is_expired(&self, now: Timestamp) -> bool {
        self.certified.is_some() && self.expires < now.as_second()
    }
}

type AccessKey = (User, &'static str, &'static str);

/// Caches TokenReview and SubjectAccessReview results.
pub struct Access {
    client: Client,
    node: String,
    decisions: Mutex<HashMap<AccessKey, (bool, Instant)>>,
    tokens: Mutex<HashMap<String, (User, Instant)>>,
}

impl Access {
    #[must_use]
    pub fn new(client: Client, node: String) -> Self {
        Self { client, node, decisions: Mutex::default(), tokens: Mutex::default() }
    }

    /// Authorizes the request, or returns the error response.
    pub async fn check(
        &self,
        caller: &Caller,
        method: &Method,
        headers: &HeaderMap,
        route: &Route,
        now: Timestamp,
    ) -> Result<(), Reply> {
        if caller.is_expired(now) {
            tracing::warn!("client certificate has expired since the connection was made");
            return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized"));
        }
        let user = match &caller.certified {
            Some(user) => user.clone(),
            None => self.user_of_token(headers).await?,
        };
        let verb = verb(method, route);
        let subresources = route.subresources();
        for subresource in subresources {
            if self.allows(&user, verb, subresource).await? {
                return Ok(());
            }
        }
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(text(StatusCode::FORBIDDEN, message))
    }

    async fn user_of_token(&self, headers: &HeaderMap) -> Result<User, Reply> {
        let unauthorized = || text(StatusCode::UNAUTHORIZED, "Unauthorized");
        let header = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(unauthorized)?;
        if let Some((user, until)) = self.tokens.lock().get(token)
            && Instant::now() < *until
        {
            return Ok(user.clone());
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let answer: TokenReview = self
            .client
            .post("/apis/authentication.k8s.io/v1/tokenreviews", &review)
            .await
            .map_err(|error| review_failed(&error))?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Err(unauthorized());
        }
        let user = status.user.unwrap_or_default();
        let user = User {
            name: user.username.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        };
        let mut tokens = self.tokens.lock();
        if tokens.len() >= CACHE_SIZE {
            tokens.clear();
        }
        tokens.insert(token.to_owned(), (user.clone(), Instant::now() + KNOWN));
        Ok(user)
    }

    async fn allows(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, Reply> {
        let access_key = (user.clone(), verb, subresource);
        if let Some((allowed, until)) = self.decisions.lock().get(&access_key)
            && Instant::now() < *until
        {
            return Ok(*allowed);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                groups: Some(user.groups.clone()),
                uid: Some(user.uid.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node.clone()),
                    version: Some("v1".to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer: SubjectAccessReview = self
            .client
            .post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review)
            .await
            .map_err(|error| review_failed(&error))?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let mut decisions = self.decisions.lock();
        if decisions.len() >= CACHE_SIZE {
            decisions.clear();
        }
        decisions.insert(
            access_key,
            (allowed, Instant::now() + if allowed { ALLOWED_LIFETIME } else { DENIED_LIFETIME }),
        );
        Ok(allowed)
    }
}

/// Returns the verb that a request requires. A WebSocket handshake is a GET, but running a command in a container or
/// reaching its ports requires `create`.
fn verb(method: &Method, route: &Route) -> &'static str {
    if route.acts() {
        return "create";
    }
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::DELETE => "delete",
        Method::PATCH => "patch",
        _ => "get",
    }
}

fn review_failed(error: &client::ClientError) -> Reply {
    tracing::warn!(%error, "failed to authenticate or authorize request");
    text(StatusCode::INTERNAL_SERVER_ERROR, "Authorization error\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::pki::{Pki, ServingNames};

    #[test]
    fn websocket_get_of_exec_needs_create() {
        for (path, want) in [
            ("/exec/n/p/c", "create"),
            ("/attach/n/p/c", "create"),
            ("/portForward/n/p", "create"),
            ("/containerLogs/n/p/c", "get"),
            ("/pods", "get"),
            ("/metrics", "get"),
        ] {
            let route = super::super::route::find(&Method::GET, path).expect("a route");
            assert_eq!(verb(&Method::GET, &route), want, "{path}");
        }
    }

    #[test]
    fn client_certificate_expired_on_open_connection_is_detected() {
        let directory = tempfile::tempdir().expect("a directory");
        let now = Timestamp::now();
        let pki =
            Pki::open(&directory.path().join("pki"), &ServingNames::default(), now).expect("certificates");
        let issued = pki.client_authority.issue_client("alice", None, now).expect("a certificate");
        let caller = Caller::of_certificate(issued.chain.first());
        assert!(!caller.is_expired(now));
        let later = Timestamp::from_second(issued.expires() + 1).expect("a time");
        assert!(caller.is_expired(later));
        assert!(
            !Caller::of_certificate(None).is_expired(later),
            "clients without certificate may send a token"
        );
    }

    #[test]
    fn client_certificate_with_two_common_names_is_no_user() {
        let directory = tempfile::tempdir().expect("a directory");
        let now = jiff::Timestamp::now();
        let pki =
            Pki::open(&directory.path().join("pki"), &ServingNames::default(), now).expect("certificates");
        let groups = ["system:masters", "system:nodes"];
        let issued =
            pki.client_authority.issue_client_in("system:node:x", &groups, now).expect("a certificate");
        let one = issued.chain[0].to_vec();
        let caller = Caller::of_certificate(Some(&one.clone().into())).certified.expect("a user");
        assert_eq!(caller.name, "system:node:x");
        assert_eq!(caller.groups, ["system:masters", "system:nodes", "system:authenticated"]);

        // The first organization becomes a common name; the signature was verified before.
        let (organization, common_name) = ([6, 3, 0x55, 4, 10], [6, 3, 0x55, 4, 3]);
        let at = one.windows(5).position(|window| window == organization).expect("an organization");
        let mut two = one;
        two[at..at + 5].copy_from_slice(&common_name);
        assert_eq!(Caller::of_certificate(Some(&two.into())).certified, None);
    }
}
