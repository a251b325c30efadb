//! Pages about a component that are the same for all: health, service level indicators, `/statusz`, `/flagz`, `/configz`
//! and profiles.

pub mod documents;
pub mod health;
pub mod slis;

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::RwLock;
use serde_json::Value;

use crate::clock::Clock;
use crate::metrics::{CONTENT_TYPE, MetricsError};
use crate::profile;
use crate::readiness::Readiness;
use slis::HealthMetrics;

const TEXT: &str = "text/plain; charset=utf-8";

/// Flags of this process and their values, sorted by name, without secrets.
static FLAGS: RwLock<Vec<(String, String)>> = RwLock::new(Vec::new());

/// Sets the flags that `/flagz` of all components shows.
pub fn set_flags(flags: Vec<(String, String)>) {
    *FLAGS.write() = flags;
}

/// Flags of this process.
#[must_use]
pub fn flags() -> Vec<(String, String)> {
    FLAGS.read().clone()
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub status: u16,
    pub content_type: &'static str,
    pub body: Vec<u8>,
    /// Value of the `Warning` header.
    pub warning: Option<String>,
}

impl Page {
    #[must_use]
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type, body: body.into(), warning: None }
    }

    #[must_use]
    pub fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, TEXT, body)
    }

    #[must_use]
    pub fn not_found() -> Self {
        Self::text(404, "404 page not found\n")
    }

    /// Metrics that were encoded.
    #[must_use]
    pub fn metrics(encoded: Result<Vec<u8>, MetricsError>) -> Self {
        match encoded {
            Ok(text) => Self::new(200, CONTENT_TYPE, text),
            Err(error) => Self::text(500, format!("{error}\n")),
        }
    }

    /// The response with a body of another type.
    #[must_use]
    pub fn into_response<B: From<Vec<u8>>>(self) -> http::Response<B> {
        let mut response = http::Response::new(B::from(self.body));
        *response.status_mut() = http::StatusCode::from_u16(self.status).unwrap_or_default();
        let headers = response.headers_mut();
        let of = http::HeaderValue::from_static;
        headers.insert(http::header::CONTENT_TYPE, of(self.content_type));
        headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, of("nosniff"));
        if let Some(warning) = self.warning.and_then(|text| http::HeaderValue::from_str(&text).ok()) {
            headers.insert(http::header::WARNING, warning);
        }
        response
    }
}

/// Settings of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSettings {
    /// Serves `/debug/pprof`.
    pub profiling: bool,
}

impl Default for PageSettings {
    fn default() -> Self {
        Self { profiling: true }
    }
}

/// Pages of one component.
pub struct ComponentPages {
    component: &'static str,
    settings: PageSettings,
    readiness: Readiness,
    slis: HealthMetrics,
    /// Name and content of the configuration.
    configz: Option<(&'static str, Value)>,
    clock: Clock,
    started: Timestamp,
    paths: Vec<String>,
}

impl ComponentPages {
    /// Pages of `component`, whose health `readiness` has.
    pub fn new(
        component: &'static str,
        readiness: Readiness,
        settings: PageSettings,
        clock: &Clock,
    ) -> Result<Arc<Self>, MetricsError> {
        Self::with_configz(component, readiness, settings, None, clock)
    }

    /// Pages with `/configz`: the name of the configuration and its content.
    pub fn with_configz(
        component: &'static str,
        readiness: Readiness,
        settings: PageSettings,
        configz: Option<(&'static str, Value)>,
        clock: &Clock,
    ) -> Result<Arc<Self>, MetricsError> {
        let mut paths = vec!["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz"];
        paths.extend(configz.is_some().then_some("/configz"));
        paths.extend(settings.profiling.then_some("/debug"));
        paths.sort_unstable();
        Ok(Arc::new(Self {
            component,
            settings,
            readiness,
            slis: HealthMetrics::new(clock)?,
            configz,
            clock: clock.clone(),
            started: clock.now(),
            paths: paths.into_iter().map(str::to_owned).collect(),
        }))
    }

    /// Serves a path; `None` if it is of no such page. `accept` is the header of that name.
    pub async fn page(&self, path: &str, query: &str, accept: &str) -> Option<Page> {
        if let Some(name) = path.strip_prefix("/debug/pprof")
            && (name.is_empty() || name.starts_with('/'))
        {
            return Some(if self.settings.profiling {
                profile(name, query).await
            } else {
                Page::not_found()
            });
        }
        Some(match path {
            "/metrics/slis" => Page::metrics(self.slis.encode()),
            "/statusz" => {
                let (started, now, paths) = (self.started, self.clock.now(), &self.paths);
                documents::Status { component: self.component, started, now, paths }.page(accept)
            }
            "/flagz" => documents::flagz(self.component, &flags(), accept),
            "/configz" => {
                let (name, configuration) = self.configz.as_ref()?;
                Page::new(200, "application/json", serde_json::json!({*name: configuration}).to_string())
            }
            _ => {
                let parameters = health::Parameters::parse(query);
                return health::page(&self.readiness, &self.slis, path, &parameters).await;
            }
        })
    }
}

/// A profile, with the duration of the parameter `seconds`.
pub async fn profile(name: &str, query: &str) -> Page {
    let seconds = health::parameters(query).find(|(name, _)| *name == "seconds").map(|(_, value)| value);
    let profile::Page { status, content_type, body } = profile::page(name, seconds).await;
    Page::new(status, content_type, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readiness::Probes;

    #[tokio::test]
    async fn component_serves_pages_about_itself() {
        let readiness = Readiness::new();
        readiness.register("leaderElection", Probes::ALL, || Ok(()));
        let configz = Some(("componentconfig", serde_json::json!({"kind": "KubeSchedulerConfiguration"})));
        let clock = Clock::system();
        let settings = PageSettings::default();
        let pages =
            ComponentPages::with_configz("kube-scheduler", readiness.clone(), settings, configz, &clock)
                .expect("pages");
        let get = async |path: &str| {
            let page = pages.page(path, "", "").await;
            page.map(|page| (page.status, String::from_utf8_lossy(&page.body).into_owned()))
        };
        let text = async |path: &str| get(path).await.unwrap_or_default().1;
        assert_eq!(get("/livez/leaderElection").await, Some((200, "ok".to_owned())));
        assert_eq!(text("/healthz").await, "ok");
        assert!(text("/metrics/slis").await.contains("kubernetes_healthcheck{name=\"leaderElection\""));
        assert!(text("/statusz").await.contains("Paths: /configz /debug /flagz /healthz"));
        assert!(text("/flagz").await.contains("kube-scheduler flagz"));
        assert!(text("/configz").await.starts_with("{\"componentconfig\":{\"kind\""));
        assert!(text("/debug/pprof/").await.contains("go tool pprof"));
        assert_eq!((get("/metrics").await, get("/debug/pprofile").await), (None, None));

        let disabled = PageSettings { profiling: false };
        let pages = ComponentPages::new("kube-proxy", readiness, disabled, &clock).expect("pages");
        let status = async |path: &str| pages.page(path, "", "").await.map(|page| page.status);
        assert_eq!(status("/debug/pprof/heap").await, Some(404));
        assert_eq!(status("/configz").await, None);
    }
}
