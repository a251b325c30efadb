//! A DRA driver in this process, and an API server that serves claims from a map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use client::{Call, Client, Transport};
use cri::dra::*;
use cri::dra_health::*;
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

pub struct FakeDriver {
    calls: Mutex<Vec<String>>,
    error: Mutex<String>,
    health: watch::Sender<Vec<DeviceHealth>>,
    stop: watch::Sender<bool>,
}

/// Name of the older service; its messages are those of version 1.
const V1BETA1: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/";

impl FakeDriver {
    pub fn serve(socket: &Path) -> Arc<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let driver = Arc::new(Self {
            calls: Mutex::default(),
            error: Mutex::default(),
            health: watch::Sender::default(),
            stop,
        });
        let listener = cri::server::bind(socket).expect("a socket");
        let service = Arc::clone(&driver);
        let route = move |mut request: http::Request<hyper::body::Incoming>| {
            if let Some(method) = request.uri().path().strip_prefix(V1BETA1) {
                service.calls.lock().push("v1beta1".to_owned());
                let path = format!("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}");
                *request.uri_mut() = path.parse().expect("a path");
            }
            let is_health = request.uri().path().contains("Health");
            let answer = if is_health {
                serve_draresource_health(Arc::clone(&service), request)
            } else {
                serve_draplugin(Arc::clone(&service), request)
            };
            answer.expect("a method of drivers")
        };
        tokio::spawn(async move {
            let end = async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            cri::server::serve_routes(listener, route, end).await;
        });
        driver
    }

    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    pub fn fail_with(&self, error: &str) {
        *self.error.lock() = error.to_owned();
    }

    pub fn report_health(&self, device: &str, healthy: bool, message: &str) {
        let health = if healthy { HealthStatus::Healthy } else { HealthStatus::Unhealthy };
        let id = DeviceIdentifier { pool_name: "n1".to_owned(), device_name: device.to_owned() };
        self.health.send_replace(vec![DeviceHealth {
            device: Some(id),
            health: health as i32,
            message: message.to_owned(),
            ..DeviceHealth::default()
        }]);
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    fn note(&self, call: &str, claims: &[Claim]) {
        let mut calls = self.calls.lock();
        let version = match calls.last().map(String::as_str) {
            Some("v1beta1") => calls.pop().unwrap_or_default(),
            _ => "v1".to_owned(),
        };
        let uids: Vec<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        calls.push(format!("{version} {call} {}", uids.join(",")));
    }
}

#[tonic::async_trait]
impl Draplugin for FakeDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("prepare", &claims);
        let error = self.error.lock().clone();
        let device = |uid: &str| Device {
            request_names: vec!["r".to_owned()],
            pool_name: "n1".to_owned(),
            device_name: "d0".to_owned(),
            cdi_device_ids: vec![format!("example.com/dev={uid}")],
            share_id: String::new(),
        };
        let answer = |claim: Claim| {
            let devices = if error.is_empty() { vec![device(&claim.uid)] } else { Vec::new() };
            (claim.uid, NodePrepareResourceResponse { devices, error: error.clone() })
        };
        let claims = claims.into_iter().map(answer).collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.note("unprepare", &claims);
        let claims = claims.into_iter().map(|claim| (claim.uid, NodeUnprepareResourceResponse::default()));
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: claims.collect() }))
    }
}

#[tonic::async_trait]
impl DraresourceHealth for FakeDriver {
    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<cri::server::ResponseStream<NodeWatchResourcesResponse>>, Status> {
        let state = (self.health.subscribe(), self.stop.subscribe(), true);
        let stream = futures_util::stream::unfold(state, |(mut health, mut stop, first)| async move {
            if !first {
                tokio::select! {
                    changed = health.changed() => changed.ok()?,
                    _ = stop.wait_for(|stopped| *stopped) => return None,
                }
            }
            let devices = health.borrow_and_update().clone();
            Some((Ok(NodeWatchResourcesResponse { devices }), (health, stop, false)))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// Claims by name; deletions of collections are noted as `DELETE` with their field selector.
struct Api(Arc<Mutex<BTreeMap<String, Value>>>);

impl Transport for Api {
    fn call(&self, request: http::Request<bytes::Bytes>) -> Call<'_> {
        let path = request.uri().path();
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut objects = self.0.lock();
        let (code, object) = if request.method() == http::Method::DELETE {
            let query = request.uri().query().unwrap_or_default();
            let selector = query.strip_prefix("fieldSelector=").unwrap_or(query);
            let selector = percent_encoding::percent_decode_str(selector).decode_utf8_lossy();
            objects.insert(format!("DELETE {selector}"), Value::Null);
            (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        } else {
            let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                "code": 404, "message": format!("resourceclaims.resource.k8s.io {name:?} not found")});
            objects.get(name).map_or((404, missing), |object| (200, object.clone()))
        };
        let body = Full::from(object.to_string()).map_err(|never| match never {}).boxed_unsync();
        let response = http::Response::builder().status(code).body(body).expect("a response");
        Box::pin(std::future::ready(Ok(response)))
    }
}

pub fn api_server(objects: Arc<Mutex<BTreeMap<String, Value>>>) -> Client {
    Client::new(Arc::new(Api(objects)), "test")
}
