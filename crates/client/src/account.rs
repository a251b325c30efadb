//! Service account identity: a transport that sends a token, requested by another client and renewed before it
//! expires.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use objects::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use objects::core::v1::{Node, ServiceAccount};
use objects::meta::v1::ObjectMeta;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::{Call, Client, ClientError, Transport, TransportError};

/// Requested lifetime of tokens; they are renewed after four fifths of it.
const TOKEN_LIFETIME: Duration = Duration::from_secs(2 * 60 * 60);

/// A service account at one API server.
pub struct Account {
    /// Transport of requests without an identity of its own.
    transport: Arc<dyn Transport>,
    /// Requests tokens; creates a missing account.
    issuer: Client,
    namespace: String,
    name: String,
    /// The Node object that the tokens are bound to.
    node: Option<String>,
    token: Mutex<Option<Issued>>,
}

#[derive(Clone)]
struct Issued {
    header: HeaderValue,
    renew: Instant,
}

impl Account {
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, issuer: Client, namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { transport, issuer, namespace, name, node: None, token: Mutex::new(None) }
    }

    /// Binds tokens to a Node object: they are invalid once it is deleted. The account has to exist.
    #[must_use]
    pub fn bound_to_node(self, node: &str) -> Self {
        Self { node: Some(node.to_owned()), ..self }
    }

    /// The current token; `rejected` must not be used again.
    async fn token(&self, rejected: Option<&HeaderValue>) -> Result<HeaderValue, TransportError> {
        let mut token = self.token.lock().await;
        let usable = |issued: &&Issued| issued.renew > Instant::now() && Some(&issued.header) != rejected;
        if let Some(issued) = token.as_ref().filter(usable) {
            return Ok(issued.header.clone());
        }
        let requested_at = Instant::now();
        let failed = |source| TransportError::Token {
            account: format!("{}/{}", self.namespace, self.name),
            source: Box::new(source),
        };
        let answer = match self.request_token().await {
            Err(error) if error.is_not_found() && self.node.is_none() => {
                self.create_account().await.map_err(failed)?;
                self.request_token().await.map_err(failed)?
            }
            answer => answer.map_err(failed)?,
        };
        let text = answer.status.and_then(|status| status.token).unwrap_or_default();
        let mut value = HeaderValue::try_from(format!("Bearer {text}"))
            .map_err(|error| TransportError::Request(error.into()))?;
        value.set_sensitive(true);
        let seconds = answer.spec.and_then(|spec| spec.expiration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let life = seconds.map_or(TOKEN_LIFETIME, Duration::from_secs);
        *token = Some(Issued { header: value.clone(), renew: requested_at + life * 4 / 5 });
        Ok(value)
    }

    async fn request_token(&self) -> Result<TokenRequest, ClientError> {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", self.namespace, self.name);
        let bound_object_ref = match &self.node {
            None => None,
            Some(name) => {
                let node: Node = self.issuer.get("", name).await?;
                Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(name.clone()),
                    uid: node.metadata.uid,
                })
            }
        };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref,
                expiration_seconds: i64::try_from(TOKEN_LIFETIME.as_secs()).ok(),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        self.issuer.post(&path, &request).await
    }

    async fn create_account(&self) -> Result<(), ClientError> {
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            ..ServiceAccount::default()
        };
        match self.issuer.create(&self.namespace, &account).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }

    async fn send(
        &self,
        request: &http::Request<Bytes>,
        token: &HeaderValue,
    ) -> Result<http::Response<crate::Body>, TransportError> {
        let mut request = request.clone();
        request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        self.transport.call(request).await
    }
}

impl Transport for Account {
    fn authority(&self) -> &str {
        self.transport.authority()
    }

    fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
        Box::pin(async move {
            let token = self.token(None).await?;
            let response = self.send(&request, &token).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return Ok(response);
            }
            // The account was recreated, or the server's keys have changed.
            let token = self.token(Some(&token)).await?;
            self.send(&request, &token).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};
    use objects::core::v1::ConfigMap;

    /// An API server with one account once it is created, and only its latest token valid.
    #[derive(Default)]
    struct Server {
        state: parking_lot::Mutex<State>,
    }

    #[derive(Default)]
    struct State {
        accounts: usize,
        tokens: usize,
        unauthorized: usize,
    }

    impl Transport for Server {
        fn call(&self, request: http::Request<Bytes>) -> Call<'_> {
            let mut state = self.state.lock();
            let path = request.uri().path();
            let (code, text) = if path.ends_with("/token") {
                if state.accounts == 0 {
                    (404, r#"{"kind":"Status","code":404,"reason":"NotFound"}"#.to_owned())
                } else {
                    state.tokens += 1;
                    let token = state.tokens;
                    let text = format!(
                        r#"{{"spec":{{"audiences":[],"expirationSeconds":1000}},"status":{{"token":"t{token}","expirationTimestamp":"2026-01-01T00:00:00Z"}}}}"#
                    );
                    (201, text)
                }
            } else if path.ends_with("/serviceaccounts") {
                state.accounts += 1;
                (201, r#"{"metadata":{"name":"robot"}}"#.to_owned())
            } else {
                let sent = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
                if sent == Some(&format!("Bearer t{}", state.tokens)) {
                    (200, r#"{"metadata":{"name":"map"}}"#.to_owned())
                } else {
                    state.unauthorized += 1;
                    (401, r#"{"kind":"Status","code":401,"reason":"Unauthorized"}"#.to_owned())
                }
            };
            let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
            let response = http::Response::builder().status(code).body(body);
            Box::pin(async move { response.map_err(TransportError::Request) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn token_is_requested_only_when_needed() {
        let server = Arc::new(Server::default());
        let issuer = Client::new(Arc::clone(&server) as Arc<dyn Transport>, "issuer");
        let account = Account::new(Arc::clone(&server) as Arc<dyn Transport>, issuer, "kube-system", "robot");
        let client = Client::new(Arc::new(account), "robot");
        let read =
            async || client.get::<ConfigMap>("n", "map").await.map(|_| ()).map_err(|error| error.to_string());
        let seen = || {
            let state = server.state.lock();
            (state.accounts, state.tokens, state.unauthorized)
        };
        read().await.expect("let in");
        read().await.expect("let in");
        assert_eq!(seen(), (1, 1, 0), "one token for both");
        tokio::time::advance(Duration::from_secs(801)).await;
        read().await.expect("let in");
        assert_eq!(seen(), (1, 2, 0), "renewed before it expired");
        server.state.lock().tokens = 10;
        read().await.expect("let in with another token");
        assert_eq!(seen(), (1, 11, 1));
    }
}
