//! Endpoints of pods and their containers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use jiff::SignedDuration;
use objects::core::v1::Pod;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::route::Route;
use super::{Reply, Server, cadvisor, configz, metrics, node_logs, pages, streams, summary, text, typed};
use crate::configure::labels;
use crate::configure::sandbox::log_directory;
use crate::lifecycle::members::member;
use crate::lifecycle::{ObservedContainer, RunState};
use crate::logs::{self, LogOptions, Stream};

/// Query parameters, in order.
pub(super) fn parameters(query: Option<&str>) -> Vec<(String, String)> {
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query
        .unwrap_or("")
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decoded(name), decoded(value))
        })
        .collect()
}

impl Server {
    pub(super) async fn route(&self, request: Request<Incoming>, route: Route) -> Reply {
        match route {
            Route::Health | Route::MetricsOfHealth | Route::Status | Route::Flags => {
                let uri = request.uri();
                let query = uri.query().unwrap_or_default();
                pages::serve(&self.pages, uri.path(), query, request.headers()).await
            }
            Route::Pods => self.pods(),
            Route::RunningPods => self.running_pods().await,
            Route::Logs { namespace, pod, container } => {
                self.container_logs(&request, &namespace, &pod, &container).await
            }
            Route::Exec { namespace, pod, container } => {
                match self.running(&namespace, &pod, &container).await {
                    Ok(found) => streams::exec(&self.shared, request, &found.id).await,
                    Err(reply) => reply,
                }
            }
            Route::Run { namespace, pod, container } => {
                match self.running(&namespace, &pod, &container).await {
                    Ok(found) => self.run_command(&request, &found.id).await,
                    Err(reply) => reply,
                }
            }
            Route::Attach { namespace, pod, container } => {
                match self.running(&namespace, &pod, &container).await {
                    Ok(found) => {
                        let tty = self
                            .workers
                            .find(&namespace, &pod)
                            .and_then(|pod| member(&pod, &container))
                            .is_some_and(|member| member.container.tty == Some(true));
                        streams::attach(&self.shared, request, &found.id, tty).await
                    }
                    Err(reply) => reply,
                }
            }
            Route::PortForward { namespace, pod } => match self.sandbox(&namespace, &pod).await {
                Ok(id) => streams::port_forward(&self.shared, request, &id).await,
                Err(reply) => reply,
            },
            Route::Summary => {
                let query = parameters(request.uri().query());
                let only = query.iter().any(|(name, value)| name == "only_cpu_and_memory" && value == "true");
                summary::summary(&self.shared, &self.workers, &self.busy, only).await
            }
            Route::MetricsOfResources => metrics::of_resources(&self.shared, &self.workers).await,
            Route::MetricsOfContainers => {
                cadvisor::page(&self.shared, &self.workers, self.hierarchy.clone()).await
            }
            Route::MetricsOfProbes => metrics::of_probes(&self.shared.probes),
            Route::Metrics => metrics::of_kubelet(&self.shared, &self.workers).await,
            Route::Config => configz::page(&self.shared),
            Route::NodeLogs { path } => {
                let (query, headers) = (request.uri().query(), request.headers());
                let request = node_logs::NodeLogRequest { path: &path, query, headers };
                self.node_log_queries.serve(&self.shared.config.node_logs, &request, &self.shared.tasks).await
            }
            Route::Profile { name } => {
                let query = request.uri().query().unwrap_or_default();
                pages::profile(self.shared.config.pages, &name, query).await
            }
        }
    }

    fn pods(&self) -> Reply {
        let items: Vec<_> = self.workers.pods().iter().map(|pod| Pod::clone(pod)).collect();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
        typed(StatusCode::OK, "application/json", list.to_string())
    }

    /// Running pods as reported by the runtime.
    async fn running_pods(&self) -> Reply {
        let all = match self.shared.engine.running_containers().await {
            Ok(all) => all,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        };
        let mut pods: BTreeMap<String, Value> = BTreeMap::new();
        for container in all {
            let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
            let image = container.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
            let (uid, name) = (label(labels::POD_UID), label(labels::POD_NAME));
            let namespace = label(labels::POD_NAMESPACE);
            let pod = pods.entry(uid.clone()).or_insert_with(|| {
                let meta = json!({"name": name, "namespace": namespace, "uid": uid});
                json!({"metadata": meta, "spec": {"containers": []}, "status": {}})
            });
            if let Some(list) = pod["spec"]["containers"].as_array_mut() {
                list.push(json!({"name": label(labels::CONTAINER_NAME), "image": image, "resources": {}}));
            }
        }
        let items: Vec<Value> = pods.into_values().collect();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
        typed(StatusCode::OK, "application/json", list.to_string())
    }

    #[expect(clippy::result_large_err, reason = "the error is a complete HTTP response")]
    fn pod(&self, namespace: &str, name: &str) -> Result<Arc<Pod>, Reply> {
        self.workers.find(namespace, name).ok_or_else(|| {
            text(StatusCode::NOT_FOUND, format!("pod {name:?} not found in namespace {namespace:?}\n"))
        })
    }

    async fn observed(&self, pod: &Pod) -> Result<crate::lifecycle::ObservedPod, Reply> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        self.shared
            .engine
            .observe(uid)
            .await
            .map_err(|error| text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))
    }

    async fn running(&self, namespace: &str, pod: &str, container: &str) -> Result<ObservedContainer, Reply> {
        let found = self.pod(namespace, pod)?;
        let observed = self.observed(&found).await?;
        observed
            .container(container)
            .filter(|container| container.state == RunState::Running)
            .cloned()
            .ok_or_else(|| text(StatusCode::NOT_FOUND, format!("container not found (\"{container}\")\n")))
    }

    async fn sandbox(&self, namespace: &str, pod: &str) -> Result<String, Reply> {
        let found = self.pod(namespace, pod)?;
        let observed = self.observed(&found).await?;
        observed
            .sandboxes
            .into_iter()
            .find(|sandbox| sandbox.ready)
            .map(|sandbox| sandbox.id)
            .ok_or_else(|| text(StatusCode::NOT_FOUND, format!("pod {pod:?} does not run\n")))
    }

    async fn run_command(&self, request: &Request<Incoming>, id: &str) -> Reply {
        let query = parameters(request.uri().query());
        let command: Vec<String> = query
            .iter()
            .filter(|(name, _)| name == "cmd")
            .flat_map(|(_, value)| value.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .collect();
        match self.shared.engine.exec(id, command, std::time::Duration::from_secs(60)).await {
            Ok((_, output)) => text(StatusCode::OK, output),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }

    async fn container_logs(
        &self,
        request: &Request<Incoming>,
        namespace: &str,
        pod_name: &str,
        container: &str,
    ) -> Reply {
        let options = match log_options(&parameters(request.uri().query()), self.shared.clock.now()) {
            Ok(options) => options,
            Err(message) => return text(StatusCode::UNPROCESSABLE_ENTITY, message),
        };
        let pod = match self.pod(namespace, pod_name) {
            Ok(pod) => pod,
            Err(reply) => return reply,
        };
        if member(&pod, container).is_none() {
            let message = format!("container {container:?} not found in pod {pod_name:?}\n");
            return text(StatusCode::NOT_FOUND, message);
        }
        let observed = match self.observed(&pod).await {
            Ok(observed) => observed,
            Err(reply) => return reply,
        };
        let found =
            if options.previous { observed.previous(container) } else { observed.container(container) };
        let Some(found) = found.filter(|found| options.previous || found.state != RunState::Created) else {
            let message = if options.previous {
                format!("previous terminated container {container:?} in pod {pod_name:?} not found")
            } else {
                without_log(&pod, container)
            };
            return text(StatusCode::BAD_REQUEST, message);
        };
        let path = if found.log_path.is_empty() {
            log_directory(&self.shared.settings.logs, &pod)
                .join(crate::configure::container::log_path(container, found.restarts))
        } else {
            found.log_path.clone().into()
        };
        if !path.exists() {
            // A container without output may have no log yet.
            return text(StatusCode::OK, "");
        }
        let (sender, receiver) = mpsc::channel::<Bytes>(16);
        let (engine, uid, id) =
            (self.shared.engine.clone(), pod.metadata.uid.clone().unwrap_or_default(), found.id.clone());
        let ended = move || {
            let (engine, uid, id) = (engine.clone(), uid.clone(), id.clone());
            async move {
                engine.observe(&uid).await.is_ok_and(|observed| {
                    !observed.containers.iter().any(|c| c.id == id && c.state == RunState::Running)
                })
            }
        };
        self.shared.tasks.spawn(async move {
            if let Err(error) = logs::read(path, options, sender, ended).await {
                tracing::debug!(%error, "failed to read container log");
            }
        });
        let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|piece| (Ok::<_, Infallible>(Frame::data(piece)), receiver))
        });
        let mut reply = Response::new(StreamBody::new(pieces.boxed()).boxed_unsync());
        reply.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
        reply
    }
}

/// Message about a container without a log, by its status.
fn without_log(pod: &Pod, container: &str) -> String {
    let what =
        format!("container {container:?} in pod {:?}", pod.metadata.name.as_deref().unwrap_or_default());
    let lists = pod.status.iter().flat_map(|status| {
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
    });
    let Some(status) = lists.flatten().flatten().find(|status| status.name == container) else {
        return format!("{what} is not available");
    };
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.terminated.is_some()) {
        return format!("{what} is terminated");
    }
    match state.and_then(|state| state.waiting.as_ref()).map(|waiting| waiting.reason.as_deref()) {
        Some(Some("ErrImagePull")) => format!("{what} is waiting to start: image can't be pulled"),
        Some(Some("ImagePullBackOff")) => {
            format!("{what} is waiting to start: trying and failing to pull image")
        }
        Some(reason) => format!("{what} is waiting to start: {}", reason.unwrap_or_default()),
        None => format!("{what} is waiting to start - no logs yet"),
    }
}

/// Log options of a query.
fn log_options(query: &[(String, String)], now: jiff::Timestamp) -> Result<LogOptions, String> {
    let mut options = LogOptions::default();
    let wrong = |name: &str, value: &str| format!("{name}: Invalid value: {value:?}");
    for (name, value) in query {
        let on = || matches!(value.as_str(), "true" | "1" | "t" | "T" | "TRUE" | "True");
        let number = || value.parse::<u64>().map_err(|_| wrong(name, value));
        match name.as_str() {
            "follow" => options.follow = on(),
            "previous" => options.previous = on(),
            "timestamps" => options.timestamps = on(),
            "tailLines" => options.tail = Some(number()?),
            "limitBytes" => options.limit_bytes = Some(number()?),
            "sinceSeconds" => {
                let seconds = i64::try_from(number()?).map_err(|_| wrong(name, value))?;
                options.since = now.saturating_sub(SignedDuration::from_secs(seconds)).ok();
            }
            "sinceTime" => options.since = Some(value.parse().map_err(|_| wrong(name, value))?),
            "stream" => {
                options.stream = match value.as_str() {
                    "Stdout" => Some(Stream::Stdout),
                    "Stderr" => Some(Stream::Stderr),
                    _ => None,
                }
            }
            _ => {}
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_query_parameters_parse() {
        let query = parameters(Some("follow=true&tailLines=5&x=a%20b+c&flag"));
        assert_eq!(query[2], ("x".to_owned(), "a b c".to_owned()));
        let options = log_options(&query, jiff::Timestamp::UNIX_EPOCH).expect("options");
        assert!(options.follow && options.tail == Some(5));
        assert!(log_options(&parameters(Some("tailLines=x")), jiff::Timestamp::UNIX_EPOCH).is_err());
    }

    #[test]
    fn container_without_log_is_reported_by_its_status() {
        let message = |state: Value| {
            let status = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            let pod = json!({"metadata": {"name": "p"}, "status": {"containerStatuses": [status]}});
            without_log(&serde_json::from_value(pod).expect("a pod"), "c")
        };
        let waiting = |reason: &str| message(json!({"waiting": {"reason": reason}}));
        let begin = "container \"c\" in pod \"p\" is";
        assert_eq!(waiting("ErrImagePull"), format!("{begin} waiting to start: image can't be pulled"));
        assert_eq!(
            waiting("ImagePullBackOff"),
            format!("{begin} waiting to start: trying and failing to pull image")
        );
        assert_eq!(waiting("ContainerCreating"), format!("{begin} waiting to start: ContainerCreating"));
        assert_eq!(waiting("InvalidImageName"), format!("{begin} waiting to start: InvalidImageName"));
        assert_eq!(message(json!({})), format!("{begin} waiting to start - no logs yet"));
        assert_eq!(message(json!({"terminated": {"exitCode": 1}})), format!("{begin} terminated"));
        assert_eq!(without_log(&Pod::default(), "c"), "container \"c\" in pod \"\" is not available");
    }
}
