//! `serviceaccounts/token`: issues a token for a service account.

use crate::admission::{Attributes, Operation};
use crate::authenticate::{Bound, Claims, Reference};
use crate::rest::reviews::{ensure_namespace, track};
use crate::rest::{Rest, Route, method_not_allowed};
use crate::serve::RequestBody;
use crate::wire::decode::Expected;
use crate::wire::negotiate::Accepted;
use crate::wire::options::WriteKind;
use crate::wire::reply::{self, Reply};
use api::value::{Fields, texts};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use machinery::field::{ErrorList, FieldError, Path};
use machinery::status::{Result, Status};
use machinery::{Value, gvk, meta};
use serde_json::json;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const MIN_SECONDS: i64 = 10 * 60;
const MAX_SECONDS: i64 = 1 << 32;
/// Lifetime that kubelets request for pods; such tokens are valid for a year, with a `warnafter` claim.
const POD_SECONDS: i64 = 60 * 60 + 7;
const EXTENDED_SECONDS: i64 = 365 * 24 * 60 * 60;

impl Rest {
    pub(in crate::rest) async fn token_request(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let (context, info) = (route.context, &route.context.info);
        if context.method != Method::POST {
            return Err(method_not_allowed());
        }
        let expected = Expected::unstored(GROUP, "v1", KIND)?;
        let (options, mut request) = self.read_unstored(context, body, WriteKind::Create, expected).await?;
        default_life(&mut request);
        ensure_namespace(&mut request, &info.namespace)?;
        let (name, namespace) = (info.name.as_str(), info.namespace.as_str());
        let given = meta::name(&request);
        if !given.is_empty() && given != name {
            let metadata = Path::new("metadata");
            let why = "must match the service account name if specified";
            let errors = vec![FieldError::invalid_str(&metadata.child("name"), given, why)];
            return Err(Status::invalid(GROUP, KIND, name, &errors));
        }
        meta::metadata_mut(&mut request).insert("name".to_owned(), name.into());
        track(&mut request, expected, "token", &context.manager(&options.field_manager));

        let write = self.write_context(route, &options.field_manager, options.dry_run);
        let attributes = Attributes::new(&route.served, &write, Operation::Create).named(name);
        self.registry.admission.mutate(&self.registry, &attributes, Some(&mut request), None).await?;
        let account = self.registry.get(&route.served, namespace, name, "").await?.value();
        self.registry.admission.validate(&self.registry, &attributes, Some(&request), None).await?;
        let uid = meta::uid(&account);
        let given = meta::uid(&request);
        if !given.is_empty() && given != uid {
            let why = format!(
                "the UID in the token request ({given}) does not match the UID of the service account ({uid})"
            );
            return Err(Status::conflict(GROUP, KIND, name, why));
        }
        let now = self.authentication.service_accounts.now();
        let metadata = meta::metadata_mut(&mut request);
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), written(now).into());
        let token = self.issue(&mut request, &account, now, |text| context.record.warn(text)).await?;
        let life = request["spec"]["expirationSeconds"].as_i64().unwrap_or_default();
        request["status"] =
            json!({"token": token, "expirationTimestamp": written(now + SignedDuration::from_secs(life))});
        reply::value(201, &request, &Accepted { form: None, ..*accepted }, context)
    }

    /// Signs the token; sets defaults in the request.
    async fn issue(
        &self,
        request: &mut Value,
        account: &Value,
        now: Timestamp,
        warn: impl Fn(String),
    ) -> Result<String> {
        let tokens = &self.authentication.service_accounts;
        let spec = meta::child_mut(request, "spec");
        if spec.get("audiences").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("audiences".to_owned(), json!(tokens.config.audiences));
        }
        let mut life = spec.get("expirationSeconds").and_then(Value::as_i64).unwrap_or_default();
        validate(life)?;
        let reference = spec.get("boundObjectRef").cloned().unwrap_or_default();
        let mut bound = self.bound(&reference, account).await?;
        let spec = meta::child_mut(request, "spec");
        if let Some(longest) = tokens.max_expiration_seconds().filter(|longest| life > *longest) {
            warn(format!("requested expiration of {life} seconds shortened to {longest} seconds"));
            life = longest;
            spec.insert("expirationSeconds".to_owned(), life.into());
        }
        let audiences: Vec<String> =
            texts(request.field("spec").items("audiences")).map(str::to_owned).collect();
        let begin = now.as_second();
        let own = audiences.iter().all(|audience| tokens.config.audiences.contains(audience));
        if tokens.config.extend_expiration && bound.pod.is_some() && life == POD_SECONDS && own {
            bound.warnafter = Some(begin + life);
            life = tokens.extended(EXTENDED_SECONDS);
        }
        let claims = Claims {
            aud: audiences,
            exp: begin + life,
            iat: begin,
            iss: tokens.config.issuers.first().cloned().unwrap_or_default(),
            jti: uuid::Uuid::new_v4().to_string(),
            nbf: begin,
            sub: format!("system:serviceaccount:{}:{}", bound.namespace, bound.serviceaccount.name),
            kubernetes: bound,
        };
        tokens.sign(&claims).await
    }

    /// Looks up the bound object of the token.
    async fn bound(&self, reference: &Value, account: &Value) -> Result<Bound> {
        let of = |object: &Value| Reference {
            name: meta::name(object).to_owned(),
            uid: meta::uid(object).to_owned(),
        };
        let namespace = meta::namespace(account);
        let mut bound =
            Bound { namespace: namespace.to_owned(), serviceaccount: of(account), ..Bound::default() };
        if reference.is_null() {
            return Ok(bound);
        }
        let text = |field: &str| reference[field].as_str().unwrap_or("");
        let (group, version) = gvk::split_api_version(text("apiVersion"));
        let kind = text("kind");
        let (resource, namespace) = match (group, kind) {
            ("", "Pod") => ("pods", namespace),
            ("", "Secret") => ("secrets", namespace),
            ("", "Node") => ("nodes", ""),
            _ => {
                return Err(Status::bad_request(format!(
                    "cannot bind token to object of type {group}/{version}, Kind={kind}"
                )));
            }
        };
        let served = self.registry.builtin("", "v1", resource)?;
        if text("name").is_empty() {
            return Err(Status::bad_request("Name parameter required."));
        }
        let object = self.registry.get(served, namespace, text("name"), "").await?.value();
        if kind == "Pod" {
            let name = meta::name(account);
            if object["spec"]["serviceAccountName"].as_str().unwrap_or("") != name {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
                )));
            }
            bound.node = self.node_of(&object).await?;
        }
        if !text("uid").is_empty() && text("uid") != meta::uid(&object) {
            let why = format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                text("uid")
            );
            return Err(Status::conflict(group, kind, text("name"), why));
        }
        let place = match kind {
            "Pod" => &mut bound.pod,
            "Secret" => &mut bound.secret,
            _ => &mut bound.node,
        };
        *place = Some(of(&object));
        Ok(bound)
    }

    /// Node of a pod; only its name if the Node does not exist.
    async fn node_of(&self, pod: &Value) -> Result<Option<Reference>> {
        let name = pod["spec"]["nodeName"].as_str().unwrap_or("");
        if name.is_empty() {
            return Ok(None);
        }
        let served = self.registry.builtin("", "v1", "nodes")?;
        let uid = match self.registry.get(served, "", name, "").await {
            Ok(node) => meta::uid(&node.value()).to_owned(),
            Err(status) if status.code == 404 => String::new(),
            Err(status) => return Err(status),
        };
        Ok(Some(Reference { name: name.to_owned(), uid }))
    }
}

fn default_life(request: &mut Value) {
    let spec = meta::child_mut(request, "spec");
    if spec.get("expirationSeconds").is_none_or(Value::is_null) {
        spec.insert("expirationSeconds".to_owned(), 3600.into());
    }
    spec.entry("boundObjectRef").or_insert(Value::Null);
}

fn validate(seconds: i64) -> Result<()> {
    let spec = Path::new("spec");
    let path = spec.child("expirationSeconds");
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let errors: ErrorList = vec![FieldError::invalid(&path, &seconds.into(), why)];
    Err(Status::invalid(GROUP, KIND, "", &errors))
}

fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
