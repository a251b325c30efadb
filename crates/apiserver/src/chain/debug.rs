//! `/debug/…`: what the chain itself is busy with.

use super::Chain;
use crate::context::Context;
use crate::reply::{self, Reply};

impl Chain {
    /// Answers if the path is one of these.
    pub(super) fn debug(&self, context: &Context) -> Option<Reply> {
        let what = context.path.strip_prefix("/debug/api_priority_and_fairness/")?;
        let details = !context.query.text("includeRequestDetails").is_empty();
        let text = self.fairness()?.dump(what, details, &self.clock)?;
        Some(reply::text(200, text))
    }
}
