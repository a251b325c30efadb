//! Pods with user namespaces.

use std::os::unix::fs::MetadataExt as _;

use cri::v1::*;

use crate::Node;

const FIRST: u32 = 200_000;

fn options(pid: NamespaceMode) -> NamespaceOption {
    let map = vec![IDMapping { container_id: 0, host_id: FIRST, length: 65536 }];
    let users = UserNamespace { mode: NamespaceMode::Pod.into(), uids: map.clone(), gids: map };
    NamespaceOption { pid: pid.into(), userns_options: Some(users), ..NamespaceOption::default() }
}

pub async fn pod_root_is_unprivileged_on_host(node: Node) {
    let volume = node.root.join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("file"), "mine").unwrap();
    for (name, pid) in [("alone", NamespaceMode::Container), ("together", NamespaceMode::Pod)] {
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
        let mount = |target: &str, mapped: bool| {
            let map = vec![IDMapping { container_id: 0, host_id: FIRST, length: 65536 }];
            let map = if mapped { map } else { Vec::new() };
            Mount {
                container_path: target.to_owned(),
                host_path: volume.display().to_string(),
                uid_mappings: map.clone(),
                gid_mappings: map,
                ..Mount::default()
            }
        };
        config.mounts = vec![mount("/mapped", true), mount("/plain", false)];
        let id = node.create(&pod, &pod_config, config).await;
        node.start_container(&id).await;
        let shell = async |script: &str| {
            let (code, out, err) = node.exec(&id, &["sh", "-c", script]).await;
            assert_eq!(code, 0, "{script}: {out} {err}");
            out
        };
        assert_eq!(shell("id -u; id -g").await, "0\n0");
        assert!(shell("cat /proc/self/uid_map").await.split_whitespace().eq(["0", "200000", "65536"]));
        assert_eq!(shell("hostname").await, name);
        assert_eq!(shell("cat /proc/sys/net/ipv4/ip_unprivileged_port_start").await, "80");
        assert!(shell("ip -o addr").await.contains("eth0"));
        // Its own files, those of the image and those of mapped volumes belong to root inside.
        assert_eq!(
            shell("stat -c %u:%g / /bin/busybox /mapped/file /dev /dev/null").await,
            "0:0\n0:0\n0:0\n0:0\n0:0"
        );
        assert_eq!(shell("stat -c %u /plain/file").await, "65534");
        shell("touch /made /mapped/made /dev/shm/made && chown 33:33 /mapped/made && echo x > /dev/null")
            .await;
        let container = node.root.join("state/containers").join(&id);
        assert_eq!(std::fs::metadata(container.join("upper/made")).unwrap().uid(), FIRST);
        assert_eq!(std::fs::metadata(volume.join("made")).unwrap().uid(), 33);
        std::fs::remove_file(volume.join("made")).unwrap();
        // It is privileged inside its namespace, and unprivileged outside.
        shell("mount -t tmpfs none /tmp && umount /tmp && ip link set eth0 mtu 1400").await;
        for script in [
            "touch /plain/x",
            "umount /proc/kcore",
            "mount -o remount,rw /sys",
            "echo 1 > /proc/sys/kernel/panic",
            "mknod /tmp/disk b 254 0",
            "ip link add x type veth peer name y netns 1 && false",
        ] {
            assert_ne!(node.exec(&id, &["sh", "-c", script]).await.0, 0, "{script}");
        }
        let request = ContainerStatusRequest { container_id: id.clone(), verbose: false };
        assert!(node.cri.clone().runtime.container_status(request).await.is_ok());
        let started: serde_json::Value =
            serde_json::from_slice(&std::fs::read(container.join("started")).unwrap()).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", started["pid"])).unwrap();
        assert!(status.contains(&format!("Uid:\t{FIRST}\t{FIRST}")), "{status}");
        node.restart().await;
        assert_eq!(shell("echo still here").await, "still here");
    }
    let mut wrong = node.pod("wrong");
    let mut requested = options(NamespaceMode::Container);
    requested.userns_options.as_mut().unwrap().uids[0].host_id = 0;
    wrong.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = Some(requested);
    let request = RunPodSandboxRequest { config: Some(wrong), runtime_handler: String::new() };
    assert!(
        node.cri.clone().runtime.run_pod_sandbox(request).await.is_err(),
        "root must not be root outside"
    );
}
