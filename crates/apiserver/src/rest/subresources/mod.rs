//! Subresources: update endpoints with their own strategy, and views such as scale.

mod pod_binding;
mod pod_eviction;
mod service_account_token;

use crate::registry::update::{Change, Steps, UpdateStrategy};
use crate::registry::{Subresource, Written, scale};
use crate::rest::{Rest, Route, method_not_allowed};
use crate::serve::RequestBody;
use crate::wire::decode::Expected;
use crate::wire::forms::{self, Include};
use crate::wire::negotiate::Accepted;
use crate::wire::options::{WriteKind, WriteOptions};
use crate::wire::reply::{self, Reply};
use api::kind::Scale;
use api::subresources::Handler;
use http::Method;
use machinery::status::{Result, Status};
use machinery::{Value, meta};

impl Rest {
    pub(super) async fn subresource(
        &self,
        route: &Route<'_>,
        subresource: &Subresource,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let Some(facts) = subresource.facts else { return Err(unserved(subresource)) };
        let strategy = match &facts.handler {
            Handler::Scale => {
                let scale = route.served.rules.scale().ok_or_else(Status::no_such_path)?;
                return self.scale(route, &scale, accepted, body).await;
            }
            Handler::Bind => return self.bind(route, &route.served, accepted, body).await,
            Handler::Evict => return self.evict(route, accepted, body).await,
            Handler::Connect => return self.connect(route, &subresource.name, body).await,
            Handler::Token => return self.token_request(route, accepted, body).await,
            Handler::Status => UpdateStrategy::status(route.served.governing()),
            Handler::Update(rules) => UpdateStrategy {
                steps: Steps::Own { prepare: rules.prepare, validate: rules.validate },
                metadata: rules.metadata,
                counts_generation: rules.counts_generation,
                warns: false,
            },
        };
        match route.context.method {
            Method::GET => self.get(route, accepted).await,
            Method::PUT => self.update_through(route, strategy, accepted, body).await,
            Method::PATCH => self.patch_through(route, strategy, accepted, body).await,
            _ => Err(method_not_allowed()),
        }
    }

    async fn scale(
        &self,
        route: &Route<'_>,
        view: &Scale<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let (context, served) = (route.context, &route.served);
        let info = &context.info;
        let show = async |written: &Written| {
            let object = served.presented(written.value()).await?;
            let include = Include::read(&context.query, accepted)?;
            let shown = forms::scale(scale::of(view, &object), accepted, include)?;
            reply::value(200, &shown, accepted, context)
        };
        let strategy = UpdateStrategy::main(served.governing());
        let expected = Expected::unstored("autoscaling", "v1", "Scale")?;
        match context.method {
            Method::GET => {
                let entry = self.registry.get(served, &info.namespace, &info.name, "").await?;
                show(&Written::Stored(entry)).await
            }
            Method::PUT => {
                let (options, mut wanted) =
                    self.read_unstored(context, body, WriteKind::Update, expected).await?;
                super::reviews::ensure_namespace(&mut wanted, &info.namespace)?;
                crate::registry::patch::check_name(&wanted, &info.name)?;
                let write = self.write_context(route, &options.field_manager, options.dry_run);
                let retry = meta::resource_version(&wanted).is_empty();
                let written = self
                    .registry
                    .update(served, &info.name, strategy, retry, &write, |old| {
                        let make = |_: &Value| Ok(scale::Wanted::Whole(wanted.clone()));
                        scale::write(served, view, expected.schema, old, &write, make).map(Change::Applied)
                    })
                    .await?;
                show(&written).await
            }
            Method::PATCH => {
                let kind = self.patch_kind(route)?;
                let bytes = self.read_body(body).await?;
                let options_kind = if kind.is_apply() { WriteKind::Apply } else { WriteKind::Patch };
                let options = WriteOptions::read(&context.query, options_kind)?;
                let write = self.write_context(route, &options.field_manager, options.dry_run);
                let patch = crate::registry::patch::View { schema: expected.schema, rules: None };
                let written = self
                    .registry
                    .update(served, &info.name, strategy, true, &write, |old| {
                        let make = |present: &Value| patch.wanted(kind, &bytes, present, &options, &write);
                        scale::write(served, view, expected.schema, old, &write, make).map(Change::Applied)
                    })
                    .await?;
                show(&written).await
            }
            _ => Err(method_not_allowed()),
        }
    }
}

/// 501 for subresources that need a component this server does not run.
fn unserved(subresource: &Subresource) -> Status {
    Status::new(
        501,
        "NotImplemented",
        format!("the subresource {:?} needs a component that this server does not run", &*subresource.name),
    )
}
