//! `ferry images`: images of the container runtime.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use cri::v1::{
    AuthConfig, Image, ImageSpec, ImageStatusRequest, ListImagesRequest, PullImageRequest, RemoveImageRequest,
};

use crate::cli::{ImagesArgs, ImagesVerb};

pub async fn run(arguments: ImagesArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    let everywhere = arguments.socket.is_none();
    let socket = arguments.socket.unwrap_or_else(|| data_dir.join("runtime.sock"));
    if let ImagesVerb::Import { archive } = &arguments.verb {
        let archive = std::fs::canonicalize(archive)
            .with_context(|| format!("failed to resolve {}", archive.display()))?;
        let imported = container::control::import_archive(&socket, &archive).await;
        for image in imported.map_err(|status| anyhow!("{}", status.message()))? {
            println!("{}", name(&image));
        }
        // Also import it into the other nodes of this machine.
        for directory in crate::nodes::directories(data_dir).iter().filter(|_| everywhere) {
            let imported =
                container::control::import_archive(&directory.join("runtime.sock"), &archive).await;
            imported.map_err(|status| anyhow!("{}: {}", directory.display(), status.message()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let ImagesVerb::Pull { image, username } = arguments.verb {
        return pull(&socket, image, username).await;
    }
    let address = socket.display().to_string();
    let mut runtime = cri::connect(&address, Duration::from_secs(5))
        .await
        .context("failed to connect to the container runtime; is it running?")?;
    match arguments.verb {
        ImagesVerb::Import { .. } | ImagesVerb::Pull { .. } => {}
        ImagesVerb::List => {
            let listed = runtime.images.list_images(ListImagesRequest::default()).await;
            for image in listed.map_err(|status| anyhow!("{}", status.message()))?.into_inner().images {
                println!("{:<60} {:.19} {:>7.1} MB", name(&image), image.id, image.size as f64 / 1e6);
            }
        }
        ImagesVerb::Remove { images } => {
            for image in images {
                let spec = Some(ImageSpec { image: image.clone(), ..ImageSpec::default() });
                let request = ImageStatusRequest { image: spec.clone(), verbose: false };
                let found = runtime.images.image_status(request).await;
                let found = found.map_err(|status| anyhow!("{}", status.message()))?.into_inner().image;
                found.with_context(|| format!("image {image} not found"))?;
                let removed = runtime.images.remove_image(RemoveImageRequest { image: spec }).await;
                removed.map_err(|status| anyhow!("{image}: {}", status.message()))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Pulls an image; shows progress on a terminal.
async fn pull(socket: &Path, image: String, username: Option<String>) -> Result<ExitCode> {
    let auth = match username {
        Some(username) => {
            let mut password = String::new();
            std::io::stdin().read_line(&mut password).context("failed to read the password")?;
            let password = password.trim_end_matches(['\r', '\n']).to_owned();
            Some(AuthConfig { username, password, ..AuthConfig::default() })
        }
        None => None,
    };
    let spec = Some(ImageSpec { image: image.clone(), ..ImageSpec::default() });
    let request = PullImageRequest { image: spec, auth, sandbox_config: None };
    let terminal = std::io::stderr().is_terminal();
    let report = Box::new(|now: &container::control::PullProgress| {
        if terminal {
            let [done, total] = [now.done, now.total].map(|bytes| bytes as f64 / 1e6);
            eprint!("\r\x1b[K{image}: {}/{} layers, {done:.1}/{total:.1} MB", now.layers_done, now.layers);
        }
    });
    let pulled = container::control::pull_image(socket, request, report).await;
    if terminal {
        eprintln!();
    }
    println!("{}", pulled.map_err(|status| anyhow!("{}", status.message()))?);
    Ok(ExitCode::SUCCESS)
}

fn name(image: &Image) -> String {
    image.repo_tags.first().or(image.repo_digests.first()).unwrap_or(&image.id).clone()
}
