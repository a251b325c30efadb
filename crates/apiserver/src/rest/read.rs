//! Get and list.

use super::{Rest, Route};
use crate::chain::offload;
use crate::registry::Written;
use crate::selection::Selection;
use crate::wire::negotiate::{Accepted, Encoding};
use crate::wire::options::ListOptions;
use crate::wire::reply::{self, Reply};
use machinery::status::{Result, Status};

impl Rest {
    pub(super) async fn get(&self, route: &Route<'_>, accepted: &Accepted) -> Result<Reply> {
        let (info, query) = (&route.context.info, &route.context.query);
        if query.flag("export") == Some(true) {
            return Err(Status::bad_request(
                "the export parameter, deprecated since v1.14, is no longer supported",
            ));
        }
        let version = query.text("resourceVersion");
        let entry = self.registry.get(&route.served, &info.namespace, &info.name, version).await?;
        offload::heavy_if_large(entry.bytes.len()).await;
        reply::object(200, &route.served, &Written::Stored(entry), accepted, route.context).await
    }

    pub(super) async fn list(&self, route: &Route<'_>, accepted: &Accepted) -> Result<Reply> {
        let options = ListOptions::read(&route.context.query, false)?;
        let selection = Selection::read(&route.served, &options)?;
        let namespace = &route.context.info.namespace;
        let page = self.registry.list(&route.served, namespace, &selection, &options).await?;
        if accepted.form.is_some() || accepted.encoding != Encoding::Json || accepted.pretty {
            let total = page.entries.iter().map(|entry| entry.bytes.len()).sum();
            offload::heavy_if_large(total).await;
        }
        reply::list(&route.served, page, accepted, route.context).await
    }
}
