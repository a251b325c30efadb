//! `/healthz`, `/livez`, `/readyz`: check by check (`?verbose`), or in short.

use super::{Page, slis::HealthMetrics};
use crate::readiness::{Probe, Readiness};

/// Parameters of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Lists all checks, also if they pass.
    pub verbose: bool,
    /// Names of checks that are left out.
    pub excluded: Vec<String>,
}

impl Parameters {
    /// Parameters of a query. Names of checks may have escaped slashes.
    #[must_use]
    pub fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (name, value) in parameters(query) {
            match name {
                "verbose" => parsed.verbose = true,
                "exclude" => parsed.excluded.push(value.replace("%2F", "/").replace("%2f", "/")),
                _ => {}
            }
        }
        parsed
    }
}

/// Serves a probe path or the path of one check; `None` for any other path.
pub async fn page(
    readiness: &Readiness,
    slis: &HealthMetrics,
    path: &str,
    parameters: &Parameters,
) -> Option<Page> {
    let path = path.strip_prefix('/')?;
    let (root, check) = path.split_once('/').unwrap_or((path, ""));
    let probe = match root {
        "healthz" => Probe::Healthz,
        "livez" => Probe::Livez,
        "readyz" => Probe::Readyz,
        _ => return None,
    };
    if check.is_empty() {
        return Some(all(readiness, slis, probe, root, parameters).await);
    }
    let outcome = readiness.run_one(probe, check).await;
    Some(match outcome.map(|outcome| outcome.result) {
        None => Page::not_found(),
        Some(Ok(())) => Page::text(200, "ok"),
        Some(Err(why)) => Page::text(500, format!("internal server error: {why}\n")),
    })
}

/// Runs all checks of a probe.
async fn all(
    readiness: &Readiness,
    slis: &HealthMetrics,
    probe: Probe,
    root: &str,
    parameters: &Parameters,
) -> Page {
    let excluded = &parameters.excluded;
    let outcomes = readiness.run(probe, |_| false).await;
    let mut lines = String::new();
    let mut failed = false;
    for outcome in &outcomes {
        let name = &outcome.name;
        if excluded.contains(name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        slis.observe(root, outcome);
        match &outcome.result {
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            // The reason is only logged, as in Kubernetes: clients of probes must not see it.
            Err(why) => {
                tracing::warn!(check = name, why, "health check failed");
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                failed = true;
            }
        }
    }
    for name in excluded {
        if !outcomes.iter().any(|outcome| outcome.name == *name) {
            lines
                .push_str(&format!("warn: some health checks cannot be excluded: no matches for {name:?}\n"));
        }
    }
    if failed {
        return Page::text(500, format!("{lines}{root} check failed\n"));
    }
    if parameters.verbose {
        return Page::text(200, format!("{lines}{root} check passed\n"));
    }
    Page::text(200, "ok")
}

/// Names and values of a query, not unescaped.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::readiness::Probes;

    #[tokio::test]
    async fn failing_check_fails_its_probes_and_is_counted() {
        let readiness = Readiness::new();
        readiness.register("ping", Probes::ALL, || Ok(()));
        let gate = readiness.gate("informer-sync", Probes::READYZ);
        let slis = HealthMetrics::new(&Clock::system()).expect("metrics");
        let get = async |path: &str, query: &str| {
            let page = page(&readiness, &slis, path, &Parameters::parse(query)).await.expect("a probe");
            (page.status, String::from_utf8(page.body).expect("text"))
        };
        assert_eq!(get("/livez", "").await, (200, "ok".to_owned()));
        let refused = "[+]ping ok\n[-]informer-sync failed: reason withheld\nreadyz check failed\n";
        assert_eq!(get("/readyz", "").await, (500, refused.to_owned()));
        assert_eq!(get("/readyz", "exclude=informer-sync").await, (200, "ok".to_owned()));
        let one = "internal server error: not finished\n";
        assert_eq!(get("/readyz/informer-sync", "").await, (500, one.to_owned()));
        assert_eq!(get("/readyz/unknown", "").await.0, 404);
        gate.open();
        let passed = "[+]ping ok\n[+]informer-sync ok\nreadyz check passed\n";
        assert_eq!(get("/readyz", "verbose").await, (200, passed.to_owned()));
        let unknown = get("/livez", "verbose&exclude=x").await.1;
        assert!(unknown.contains("no matches for \"x\"\n"), "{unknown}");
        let counted = String::from_utf8(slis.encode().expect("encoded")).expect("text");
        let failed =
            "kubernetes_healthchecks_total{name=\"informer-sync\",status=\"error\",type=\"readyz\"} 1";
        assert!(counted.contains(failed), "{counted}");
        assert!(page(&readiness, &slis, "/metrics", &Parameters::default()).await.is_none());
    }
}
