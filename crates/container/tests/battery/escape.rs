//! Attempts to escape from a container with what Pod Security `baseline` allows: root, the default capabilities, the
//! default seccomp profile, privilege escalation.

use std::path::Path;

use cri::v1::*;

use super::image::{self, Entry};
use crate::Node;
use testbase::escape_table::{CAPABILITIES, LINKS, MASKED, MOUNTS, REFUSED, TARGETS, WRITES};

const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn baseline(node: &Node, name: &str, command: &[&str]) -> ContainerConfig {
    let mut config = node.container(name, command);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.no_new_privs = false;
    security.masked_paths = MASKED.iter().map(|&path| path.to_owned()).collect();
    security.readonly_paths = READ_ONLY.iter().map(|&path| path.to_owned()).collect();
    config
}

fn mount(target: &str, source: &Path) -> Mount {
    Mount { container_path: target.to_owned(), host_path: source.display().to_string(), ..Mount::default() }
}

/// Error of a container that does not start; its pod is removed again.
async fn start_error(node: &Node, name: &str, config: ContainerConfig) -> Result<String, String> {
    let pod_config = node.pod(name);
    let pod = node.run_pod(&pod_config).await;
    let container_id = node.create(&pod, &pod_config, config).await;
    let request = StartContainerRequest { container_id };
    let started = node.cri.clone().runtime.start_container(request).await;
    node.remove_pod(&pod).await;
    match started {
        Ok(_) => Err("the container was started".to_owned()),
        Err(status) => Ok(status.message().to_owned()),
    }
}

/// CVE-2025-31133, CVE-2025-52881: a volume over a part of `/proc` or `/sys`, by its name or through a link of the image.
pub async fn cve_2025_31133_volume_in_proc_or_sys_is_rejected(node: Node) {
    let program = std::fs::read("/bin/busybox").unwrap();
    let mut entries: Vec<Entry<'_>> = vec![
        ("bin/", 0o755, b""),
        ("bin/busybox", 0o755, &program),
        ("bin/sh", 0, b"busybox"),
        ("bin/sleep", 0, b"busybox"),
        ("deep/", 0o755, b""),
    ];
    entries.extend(LINKS.iter().map(|(name, to)| (*name, 0, to.as_bytes())));
    node.import("escape:links", &[image::layer(&entries)]).await.unwrap();
    let directory = node.root.join("volume");
    std::fs::create_dir(&directory).unwrap();
    let file = node.root.join("status");
    std::fs::write(&file, format!("CapBnd:\t{CAPABILITIES}\n")).unwrap();
    for (at, (target, is_file)) in TARGETS.iter().enumerate() {
        let source = if *is_file { &file } else { &directory };
        let name = format!("escape-{at}");
        let mut config = baseline(&node, &name, &["/bin/sleep", "1000"]);
        config.image = Some(ImageSpec { image: "escape:links".into(), ..ImageSpec::default() });
        config.mounts = vec![mount(target, source)];
        let error = start_error(&node, &name, config).await.unwrap_or_else(|ok| panic!("{target}: {ok}"));
        assert!(error.contains(REFUSED), "{target}: {error}");
    }
    let mut config = baseline(&node, "root", &["/bin/sleep", "1000"]);
    config.mounts = vec![mount("/", &directory)];
    let error = start_error(&node, "root", config).await.expect("the root is not covered");
    assert!(error.contains("root of the container"), "{error}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing was made in the volume");
}

/// Mounts that runc allows stay possible: files that lxcfs emulates, and the host's own kernel file systems.
pub async fn proc_and_sys_allowed_mounts_work(node: Node) {
    let file = node.root.join("cpuinfo");
    std::fs::write(&file, "emulated\n").unwrap();
    let mut config = baseline(&node, "lxcfs", &["sleep", "1000"]);
    config.mounts = vec![mount("/proc/cpuinfo", &file), mount("/proc/uptime", &file)];
    let (_, id) = node.run("lxcfs", config).await;
    assert_eq!(node.exec(&id, &["cat", "/proc/cpuinfo", "/proc/uptime"]).await.1, "emulated\nemulated");
    let mut config = baseline(&node, "host", &["sleep", "1000"]);
    config.mounts = vec![mount("/proc", Path::new("/proc")), mount("/sys", Path::new("/sys"))];
    let (_, id) = node.run("host", config).await;
    assert_eq!(node.exec(&id, &["test", "-d", "/proc/1"]).await.0, 0);
    assert_ne!(node.exec(&id, &["sh", "-c", "echo x > /proc/sys/kernel/core_pattern"]).await.0, 0);
}

pub async fn masked_and_read_only_paths_hold(node: Node) {
    let pattern = std::fs::read("/proc/sys/kernel/core_pattern").unwrap();
    let (_, id) = node.run("masked", baseline(&node, "masked", &["sleep", "1000"])).await;
    for path in MASKED {
        let script =
            format!("if test -d {path}; then ls -A {path}; else cat {path} 2>/dev/null; fi | head -c 64");
        let (_, out, _) = node.exec(&id, &["sh", "-c", &script]).await;
        assert_eq!(out, "", "{path}");
    }
    for path in WRITES {
        let (code, ..) = node.exec(&id, &["sh", "-c", &format!("echo h > {path}")]).await;
        assert_ne!(code, 0, "{path}");
    }
    for script in MOUNTS {
        assert_ne!(node.exec(&id, &["sh", "-c", script]).await.0, 0, "{script}");
    }
    assert_eq!(std::fs::read("/proc/sys/kernel/core_pattern").unwrap(), pattern);
}

pub async fn bounding_set_has_default_capabilities(node: Node) {
    let (_, id) = node.run("bounding", baseline(&node, "bounding", &["sleep", "1000"])).await;
    for process in ["1", "self"] {
        let status = node.exec(&id, &["cat", &format!("/proc/{process}/status")]).await.1;
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert!(status.contains(&format!("{set}:\t{CAPABILITIES}")), "{process}: {status}");
        }
    }
}

/// CVE-2019-5736: the shims' binary cannot be written through `/proc/PID/exe`, even while no process runs it.
pub async fn cve_2019_5736_binary_of_shim_cannot_be_written(node: Node) {
    let (_, id) = node.run("exe", baseline(&node, "exe", &["sleep", "1000"])).await;
    let started = std::fs::read(node.root.join("state/containers").join(&id).join("started")).unwrap();
    let started: serde_json::Value = serde_json::from_slice(&started).unwrap();
    let exe = format!("/proc/{}/exe", started["shim_pid"]);
    assert!(std::fs::OpenOptions::new().write(true).open(&exe).is_err());
    // "Text file busy" holds only while a process runs the file.
    let mounted = rustix::fs::statvfs(&exe).unwrap().f_flag;
    assert!(mounted.contains(rustix::fs::StatVfsMountFlags::RDONLY), "{exe}: {mounted:?}");
    // A descriptor of the container's own grants no write access either.
    let script = "exec 9< /proc/self/exe; echo x > /proc/self/fd/9";
    assert_ne!(node.exec(&id, &["sh", "-c", script]).await.0, 0);
}

/// CVE-2024-21626: no descriptor of the shim reaches the program, and none serves as working directory.
pub async fn cve_2024_21626_descriptors_do_not_leak(node: Node) {
    let (_, id) = node.run("leak", baseline(&node, "leak", &["sleep", "1000"])).await;
    let open = node.exec(&id, &["ls", "/proc/1/fd"]).await.1;
    assert_eq!(open.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"]);
    let open =
        node.exec(&id, &["sh", "-c", "for fd in /proc/self/fd/*; do echo $(readlink $fd); done"]).await.1;
    assert!(open.lines().all(|line| !line.contains("state") && !line.contains("ferry")), "{open}");
    for fd in 3..24 {
        let name = format!("cwd-{fd}");
        let mut config = baseline(&node, &name, &["sleep", "1000"]);
        config.working_dir = format!("/proc/self/fd/{fd}");
        if let Err(started) = start_error(&node, &name, config).await {
            panic!("{fd}: {started}");
        }
    }
}

/// CVE-2025-52565: a terminal is opened on the container's devpts only, and by descriptor.
pub async fn cve_2025_52565_terminal_on_volume_is_rejected(node: Node) {
    for (name, target) in [("linked", "/proc/sysrq-trigger"), ("file", "")] {
        let volume = node.root.join(name);
        std::fs::create_dir(&volume).unwrap();
        if target.is_empty() {
            std::fs::write(volume.join("ptmx"), "").unwrap();
        } else {
            std::os::unix::fs::symlink(target, volume.join("ptmx")).unwrap();
        }
        let mut config = baseline(&node, name, &["sleep", "1000"]);
        config.tty = true;
        config.mounts = vec![mount("/dev/pts", &volume)];
        let error = start_error(&node, name, config).await.unwrap_or_else(|ok| panic!("{name}: {ok}"));
        assert!(error.contains("open a terminal"), "{name}: {error}");
    }
    let mut config = baseline(&node, "terminal", &["sh", "-c", "tty; test -e /dev/console || echo none"]);
    config.tty = true;
    let (_, id) = node.run("terminal", config).await;
    node.exited(&id).await;
    let seen = node.log("terminal", "terminal").join(" ");
    assert!(seen.contains("/dev/pts/0") && seen.contains("none"), "{seen}");
}
