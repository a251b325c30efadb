//! The runtime with real containers: this program is the daemon, and re-executes itself as shim and network plugin.
//!
//! Everything runs in separate mount and network namespaces, so that nothing is left behind.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use base::tasks::TaskGroup;
use container::{Config, Runtime};
use cri::v1::*;
use sys::mounts::{MountPropagationFlags, propagate};
use sys::process::Namespace;

mod battery;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, _)) if first == container::shim::SUBCOMMAND => return container::shim::main(),
        Some((first, _)) if first == container::network::SUBCOMMAND => return network::cni::main(),
        _ => {}
    }
    if let [first, root] = arguments.as_slice()
        && first == "daemon"
    {
        return daemon(Path::new(root));
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/bin/busybox").exists() {
        println!("skipped: containers need root, and the tests busybox");
        return ExitCode::SUCCESS;
    }
    sys::process::unshare(&[Namespace::Mount, Namespace::Network]).expect("namespaces for the tests");
    for flags in [MountPropagationFlags::PRIVATE, MountPropagationFlags::SHARED] {
        propagate(Path::new("/"), flags | MountPropagationFlags::REC).expect("mounts of the tests' own");
    }
    sys::netlink::Netlink::open().and_then(|mut netlink| netlink.set_up("lo")).expect("loopback");
    let version_2 = std::env::var_os(VERSION_2).is_some();
    if version_2 {
        only_version_2();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let (mut failed, mut passed) = (0, 0);
    let chosen = battery::TESTS
        .iter()
        .filter(|(name, _)| name.contains(&wanted) && (!version_2 || battery::ON_VERSION_2.contains(name)));
    for (name, test) in chosen {
        let begin = Instant::now();
        let outcome = tokio::task::LocalSet::new().block_on(&runtime, async {
            let node = Node::start().await;
            let handle = tokio::task::spawn_local(test(node.clone()));
            // A run with a higher number of kills has a longer time limit.
            let patience = if std::env::var_os(battery::KILLS).is_some() { 3600 } else { 300 };
            let bounded = tokio::time::timeout(Duration::from_secs(patience), handle).await;
            let left = node.clean_up().await;
            match bounded {
                Ok(Ok(())) => left,
                Ok(Err(panic)) => Err(format!("{panic}; {left:?}")),
                Err(_) => Err(format!("it took longer than {patience} seconds")),
            }
        });
        let time = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("test {name} ... ok <{time:.3}s>");
            }
            Err(reason) => {
                failed += 1;
                println!("test {name} ... FAILED: {reason}");
            }
        }
    }
    println!("test result: {passed} passed; {failed} failed");
    if !version_2 && battery::ON_VERSION_2.iter().any(|name| name.contains(&wanted)) {
        println!("once more, with control groups of version 2:");
        let again = Command::new("/proc/self/exe").args(&arguments).env(VERSION_2, "1").status();
        failed += usize::from(!again.expect("the tests run").success());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Time limit for any operation on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Set for the tests that run with cgroup v2 only.
const VERSION_2: &str = "FERRY_TEST_CGROUP_VERSION_2";

/// Removes cgroup v1 from the tests' mount namespace.
fn only_version_2() {
    let mount_point = Path::new("/sys/fs/cgroup");
    let mounted: Vec<_> = sys::mounts::list().expect("mounts");
    for mount in mounted.iter().rev().filter(|mount| mount.filesystem.starts_with("cgroup")) {
        sys::mounts::unmount(&mount.target).expect("unmounted");
    }
    let flags = sys::mounts::MountFlags::empty();
    sys::mounts::mount("cgroup2", mount_point, "cgroup2", flags, "").expect("version 2");
}

/// A separate daemon, for tests that kill it.
fn daemon(root: &Path) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    runtime.block_on(async {
        let _tasks = serve(root).await;
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}

/// A runtime with its directory and a client.
#[derive(Clone)]
pub struct Node {
    pub root: PathBuf,
    pub cri: cri::Runtime,
    pub daemon: std::sync::Arc<parking_lot::Mutex<TaskGroup>>,
    pub cgroup: String,
}

pub async fn serve(root: &Path) -> TaskGroup {
    let tasks = TaskGroup::new();
    let mut config = Config::new(root.join("state"));
    config.cni_configurations = root.join("net.d");
    config.cdi_directories = vec![root.join("cdi")];
    config.pod_ranges = vec!["10.222.0.0/24".to_owned()];
    config.registries = root.join("registries.yaml");
    let runtime = Runtime::open(config, tasks.clone()).expect("the runtime opens");
    let (images, archive) = (std::sync::Arc::clone(runtime.images()), root.join("busybox.tar"));
    if images.find("busybox:test").is_none() {
        tokio::task::spawn_blocking(move || images.import(&archive))
            .await
            .unwrap()
            .expect("the image is imported");
    }
    let listener = cri::server::bind(&root.join("cri.sock")).expect("a socket");
    tasks.spawn(async move { runtime.serve(listener).await });
    tasks
}

impl Node {
    async fn start() -> Self {
        let root = tempfile::tempdir().expect("a directory").keep();
        battery::image::busybox(&root.join("busybox.tar"), "busybox:test");
        let tasks = serve(&root).await;
        let address = root.join("cri.sock").display().to_string();
        let cri = cri::connect(&address, Duration::from_secs(10)).await.expect("a connection");
        let cgroup = format!("/ferry-test-{}", root.file_name().unwrap().to_string_lossy().replace('.', ""));
        let daemon = std::sync::Arc::new(parking_lot::Mutex::new(tasks));
        Self { root, cri, daemon, cgroup }
    }

    /// Stops the daemon, not its containers, and starts another.
    pub async fn restart(&self) {
        let before = self.daemon.lock().clone();
        let _ = before.drain(Duration::from_secs(5)).await;
        let tasks = serve(&self.root).await;
        *self.daemon.lock() = tasks;
    }

    /// Removes everything and returns what is left.
    async fn clean_up(&self) -> Result<(), String> {
        let mut cri = self.cri.clone();
        let sandboxes = cri.runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await;
        for sandbox in sandboxes.map(|answer| answer.into_inner().items).unwrap_or_default() {
            let request = RemovePodSandboxRequest { pod_sandbox_id: sandbox.id };
            cri.runtime
                .remove_pod_sandbox(request)
                .await
                .map_err(|error| format!("remove a sandbox: {error}"))?;
        }
        let tasks = self.daemon.lock().clone();
        let _ = tasks.drain(Duration::from_secs(5)).await;
        let mut left = Vec::new();
        // The tmpfs outlives the tests; private data of containers does not.
        let private = self.root.join("state/private");
        let entries = std::fs::read_dir(&private).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| format!("private/{}", entry.file_name().to_string_lossy())));
        sys::mounts::unmount(&private).map_err(|error| format!("unmount {}: {error}", private.display()))?;
        let mounts = sys::mounts::list().unwrap_or_default();
        left.extend(
            mounts
                .iter()
                .filter(|mount| mount.target.starts_with(&self.root))
                .map(|mount| format!("{mount:?}")),
        );
        let mut netlink = sys::netlink::Netlink::open().map_err(|error| error.to_string())?;
        let links = netlink.links().map_err(|error| error.to_string())?;
        left.extend(links.iter().filter(|link| link.name.starts_with("fe-")).map(|link| format!("{link:?}")));
        for mount_point in ["containers", "sandboxes", "addresses"] {
            for entry in
                std::fs::read_dir(self.root.join("state").join(mount_point)).into_iter().flatten().flatten()
            {
                let name = entry.file_name().to_string_lossy().into_owned();
                if !["lock", "last4"].contains(&name.as_str()) {
                    left.push(format!("{mount_point}/{name}"));
                }
            }
        }
        let group = sys::cgroups::Hierarchy::detect().unwrap().group(&self.cgroup).unwrap();
        let processes = group.processes().unwrap_or_default();
        if !processes.is_empty() {
            left.push(format!("processes {processes:?}"));
            let _ = group.kill(Duration::from_secs(5));
        }
        let directories = group.directories();
        // The pods' cgroups belong to the caller, here the test; their children do not.
        let pods =
            directories.iter().flat_map(std::fs::read_dir).flatten().flatten().map(|entry| entry.path());
        let below = pods.filter(|path| path.is_dir()).flat_map(std::fs::read_dir).flatten().flatten();
        left.extend(below.filter(|entry| entry.path().is_dir()).map(|entry| format!("{:?}", entry.path())));
        group.remove().map_err(|error| error.to_string())?;
        std::fs::remove_dir_all(&self.root).map_err(|error| format!("remove the directory: {error}"))?;
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {left:#?}")) }
    }

    pub fn pod(&self, name: &str) -> PodSandboxConfig {
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: self.root.join("logs").join(name).display().to_string(),
            labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/pod-{name}", self.cgroup),
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(NamespaceOption {
                        pid: NamespaceMode::Container.into(),
                        ..NamespaceOption::default()
                    }),
                    ..LinuxSandboxSecurityContext::default()
                }),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    pub fn container(&self, name: &str, command: &[&str]) -> ContainerConfig {
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(ImageSpec { image: "busybox:test".to_owned(), ..ImageSpec::default() }),
            command: command.iter().map(|&part| part.to_owned()).collect(),
            log_path: format!("{name}.log"),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    namespace_options: Some(NamespaceOption {
                        pid: NamespaceMode::Container.into(),
                        ..NamespaceOption::default()
                    }),
                    masked_paths: vec!["/proc/kcore".to_owned(), "/sys/firmware".to_owned()],
                    readonly_paths: vec!["/proc/sys".to_owned()],
                    no_new_privs: true,
                    seccomp: Some(SecurityProfile::default()),
                    ..LinuxContainerSecurityContext::default()
                }),
                ..LinuxContainerConfig::default()
            }),
            ..ContainerConfig::default()
        }
    }

    pub async fn run_pod(&self, config: &PodSandboxConfig) -> String {
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        self.cri
            .clone()
            .runtime
            .run_pod_sandbox(request)
            .await
            .expect("a sandbox")
            .into_inner()
            .pod_sandbox_id
    }

    pub async fn create(&self, pod: &str, pod_config: &PodSandboxConfig, config: ContainerConfig) -> String {
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(pod_config.clone()),
        };
        self.cri
            .clone()
            .runtime
            .create_container(request)
            .await
            .expect("a container")
            .into_inner()
            .container_id
    }

    /// Creates a container that must fail, in a pod that is removed again; returns the error.
    pub async fn refused(&self, pod: &str, config: ContainerConfig) -> String {
        let pod_config = self.pod(pod);
        let pod = self.run_pod(&pod_config).await;
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(config),
            sandbox_config: Some(pod_config),
        };
        let refused = self.cri.clone().runtime.create_container(request).await;
        self.remove_pod(&pod).await;
        refused.expect_err("the container is refused").message().to_owned()
    }

    pub async fn start_container(&self, id: &str) {
        let request = StartContainerRequest { container_id: id.to_owned() };
        self.cri.clone().runtime.start_container(request).await.expect("the container starts");
    }

    /// A pod with one running container.
    pub async fn run(&self, name: &str, config: ContainerConfig) -> (String, String) {
        let pod_config = self.pod(name);
        let pod = self.run_pod(&pod_config).await;
        let container = self.create(&pod, &pod_config, config).await;
        self.start_container(&container).await;
        (pod, container)
    }

    pub async fn status(&self, id: &str) -> ContainerStatus {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        self.cri
            .clone()
            .runtime
            .container_status(request)
            .await
            .expect("a status")
            .into_inner()
            .status
            .unwrap()
    }

    pub async fn exited(&self, id: &str) -> ContainerStatus {
        self.until(&format!("container {id} exits"), async || {
            let status = self.status(id).await;
            if status.state() == ContainerState::ContainerExited {
                Ok(status)
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await
    }

    /// Waits for a condition; on timeout reports the last observation.
    pub async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Result<T, String>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            match look().await {
                Ok(seen) => return seen,
                Err(seen) if Instant::now() > end => {
                    panic!("{what}: not within {PATIENCE:?}; last seen: {seen}")
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    pub async fn exec(&self, id: &str, command: &[&str]) -> (i32, String, String) {
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&part| part.to_owned()).collect(),
            timeout: 30,
        };
        let answer = self.cri.clone().runtime.exec_sync(request).await.expect("exec").into_inner();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (answer.exit_code, text(&answer.stdout), text(&answer.stderr))
    }

    /// The lines of a log, without timestamps.
    pub fn log(&self, pod: &str, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.root.join("logs").join(pod).join(format!("{name}.log")));
        text.unwrap_or_default()
            .lines()
            .map(|line| line.split_once(' ').map_or("", |(_, rest)| rest).to_owned())
            .collect()
    }
}

pub type Test = fn(Node) -> std::pin::Pin<Box<dyn Future<Output = ()>>>;
