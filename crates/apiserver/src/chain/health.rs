//! `/healthz`, `/livez`, `/readyz` of the API server.

use super::{Chain, pages};
use crate::context::Context;
use crate::wire::reply::Reply;
use base::zpages::health;

impl Chain {
    /// Serves a probe path; `None` for any other path.
    pub(super) async fn health(&self, context: &Context) -> Option<Reply> {
        let parameters = health::Parameters {
            verbose: context.query.get("verbose").is_some(),
            excluded: context.query.all("exclude").map(str::to_owned).collect(),
        };
        let page = health::page(&self.readiness, &self.health_metrics, &context.path, &parameters).await?;
        Some(pages::response(page))
    }
}
