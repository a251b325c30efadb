//! Health, `/metrics/slis`, `/statusz`, `/flagz` and `/debug/pprof`: pages about the process.

use std::sync::Arc;

use base::metrics::MetricsError;
use base::readiness::{Probes, Readiness};
use base::zpages::{ComponentPages, Page, PageSettings};
use http::{HeaderMap, StatusCode};

use super::{Reply, text};
use crate::shared::Shared;

const COMPONENT: &str = "kubelet";
/// Age of the last look at the runtime's containers after which the sync loop counts as stuck. Beside a stream of events
/// they are listed every five minutes.
const STUCK_SECONDS: i64 = 660;

/// Pages of the kubelet, with its health checks.
pub fn pages(shared: &Arc<Shared>) -> Result<Arc<ComponentPages>, MetricsError> {
    let readiness = Readiness::new();
    readiness.register("ping", Probes::ALL, || Ok(()));
    readiness.register("log", Probes::ALL, || Ok(()));
    let (of, begun) = (Arc::downgrade(shared), shared.clock.now().as_second());
    readiness.register("syncloop", Probes::ALL, move || {
        let Some(shared) = of.upgrade() else { return Err("the kubelet has ended".to_owned()) };
        let last = shared.metrics.runtime.last_seen().max(begun);
        sync_loop(shared.clock.now().as_second().saturating_sub(last))?;
        shared.tasks.supervision().check()
    });
    let settings = PageSettings { profiling: shared.config.pages.profiling };
    ComponentPages::new(COMPONENT, readiness, settings, &shared.clock)
}

fn sync_loop(age: i64) -> Result<(), String> {
    if age > STUCK_SECONDS {
        return Err(format!("sync Loop took longer than expected: last relist {age}s ago"));
    }
    Ok(())
}

/// Serves a page.
pub async fn serve(pages: &ComponentPages, path: &str, query: &str, headers: &HeaderMap) -> Reply {
    let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path = path.strip_suffix('/').filter(|_| !path.ends_with("pprof/")).unwrap_or(path);
    reply(pages.page(path, query, accept).await.unwrap_or_else(Page::not_found))
}

fn reply(page: Page) -> Reply {
    use http_body_util::{BodyExt, Full};
    page.into_response::<bytes::Bytes>().map(|body| Full::new(body).boxed_unsync())
}

/// Serves a profile.
pub async fn profile(settings: PageSettings, name: &str, query: &str) -> Reply {
    if !settings.profiling {
        return text(StatusCode::METHOD_NOT_ALLOWED, "profiling endpoint is disabled.\n");
    }
    reply(base::zpages::profile(name, query).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_loop_without_state_of_the_runtime_is_unhealthy() {
        assert_eq!(sync_loop(300), Ok(()));
        assert!(sync_loop(661).is_err());
    }

    #[tokio::test]
    async fn profiles_can_be_disabled() {
        let enabled = profile(PageSettings::default(), "cmdline", "").await;
        assert_eq!(enabled.status(), StatusCode::OK);
        let disabled = profile(PageSettings { profiling: false }, "cmdline", "").await;
        assert_eq!(disabled.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[tokio::test]
    async fn health_has_each_check_and_its_indicators() {
        let readiness = Readiness::new();
        readiness.register("syncloop", Probes::ALL, || sync_loop(1000));
        let clock = base::clock::Clock::system();
        let pages =
            ComponentPages::new(COMPONENT, readiness, PageSettings::default(), &clock).expect("pages");
        let status = async |path: &str| serve(&pages, path, "", &HeaderMap::new()).await.status();
        assert_eq!(status("/healthz/syncloop").await, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(status("/healthz").await, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(status("/healthz/unknown").await, StatusCode::NOT_FOUND);
        for path in ["/metrics/slis", "/statusz", "/flagz"] {
            assert_eq!(status(path).await, StatusCode::OK, "{path}");
        }
    }
}
