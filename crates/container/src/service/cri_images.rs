//! CRI's ImageService.

use cri::server::ResponseStream;
use cri::v1::{
    FilesystemIdentifier, FilesystemUsage, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse,
    ImageService, ImageSpec, ImageStatusRequest, ImageStatusResponse, Int64Value, ListImagesRequest,
    ListImagesResponse, PullImageRequest, PullImageResponse, RemoveImageRequest, RemoveImageResponse,
    StreamImagesRequest, StreamImagesResponse, UInt64Value,
};
use tonic::{Request, Response, Status};

use super::cri_runtime::{CriService, one};
use super::stats::usage;
use super::{Runtime, RuntimeError, now};
use crate::images;

pub(crate) fn describe(image: &images::Image) -> Image {
    let user = image.config.config.user.split(':').next().unwrap_or_default();
    let uid = if user.is_empty() { Some(0) } else { user.parse::<i64>().ok() };
    Image {
        id: image.id.clone(),
        repo_tags: image.tags.iter().cloned().collect(),
        repo_digests: image.digests.iter().cloned().collect(),
        size: image.size(),
        uid: uid.map(|value| Int64Value { value }),
        username: if uid.is_none() { user.to_owned() } else { String::new() },
        spec: Some(ImageSpec { image: image.id.clone(), ..ImageSpec::default() }),
        pinned: image.pinned,
    }
}

fn named(spec: Option<ImageSpec>) -> String {
    spec.unwrap_or_default().image
}

#[tonic::async_trait]
impl ImageService for CriService {
    async fn list_images(
        &self,
        request: Request<ListImagesRequest>,
    ) -> Result<Response<ListImagesResponse>, Status> {
        Ok(Response::new(ListImagesResponse { images: self.chosen(request.into_inner().filter) }))
    }

    async fn stream_images(
        &self,
        request: Request<StreamImagesRequest>,
    ) -> Result<Response<ResponseStream<StreamImagesResponse>>, Status> {
        Ok(one(StreamImagesResponse { images: self.chosen(request.into_inner().filter) }))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let request = request.into_inner();
        let found = self.images().find(&named(request.image));
        let mut info = std::collections::BTreeMap::new();
        if let Some(image) = found.as_ref().filter(|_| request.verbose) {
            let text = serde_json::json!({"imageSpec": image.config}).to_string();
            info.insert("info".to_owned(), text);
        }
        Ok(Response::new(ImageStatusResponse { image: found.as_ref().map(describe), info }))
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> Result<Response<PullImageResponse>, Status> {
        let request = request.into_inner();
        let name = named(request.image);
        let image_ref = self.pull(&name, request.auth).await?;
        Ok(Response::new(PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let name = named(request.into_inner().image);
        self.blocking(move |runtime| runtime.remove_image(&name)).await?;
        Ok(Response::new(RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> Result<Response<ImageFsInfoResponse>, Status> {
        let described = self
            .blocking(|runtime| {
                let describe = |path: std::path::PathBuf| {
                    let (bytes, files) = usage(&path);
                    FilesystemUsage {
                        timestamp: now(),
                        fs_id: Some(FilesystemIdentifier { mountpoint: path.display().to_string() }),
                        used_bytes: Some(UInt64Value { value: bytes }),
                        inodes_used: Some(UInt64Value { value: files }),
                    }
                };
                let images = describe(runtime.images.root().to_owned());
                let containers = describe(runtime.config.root.join("containers"));
                Ok(ImageFsInfoResponse {
                    image_filesystems: vec![images],
                    container_filesystems: vec![containers],
                })
            })
            .await?;
        Ok(Response::new(described))
    }
}

impl Runtime {
    fn chosen(&self, filter: Option<ImageFilter>) -> Vec<Image> {
        let found = match named(filter.and_then(|filter| filter.image)).as_str() {
            "" => self.images.list(),
            name => self.images.find(name).into_iter().collect(),
        };
        found.iter().map(describe).collect()
    }

    /// Removes an image with all its names, unless containers use its layers as root or through image volumes.
    fn remove_image(&self, name: &str) -> Result<(), RuntimeError> {
        let Some(image) = self.images.find(name) else { return Ok(()) };
        let state = self.state.read();
        let uses = |container: &&std::sync::Arc<super::records::Container>| {
            let mut mounted = container.config.mounts.iter().filter_map(|mount| mount.image.as_ref());
            container.meta.image_id == image.id
                || mounted
                    .any(|mounted| self.images.find(&mounted.image).is_some_and(|found| found.id == image.id))
        };
        if let Some(container) = state.containers.values().find(uses) {
            return Err(RuntimeError::Conflict(format!(
                "image is in use by container {}",
                container.meta.id
            )));
        }
        drop(state);
        self.images.remove(&image.id)?;
        Ok(())
    }
}
