//! `ferry up --nodes 2` with an image; removed at the end of the test.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{ferry, names};
use testbase::blocking::Kubectl;
pub use testbase::blocking::until;
use testbase::images;
pub use testbase::programs::{has, run};

pub const IMAGE: &str = "docker.io/test/busybox:1";
const ENDING: Duration = Duration::from_secs(30);
const ONE_REQUEST: Duration = Duration::from_secs(5);

pub struct Cluster {
    directory: tempfile::TempDir,
    process: Child,
    kubectl: Kubectl,
}

/// Address ranges of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    pub services: &'static str,
    pub pods: &'static str,
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_in(Ranges { services: "10.96.0.0/12,fd96::/112", pods: "10.244.0.0/16,fd44::/56" })
    }

    pub fn start_in(ranges: Ranges) -> Self {
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let directory = tempfile::tempdir().expect("a directory");
        let log = fs::File::create(directory.path().join("up.log")).expect("a log");
        let mut up = ferry(&["up", "--nodes", "2", "--hostname-override", "n", "--cgroup-root"]);
        up.arg(format!("/ferry-test-{}", std::process::id()))
            .arg("--data-dir")
            .arg(directory.path().join("data"));
        up.args(["--service-cluster-ip-range", ranges.services, "--cluster-cidr", ranges.pods]);
        let process = up.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("ferry runs");
        let kubectl = Kubectl::new(directory.path().join("data/kubeconfig"), directory.path());
        let cluster = Self { directory, process, kubectl };
        until("both nodes are ready", || {
            let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
            match cluster.try_kubectl(&["get", "nodes", "-o", ready]) {
                Ok(text) if text == "True True" => Ok(()),
                other => Err(format!("{other:?}\n{}", cluster.log())),
            }
        });
        let image = images::make(
            cluster.directory.path(),
            IMAGE,
            &["/bin/sleep", "100000"],
            &names::programs_of_debian(),
        );
        run(ferry(&["images", "import", "--data-dir"]).arg(cluster.data()).arg(image));
        cluster
    }

    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Network namespace of the second node.
    pub fn second(&self) -> PathBuf {
        self.data().join("nodes/n-2/netns")
    }

    pub fn log(&self) -> String {
        let tail = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("access:")).collect();
            lines[lines.len().saturating_sub(30)..].join("\n")
        };
        let (first, second) = (self.directory.path().join("up.log"), self.data().join("nodes/n-2/agent.log"));
        format!("{}\n--- second node\n{}", tail(first), tail(second))
    }

    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl.attempt(arguments).map(|text| text.trim().to_owned())
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}\n{}", self.log()))
    }

    pub fn apply(&self, manifest: &str) {
        self.kubectl.apply(manifest).unwrap_or_else(|error| panic!("{error}\n{manifest}\n{}", self.log()));
    }

    /// Names of a deployment's ready pods, with their nodes.
    pub fn ready_pods(&self, app: &str) -> Vec<(String, String)> {
        let template = "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} \
                        {.status.conditions[?(@.type==\"Ready\")].status} {.metadata.deletionTimestamp}{\"\\n\"}{end}";
        let text = self.try_kubectl(&["get", "pods", "-l", &format!("app={app}"), "-o", template]);
        let text = text.unwrap_or_default();
        let pods = text.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        pods.filter(|words| words.get(2).is_some_and(|ready| ready == "True"))
            .filter(|words| words.get(3).is_none_or(String::is_empty))
            .map(|words| (words[0].clone(), words[1].clone()))
            .collect()
    }

    pub fn wait_for_pods(&self, app: &str, count: usize) -> Vec<(String, String)> {
        until(&format!("{count} pods of {app} are ready"), || {
            let pods = self.ready_pods(app);
            if pods.len() == count {
                return Ok(pods);
            }
            let all = self.try_kubectl(&["get", "pods", "-o", "wide"]).unwrap_or_default();
            Err(format!("{all}\n{}", self.log()))
        })
    }

    /// Output of a command in a pod; retried, since service rules may not be applied yet.
    pub fn inside(&self, pod: &str, command: &str) -> Result<String, String> {
        self.try_kubectl(&["exec", pod, "--", "sh", "-c", command])
    }
}

/// Last line of an HTTP server's response.
pub fn ask(address: &str) -> Result<String, String> {
    let address: SocketAddr = address.parse().map_err(|error| format!("{address}: {error}"))?;
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, ONE_REQUEST).map_err(text)?;
    stream.set_read_timeout(Some(ONE_REQUEST)).map_err(text)?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    let last = answer.lines().last().map(str::to_owned);
    last.filter(|_| answer.starts_with("HTTP/1") && answer.contains(" 200 ")).ok_or(answer)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let begun = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && begun.elapsed() < ENDING {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let reset = ferry(&["reset", "--yes", "--data-dir"]).arg(self.data()).output();
        if let Ok(output) = &reset
            && !output.status.success()
        {
            eprintln!("reset: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
