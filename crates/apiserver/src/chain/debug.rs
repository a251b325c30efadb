//! `/debug/…`: dumps of the chain's own state, and profiles of the process.

use super::Chain;
use crate::context::Context;
use crate::wire::reply::{self, Reply};
use base::profile;

impl Chain {
    /// Serves a debug path; `None` for any other path.
    pub(super) async fn debug(&self, context: &Context) -> Option<Reply> {
        let path = context.path.strip_prefix("/debug/")?;
        if let Some(name) = path.strip_prefix("pprof").filter(|_| self.config.pages.profiling) {
            if !name.is_empty() && !name.starts_with('/') {
                return None;
            }
            let page = profile::page(name, context.query.get("seconds")).await;
            return Some(reply::with_type(page.status, page.content_type, page.body));
        }
        let what = path.strip_prefix("api_priority_and_fairness/")?;
        let details = !context.query.text("includeRequestDetails").is_empty();
        let text = self.fairness()?.dump(what, details, &self.clock)?;
        Some(reply::text(200, text))
    }
}
