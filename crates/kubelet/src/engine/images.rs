//! Images at the runtime.

use std::time::Duration;

use cri::v1;

use super::{Engine, Outcome, QUICK, within};
use crate::configure::security::ImageUser;

/// How long a pull may take.
const PULL: Duration = Duration::from_secs(30 * 60);

/// An image that is there.
#[derive(Clone, Debug)]
pub struct PresentImage {
    /// What containers are made from.
    pub id: String,
    pub user: ImageUser,
    pub size: u64,
}

/// The image with `:latest` if it has neither tag nor digest.
#[must_use]
pub fn with_default_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || last.contains('@') { image.to_owned() } else { format!("{image}:latest") }
}

fn spec(image: &str) -> Option<v1::ImageSpec> {
    Some(v1::ImageSpec { image: image.to_owned(), ..v1::ImageSpec::default() })
}

impl Engine {
    /// The image, if it is there.
    pub async fn image(&self, image: &str) -> Outcome<Option<PresentImage>> {
        let asked = v1::ImageStatusRequest { image: spec(image), verbose: false };
        let answer = self.calls.images.clone().image_status(within(asked, QUICK)).await?.into_inner();
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
    ) -> Outcome<String> {
        let asked = v1::PullImageRequest { image: spec(image), auth, sandbox_config: Some(sandbox) };
        Ok(self.calls.images.clone().pull_image(within(asked, PULL)).await?.into_inner().image_ref)
    }

    pub async fn images(&self) -> Outcome<Vec<v1::Image>> {
        let asked = v1::ListImagesRequest::default();
        Ok(self.calls.images.clone().list_images(within(asked, QUICK)).await?.into_inner().images)
    }

    pub async fn remove_image(&self, image: &str) -> Outcome<()> {
        let asked = v1::RemoveImageRequest { image: spec(image) };
        self.calls.images.clone().remove_image(within(asked, QUICK)).await?;
        Ok(())
    }

    /// Usage of the file system that holds images.
    pub async fn image_file_system(&self) -> Outcome<Option<v1::FilesystemUsage>> {
        let asked = v1::ImageFsInfoRequest::default();
        let answer = self.calls.images.clone().image_fs_info(within(asked, QUICK)).await?.into_inner();
        Ok(answer.image_filesystems.into_iter().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
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
