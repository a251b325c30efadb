//! Methods on the runtime's socket beyond CRI: import of images from local files, and pulls that report progress.
//! Import is not part of CRI, since pod configuration must never name files of the node.

use futures_util::future::BoxFuture;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cri::server::{HttpAnswer, ResponseStream};
use cri::v1::{ImageSpec, ListImagesResponse, PullImageRequest};
use futures_util::stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::service::cri_runtime::CriService;

/// Paths of the gRPC methods.
pub(crate) const IMPORT: &str = "/ferry.v1.Images/Import";
pub(crate) const PULL: &str = "/ferry.v1.Images/Pull";

/// Interval of progress reports.
const REPORTS: Duration = Duration::from_millis(250);

/// Progress of a pull. The last message has the image.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PullProgress {
    #[prost(uint64, tag = "1")]
    pub done: u64,
    #[prost(uint64, tag = "2")]
    pub total: u64,
    #[prost(uint64, tag = "3")]
    pub layers_done: u64,
    #[prost(uint64, tag = "4")]
    pub layers: u64,
    #[prost(string, tag = "5")]
    pub image_id: String,
}

/// Time limit for importing large archives.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3600);

pub(crate) fn import(served: Arc<CriService>, request: http::Request<hyper::body::Incoming>) -> HttpAnswer {
    cri::server::unary(request, move |request: Request<ImageSpec>| {
        Box::pin(async move {
            let path = request.into_inner().image;
            let store = Arc::clone(served.images());
            let imported = tokio::task::spawn_blocking(move || store.import(Path::new(&path)))
                .await
                .map_err(|error| Status::internal(error.to_string()))?
                .map_err(|error| Status::invalid_argument(chain(&error)))?;
            let images = imported.iter().map(crate::service::describe).collect();
            Ok(Response::new(ListImagesResponse { images }))
        })
    })
}

pub(crate) fn pull(served: Arc<CriService>, request: http::Request<hyper::body::Incoming>) -> HttpAnswer {
    cri::server::server_streaming(request, move |request: Request<PullImageRequest>| {
        Box::pin(async move {
            let request = request.into_inner();
            let name = request.image.unwrap_or_default().image;
            let flight = served.begin_pull(&name, request.auth)?;
            // The stream holds the in-flight pull: a disconnecting client cancels it, unless other clients wait too.
            let reports = stream::unfold(Some((flight, name)), |state| async move {
                let (flight, name) = state?;
                let ended = tokio::time::timeout(REPORTS, flight.end(&name)).await;
                let now = flight.report();
                match ended {
                    Err(_) => Some((Ok(now), Some((flight, name)))),
                    Ok(Ok(image_id)) => Some((Ok(PullProgress { image_id, ..now }), None)),
                    Ok(Err(error)) => Some((Err(error.into()), None)),
                }
            });
            let reports: ResponseStream<PullProgress> = Box::pin(reports);
            Ok(Response::new(reports))
        })
    })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

async fn connect(socket: &Path) -> Result<Grpc<Channel>, Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(chain(&error));
    let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(unavailable)?
        .timeout(IMPORT_TIMEOUT)
        .connect()
        .await
        .map_err(unavailable)?;
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(unavailable)?;
    Ok(client)
}

/// Pulls an image through the runtime at `socket`, passing progress to `report`. Returns the image's id.
pub fn pull_image<'a>(
    socket: &'a Path,
    request: PullImageRequest,
    mut report: Box<dyn FnMut(&PullProgress) + Send + 'a>,
) -> BoxFuture<'a, Result<String, Status>> {
    Box::pin(async move {
        let mut client = connect(socket).await?;
        let codec = ProstCodec::<PullImageRequest, PullProgress>::default();
        let path = PathAndQuery::from_static(PULL);
        let mut reports = client.server_streaming(Request::new(request), path, codec).await?.into_inner();
        while let Some(now) = reports.message().await? {
            report(&now);
            if !now.image_id.is_empty() {
                return Ok(now.image_id);
            }
        }
        Err(Status::aborted("the runtime stopped before the pull completed"))
    })
}

/// Imports an archive through the runtime at `socket`. Returns the names of the images.
pub fn import_archive<'a>(
    socket: &'a Path,
    archive: &'a Path,
) -> BoxFuture<'a, Result<Vec<cri::v1::Image>, Status>> {
    Box::pin(async move {
        let mut client = connect(socket).await?;
        let request =
            Request::new(ImageSpec { image: archive.display().to_string(), ..ImageSpec::default() });
        let codec = ProstCodec::<ImageSpec, ListImagesResponse>::default();
        let answer = client.unary(request, PathAndQuery::from_static(IMPORT), codec).await?;
        Ok(answer.into_inner().images)
    })
}
