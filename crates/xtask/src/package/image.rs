//! The OCI image: the binary and its shared libraries, in one layer.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::archive::{Archive, gzip};
use super::{Options, architecture, timestamp, version};

/// Certificates of public authorities on Debian, for pulls from registries.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Writes `ferry-image_VERSION_ARCHITECTURE.tar`, an OCI layout with the reference `ferry:VERSION`.
pub fn write(_root: &Path, options: &Options) -> Result<PathBuf> {
    let layer = layer(&options.binary)?;
    let compressed = gzip(&layer)?;
    let mut archive = Archive::new(timestamp());
    archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let layer_descriptor = blob(&mut archive, "application/vnd.oci.image.layer.v1.tar+gzip", &compressed)?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/ferry"],
            "Cmd": ["up"],
            "Env": ["PATH=/usr/bin:/bin"],
            "Labels": {"org.opencontainers.image.version": version(), "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        "history": [{"created_by": "xtask package image"}],
    });
    let config_descriptor =
        blob(&mut archive, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_descriptor,
        "layers": [layer_descriptor],
    });
    let mut manifest_descriptor =
        blob(&mut archive, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())?;
    let reference = format!("ferry:{}", version());
    manifest_descriptor["annotations"] =
        json!({"org.opencontainers.image.ref.name": version(), "io.containerd.image.name": reference});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest_descriptor],
    });
    archive.file("index.json", 0o644, index.to_string().as_bytes())?;
    let path = options.output.join(format!("ferry-image_{}_{}.tar", version(), architecture()));
    std::fs::write(&path, archive.finish()?)
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

fn layer(binary: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::new(timestamp());
    archive.copy("usr/bin/ferry", 0o755, binary)?;
    for library in libraries(binary)? {
        archive.copy(library.trim_start_matches('/'), 0o755, Path::new(&library))?;
    }
    if Path::new(CERTIFICATES).exists() {
        archive.copy(CERTIFICATES.trim_start_matches('/'), 0o644, Path::new(CERTIFICATES))?;
    }
    archive.directory("tmp", 0o1777)?;
    archive.finish()
}

/// Absolute paths of the dynamic linker and the shared libraries of a binary, as `ldd` prints them.
fn libraries(binary: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(binary).output().context("failed to run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "ldd {}: {text}", binary.display());
    Ok(paths_of(&text))
}

fn paths_of(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|field| field.starts_with('/')).map(str::to_owned))
        .collect()
}

/// Adds a blob and returns its descriptor.
fn blob(archive: &mut Archive, media_type: &str, content: &[u8]) -> Result<Value> {
    let digest = digest(content);
    archive.file(&format!("blobs/{}", digest.replace(':', "/")), 0o644, content)?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_output_yields_absolute_paths() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(paths_of(text), ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
