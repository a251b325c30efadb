//! Create, update and patch.

use super::{Rest, Route};
use crate::registry::Written;
use crate::registry::metadata::ensure_namespace;
use crate::registry::patch::{PatchKind, check_name};
use crate::registry::update::{Change, UpdateStrategy};
use crate::serve::RequestBody;
use crate::wire::decode::{self, Expected};
use crate::wire::negotiate::{
    Accepted, Encoding, content_type, unsupported_media_type, unsupported_patch_type,
};
use crate::wire::options::{WriteKind, WriteOptions};
use crate::wire::reply::{self, Reply};
use http::header::CONTENT_TYPE;
use machinery::meta;
use machinery::status::Result;

impl Rest {
    pub(super) async fn create(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let encoding = self.body_encoding(route)?;
        let bytes = self.read_body(body).await?;
        let options = WriteOptions::read(&context.query, WriteKind::Create)?;
        let expected = Expected::of(&route.served);
        let object = decode::object(&bytes, encoding, expected, options.field_validation, &context.record)?;
        let write = self.write_context(route, &options.field_manager, options.dry_run);
        if let Some(record) = &context.audit {
            record.object(&object);
        }
        let written = self.registry.create(&route.served, object, &write).await?;
        if let (Some(record), Written::Stored(entry)) = (&context.audit, &written) {
            record.generated_name(entry.key.rsplit('/').next().unwrap_or(""));
        }
        reply::object(201, &route.served, &written, accepted, context).await
    }

    pub(super) async fn update(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        self.update_through(route, UpdateStrategy::main(route.served.governing()), accepted, body).await
    }

    /// PUT of the main resource or of a subresource with the whole object.
    pub(super) async fn update_through(
        &self,
        route: &Route<'_>,
        strategy: UpdateStrategy<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let name = &context.info.name;
        let encoding = self.body_encoding(route)?;
        let bytes = self.read_body(body).await?;
        let options = WriteOptions::read(&context.query, WriteKind::Update)?;
        let expected = Expected::of(&route.served);
        let decode = || decode::object(&bytes, encoding, expected, options.field_validation, &context.record);
        let mut object = decode()?;
        let write = self.write_context(route, &options.field_manager, options.dry_run);
        ensure_namespace(&mut object, &route.served, write.namespace)?;
        check_name(&object, name)?;
        if let Some(record) = &context.audit {
            record.object(&object);
        }
        // With a resource version a conflict is returned to the client; without, the last write wins.
        let retry = meta::resource_version(&object).is_empty();
        // Decoding again after a conflict costs less than keeping a copy for every write.
        let mut object = Some(object);
        let mut take = || object.take().map_or_else(decode, Ok);
        let outcome = self
            .registry
            .update(&route.served, name, strategy, retry, &write, |_| take().map(Change::Replace))
            .await;
        match outcome {
            Err(status)
                if status.code == 404
                    && route.served.rules.create_on_update()
                    && route.subresource.is_none() =>
            {
                let written = self.registry.create_missing(&route.served, take()?, &write).await?;
                reply::object(201, &route.served, &written, accepted, context).await
            }
            outcome => reply::object(200, &route.served, &outcome?, accepted, context).await,
        }
    }

    pub(super) async fn patch(
        &self,
        route: &Route<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        self.patch_through(route, UpdateStrategy::main(route.served.governing()), accepted, body).await
    }

    pub(super) async fn patch_through(
        &self,
        route: &Route<'_>,
        strategy: UpdateStrategy<'_>,
        accepted: &Accepted,
        body: RequestBody,
    ) -> Result<Reply> {
        let context = route.context;
        let kind = self.patch_kind(route)?;
        let bytes = self.read_body(body).await?;
        let options_kind = if kind.is_apply() { WriteKind::Apply } else { WriteKind::Patch };
        let options = WriteOptions::read(&context.query, options_kind)?;
        let write = self.write_context(route, &options.field_manager, options.dry_run);
        let name = &context.info.name;
        let (written, created) =
            self.registry.patch(&route.served, name, strategy, kind, &bytes, &options, &write).await?;
        reply::object(if created { 201 } else { 200 }, &route.served, &written, accepted, context).await
    }

    /// Encoding of a body with an object of the resource.
    fn body_encoding(&self, route: &Route<'_>) -> Result<Encoding> {
        let encoding = content_type(&route.context.headers, self.limits.cbor)?;
        if encoding == Encoding::Protobuf && route.served.rules.is_custom() {
            let cbor = if self.limits.cbor { ", application/cbor" } else { "" };
            return Err(unsupported_media_type(&format!("application/json, application/yaml{cbor}")));
        }
        Ok(encoding)
    }

    /// Patch type, by content type.
    pub(super) fn patch_kind(&self, route: &Route<'_>) -> Result<PatchKind> {
        let header = route.context.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
        let media = header.split(';').next().unwrap_or("").trim();
        let is_custom = route.served.rules.is_custom();
        let is_known = |kind: PatchKind| match kind {
            PatchKind::ApplyCbor => self.limits.cbor,
            PatchKind::Strategic => !is_custom,
            PatchKind::Json | PatchKind::Merge | PatchKind::ApplyYaml => true,
        };
        let known = PatchKind::ALL.iter().filter(|(_, kind)| is_known(*kind));
        known.clone().find(|(name, _)| *name == media).map(|(_, kind)| *kind).ok_or_else(|| {
            if is_custom {
                let names: Vec<&str> = known.map(|(name, _)| *name).collect();
                return unsupported_media_type(&names.join(", "));
            }
            unsupported_patch_type()
        })
    }
}
