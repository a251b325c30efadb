//! An image built for the benchmark: a static busybox only.

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

pub const BUSYBOX: &str = "/usr/bin/busybox";
pub const NAME: &str = "bench.local/busybox:1";

/// Writes it in the format of `docker save`, and returns the path.
pub fn make(directory: &Path) -> Result<PathBuf> {
    let busybox = std::fs::read(BUSYBOX).with_context(|| format!("failed to read {BUSYBOX}"))?;
    let mut layer = tar::Builder::new(Vec::new());
    add(&mut layer, "bin/busybox", &busybox, 0o755)?;
    let mut link = tar::Header::new_ustar();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    link.set_mode(0o777);
    layer.append_link(&mut link, "bin/sleep", "busybox")?;
    let layer = layer.into_inner()?;
    let digest = hex::encode(Sha256::digest(&layer));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    })
    .to_string();
    let name = format!("{}.json", hex::encode(Sha256::digest(config.as_bytes())));
    let manifest = json!([{"Config": name, "RepoTags": [NAME], "Layers": ["layer.tar"]}]).to_string();
    let path = directory.join("bench-image.tar");
    let mut archive = tar::Builder::new(std::fs::File::create(&path)?);
    for (name, content) in
        [(name.as_str(), config.as_bytes()), ("manifest.json", manifest.as_bytes()), ("layer.tar", &layer)]
    {
        add(&mut archive, name, content, 0o644)?;
    }
    archive.finish()?;
    Ok(path)
}

fn add(archive: &mut tar::Builder<impl std::io::Write>, name: &str, content: &[u8], mode: u32) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    archive.append_data(&mut header, name, content)?;
    Ok(())
}

/// Imports the image into the runtime of the cluster in `data_dir`.
pub async fn import(ferry: &Path, data_dir: &Path, archive: &Path) -> Result<()> {
    let output = tokio::process::Command::new(ferry)
        .args(["images", "--data-dir"])
        .arg(data_dir)
        .arg("import")
        .arg(archive)
        .output()
        .await?;
    if !output.status.success() {
        bail!("the image was not imported: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
