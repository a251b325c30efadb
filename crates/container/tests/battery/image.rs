//! Builds test images.

use std::path::Path;

use sha2::{Digest as _, Sha256};

/// A file of a layer: path, mode, content; a link if the mode is 0, a directory if the path ends with a slash.
pub type Entry<'a> = (&'a str, u32, &'a [u8]);

pub fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mode(*mode);
        if *mode == 0 {
            header.set_mode(0o777);
            header.set_size(0);
            header.set_entry_type(tar::EntryType::Symlink);
            let target = std::str::from_utf8(content).unwrap();
            tar.append_link(&mut header, path, target).unwrap();
        } else if path.ends_with('/') {
            header.set_size(0);
            header.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut header, path, std::io::empty()).unwrap();
        } else {
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, path, *content).unwrap();
        }
    }
    tar.into_inner().unwrap()
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Writes an archive as `docker save` does.
pub fn save(path: &Path, tag: &str, layers: &[Vec<u8>], config: serde_json::Value) {
    let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    let config = serde_json::json!({"architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids}})
    .to_string();
    let names: Vec<String> = (0..layers.len()).map(|at| format!("{at}/layer.tar")).collect();
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": [tag], "Layers": names}]).to_string();
    let mut entries: Vec<Entry<'_>> =
        vec![("manifest.json", 0o644, manifest.as_bytes()), ("config.json", 0o644, config.as_bytes())];
    for (name, layer) in names.iter().zip(layers) {
        entries.push((name, 0o644, layer));
    }
    std::fs::write(path, layer(&entries)).unwrap();
}

/// An image with busybox and a few users.
pub fn busybox(path: &Path, tag: &str) {
    let program = std::fs::read("/bin/busybox").unwrap();
    let passwd = b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:33:web:/var/www:/bin/sh\n";
    let group = b"root:x:0:\nweb:x:33:\nlogs:x:4:web\n";
    let mut entries: Vec<Entry<'_>> = vec![
        ("bin/", 0o755, b""),
        ("etc/", 0o755, b""),
        ("tmp/", 0o1777, b""),
        ("root/", 0o700, b""),
        ("bin/busybox", 0o755, &program),
        ("etc/passwd", 0o644, passwd),
        ("etc/group", 0o644, group),
    ];
    let names: Vec<String> = APPLETS.iter().map(|name| format!("bin/{name}")).collect();
    for name in &names {
        entries.push((name, 0, b"busybox"));
    }
    let second = layer(&[("second/", 0o755, b""), ("second/file", 0o644, b"two\n")]);
    let config = serde_json::json!({"Env": ["FROM=image"], "Cmd": ["sh"], "WorkingDir": "/tmp"});
    save(path, tag, &[layer(&entries), second], config);
}

const APPLETS: &[&str] = &[
    "sh", "sleep", "echo", "cat", "ls", "id", "hostname", "mount", "umount", "ip", "ps", "kill", "touch",
    "mkdir", "ln", "env", "pwd", "wget", "nc", "httpd", "dd", "head", "tail", "grep", "mknod", "chroot",
    "true", "false", "stty", "tty", "sync", "unshare", "ping", "chown", "rm", "stat", "readlink", "test",
    "od", "seq", "wc", "date",
];
