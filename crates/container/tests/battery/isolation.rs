//! Visibility and privileges of containers.

use cri::v1::*;

use crate::Node;

fn security(config: &mut ContainerConfig) -> &mut LinuxContainerSecurityContext {
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap()
}

pub async fn container_sees_only_its_own_resources(node: Node) {
    let (_, id) = node.run("see", node.container("see", &["sleep", "1000"])).await;
    let shell = async |script: &str| node.exec(&id, &["sh", "-c", script]).await;
    assert_eq!(shell("hostname").await.1, "see");
    let processes = shell("ps -o pid,args").await.1;
    assert!(processes.contains("1 sleep 1000") && processes.lines().count() < 6, "{processes}");
    let root = shell("ls /").await.1;
    assert!(root.contains("second") && !root.contains("work"), "{root}");
    let mounts = shell("cat /proc/mounts").await.1;
    let mount_points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert!(
        mount_points
            .iter()
            .all(|mount_point| !mount_point.contains("state") && !mount_point.starts_with("/tmp")),
        "{mount_points:?}"
    );
    let interfaces = shell("ip -o addr").await.1;
    assert!(interfaces.contains("eth0") && interfaces.contains("10.222.0.2/32"), "{interfaces}");
    let groups = shell("cat /proc/self/cgroup").await.1;
    assert!(groups.lines().all(|line| !line.contains("ferry-test")), "the own group is the root: {groups}");
    assert_eq!(shell("cat /sys/fs/cgroup/pids/cgroup.procs | head -1").await.1, "1");
    assert_eq!(
        shell("test -c /dev/null && test -L /dev/stdout && echo x > /dev/null && echo yes").await.1,
        "yes"
    );
    assert_eq!(shell("cat /etc/hostname").await.1, "see");
}

pub async fn forbidden_operations_fail(node: Node) {
    let (_, id) = node.run("may", node.container("may", &["sleep", "1000"])).await;
    for (what, script) in [
        ("mount", "mount -t tmpfs none /tmp"),
        ("unmount a mask", "umount /proc/kcore"),
        ("write to the kernel's settings", "echo 1 > /proc/sys/kernel/panic"),
        ("write to sysfs", "echo 1 > /sys/kernel/uevent_seqnum"),
        ("write to its control group", "echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes"),
        ("read masked files", "head -c 1 /proc/kcore | grep ."),
        ("see masked directories", "ls /sys/firmware | grep ."),
        ("use a disk", "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk"),
        ("use memory", "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem"),
        ("make namespaces", "unshare -m true"),
        ("set the time", "date -s 2020-01-01 2>/dev/null; test $(date +%Y) = 2020"),
        ("change the host name", "hostname other"),
        ("configure the network", "ip link set eth0 down"),
        ("leave by a chroot", "chroot /proc/1/root/.. ls /work"),
    ] {
        let (code, out, err) = node.exec(&id, &["sh", "-c", script]).await;
        assert_ne!(code, 0, "a container could {what}: {out} {err}");
    }
    let status = node.exec(&id, &["cat", "/proc/self/status"]).await.1;
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    let unconfined =
        SecurityProfile { profile_type: SecurityProfileProfileType::Unconfined.into(), ..Default::default() };
    for (name, profile) in [("open", Some(unconfined)), ("unsaid", None)] {
        let mut open = node.container(name, &["sleep", "1000"]);
        security(&mut open).seccomp = profile;
        let (_, id) = node.run(name, open).await;
        assert!(node.exec(&id, &["cat", "/proc/self/status"]).await.1.contains("Seccomp:\t0"), "{name}");
    }
    let mut group = node.container("group", &["sleep", "1000"]);
    security(&mut group).run_as_group = Some(Int64Value { value: 5 });
    let refused = node.refused("group", group).await;
    assert!(refused.contains("needs a user"), "{refused}");
    let profile = node.root.join("profile.json");
    let text = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    std::fs::write(&profile, text).unwrap();
    let mut local = node.container("local", &["sleep", "1000"]);
    security(&mut local).seccomp = Some(SecurityProfile {
        profile_type: SecurityProfileProfileType::Localhost.into(),
        localhost_ref: profile.display().to_string(),
    });
    let (_, id) = node.run("local", local).await;
    assert_ne!(node.exec(&id, &["mkdir", "/tmp/x"]).await.0, 0);
    assert_eq!(node.exec(&id, &["touch", "/tmp/x"]).await.0, 0);
}

pub async fn mounts_have_requested_options(node: Node) {
    let host = node.root.join("volume");
    std::fs::create_dir_all(host.join("sub")).unwrap();
    std::fs::write(host.join("file"), "from the host\n").unwrap();
    let mount = |target: &str, source: &std::path::Path, readonly: bool| Mount {
        container_path: target.to_owned(),
        host_path: source.display().to_string(),
        readonly,
        ..Mount::default()
    };
    let mut config = node.container("mounts", &["sleep", "1000"]);
    let mut both = mount("/both", &host, false);
    both.propagation = MountPropagation::PropagationBidirectional.into();
    let mut image = mount("/image", std::path::Path::new(""), true);
    image.image = Some(ImageSpec { image: "busybox:test".into(), ..ImageSpec::default() });
    image.image_sub_path = "second".to_owned();
    let mut slave = mount("/slave", &host, false);
    slave.propagation = MountPropagation::PropagationHostToContainer.into();
    config.mounts = vec![
        mount("/data", &host, false),
        mount("/deep/in/there", &host.join("file"), true),
        mount("/etc/hostname", &host.join("file"), true),
        both,
        slave,
        image.clone(),
    ];
    security(&mut config).readonly_rootfs = true;
    security(&mut config).privileged = true;
    let (_, id) = node.run("mounts", config).await;
    let shell = async |script: &str| node.exec(&id, &["sh", "-c", script]).await;
    assert_eq!(shell("cat /data/file").await.1, "from the host");
    assert_eq!(shell("echo changed > /data/file2 && cat /data/file2").await.1, "changed");
    assert_eq!(std::fs::read_to_string(host.join("file2")).unwrap(), "changed\n");
    assert_ne!(shell("echo x > /deep/in/there").await.0, 0);
    assert_eq!(shell("cat /etc/hostname").await.1, "from the host");
    assert_ne!(shell("touch /file").await.0, 0, "the root is read-only");
    assert_eq!(shell("cat /image/file").await.1, "two");
    assert_ne!(shell("touch /image/x").await.0, 0, "images are read-only");
    assert_eq!(shell("mount -t tmpfs none /both/sub && touch /both/sub/inside").await.0, 0);
    assert!(host.join("sub/inside").exists(), "mounts come back to the host");
    assert_eq!(shell("ls /slave/sub").await.1, "inside", "mounts reach the container");
    assert_eq!(shell("ls /data/sub").await.1, "", "but not private ones");
    sys::mounts::unmount(&host.join("sub")).unwrap();
    let reported = node.status(&id).await;
    let reported = reported.mounts.iter().find(|mount| mount.container_path == "/image").unwrap();
    assert_eq!(reported.image.as_ref().unwrap().image_ref, node.status(&id).await.image_id);
    // Invalid requests are rejected before anything is created.
    for (readonly, part, wanted) in
        [(false, "second", "must be read-only"), (true, "second/none", "has no \"second/none\"")]
    {
        let mut config = node.container("refused", &["sleep", "1000"]);
        config.mounts = vec![Mount { readonly, image_sub_path: part.to_owned(), ..image.clone() }];
        let refused = node.refused("refused", config).await;
        assert!(refused.contains(wanted), "{refused}");
    }
}

/// An image is removed with all its names, but not while a container uses or mounts it.
pub async fn image_in_use_is_not_removed(node: Node) {
    let layers = [super::image::layer(&[("file", 0o644, b"content\n")])];
    for tag in ["volume:one", "volume:two"] {
        node.import(tag, &layers).await.expect("imported");
    }
    let spec = |image: &str| Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() });
    let known = async |image: &str| {
        let request = ImageStatusRequest { image: spec(image), verbose: false };
        let answer = node.cri.clone().images.image_status(request).await.unwrap();
        answer.into_inner().image.map(|image| image.repo_tags)
    };
    let remove = async |image: &str| {
        let request = RemoveImageRequest { image: spec(image) };
        node.cri.clone().images.remove_image(request).await.map_err(|status| status.message().to_owned())
    };
    assert_eq!(known("volume:one").await.unwrap().len(), 2, "two names of one image");
    let mut config = node.container("mounts", &["sleep", "1000"]);
    config.mounts = vec![Mount {
        container_path: "/image".to_owned(),
        readonly: true,
        image: spec("volume:one"),
        ..Mount::default()
    }];
    let (pod, id) = node.run("mounts", config).await;
    for image in ["volume:one", "volume:two", "busybox:test"] {
        let refused = remove(image).await.expect_err("it is in use");
        assert!(refused.contains(&format!("in use by container {id}")), "{refused}");
    }
    assert_eq!(node.exec(&id, &["cat", "/image/file"]).await.1, "content");
    node.remove_pod(&pod).await;
    remove("volume:one").await.expect("nobody uses it");
    assert_eq!((known("volume:one").await, known("volume:two").await), (None, None));
    remove("volume:one").await.expect("what is gone is gone");
}

pub async fn users_and_capabilities_are_applied(node: Node) {
    let mut config = node.container("web", &["sleep", "1000"]);
    security(&mut config).run_as_username = "web".to_owned();
    security(&mut config).supplemental_groups = vec![1234];
    let (_, id) = node.run("web", config).await;
    assert_eq!(node.exec(&id, &["id", "-u"]).await.1, "33");
    assert_eq!(node.exec(&id, &["id", "-G"]).await.1, "33 4 1234");
    let user = async || node.status(&id).await.user.unwrap().linux.unwrap();
    let wanted = LinuxContainerUser { uid: 33, gid: 33, supplemental_groups: vec![4, 33, 1234] };
    assert_eq!(user().await, wanted);
    node.restart().await;
    assert_eq!(user().await, wanted, "another daemon knows it, too");
    let status = node.exec(&id, &["cat", "/proc/self/status"]).await.1;
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert_ne!(node.exec(&id, &["touch", "/root/x"]).await.0, 0);

    let mut config = node.container("caps", &["sleep", "1000"]);
    security(&mut config).capabilities = Some(Capability {
        add_capabilities: vec!["NET_ADMIN".into()],
        drop_capabilities: vec!["ALL".into()],
        ..Capability::default()
    });
    let (_, id) = node.run("caps", config).await;
    let status = node.exec(&id, &["cat", "/proc/1/status"]).await.1;
    assert!(
        status.contains("CapEff:\t0000000000001000") && status.contains("CapBnd:\t0000000000001000"),
        "{status}"
    );
}

pub async fn privileged_container_has_host_devices(node: Node) {
    let mut config = node.container("mighty", &["sleep", "1000"]);
    security(&mut config).privileged = true;
    let (_, id) = node.run("mighty", config).await;
    assert_eq!(node.exec(&id, &["mount", "-t", "tmpfs", "none", "/tmp"]).await.0, 0);
    assert_eq!(node.exec(&id, &["test", "-c", "/dev/kmsg"]).await.0, 0);
    let status = node.exec(&id, &["cat", "/proc/self/status"]).await.1;
    assert!(status.contains("Seccomp:\t0"), "{status}");
}

pub async fn pods_reach_each_other(node: Node) {
    let serve = "echo hello > /tmp/index.html; exec httpd -f -p 8080 -h /tmp";
    let (pod, _) = node.run("server", node.container("server", &["sh", "-c", serve])).await;
    let status = PodSandboxStatusRequest { pod_sandbox_id: pod, verbose: false };
    let status =
        node.cri.clone().runtime.pod_sandbox_status(status).await.unwrap().into_inner().status.unwrap();
    let ip = status.network.unwrap().ip;
    let command = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {ip} 8080");
    let (_, client) = node.run("client", node.container("client", &["sleep", "1000"])).await;
    node.until("an answer", async || {
        let (code, out, err) = node.exec(&client, &["sh", "-c", &command]).await;
        if code == 0 && out.ends_with("hello") { Ok(()) } else { Err(format!("{code} {out} {err}")) }
    })
    .await;
    // The node reaches its pods without address translation.
    tokio::net::TcpStream::connect(format!("{ip}:8080")).await.expect("from the node");
}
