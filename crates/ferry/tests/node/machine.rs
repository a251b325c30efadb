//! A control plane, a container runtime and a kubelet, each a process; all are stopped at the end of the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::ferry;
pub use testbase::blocking::until;
use testbase::blocking::{Kubectl, wait_until};
use testbase::images;
use testbase::programs::run;

pub const NODE: &str = "n1";
pub const IMAGE: &str = "docker.io/test/busybox:1";
const PAUSE: &str = "docker.io/test/pause:1";

/// Container runtime under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Containerd,
    /// `ferry runtime`.
    Own,
}

pub struct Machine {
    pub directory: tempfile::TempDir,
    engine: Engine,
    kubectl: Kubectl,
    processes: Vec<Child>,
}

impl Machine {
    pub fn start(engine: Engine) -> Self {
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        // Not a loopback address: the API server does not proxy to nodes at loopback addresses.
        run(Command::new("ip").args([
            "link",
            "add",
            "uplink",
            "type",
            "veth",
            "peer",
            "name",
            "uplink-peer",
        ]));
        run(Command::new("ip").args(["addr", "add", "192.0.2.1/24", "dev", "uplink"]));
        for link in ["uplink", "uplink-peer"] {
            run(Command::new("ip").args(["link", "set", link, "up"]));
        }
        let directory = tempfile::tempdir().expect("a directory");
        let kubectl = Kubectl::new(directory.path().join("control-plane/kubeconfig"), directory.path());
        let mut machine = Self { directory, engine, kubectl, processes: Vec::new() };
        match engine {
            Engine::Containerd => machine.start_containerd(),
            Engine::Own => machine.start_own_runtime(),
        }
        machine.start_server();
        machine.start_kubelet();
        until("the node is ready", || {
            let ready = "{.status.conditions[?(@.type==\"Ready\")].status}";
            match machine.try_kubectl(&["get", "node", NODE, "-o", &format!("jsonpath={ready}")]) {
                Ok(text) if text == "True" => Ok(()),
                other => Err(format!("{other:?}\n{}", machine.log("kubelet"))),
            }
        });
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn log(&self, name: &str) -> String {
        let text = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn spawn(&mut self, name: &str, command: &mut Command) {
        let log = fs::File::create(self.path(&format!("{name}.log"))).expect("a log");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        self.processes.push(child);
    }

    fn start_containerd(&mut self) {
        let root = self.directory.path().display().to_string();
        fs::create_dir_all(self.path("cni")).expect("a directory");
        let network = serde_json::json!({
            "cniVersion": "0.4.0",
            "name": "test",
            "plugins": [
                {"type": "bridge", "bridge": "test0", "isGateway": true, "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.99.0.0/24"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": format!("{root}/ipam")}},
                {"type": "loopback"}]});
        fs::write(self.path("cni/10.conflist"), network.to_string()).expect("a file");
        let config = format!(
            r#"version = 2
root = "{root}/containerd"
state = "{root}/containerd-state"
[grpc]
  address = "{root}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
"#
        );
        fs::write(self.path("containerd.toml"), config).expect("a file");
        let config = self.path("containerd.toml");
        self.spawn("containerd", Command::new("containerd").arg("-c").arg(config));
        let socket = self.path("containerd.sock");
        until("containerd answers", || {
            let mut version = Command::new("ctr");
            match version.arg("-a").arg(&socket).arg("version").output() {
                Ok(output) if output.status.success() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        for (name, command) in [(PAUSE, &["/bin/sleep", "1000000"][..]), (IMAGE, &["/bin/sh"])] {
            let file = images::make(self.directory.path(), name, command, &[]);
            run(Command::new("ctr")
                .arg("-a")
                .arg(&socket)
                .args(["-n", "k8s.io", "images", "import"])
                .arg(file));
        }
    }

    /// Socket of the container runtime.
    fn socket(&self) -> PathBuf {
        self.path(match self.engine {
            Engine::Containerd => "containerd.sock",
            Engine::Own => "own/runtime.sock",
        })
    }

    fn start_own_runtime(&mut self) {
        let (data, socket) = (self.path("own"), self.socket());
        let mut runtime = ferry(&["runtime", "--pod-cidr", "10.99.0.0/24", "--data-dir"]);
        runtime.arg(data);
        // Ignore the configuration of this machine.
        runtime
            .arg("--cni-conf-dir")
            .arg(self.path("cni"))
            .arg("--registries")
            .arg(self.path("registries.yaml"));
        self.spawn("runtime", &mut runtime);
        until("the runtime answers", || match ferry(&["images", "list", "--socket"]).arg(&socket).output() {
            Ok(output) if output.status.success() => Ok(()),
            other => Err(format!("{other:?}\n{}", self.log("runtime"))),
        });
        let file = images::make(self.directory.path(), IMAGE, &["/bin/sh"], &[]);
        run(ferry(&["images", "import", "--socket"]).arg(&socket).arg(file));
    }

    fn start_server(&mut self) {
        let data = self.path("control-plane");
        let mut server = ferry(&["server", "--listen", "127.0.0.1:0", "--data-dir"]);
        self.spawn("server", server.arg(data));
        until("the control plane is ready", || match self.try_kubectl(&["get", "--raw", "/readyz"]) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{error}\n{}", self.log("server"))),
        });
    }

    fn start_kubelet(&mut self) {
        let data = self.path("node");
        let mut kubelet =
            ferry(&["kubelet", "--hostname-override", NODE, "--kubelet-listen", "0.0.0.0:0", "--data-dir"]);
        kubelet.arg(data);
        let authority = self.path("control-plane/pki/client-ca.crt");
        let runtime = format!("unix://{}", self.socket().display());
        match self.engine {
            Engine::Containerd => {
                kubelet.arg("--kubeconfig").arg(self.kubeconfig()).arg("--client-ca-file").arg(authority);
                kubelet.arg("--container-runtime-endpoint").arg(runtime);
            }
            // Like node setup tools: with a configuration file, and a token instead of a certificate.
            Engine::Own => {
                let file = self.path("kubelet.yaml");
                let configuration = serde_json::json!({
                    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
                    "authentication": {"x509": {"clientCAFile": authority}},
                    "containerRuntimeEndpoint": runtime, "maxPods": 42, "serverTLSBootstrap": true,
                });
                fs::write(&file, configuration.to_string()).expect("a file");
                kubelet.arg("--config").arg(file).arg("--kubeconfig").arg(self.path("node.kubeconfig"));
                kubelet.arg("--bootstrap-kubeconfig").arg(self.bootstrap());
            }
        }
        self.spawn("kubelet", &mut kubelet);
    }

    /// Kubeconfig with a bootstrap token.
    fn bootstrap(&self) -> PathBuf {
        let file = self.path("bootstrap.kubeconfig");
        if file.exists() {
            return file;
        }
        let made = ferry(&["token", "create", "--quiet", "--kubeconfig"]).arg(self.kubeconfig()).output();
        let made = made.expect("ferry runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let token = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let cluster = |field: &str| {
            let path = format!("jsonpath={{.clusters[0].cluster.{field}}}");
            self.kubectl(&["config", "view", "--raw", "-o", &path])
        };
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "b",
            "clusters": [{"name": "b", "cluster": {
                "server": cluster("server"), "certificate-authority-data": cluster("certificate-authority-data")}}],
            "contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}],
            "users": [{"name": "b", "user": {"token": token}}],
        });
        fs::write(&file, config.to_string()).expect("a file");
        file
    }

    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Kills the kubelet and starts another.
    pub fn replace_kubelet(&mut self) {
        if let Some(mut kubelet) = self.processes.pop() {
            kubelet.kill().expect("it ran");
            kubelet.wait().expect("it ended");
        }
        self.start_kubelet();
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.path("control-plane/kubeconfig")
    }

    pub fn node_directory(&self) -> PathBuf {
        self.path("node/kubelet/pods")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        self.kubectl.command(arguments)
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.kubectl.output(arguments)
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl.attempt(arguments)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}\n{}", self.log("kubelet")))
    }

    pub fn apply(&self, manifest: &str) {
        let outcome = self.kubectl.apply(manifest);
        outcome.unwrap_or_else(|error| panic!("{error}\n{}", self.log("kubelet")));
    }

    /// Waits until a pod's field has the expected value.
    pub fn wait_for(&self, pod: &str, field: &str, wanted: &str) {
        let (object, what) = (format!("pod/{pod}"), format!("is {wanted:?}"));
        let log = || self.log("kubelet");
        wait_until(&self.kubectl, (&object, field), &what, |text| text == wanted, log);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Delete pods first, while the kubelet can stop them.
        let _ = self.output(&["delete", "pods", "--all", "-A", "--grace-period=1", "--timeout=30s"]);
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        end_shims(self.directory.path());
        // Their mounts disappear with the mount namespace of the test; until then they block the removal.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        for target in below.filter(|target| target.starts_with(self.directory.path())) {
            let _ = rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Shims outlive the runtime; those of this test have its directory on their command line.
fn end_shims(directory: &Path) {
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let mark = directory.display().to_string();
    for entry in entries.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if (line.contains("containerd-shim") || line.contains("\0shim\0"))
            && line.contains(&mark)
            && let Some(process) = rustix::process::Pid::from_raw(id)
        {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}
