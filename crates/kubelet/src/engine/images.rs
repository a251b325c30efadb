//! Image calls of the runtime.

use std::time::Duration;

use cri::v1;

use super::{Engine, EngineResult, SHORT_TIMEOUT, within};
use crate::configure::security::ImageUser;

/// Pull timeout.
const PULL_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// An image present on the node.
#[derive(Clone, Debug)]
pub struct PresentImage {
    /// Reference that containers are created from.
    pub id: String,
    pub user: ImageUser,
    pub size: u64,
}

/// Adds `:latest` to an image name without tag or digest.
#[must_use]
pub fn with_default_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || last.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

fn spec(image: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() })
}

impl Engine {
    /// Returns the image if it is present.
    pub async fn image(&self, image: &str) -> EngineResult<Option<PresentImage>> {
        let request = v1::ImageStatusRequest { image: spec(image), verbose: false };
        let answer = self
            .metrics
            .timed("image_status", self.calls.images.clone().image_status(within(request, SHORT_TIMEOUT)))
            .await?
            .into_inner();
        Ok(answer.image.map(|image| PresentImage {
            id: image.id,
            user: ImageUser { uid: image.uid.map(|uid| uid.value), name: image.username },
            size: image.size,
        }))
    }

    pub async fn pull(
        &self,
        image: &str,
        auth: Option<v1::AuthConfig>,
        sandbox: v1::PodSandboxConfig,
    ) -> EngineResult<String> {
        let request = v1::PullImageRequest { image: spec(image), auth, sandbox_config: Some(sandbox) };
        Ok(self
            .metrics
            .timed("pull_image", self.calls.images.clone().pull_image(within(request, PULL_TIMEOUT)))
            .await?
            .into_inner()
            .image_ref)
    }

    pub async fn images(&self) -> EngineResult<Vec<v1::Image>> {
        let request = v1::ListImagesRequest::default();
        Ok(self
            .metrics
            .timed("list_images", self.calls.images.clone().list_images(within(request, SHORT_TIMEOUT)))
            .await?
            .into_inner()
            .images)
    }

    pub async fn remove_image(&self, image: &str) -> EngineResult<()> {
        let request = v1::RemoveImageRequest { image: spec(image) };
        self.metrics
            .timed("remove_image", self.calls.images.clone().remove_image(within(request, SHORT_TIMEOUT)))
            .await?;
        Ok(())
    }

    /// Usage of the file system that holds images.
    pub async fn image_file_system(&self) -> EngineResult<Option<v1::FilesystemUsage>> {
        let request = v1::ImageFsInfoRequest::default();
        let answer = self
            .metrics
            .timed("image_fs_info", self.calls.images.clone().image_fs_info(within(request, SHORT_TIMEOUT)))
            .await?
            .into_inner();
        Ok(answer.image_filesystems.into_iter().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_without_tag_gets_latest() {
        for (image, want) in [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("a@sha256:0", "a@sha256:0"),
        ] {
            assert_eq!(with_default_tag(image), want);
        }
    }
}
