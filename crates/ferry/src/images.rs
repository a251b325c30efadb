//! `ferry images`: images of the container runtime.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use cri::v1::{
    AuthConfig, Image, ImageSpec, ImageStatusRequest, ListImagesRequest, PullImageRequest, RemoveImageRequest,
};

use serde_json::json;

use crate::cli::DataDir;
use crate::output;

#[derive(Args, Debug)]
pub struct ImagesArgs {
    #[command(subcommand)]
    pub verb: ImagesVerb,

    #[command(flatten)]
    pub data_dir: DataDir,

    /// Path of the runtime's socket; by default `runtime.sock` in the data directory.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum ImagesVerb {
    /// Import images from an archive in the format of `docker save` or the OCI layout, also compressed with gzip; `-` is
    /// standard input.
    Import {
        /// Path of the archive.
        archive: PathBuf,
    },
    /// Pull an image from its registry.
    Pull {
        /// Reference of the image, such as docker.io/library/nginx:1.29.
        image: String,
        /// User name for the registry; the password is read from standard input.
        #[arg(long, value_name = "NAME")]
        username: Option<String>,
    },
    /// List images.
    List(output::OutputArgs),
    /// Remove images.
    Remove {
        /// References or IDs of the images.
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

pub async fn run(arguments: ImagesArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    let everywhere = arguments.socket.is_none();
    let socket = arguments.socket.unwrap_or_else(|| data_dir.join("runtime.sock"));
    if let ImagesVerb::Import { archive } = &arguments.verb {
        let (archive, _unpacked) = unpacked(archive, data_dir)?;
        ensure_running(&socket)?;
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
    ensure_running(&socket)?;
    if let ImagesVerb::Pull { image, username } = arguments.verb {
        return pull(&socket, image, username).await;
    }
    let address = socket.display().to_string();
    let mut runtime =
        cri::connect(&address, Duration::from_secs(5)).await.map_err(|_| not_running(&socket))?;
    match arguments.verb {
        ImagesVerb::Import { .. } | ImagesVerb::Pull { .. } => {}
        ImagesVerb::List(format) => {
            let listed = runtime.images.list_images(ListImagesRequest::default()).await;
            let images = listed.map_err(|status| anyhow!("{}", status.message()))?.into_inner().images;
            let row = |image: &Image| match format.output {
                None => {
                    let size = format!("{:.1} MB", image.size as f64 / 1e6);
                    vec![json!(name(image)), json!(format!("{:.19}", image.id)), json!(size)]
                }
                Some(_) => vec![json!(name(image)), json!(image.id), json!(image.size)],
            };
            let rows: Vec<_> = images.iter().map(row).collect();
            output::print(format.output, &[("IMAGE", "image"), ("ID", "id"), ("SIZE", "size")], &rows)?;
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

fn ensure_running(socket: &Path) -> Result<()> {
    match std::os::unix::net::UnixStream::connect(socket) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(error).with_context(|| format!("failed to connect to {}", socket.display()))
        }
        other => other.map(drop).map_err(|_| not_running(socket)),
    }
}

fn not_running(socket: &Path) -> anyhow::Error {
    anyhow!(
        "no container runtime serves {}: start the cluster with `ferry up`, or set the --data-dir of a running one",
        socket.display()
    )
}

/// Removed when dropped.
struct Unpacked(PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Path of an uncompressed archive for the runtime. Standard input (`-`) and archives compressed with gzip are copied to
/// the data directory first.
fn unpacked(archive: &Path, data_dir: &Path) -> Result<(PathBuf, Option<Unpacked>)> {
    let (from_input, mut input): (bool, Box<dyn BufRead>) = if archive == Path::new("-") {
        (true, Box::new(std::io::stdin().lock()))
    } else {
        let file = File::open(archive).with_context(|| format!("failed to open {}", archive.display()))?;
        (false, Box::new(BufReader::new(file)))
    };
    let begin = input.fill_buf().with_context(|| format!("failed to read {}", archive.display()))?;
    let compressed = begin.starts_with(&GZIP);
    if !from_input && !compressed {
        let path = std::fs::canonicalize(archive);
        return Ok((path.with_context(|| format!("failed to resolve {}", archive.display()))?, None));
    }
    let target = Unpacked(data_dir.join(format!("import-{}.tar", std::process::id())));
    let doing = || format!("failed to write {}", target.0.display());
    let mut file = File::create(&target.0).with_context(doing)?;
    let mut reader: Box<dyn Read> =
        if compressed { Box::new(flate2::bufread::MultiGzDecoder::new(input)) } else { Box::new(input) };
    std::io::copy(&mut reader, &mut file).with_context(doing)?;
    let path = std::fs::canonicalize(&target.0).with_context(doing)?;
    Ok((path, Some(target)))
}

/// First bytes of a file that is compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn compressed_archives_are_unpacked_for_the_import() {
        let directory = tempfile::tempdir().expect("a directory");
        let (plain, packed) = (directory.path().join("a.tar"), directory.path().join("a.tar.gz"));
        std::fs::write(&plain, "content").expect("written");
        let mut encoder = flate2::write::GzEncoder::new(
            File::create(&packed).expect("a file"),
            flate2::Compression::fast(),
        );
        encoder.write_all(b"content").and_then(|()| encoder.finish().map(drop)).expect("written");
        let (path, copy) = unpacked(&plain, directory.path()).expect("prepared");
        assert!(copy.is_none() && path.ends_with("a.tar"));
        let (path, copy) = unpacked(&packed, directory.path()).expect("prepared");
        assert_eq!(std::fs::read_to_string(&path).expect("unpacked"), "content");
        drop(copy);
        assert!(!path.exists(), "the copy is removed");
        assert!(unpacked(Path::new("/missing"), directory.path()).is_err());
    }
}
