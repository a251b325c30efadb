//! Reviews: resources that are evaluated and not stored. One file per kind of review, one row here.

mod access;
mod rules;
mod subject;
mod token;

use super::{Rest, method_not_allowed};
use crate::context::Context;
use crate::registry::metadata;
use crate::serve::RequestBody;
use crate::wire::decode::Expected;
use crate::wire::negotiate::{Accepted, Forms, Offers, accept};
use crate::wire::options::WriteKind;
use crate::wire::reply::{self, Reply};
use api::kind::Scope;
use api::resources::Resource;
use futures_util::future::BoxFuture;
use http::Method;
use machinery::status::{Result, Status};
use machinery::{Value, apply, meta};

/// Evaluates a review: takes the decoded request, returns it with its status.
type Answer = for<'a> fn(&'a Rest, &'a Context, Value) -> BoxFuture<'a, Result<Value>>;

/// Group, plural and handler.
const REVIEWS: [(&str, &str, Answer); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews", |_, context, _| Box::pin(subject::own(context))),
    ("authentication.k8s.io", "tokenreviews", |rest, _, review| Box::pin(token::review(rest, review))),
    ("authorization.k8s.io", "localsubjectaccessreviews", |rest, context, review| {
        Box::pin(access::local(rest, context, review))
    }),
    ("authorization.k8s.io", "selfsubjectaccessreviews", |rest, context, review| {
        Box::pin(access::own(rest, context, review))
    }),
    ("authorization.k8s.io", "selfsubjectrulesreviews", |rest, context, review| {
        Box::pin(rules::own(rest, context, review))
    }),
    ("authorization.k8s.io", "subjectaccessreviews", |rest, _, review| {
        Box::pin(access::any_subject(rest, review))
    }),
];

/// A review resource.
#[derive(Clone, Copy)]
pub struct Review {
    resource: &'static Resource,
    answer: Answer,
}

impl Review {
    pub fn find(context: &Context) -> Option<Self> {
        let info = &context.info;
        let (_, _, answer) =
            REVIEWS.iter().find(|(group, resource, _)| *group == info.group && *resource == info.resource)?;
        let resource = api::resources::RESOURCES.iter().find(|row| {
            (row.group, row.version, row.resource) == (&*info.group, &*info.version, &*info.resource)
        })?;
        if !context.catalogue.shows(&info.group, &info.version, &info.resource) {
            return None;
        }
        Some(Self { resource, answer: *answer })
    }

    fn check_route(self, context: &Context) -> Result<()> {
        let info = &context.info;
        let namespaced = self.resource.scope == Scope::Namespaced;
        if !info.name.is_empty() || info.in_namespace != namespaced {
            return Err(Status::no_such_path());
        }
        if context.method == Method::POST { Ok(()) } else { Err(method_not_allowed()) }
    }

    fn expected(self) -> Result<Expected<'static>> {
        let Resource { group, version, kind, .. } = *self.resource;
        Expected::unstored(group, version, kind)
    }
}

/// Metadata that only the server sets; values sent by clients are ignored.
const SYSTEM_FIELDS: [&str; 5] =
    ["creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "selfLink", "uid"];

impl Rest {
    /// Handles a review request.
    pub(super) async fn review(
        &self,
        review: Review,
        context: &Context,
        body: RequestBody,
    ) -> (Result<Reply>, Option<Accepted>) {
        if let Err(status) = review.check_route(context) {
            return (Err(status), None);
        }
        let offers =
            Offers { cbor: self.limits.cbor, forms: Forms::Metadata, streams: false, protobuf: true };
        match accept(&context.headers, context.query.get("pretty"), offers) {
            Err(status) => (Err(status), None),
            Ok(accepted) => {
                let accepted = Accepted { form: None, ..accepted };
                (self.answer(review, context, &accepted, body).await, Some(accepted))
            }
        }
    }

    async fn answer(
        &self,
        review: Review,
        context: &Context,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let expected = review.expected()?;
        let (options, mut object) = self.read_unstored(context, body, WriteKind::Create, expected).await?;
        metadata::check_size(&object)?;
        let metadata = meta::metadata_mut(&mut object);
        for field in SYSTEM_FIELDS {
            metadata.remove(field);
        }
        match review.resource.scope {
            Scope::Namespaced => ensure_namespace(&mut object, &context.info.namespace)?,
            // A namespace on a cluster-scoped review is ignored.
            Scope::Cluster => drop(metadata.remove("namespace")),
        }
        track(&mut object, expected, "", &context.manager(&options.field_manager));
        let answer = (review.answer)(self, context, object).await?;
        reply::value(201, &answer, accepted, context)
    }
}

/// Sets the request's namespace in the object, or rejects a different one.
pub(super) fn ensure_namespace(object: &mut Value, namespace: &str) -> Result<()> {
    match meta::namespace(object) {
        "" => drop(meta::metadata_mut(object).insert("namespace".to_owned(), namespace.into())),
        given if given == namespace => {}
        _ => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}

/// managedFields of an object that is not stored.
pub(super) fn track(object: &mut Value, expected: Expected<'_>, subresource: &str, manager: &str) {
    let context = apply::Context {
        schema: Some(expected.schema),
        api_version: &machinery::gvk::api_version(expected.group, expected.version),
        kind: expected.kind,
        subresource,
        reset: &apply::Reset::Nothing,
        manager,
        now: &metadata::now(),
        converter: None,
    };
    apply::update(None, object, &context);
}
