//! Delete and deletecollection.

use super::{Rest, Route};
use crate::admission::{Attributes, Operation};
use crate::context::Context;
use crate::registry::delete::Deleted;
use crate::registry::{Served, WriteContext};
use crate::selection::Selection;
use crate::serve::RequestBody;
use crate::wire::negotiate::{Accepted, Encoding, content_type};
use crate::wire::options::{DeleteOptions, ListOptions};
use crate::wire::reply::{self, Reply};
use machinery::status::{Result, Status};
use machinery::{Value, codec, meta};
use serde_json::json;

impl Rest {
    pub(super) async fn delete(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let options = self.delete_options(context, body).await?;
        let write = self.write_context(route, "", options.dry_run);
        let name = &context.info.name;
        let attributes = Attributes::new(&route.served, &write, Operation::Delete).named(name);
        self.registry.admission.mutate(&self.registry, &attributes, None, None).await?;
        warn_of_orphans(route, &options);
        match self.registry.delete(&route.served, name, &options, &write).await? {
            Deleted::Pending(written) => reply::object(200, &route.served, &written, accepted, context).await,
            Deleted::Gone { last, .. } if route.served.rules.returns_deleted() => {
                reply::object(200, &route.served, &last, accepted, context).await
            }
            Deleted::Gone { uid, .. } => {
                let plain = Accepted { form: None, ..*accepted };
                reply::value(200, &success(&route.served, name, &uid), &plain, context)
            }
        }
    }

    pub(super) async fn delete_collection(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let list = ListOptions::read(&context.query, false)?;
        let options = self.delete_options(context, body).await?;
        let selection = Selection::read(&route.served, &list)?;
        let write = self.write_context(route, "", options.dry_run);
        let attributes = Attributes::new(&route.served, &write, Operation::Delete);
        self.registry.admission.mutate(&self.registry, &attributes, None, None).await?;
        warn_of_orphans(route, &options);
        let page = self.registry.list(&route.served, &context.info.namespace, &selection, &list).await?;
        for entry in &page.entries {
            let object = entry.value();
            let within = WriteContext {
                user: write.user,
                verb: write.verb,
                manager: String::new(),
                dry_run: write.dry_run,
                subresource: write.subresource,
                namespace: meta::namespace(&object),
                record: write.record,
                is_server: false,
            };
            match self.registry.delete(&route.served, meta::name(&object), &options, &within).await {
                // Deleted concurrently: the outcome is the same.
                Err(status) if status.code == 404 => {}
                outcome => drop(outcome?),
            }
        }
        reply::list(&route.served, page, accepted, context).await
    }

    /// Delete options from the body, in any encoding; from the query if the body is empty.
    async fn delete_options(&self, context: &Context, body: RequestBody) -> Result<DeleteOptions> {
        let bytes = self.read_body(body).await?;
        if bytes.is_empty() {
            return DeleteOptions::read(&context.query, None);
        }
        let schema = api::schema::schema()
            .named("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")
            .ok_or_else(|| Status::internal("no schema for DeleteOptions"))?;
        let bad = |error: String| Status::bad_request(error);
        let mut value = match content_type(&context.headers, self.limits.cbor)? {
            Encoding::Protobuf => {
                let envelope = codec::protobuf::unwrap(&bytes).map_err(|e| bad(e.to_string()))?;
                codec::protobuf::decode_object(envelope.raw, schema).map_err(|e| bad(e.to_string()))?
            }
            Encoding::Yaml => codec::yaml::decode(&bytes).map_err(|e| bad(e.to_string()))?.value,
            Encoding::Cbor => codec::cbor::decode(&bytes)
                .map_err(|error| bad(format!("unable to determine group/version/kind: {error}")))?,
            Encoding::Json => {
                codec::json::decode(&bytes)
                    .map_err(|error| bad(format!("couldn't get version/kind; json parse error: {error}")))?
                    .value
            }
        };
        let text = |field: &str| value.get(field).and_then(machinery::Value::as_str).unwrap_or("");
        if !matches!(text("kind"), "" | "DeleteOptions") {
            let version = if text("apiVersion").is_empty() { "meta.k8s.io/v1" } else { text("apiVersion") };
            return Err(bad(format!(
                "no kind {:?} is registered for version {version:?} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"",
                text("kind")
            )));
        }
        codec::typed::normalize(&mut value, schema).map_err(|error| bad(error.to_string()))?;
        DeleteOptions::read(&context.query, Some(&value))
    }
}

/// Warns of kinds that orphan their dependents by default, even if nothing is deleted in the end.
fn warn_of_orphans(route: &Route<'_>, options: &DeleteOptions) {
    if let Some(warning) = route.served.storage.rules.orphan_warning()
        && options.propagation.is_none()
        && options.orphan_dependents.is_none()
    {
        route.context.record.warn(warning);
    }
}

/// Status of a completed deletion.
fn success(served: &Served, name: &str, uid: &str) -> Value {
    let mut details = json!({"name": name, "kind": served.kind.resource(), "uid": uid});
    if !served.kind.group().is_empty() {
        details["group"] = served.kind.group().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
