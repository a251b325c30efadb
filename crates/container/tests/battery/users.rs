//! Pods with user namespaces.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cri::v1::*;

use crate::Node;

const FIRST: u32 = 200_000;

fn options(pid: NamespaceMode) -> NamespaceOption {
    let users = UserNamespace { mode: NamespaceMode::Pod.into(), uids: mapping(), gids: mapping() };
    NamespaceOption { pid: pid.into(), userns_options: Some(users), ..NamespaceOption::default() }
}

fn mapping() -> Vec<IDMapping> {
    vec![IDMapping { container_id: 0, host_id: FIRST, length: 65536 }]
}

/// A running container with a mapped and a plain mount of `volume`, in a pod with a user namespace.
async fn start(node: &Node, name: &str, pid: NamespaceMode, volume: &Path) -> String {
    let mut pod_config = node.pod(name);
    let linux = pod_config.linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap().namespace_options = Some(options(pid));
    linux.sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "80".into());
    let pod = node.run_pod(&pod_config).await;
    let mut config = node.container(name, &["sleep", "1000"]);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options = Some(options(pid));
    security.capabilities = Some(Capability {
        add_capabilities: vec!["SYS_ADMIN".into(), "NET_ADMIN".into()],
        ..Default::default()
    });
    let mount = |target: &str, map: Vec<IDMapping>| Mount {
        container_path: target.to_owned(),
        host_path: volume.display().to_string(),
        uid_mappings: map.clone(),
        gid_mappings: map,
        ..Mount::default()
    };
    config.mounts = vec![mount("/mapped", mapping()), mount("/plain", Vec::new())];
    let id = node.create(&pod, &pod_config, config).await;
    node.start_container(&id).await;
    id
}

/// Output of a script that succeeds in the container.
async fn shell(node: &Node, id: &str, script: &str) -> String {
    let (code, out, err) = node.exec(id, &["sh", "-c", script]).await;
    assert_eq!(code, 0, "{script}: {out} {err}");
    out
}

pub async fn pod_root_is_unprivileged_on_host(node: Node) {
    let volume = node.root.join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("file"), "mine").unwrap();
    for (name, pid) in [("alone", NamespaceMode::Container), ("together", NamespaceMode::Pod)] {
        let id = start(&node, name, pid, &volume).await;
        assert_eq!(shell(&node, &id, "id -u; id -g").await, "0\n0");
        let map = shell(&node, &id, "cat /proc/self/uid_map").await;
        assert!(map.split_whitespace().eq(["0", "200000", "65536"]), "{map}");
        assert_eq!(shell(&node, &id, "hostname").await, name);
        let first_port = shell(&node, &id, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start").await;
        assert_eq!(first_port, "80");
        assert!(shell(&node, &id, "ip -o addr").await.contains("eth0"));
        files_have_mapped_owners(&node, &id, &volume).await;
        privileges_end_at_the_namespace(&node, &id).await;
        node.restart().await;
        assert_eq!(shell(&node, &id, "echo still here").await, "still here");
    }
}

/// Own files, those of the image and those of mapped volumes belong to root inside.
async fn files_have_mapped_owners(node: &Node, id: &str, volume: &Path) {
    let owners = shell(node, id, "stat -c %u:%g / /bin/busybox /mapped/file /dev /dev/null").await;
    assert_eq!(owners, "0:0\n0:0\n0:0\n0:0\n0:0");
    assert_eq!(shell(node, id, "stat -c %u /plain/file").await, "65534");
    let script = "touch /made /mapped/made /dev/shm/made && chown 33:33 /mapped/made && echo x > /dev/null";
    shell(node, id, script).await;
    let upper = node.root.join("state/containers").join(id).join("upper");
    assert_eq!(std::fs::metadata(upper.join("made")).unwrap().uid(), FIRST);
    assert_eq!(std::fs::metadata(volume.join("made")).unwrap().uid(), 33);
    std::fs::remove_file(volume.join("made")).unwrap();
}

/// Root is privileged inside its namespace, and unprivileged outside.
async fn privileges_end_at_the_namespace(node: &Node, id: &str) {
    shell(node, id, "mount -t tmpfs none /tmp && umount /tmp && ip link set eth0 mtu 1400").await;
    for script in [
        "touch /plain/x",
        "umount /proc/kcore",
        "mount -o remount,rw /sys",
        "echo 1 > /proc/sys/kernel/panic",
        "mknod /tmp/disk b 254 0",
        "ip link add x type veth peer name y netns 1 && false",
    ] {
        assert_ne!(node.exec(id, &["sh", "-c", script]).await.0, 0, "{script}");
    }
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    assert!(node.cri.clone().runtime.container_status(request).await.is_ok());
    let started = std::fs::read(node.root.join("state/containers").join(id).join("started")).unwrap();
    let started: serde_json::Value = serde_json::from_slice(&started).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", started["pid"])).unwrap();
    assert!(status.contains(&format!("Uid:\t{FIRST}\t{FIRST}")), "{status}");
}

pub async fn root_of_host_cannot_be_mapped(node: Node) {
    let mut wrong = node.pod("wrong");
    let mut requested = options(NamespaceMode::Container);
    requested.userns_options.as_mut().unwrap().uids[0].host_id = 0;
    wrong.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = Some(requested);
    let request = RunPodSandboxRequest { config: Some(wrong), runtime_handler: String::new() };
    assert!(node.cri.clone().runtime.run_pod_sandbox(request).await.is_err());
}
