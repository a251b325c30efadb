//! Test images: a static busybox and its applet links.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

const APPLETS: [&str; 23] = [
    "sh", "sleep", "echo", "cat", "ls", "env", "id", "nc", "httpd", "wget", "hostname", "true", "false",
    "tar", "ps", "touch", "kill", "head", "grep", "mkdir", "rm", "date", "nslookup",
];

/// Writes an image in the format of `docker save`, with additional files of this machine, and returns its path. The
/// root directory may already contain links and other files: see [`root`].
pub fn make(directory: &Path, name: &str, command: &[&str], files: &[PathBuf]) -> PathBuf {
    let stem = name.replace(['/', ':'], "_");
    let (root, archive) = (root(directory, name), directory.join(format!("{stem}.image")));
    for part in ["bin", "tmp", "etc"] {
        fs::create_dir_all(root.join(part)).expect("a directory");
    }
    fs::create_dir_all(archive.join("layer")).expect("a directory");
    fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("busybox");
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet)).expect("a link");
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").expect("a file");
    for file in files {
        let target = root.join(file.strip_prefix("/").expect("a whole path"));
        fs::create_dir_all(target.parent().expect("a directory")).expect("a directory");
        fs::copy(file, target).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    let layer = archive.join("layer/layer.tar");
    pack(&root, &layer);
    let digest = hex::encode(Sha256::digest(fs::read(&layer).expect("the layer")));
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    })
    .to_string();
    let config_name = format!("{}.json", hex::encode(Sha256::digest(config.as_bytes())));
    fs::write(archive.join(&config_name), &config).expect("a file");
    let manifest =
        serde_json::json!([{"Config": config_name, "RepoTags": [name], "Layers": ["layer/layer.tar"]}]);
    fs::write(archive.join("manifest.json"), manifest.to_string()).expect("a file");
    let file = directory.join(format!("{stem}.tar"));
    pack(&archive, &file);
    file
}

/// Root directory of an image.
#[must_use]
pub fn root(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{}.root", name.replace(['/', ':'], "_")))
}

fn pack(directory: &Path, file: &Path) {
    let outcome = Command::new("tar").arg("-C").arg(directory).arg("-cf").arg(file).arg(".").output();
    let outcome = outcome.expect("tar runs");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
}
