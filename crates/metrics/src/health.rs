//! `/healthz`, `/livez` and `/readyz` with the checks and texts of metrics-server.

use crate::serve::{Answer, Query, reply};
use http::{StatusCode, Uri};

const TEXT: &str = "text/plain; charset=utf-8";

/// Hooks of the library that metrics-server is built on. Here a server listens only when all of its parts have started.
const IN_FLIGHT: &str = "poststarthook/max-in-flight-filter";
const OBJECT_COUNT: &str = "poststarthook/storage-object-count-tracker-hook";

/// Checks by probe, in their order.
const PROBES: [(&str, &[&str]); 3] = [
    ("healthz", &["ping", "log", IN_FLIGHT, OBJECT_COUNT, "metadata-informer-sync"]),
    (
        "livez",
        &["ping", "log", IN_FLIGHT, OBJECT_COUNT, "metric-collection-timely", "metadata-informer-sync"],
    ),
    (
        "readyz",
        &[
            "ping",
            "log",
            IN_FLIGHT,
            OBJECT_COUNT,
            "metric-storage-ready",
            "metric-informer-sync",
            "metadata-informer-sync",
            "shutdown",
        ],
    ),
];

/// The answer to a probe, or to one of its checks; `None` for other paths.
pub fn answer(uri: &Uri, passes: impl Fn(&str) -> bool) -> Option<Answer> {
    let path = uri.path().trim_start_matches('/');
    let (probe, only) = path.split_once('/').map_or((path, None), |(probe, only)| (probe, Some(only)));
    let (probe, checks) = PROBES.iter().find(|(name, _)| *name == probe)?;
    if let Some(only) = only {
        return Some(if !checks.contains(&only) {
            reply(StatusCode::NOT_FOUND, TEXT, "404 page not found\n".into())
        } else if passes(only) {
            reply(StatusCode::OK, TEXT, "ok".into())
        } else {
            let text = format!("internal server error: {only} failed\n");
            reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, text.into())
        });
    }
    let query = Query::parse(uri.query());
    let excluded: Vec<&str> = query.all("exclude").collect();
    let (mut lines, mut failed) = (String::new(), false);
    for check in *checks {
        let outcome = if excluded.contains(check) {
            "excluded: ok"
        } else if passes(check) {
            "ok"
        } else {
            failed = true;
            "failed: reason withheld"
        };
        let sign = if outcome.starts_with("failed") { '-' } else { '+' };
        lines.push_str(&format!("[{sign}]{check} {outcome}\n"));
    }
    let unknown: Vec<String> =
        excluded.iter().filter(|name| !checks.contains(name)).map(|name| format!("{name:?}")).collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(",");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {unknown}\n"));
    }
    Some(if failed {
        let text = format!("{lines}{probe} check failed\n");
        reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, text.into())
    } else if query.names().any(|name| name == "verbose") {
        reply(StatusCode::OK, TEXT, format!("{lines}{probe} check passed\n").into())
    } else {
        reply(StatusCode::OK, TEXT, "ok".into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str, failing: &str) -> (u16, String) {
        let uri: Uri = path.parse().expect("a uri");
        let answer = answer(&uri, |check| check != failing).expect("a probe");
        (answer.status().as_u16(), String::from_utf8_lossy(answer.body()).into_owned())
    }

    #[test]
    fn verbose_probe_lists_its_checks() {
        let all = "[+]ping ok\n[+]log ok\n[+]poststarthook/max-in-flight-filter ok\n\
                   [+]poststarthook/storage-object-count-tracker-hook ok\n[+]metric-storage-ready ok\n\
                   [+]metric-informer-sync ok\n[+]metadata-informer-sync ok\n[+]shutdown ok\nreadyz check passed\n";
        assert_eq!(ask("/readyz?verbose", ""), (200, all.to_owned()));
        assert_eq!(ask("/readyz?verbose=true", "").1, all);
        let live = "[+]ping ok\n[+]log ok\n[+]poststarthook/max-in-flight-filter ok\n\
                    [+]poststarthook/storage-object-count-tracker-hook ok\n[+]metric-collection-timely ok\n\
                    [+]metadata-informer-sync ok\nlivez check passed\n";
        assert_eq!(ask("/livez?verbose", ""), (200, live.to_owned()));
        assert_eq!(ask("/livez", ""), (200, "ok".to_owned()));
    }

    #[test]
    fn failing_check_fails_its_probes_unless_excluded() {
        let (code, text) = ask("/readyz", "metric-storage-ready");
        assert_eq!(code, 500);
        assert!(text.contains("-hook ok\n[-]metric-storage-ready failed: reason withheld\n"), "{text}");
        assert!(text.ends_with("readyz check failed\n"), "{text}");
        assert_eq!(ask("/livez", "metric-storage-ready").0, 200);
        let (code, text) =
            ask("/readyz?verbose&exclude=metric-storage-ready&exclude=none", "metric-storage-ready");
        assert_eq!(code, 200);
        assert!(text.contains("[+]metric-storage-ready excluded: ok\n"), "{text}");
        assert!(text.contains("cannot be excluded: no matches for \"none\"\n"), "{text}");
    }

    #[test]
    fn checks_have_paths_of_their_own() {
        assert_eq!(ask("/readyz/metric-storage-ready", ""), (200, "ok".to_owned()));
        assert_eq!(ask("/readyz/metric-storage-ready", "metric-storage-ready").0, 500);
        assert_eq!(ask("/livez/metric-storage-ready", "").0, 404);
        assert_eq!(ask("/livez/poststarthook/max-in-flight-filter", ""), (200, "ok".to_owned()));
        assert!(answer(&"/metrics".parse().expect("a uri"), |_| true).is_none());
    }
}
