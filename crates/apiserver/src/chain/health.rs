//! `/healthz`, `/livez`, `/readyz`: every check, one by one, or in few words.

use super::Chain;
use crate::context::Context;
use crate::reply::{self, Reply};
use base::readiness::Probe;

impl Chain {
    /// Answers if the path belongs to a probe.
    pub(super) async fn health(&self, context: &Context) -> Option<Reply> {
        let path = context.path.strip_prefix('/')?;
        let (root, check) = path.split_once('/').unwrap_or((path, ""));
        let probe = match root {
            "healthz" => Probe::Healthz,
            "livez" => Probe::Livez,
            "readyz" => Probe::Readyz,
            _ => return None,
        };
        if !check.is_empty() {
            let reply = match self.readiness.run_one(probe, check).await {
                None => reply::page_not_found(),
                Some(outcome) => match outcome.result {
                    Ok(()) => reply::text(200, "ok"),
                    Err(why) => reply::text(500, format!("internal server error: {why}\n")),
                },
            };
            return Some(reply);
        }
        Some(self.probe(context, probe, root).await)
    }

    async fn probe(&self, context: &Context, probe: Probe, root: &str) -> Reply {
        let excluded: Vec<&str> = context.query.all("exclude").collect();
        let outcomes = self.readiness.run(probe, |_| false).await;
        let mut lines = String::new();
        let mut failed = Vec::new();
        for outcome in &outcomes {
            let name = &outcome.name;
            if !excluded.contains(&name.as_str()) {
                self.health_metrics.observe(root, outcome);
            }
            match &outcome.result {
                _ if excluded.contains(&name.as_str()) => {
                    lines.push_str(&format!("[+]{name} excluded: ok\n"))
                }
                Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
                // The reason is for those who may read logs.
                Err(why) => {
                    tracing::warn!(check = name, why, "health check failed");
                    lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                    failed.push(name.as_str());
                }
            }
        }
        for name in &excluded {
            if !outcomes.iter().any(|outcome| outcome.name == *name) {
                lines.push_str(&format!(
                    "warn: some health checks cannot be excluded: no matches for {name:?}\n"
                ));
            }
        }
        if !failed.is_empty() {
            return reply::text(500, format!("{lines}{root} check failed\n"));
        }
        if context.query.get("verbose").is_some() {
            return reply::text(200, format!("{lines}{root} check passed\n"));
        }
        reply::text(200, "ok")
    }
}
