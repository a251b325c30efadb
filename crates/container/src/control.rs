//! What the runtime does on its socket beyond CRI: importing images from files of this machine. It is not part of CRI,
//! as what pods ask for must never name files of the node.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cri::server::HttpAnswer;
use cri::v1::{ImageSpec, ListImagesResponse};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::service::cri_runtime::Served;

/// The method's path.
pub(crate) const IMPORT: &str = "/ferry.v1.Images/Import";

/// Imports large archives patiently.
const PATIENCE: Duration = Duration::from_secs(3600);

pub(crate) fn import(served: Arc<Served>, request: http::Request<hyper::body::Incoming>) -> HttpAnswer {
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

/// Asks the runtime at `socket` to import an archive. The answer names the images.
pub async fn import_archive(socket: &Path, archive: &Path) -> Result<Vec<cri::v1::Image>, Status> {
    let unavailable = |error: tonic::transport::Error| Status::unavailable(chain(&error));
    let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))
        .map_err(unavailable)?
        .timeout(PATIENCE)
        .connect()
        .await
        .map_err(unavailable)?;
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(unavailable)?;
    let request = Request::new(ImageSpec { image: archive.display().to_string(), ..ImageSpec::default() });
    let codec = ProstCodec::<ImageSpec, ListImagesResponse>::default();
    let answer = client.unary(request, PathAndQuery::from_static(IMPORT), codec).await?;
    Ok(answer.into_inner().images)
}
