//! Images and pods designed to escape.

use std::path::{Path, PathBuf};

use cri::v1::*;

use super::image;
use crate::Node;

/// Writes an archive member with an unchecked name.
fn raw(name: &str, kind: tar::EntryType, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    if let Some(gnu) = header.as_gnu_mut() {
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
    }
    if kind.is_block_special() || kind.is_character_special() {
        header.set_device_major(254).unwrap();
        header.set_device_minor(0).unwrap();
    }
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = parts.concat();
    bytes.extend([0; 1024]);
    bytes
}

impl Node {
    pub async fn import(&self, tag: &str, layers: &[Vec<u8>]) -> Result<(), String> {
        let path = self.root.join("image.tar");
        image::save(&path, tag, layers, serde_json::json!({"Cmd": ["sh"]}));
        let imported = container::control::import_archive(&self.root.join("cri.sock"), &path).await;
        let left = std::fs::read_dir(self.root.join("state/images/staging")).unwrap().count();
        assert_eq!(left, 0, "something is left of {tag}");
        imported.map(drop).map_err(|status| status.message().to_owned())
    }
}

pub async fn hostile_layers_are_rejected(node: Node) {
    use tar::EntryType::{Block, Directory, Link, Regular, Symlink};
    let outside = node.root.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "as it was").unwrap();
    let out = outside.display().to_string();
    let climb = format!("../../../../../../../..{out}");
    let file = |name: &str| raw(name, Regular, "", b"evil");
    let mut endless = raw("endless", Regular, "", b"");
    endless[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let sum: u32 = endless[..512]
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
        .sum();
    endless[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let cases: Vec<(&str, Vec<Vec<u8>>, bool)> = vec![
        ("a name that climbs", vec![file("../../escaped")], false),
        ("a name that climbs late", vec![file(&format!("a/{climb}/escaped"))], false),
        ("an absolute name", vec![file(&format!("{out}/escaped"))], true),
        ("a link out", vec![raw("out", Symlink, &out, b""), file("out/escaped")], false),
        (
            "a link up",
            vec![
                raw("up", Symlink, "../../../..", b""),
                file("up/escaped"),
                file(&format!("up{out}/precious")),
            ],
            true,
        ),
        ("a hard link out", vec![raw("hard", Link, &format!("{out}/precious"), b"")], false),
        ("a hard link that climbs", vec![raw("hard", Link, &format!("{climb}/precious"), b"")], false),
        (
            "a hard link through a link",
            vec![raw("out", Symlink, &out, b""), raw("hard", Link, "out/precious", b"")],
            false,
        ),
        ("a whiteout of the parent", vec![file("a/.wh...")], false),
        ("a whiteout of nothing", vec![file("a/.wh.")], false),
        ("a whiteout elsewhere", vec![raw("out", Symlink, &out, b""), file("out/.wh.precious")], false),
        (
            "all of elsewhere whited out",
            vec![raw("out", Symlink, &out, b""), file("out/.wh..wh..opq")],
            false,
        ),
        ("a file instead of a directory", vec![file("a"), file("a/b")], false),
        ("a file of 2^63 bytes", vec![endless], false),
        ("no archive", vec![vec![7; 4096]], false),
        ("a device", vec![raw("disk", Block, "", b"")], true),
        ("directories", vec![raw("deep/", Directory, "", b""), file("deep/x")], true),
    ];
    for (at, (what, parts, fine)) in cases.into_iter().enumerate() {
        let outcome = node.import(&format!("hostile:{at}"), &[archive(&parts)]).await;
        assert_eq!(outcome.is_ok(), fine, "{what}: {outcome:?}");
        let left: Vec<_> =
            std::fs::read_dir(&outside).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["precious"], "{what}");
        assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"as it was", "{what}");
    }
    assert!(!Path::new("/escaped").exists());
    // The content of a layer does not match the digest in its configuration.
    let path = node.root.join("wrong.tar");
    image::save(&path, "hostile:wrong", &[archive(&[file("x")])], serde_json::json!({}));
    let text = std::fs::read(&path).unwrap();
    let at = text.windows(4).position(|window| window == b"evil").unwrap();
    let mut changed = text.clone();
    changed[at] = b'E';
    std::fs::write(&path, changed).unwrap();
    let error = container::control::import_archive(&node.root.join("cri.sock"), &path).await.unwrap_err();
    assert!(error.message().contains("the image configuration lists"), "{error}");
}

pub async fn whiteouts_hide_only_lower_layers(node: Node) {
    let busybox = node.root.join("busybox.tar");
    assert!(busybox.exists());
    let program = std::fs::read("/bin/busybox").unwrap();
    let first = image::layer(&[
        ("bin/", 0o755, b""),
        ("bin/busybox", 0o755, &program),
        ("bin/sh", 0, b"busybox"),
        ("bin/ls", 0, b"busybox"),
        ("a/", 0o755, b""),
        ("a/old", 0o644, b""),
        ("a/sub/", 0o755, b""),
        ("a/sub/old", 0o644, b""),
        ("b/", 0o755, b""),
        ("b/gone", 0o644, b""),
        ("b/kept", 0o644, b""),
    ]);
    // The whiteout comes after the new file, which stays.
    let second = image::layer(&[
        ("a/new", 0o644, b""),
        ("a/sub/new", 0o644, b""),
        ("a/.wh..wh..opq", 0o644, b""),
        ("b/.wh.gone", 0o644, b""),
    ]);
    node.import("hides:1", &[first, second]).await.unwrap();
    let mut config = node.container("hides", &["/bin/sh", "-c", "ls /a /a/sub /b"]);
    config.image = Some(ImageSpec { image: "hides:1".into(), ..ImageSpec::default() });
    let (_, id) = node.run("hides", config).await;
    assert_eq!(node.exited(&id).await.exit_code, 0);
    let seen: Vec<String> =
        node.log("hides", "hides").iter().map(|line| line.replace("stdout F ", "")).collect();
    assert_eq!(seen, ["/a:", "new", "sub", "", "/a/sub:", "new", "", "/b:", "kept"]);
}

/// An image layer with a shell, and `extra` entries.
fn layer_with_shell(extra: &[Vec<u8>]) -> Vec<u8> {
    use tar::EntryType::{Directory, Regular, Symlink};
    let program = std::fs::read("/bin/busybox").unwrap();
    let mut parts = vec![raw("bin/", Directory, "", b""), raw("bin/busybox", Regular, "", &program)];
    parts.extend(["sh", "cat", "head"].map(|name| raw(&format!("bin/{name}"), Symlink, "busybox", b"")));
    parts.extend_from_slice(extra);
    archive(&parts)
}

/// A new directory of the test that no container may reach.
fn outside(node: &Node) -> PathBuf {
    let outside = node.root.join("outside");
    std::fs::create_dir(&outside).unwrap();
    outside
}

/// A volume with one file.
fn volume(node: &Node) -> PathBuf {
    let volume = node.root.join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("file"), "mine").unwrap();
    volume
}

fn mount(volume: &Path, target: &str) -> Mount {
    Mount { container_path: target.to_owned(), host_path: volume.display().to_string(), ..Mount::default() }
}

/// The image has links in place of directories that the runtime mounts on.
pub async fn image_links_at_mount_points_fail_the_start(node: Node) {
    let outside = outside(&node);
    let out = outside.display().to_string();
    for name in ["proc", "dev", "sys"] {
        let layer = layer_with_shell(&[raw(name, tar::EntryType::Symlink, &out, b"")]);
        node.import(&format!("linked:{name}"), &[layer]).await.unwrap();
        let mut config = node.container(name, &["/bin/sh", "-c", "true"]);
        config.image = Some(ImageSpec { image: format!("linked:{name}"), ..ImageSpec::default() });
        let pod_config = node.pod(name);
        let pod = node.run_pod(&pod_config).await;
        let id = node.create(&pod, &pod_config, config).await;
        let error = start(&node, id).await.unwrap_err();
        assert!(error.contains("not a symbolic link"), "{name}: {error}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0, "{name}");
    }
}

async fn start(node: &Node, container_id: String) -> Result<(), String> {
    let started = node.cri.clone().runtime.start_container(StartContainerRequest { container_id }).await;
    started.map(|_| ()).map_err(|status| status.message().to_owned())
}

/// Mount points that are links are resolved inside the root; a device in the image is unusable.
pub async fn volume_targets_are_resolved_inside_the_root(node: Node) {
    use tar::EntryType::{Block, Symlink};
    let (outside, volume) = (outside(&node), volume(&node));
    let extra = [
        raw("data", Symlink, &outside.display().to_string(), b""),
        raw("up", Symlink, "../../..", b""),
        raw("disk", Block, "", b""),
    ];
    node.import("linked:mounts", &[layer_with_shell(&extra)]).await.unwrap();
    let script = "cat /up/inside/file; head -c 1 /disk || echo no; sleep 1000";
    let mut config = node.container("mounts", &["/bin/sh", "-c", script]);
    config.image = Some(ImageSpec { image: "linked:mounts".into(), ..ImageSpec::default() });
    config.mounts = vec![mount(&volume, "/up/inside")];
    let (_, id) = node.run("mounts", config).await;
    node.until("its output", async || {
        let seen = node.log("mounts", "mounts");
        if seen.iter().any(|line| line.ends_with("mineno")) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert_ne!(node.exec(&id, &["/bin/head", "-c", "1", "/disk"]).await.0, 0);
}

/// A volume is replaced by a link between creation and start.
pub async fn volume_replaced_by_link_fails_the_start(node: Node) {
    let volume = volume(&node);
    let mut config = node.container("swapped", &["/bin/sh", "-c", "true"]);
    config.mounts = vec![mount(&volume, "/inside")];
    let pod_config = node.pod("swapped");
    let pod = node.run_pod(&pod_config).await;
    let id = node.create(&pod, &pod_config, config).await;
    std::fs::rename(&volume, node.root.join("moved")).unwrap();
    std::os::unix::fs::symlink("/etc", &volume).unwrap();
    assert!(start(&node, id).await.is_err(), "a link was followed");
}

/// Values that a pod must not set.
pub async fn paths_in_pod_settings_fail_the_start(node: Node) {
    for (what, change) in [
        (
            "a sysctl with parent directories",
            (|config: &mut PodSandboxConfig| {
                let linux = config.linux.as_mut().unwrap();
                linux.sysctls.insert("net/../../../../tmp/escaped".into(), "1".into());
            }) as fn(&mut PodSandboxConfig),
        ),
        ("another runtime's group", |config| {
            config.linux.as_mut().unwrap().cgroup_parent = "/../../escaped".into()
        }),
    ] {
        let mut config = node.pod("wrong");
        change(&mut config);
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let Ok(made) = node.cri.clone().runtime.run_pod_sandbox(request).await else { continue };
        let pod = made.into_inner().pod_sandbox_id;
        let id = node.create(&pod, &config, node.container("wrong", &["true"])).await;
        assert!(start(&node, id).await.is_err(), "{what}");
        let remove = RemovePodSandboxRequest { pod_sandbox_id: pod };
        node.cri.clone().runtime.remove_pod_sandbox(remove).await.unwrap();
    }
}

pub async fn standard_streams_open_by_name(node: Node) {
    // Programs of non-root users write to /dev/stdout by name.
    let mut config =
        node.container("named", &["sh", "-c", "id -u; echo out > /dev/stdout; echo err > /dev/stderr"]);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.run_as_user = Some(Int64Value { value: 33 });
    let (_, id) = node.run("named", config).await;
    assert_eq!(node.exited(&id).await.exit_code, 0);
    let mut seen = node.log("named", "named");
    seen.sort();
    assert_eq!(seen, ["stderr F err", "stdout F 33", "stdout F out"]);
}
