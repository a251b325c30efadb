//! The HTTPS port of simulated kubelets: `/metrics/resource` and `/stats/summary`, with counters that grow.
//!
//! All nodes share one port. Each has a loopback address of its own, by which connections are attributed.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use base::clock::Clock;
use base::pki::{Identity, PkiError, ServingNames};
use base::tasks::TaskGroup;
use bytes::Bytes;
use client::Client;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use objects::core::v1::Pod;
use runtime::{Cache, Informers};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{Fleet, addresses};

/// Connections at once, at most.
const CONNECTIONS: usize = 4096;

/// Reason why the kubelets are not served.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("failed to make a certificate for the kubelets")]
    Certificate(#[from] PkiError),
    #[error("failed to configure TLS for the kubelets")]
    Tls(#[from] rustls::Error),
}

/// The kubelets of a fleet.
struct Kubelets {
    fleet: Arc<Fleet>,
    pods: Cache<Pod>,
    clock: Clock,
    started: Timestamp,
}

/// Serves the kubelets of a fleet in `tasks`, and returns their port.
pub async fn serve(
    client: &Client,
    fleet: &Arc<Fleet>,
    port: u16,
    clock: &Clock,
    tasks: &TaskGroup,
) -> Result<u16, KubeletError> {
    let mut names = ServingNames::default();
    names.ips.insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let identity = Identity::in_memory("simulated-kubelet", &names, clock.now())?;
    let config = rustls::ServerConfig::builder_with_provider(base::tls::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(identity.chain.clone(), identity.key())?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    // Every address of 127.0.0.0/8 is local; connections to others of this machine are closed.
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listen = |source| KubeletError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let port = listener.local_addr().map_err(listen)?.port();
    let kubelets = Arc::new(Kubelets {
        fleet: Arc::clone(fleet),
        pods: Informers::new(client.clone(), tasks).of::<Pod>(),
        clock: clock.clone(),
        started: clock.now(),
    });
    let (listener, group) = (Arc::new(listener), tasks.clone());
    tasks.supervise("simulated-kubelets", move || {
        let (listener, acceptor) = (Arc::clone(&listener), acceptor.clone());
        let (kubelets, group) = (Arc::clone(&kubelets), group.clone());
        async move {
            group.until_stopped(accept(&listener, &acceptor, &kubelets, &group)).await;
        }
    });
    Ok(port)
}

async fn accept(listener: &TcpListener, acceptor: &TlsAcceptor, kubelets: &Arc<Kubelets>, group: &TaskGroup) {
    let open = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors: connections end meanwhile.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let (acceptor, kubelets) = (acceptor.clone(), Arc::clone(kubelets));
        group.spawn_until_stopped(async move {
            if let Err(error) = connection(stream, &acceptor, &kubelets).await {
                tracing::debug!(error = %error, "connection to a simulated kubelet failed");
            }
            drop(permit);
        });
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    kubelets: &Arc<Kubelets>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let local = stream.local_addr()?.ip();
    let IpAddr::V4(local) = local else { return Ok(()) };
    let Some(number) = addresses::number_of_loopback(local).filter(|number| *number < kubelets.fleet.nodes)
    else {
        return Ok(());
    };
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let service = service_fn(|request: Request<Incoming>| {
        let reply = kubelets.reply(number, request.uri().path());
        async move { Ok::<_, Infallible>(reply) }
    });
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?;
    Ok(())
}

impl Kubelets {
    fn reply(&self, number: usize, path: &str) -> Response<Full<Bytes>> {
        let name = self.fleet.name(number);
        let (kind, text) = match path {
            "/metrics/resource" => ("text/plain; version=0.0.4", self.resource(&name)),
            "/stats/summary" => ("application/json", self.summary(&name)),
            "/healthz" => ("text/plain", "ok".to_owned()),
            _ => {
                let mut response = Response::new(Full::from("404 page not found\n"));
                *response.status_mut() = StatusCode::NOT_FOUND;
                return response;
            }
        };
        let mut response = Response::new(Full::from(text));
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        response
    }

    /// Running pods of a node, sorted by namespace and name, with the usage of each container.
    fn containers(&self, node: &str) -> Vec<PodUsage> {
        let is_here = |pod: &Arc<Pod>| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Running")
                && pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
        };
        let mut pods: Vec<Arc<Pod>> = self.pods.all().into_iter().filter(is_here).collect();
        pods.sort_by(|a, b| {
            (&a.metadata.namespace, &a.metadata.name).cmp(&(&b.metadata.namespace, &b.metadata.name))
        });
        let now = self.clock.now();
        let of_pod = |pod: Arc<Pod>| {
            let status = pod.status.clone().unwrap_or_default();
            let start = status.start_time.map_or(self.started, |time| time.0);
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
            let usage =
                containers.iter().map(|one| (one.name.clone(), Usage::of(&uid, &one.name, start, now)));
            let usage = usage.collect();
            (pod, usage)
        };
        pods.into_iter().map(of_pod).collect()
    }

    /// `/metrics/resource` in the order of the kubelet.
    fn resource(&self, node: &str) -> String {
        let (now, pods) = (self.clock.now(), self.containers(node));
        let at = now.as_millisecond();
        let mut text = String::new();
        let families: [Family; 3] = [
            ("container_cpu_usage_seconds_total", "counter", |usage| usage.cpu),
            ("container_memory_working_set_bytes", "gauge", |usage| usage.memory),
            ("container_start_time_seconds", "gauge", |usage| usage.start),
        ];
        for (family, kind, value) in families {
            let _ = writeln!(text, "# HELP {family} [STABLE] simulated\n# TYPE {family} {kind}");
            for (pod, containers) in &pods {
                let (namespace, name) = names(pod);
                for (container, usage) in containers {
                    let _ = writeln!(
                        text,
                        "{family}{{container=\"{container}\",namespace=\"{namespace}\",pod=\"{name}\"}} {} {at}",
                        value(usage)
                    );
                }
            }
        }
        let whole = Usage::whole(node, &pods, self.started, now);
        let _ = writeln!(text, "# TYPE node_cpu_usage_seconds_total counter");
        let _ = writeln!(text, "node_cpu_usage_seconds_total {} {at}", whole.cpu);
        let _ = writeln!(text, "# TYPE node_memory_working_set_bytes gauge");
        let _ = writeln!(text, "node_memory_working_set_bytes {} {at}", whole.memory);
        for (family, kind, value) in [
            ("pod_cpu_usage_seconds_total", "counter", Usage::cpu as fn(&Usage) -> f64),
            ("pod_memory_working_set_bytes", "gauge", Usage::memory),
        ] {
            let _ = writeln!(text, "# TYPE {family} {kind}");
            for (pod, containers) in &pods {
                let (namespace, name) = names(pod);
                let sum: f64 = containers.iter().map(|(_, usage)| value(usage)).sum();
                let _ = writeln!(text, "{family}{{namespace=\"{namespace}\",pod=\"{name}\"}} {sum} {at}");
            }
        }
        text.push_str("# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n");
        text
    }

    fn summary(&self, node: &str) -> String {
        let (now, pods) = (self.clock.now(), self.containers(node));
        let whole = Usage::whole(node, &pods, self.started, now);
        let network = |seconds: f64| {
            serde_json::json!({"time": now.to_string(), "name": "eth0", "rxBytes": whole_number(seconds * 1e4),
                "txBytes": whole_number(seconds * 2e4)})
        };
        let of_pod = |(pod, containers): &PodUsage| {
            let (namespace, name) = names(pod);
            let start = pod.status.as_ref().and_then(|status| status.start_time.clone());
            let age = start.as_ref().map_or(0.0, |start| now.duration_since(start.0).as_secs_f64());
            let of_container = |(container, usage): &(String, Usage)| {
                serde_json::json!({"name": container,
                    "cpu": {"time": now.to_string(), "usageCoreNanoSeconds": whole_number(usage.cpu * 1e9)},
                    "memory": {"time": now.to_string(), "workingSetBytes": whole_number(usage.memory)},
                    "rootfs": {"usedBytes": 4096}, "logs": {"usedBytes": 4096}})
            };
            serde_json::json!({
                "podRef": {"name": name, "namespace": namespace, "uid": pod.metadata.uid},
                "startTime": start,
                "containers": containers.iter().map(of_container).collect::<Vec<_>>(),
                "network": network(age),
                "ephemeral-storage": {"usedBytes": 8192, "capacityBytes": 100_u64 << 30},
            })
        };
        let body = serde_json::json!({
            "node": {
                "nodeName": node,
                "startTime": self.started.to_string(),
                "cpu": {"time": now.to_string(), "usageCoreNanoSeconds": whole_number(whole.cpu * 1e9)},
                "memory": {"time": now.to_string(), "workingSetBytes": whole_number(whole.memory)},
                "network": network(now.duration_since(self.started).as_secs_f64()),
                "fs": {"usedBytes": 10_u64 << 30, "capacityBytes": 100_u64 << 30, "availableBytes": 90_u64 << 30},
            },
            "pods": pods.iter().map(of_pod).collect::<Vec<_>>(),
        });
        body.to_string()
    }
}

/// A pod with the usage of each container.
type PodUsage = (Arc<Pod>, Vec<(String, Usage)>);

/// Name, type and value of a metric of containers.
type Family = (&'static str, &'static str, fn(&Usage) -> f64);

fn names(pod: &Pod) -> (&str, &str) {
    let metadata = &pod.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn whole_number(value: f64) -> u64 {
    value as u64
}

/// Usage of a container or a node at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    /// Seconds.
    cpu: f64,
    /// Bytes.
    memory: f64,
    /// Seconds since the epoch.
    start: f64,
}

impl Usage {
    /// Between 0.01 and 0.5 cores, and 16 to 272 MiB that change with time, by the names.
    fn of(uid: &str, container: &str, start: Timestamp, now: Timestamp) -> Self {
        let hash = uid.bytes().chain(container.bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let of = |range: u64, shift: u32| f64::from(u32::try_from((hash >> shift) % range).unwrap_or(0));
        let age = now.duration_since(start).as_secs_f64().max(0.0);
        let pages = 4096.0 + of(65_536, 8) * (0.75 + 0.25 * (age / 60.0).sin());
        Self {
            cpu: age * (0.01 + of(490, 32) / 1000.0),
            memory: pages.floor() * 4096.0,
            start: start.as_duration().as_secs_f64(),
        }
    }

    /// The sum of all pods of a node, and some of its own.
    fn whole(node: &str, pods: &[PodUsage], start: Timestamp, now: Timestamp) -> Self {
        let own = Self::of(node, "", start, now);
        let all = pods.iter().flat_map(|(_, containers)| containers);
        all.fold(own, |sum, (_, one)| Self { cpu: sum.cpu + one.cpu, memory: sum.memory + one.memory, ..sum })
    }

    fn cpu(&self) -> f64 {
        self.cpu
    }

    fn memory(&self) -> f64 {
        self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_grow_and_differ_by_container() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let usage = |container: &str, second| Usage::of("uid", container, at(100), at(second));
        assert_eq!(usage("a", 100).cpu, 0.0);
        assert!(usage("a", 115).cpu < usage("a", 130).cpu);
        assert_ne!(usage("a", 130), usage("b", 130));
        assert_eq!(usage("a", 50).cpu, 0.0, "a clock that was set back");
        let memory = usage("a", 130).memory;
        assert!((f64::from(16 << 20)..f64::from(272 << 20)).contains(&memory), "{memory}");
    }
}
