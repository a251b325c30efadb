//! Paths of the kubelet's API, and the permissions they require.

use std::borrow::Cow;

use http::Method;

/// An endpoint of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Health,
    Pods,
    RunningPods,
    Logs {
        namespace: String,
        pod: String,
        container: String,
    },
    Exec {
        namespace: String,
        pod: String,
        container: String,
    },
    Run {
        namespace: String,
        pod: String,
        container: String,
    },
    Attach {
        namespace: String,
        pod: String,
        container: String,
    },
    PortForward {
        namespace: String,
        pod: String,
    },
    Summary,
    Metrics,
    MetricsOfContainers,
    MetricsOfResources,
    MetricsOfProbes,
    Config,
    /// A page below `/debug/pprof`.
    Profile {
        name: String,
    },
    Status,
    Flags,
    MetricsOfHealth,
    /// `/logs/`, and the decoded path after `/logs`.
    NodeLogs {
        path: String,
    },
}

/// Finds the endpoint. Pod paths may have the pod's UID after its name.
#[must_use]
pub fn find(method: &Method, path: &str) -> Option<Route> {
    if let Some(path) = node_log_path(path) {
        return (*method == Method::GET).then_some(Route::NodeLogs { path });
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let own = |text: &str| text.to_owned();
    let container = |rest: &[&str]| -> Option<(String, String, String)> {
        match rest {
            [namespace, pod, container] | [namespace, pod, _, container] => {
                Some((own(namespace), own(pod), own(container)))
            }
            _ => None,
        }
    };
    let read = matches!(*method, Method::GET | Method::HEAD);
    let stream = matches!(*method, Method::GET | Method::POST);
    Some(match parts.as_slice() {
        ["healthz"] | ["healthz", _] if read => Route::Health,
        ["pods"] if read => Route::Pods,
        ["runningpods"] if read => Route::RunningPods,
        ["stats", "summary"] if read || *method == Method::POST => Route::Summary,
        ["metrics"] if read => Route::Metrics,
        ["metrics", "slis"] if read => Route::MetricsOfHealth,
        ["metrics", "cadvisor"] if read => Route::MetricsOfContainers,
        ["metrics", "resource"] if read => Route::MetricsOfResources,
        ["metrics", "probes"] if read => Route::MetricsOfProbes,
        ["configz"] if read => Route::Config,
        ["statusz"] if read => Route::Status,
        ["flagz"] if read => Route::Flags,
        ["debug", "pprof"] if read => Route::Profile { name: String::new() },
        // pprof sends addresses by POST.
        ["debug", "pprof", "symbol"] if stream => Route::Profile { name: own("symbol") },
        ["debug", "pprof", name] if read => Route::Profile { name: own(name) },
        ["containerLogs", rest @ ..] if read && rest.len() == 3 => {
            let (namespace, pod, container) = container(rest)?;
            Route::Logs { namespace, pod, container }
        }
        ["exec", rest @ ..] if stream => {
            let (namespace, pod, container) = container(rest)?;
            Route::Exec { namespace, pod, container }
        }
        ["run", rest @ ..] if *method == Method::POST => {
            let (namespace, pod, container) = container(rest)?;
            Route::Run { namespace, pod, container }
        }
        ["attach", rest @ ..] if stream => {
            let (namespace, pod, container) = container(rest)?;
            Route::Attach { namespace, pod, container }
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] if stream => {
            Route::PortForward { namespace: own(namespace), pod: own(pod) }
        }
        _ => return None,
    })
}

/// Decodes the path after `/logs`.
fn node_log_path(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/logs").filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
    percent_encoding::percent_decode_str(rest).decode_utf8().ok().map(Cow::into_owned)
}

impl Route {
    /// Reports whether the request runs a command in a container, or reaches its streams or ports.
    #[must_use]
    pub fn acts(&self) -> bool {
        matches!(self, Self::Exec { .. } | Self::Run { .. } | Self::Attach { .. } | Self::PortForward { .. })
    }

    /// Path in metrics of requests.
    #[must_use]
    pub fn metric_path(&self) -> &'static str {
        match self {
            Self::Health => "healthz",
            Self::Pods => "pods",
            Self::RunningPods => "runningpods",
            Self::Logs { .. } => "containerLogs",
            Self::NodeLogs { .. } => "logs",
            Self::Exec { .. } => "exec",
            Self::Run { .. } => "run",
            Self::Attach { .. } => "attach",
            Self::PortForward { .. } => "portForward",
            Self::Summary => "stats",
            Self::Metrics => "metrics",
            Self::MetricsOfContainers => "metrics/cadvisor",
            Self::MetricsOfResources => "metrics/resource",
            Self::MetricsOfProbes => "metrics/probes",
            Self::MetricsOfHealth => "metrics/slis",
            Self::Config => "configz",
            Self::Profile { .. } => "debug",
            Self::Status => "statusz",
            Self::Flags => "flagz",
        }
    }

    /// Node subresources, any of which grants access; the last is the legacy one.
    #[must_use]
    pub fn subresources(&self) -> &'static [&'static str] {
        match self {
            Self::Health => &["healthz", "proxy"],
            Self::Pods | Self::RunningPods => &["pods", "proxy"],
            Self::Config => &["configz", "proxy"],
            Self::Summary => &["stats"],
            Self::NodeLogs { .. } => &["log"],
            Self::Status => &["statusz"],
            Self::Flags => &["configz"],
            Self::Metrics
            | Self::MetricsOfContainers
            | Self::MetricsOfResources
            | Self::MetricsOfProbes
            | Self::MetricsOfHealth => &["metrics"],
            _ => &["proxy"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_map_to_routes() {
        let exec = Route::Exec { namespace: "n".into(), pod: "p".into(), container: "c".into() };
        for (method, path, want) in [
            (Method::GET, "/healthz", Some(Route::Health)),
            (Method::POST, "/exec/n/p/c", Some(exec.clone())),
            (Method::GET, "/exec/n/p/uid/c", Some(exec)),
            (Method::DELETE, "/exec/n/p/c", None),
            (Method::GET, "/exec/n/p", None),
            (
                Method::POST,
                "/portForward/n/p",
                Some(Route::PortForward { namespace: "n".into(), pod: "p".into() }),
            ),
            (Method::GET, "/stats/summary", Some(Route::Summary)),
            (Method::GET, "/debug/pprof/heap", Some(Route::Profile { name: "heap".into() })),
            (Method::GET, "/debug/pprof/", Some(Route::Profile { name: String::new() })),
            (Method::PUT, "/debug/pprof/heap", None),
            (Method::GET, "/statusz", Some(Route::Status)),
            (Method::GET, "/", None),
            (Method::GET, "/logs", Some(Route::NodeLogs { path: String::new() })),
            (Method::GET, "/logs/", Some(Route::NodeLogs { path: "/".into() })),
            (Method::GET, "/logs/a%2Fb%20c/", Some(Route::NodeLogs { path: "/a/b c/".into() })),
            (Method::POST, "/logs/", None),
            (Method::GET, "/logs/%ff", None),
            (Method::GET, "/logsx", None),
        ] {
            assert_eq!(find(&method, path), want, "{method} {path}");
        }
    }

    #[test]
    fn pages_about_the_process_need_their_own_permission() {
        for (path, want) in [
            ("/debug/pprof/profile", &["proxy"][..]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/logs/a.log", &["log"]),
            ("/metrics/slis", &["metrics"]),
            ("/configz", &["configz", "proxy"]),
        ] {
            let route = find(&Method::GET, path).expect("a route");
            assert_eq!(route.subresources(), want, "{path}");
        }
    }
}
