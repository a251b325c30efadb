//! The machine's address, resolver configuration and host name change while a cluster with two nodes runs. The second
//! node is an agent in a network namespace at the other end of a veth pair; no namespace has a route out.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Signal;
use testbase::blocking::Kubectl;
use testbase::images;
use testbase::programs::{command, run as run_program};

use super::ferry;
use super::machine::{IMAGE, end, until};

const PORT: &str = "6443";

struct Cluster {
    root: tempfile::TempDir,
    kubectl: Kubectl,
    server: Child,
    agent: Option<Child>,
}

fn ip(arguments: &str) {
    run_program(Command::new("ip").args(arguments.split(' ')));
}

impl Cluster {
    fn namespace(&self) -> PathBuf {
        self.root.path().join("agent-network")
    }

    fn log_file(root: &Path, name: &str) -> fs::File {
        fs::File::create(root.join(format!("{name}.log"))).expect("a log")
    }

    /// Starts the server in a UTS namespace with the host name `first`.
    fn start(cgroup: &str) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let namespace = root.path().join("agent-network");
        fs::write(&namespace, "").expect("written");
        run_program(Command::new("unshare").arg(format!("--net={}", namespace.display())).arg("true"));
        ip("link add s0 type veth peer name a0");
        ip(&format!("link set a0 netns {}", namespace.display()));
        ip("address add 10.77.0.77/24 dev s0");
        ip("link set s0 up");
        let resolv_conf = root.path().join("resolv.conf");
        fs::write(&resolv_conf, "nameserver 127.0.0.11\n").expect("written");
        run_program(Command::new("mount").arg("--bind").arg(&resolv_conf).arg("/etc/resolv.conf"));
        let data = root.path().join("data");
        let log = Self::log_file(root.path(), "server");
        let server = command("unshare", &["--uts", "sh", "-c", "hostname first && exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_ferry"))
            .args(["up", "--listen", &format!("0.0.0.0:{PORT}"), "--cgroup-root", cgroup, "--data-dir"])
            .arg(&data)
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("ferry runs");
        let kubectl = Kubectl::new(data.join("kubeconfig"), root.path());
        let cluster = Self { root, kubectl, server, agent: None };
        cluster.in_agent("ip link set lo up");
        cluster.in_agent("ip address add 10.77.0.2/24 dev a0");
        cluster.in_agent("ip link set a0 up");
        cluster.wait_for_ready("first");
        cluster
    }

    fn in_agent(&self, line: &str) {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net={}", self.namespace().display()));
        run_program(nsenter.args(line.split(' ')));
    }

    fn join(&mut self, cgroup: &str) {
        let data = self.root.path().join("data");
        let token = ferry(&["token", "create", "--data-dir"]).arg(&data).output().expect("ferry runs");
        let text = String::from_utf8_lossy(&token.stdout).into_owned();
        let is_token = |word: &&str| word.len() == 23 && word.as_bytes()[6] == b'.';
        let token = text.split_whitespace().find(is_token).unwrap_or_else(|| panic!("no token: {text}"));
        let log = Self::log_file(self.root.path(), "agent");
        let agent = ferry(&["agent", "--server", &format!("https://10.77.0.77:{PORT}"), "--token", token])
            .args(["--hostname-override", "second", "--cgroup-root", &format!("{cgroup}-agent")])
            .arg("--network-namespace")
            .arg(self.namespace())
            .arg("--data-dir")
            .arg(self.root.path().join("agent"))
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("ferry runs");
        self.agent = Some(agent);
        self.wait_for_ready("second");
        let archive = images::make(self.root.path(), IMAGE, &["/bin/sh"], &[]);
        for directory in ["data", "agent"] {
            let mut import = ferry(&["images", "import", "--data-dir"]);
            run_program(import.arg(self.root.path().join(directory)).arg(&archive));
        }
    }

    fn log(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.root.path().join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!("--- server\n{}\n--- agent\n{}", tail("server"), tail("agent"))
    }

    /// Waits until kubectl prints the expected text.
    fn wait_for(&self, what: &str, arguments: &[&str], wanted: &str) {
        until(what, || match self.kubectl.attempt(arguments) {
            Ok(text) if text.trim() == wanted => Ok(()),
            other => Err(format!("{other:?}, not {wanted:?}\n{}", self.log())),
        });
    }

    fn wait_for_ready(&self, node: &str) {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        self.wait_for(&format!("{node} is ready"), &["get", "node", node, "-o", ready], "True");
    }

    fn wait_for_address(&self, node: &str, kind: &str, wanted: &str) {
        let path = format!("jsonpath={{.status.addresses[?(@.type==\"{kind}\")].address}}");
        self.wait_for(&format!("{kind} of {node}"), &["get", "node", node, "-o", &path], wanted);
    }

    fn start_pod(&self, name: &str, node: &str) {
        let manifest = format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, "echo started; mkdir -p /tmp/w; echo {name} > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"]
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  selector: {{app: {name}}}
  ports: [{{port: 80, targetPort: 8080}}]
"#
        );
        self.kubectl.apply(&manifest).unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        let phase = ["get", "pod", name, "-o", "jsonpath={.status.phase}"];
        self.wait_for(&format!("pod {name} runs"), &phase, "Running");
    }

    /// Logs, exec, and services by their names work between both nodes.
    fn works(&self, when: &str) {
        for (from, to) in [("one", "two"), ("two", "one")] {
            self.wait_for(&format!("logs of {from} {when}"), &["logs", from], "started");
            let get = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {to} 80 | tail -n 1");
            let exec = ["exec", from, "--", "sh", "-c", &get];
            self.wait_for(&format!("{from} reaches the service {to} {when}"), &exec, to);
            let api =
                ["exec", from, "--", "sh", "-c", "nc -w 3 kubernetes 443 < /dev/null && echo connected"];
            self.wait_for(&format!("{from} reaches the API {when}"), &api, "connected");
        }
    }

    fn endpoints(&self, wanted: &str) {
        let slice = ["get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[*]}"];
        self.wait_for("the endpoint of the API server", &slice, wanted);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.agent.iter_mut().chain([&mut self.server]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Replies to every query with one IPv4 address.
fn name_server(at: &str, answer: [u8; 4]) {
    let socket = UdpSocket::bind(at).expect("a port");
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut query) {
            let mut name_end = 12;
            while name_end < length && query[name_end] != 0 {
                name_end += usize::from(query[name_end]) + 1;
            }
            let mut reply = query[..name_end + 5].to_vec();
            reply[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            reply.extend(answer);
            let _ = socket.send_to(&reply, client);
        }
    });
}

/// Resolves a name outside the cluster through cluster DNS at the node's address.
fn resolve(server: &str, name: &str) -> Result<[u8; 4], String> {
    let text = |error: std::io::Error| error.to_string();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(text)?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).map_err(text)?;
    let mut query = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).map_err(|error| error.to_string())?);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let server: SocketAddr = format!("{server}:10053").parse().map_err(|_| "no address".to_owned())?;
    socket.send_to(&query, server).map_err(text)?;
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).map_err(text)?;
    if reply[3] & 15 != 0 {
        return Err(format!("response code {}", reply[3] & 15));
    }
    reply[..length].last_chunk::<4>().copied().ok_or_else(|| "short reply".to_owned())
}

pub fn run(cgroup: &str) {
    // Before sockets are bound to its addresses: replies of those bound earlier have another source address.
    ip("link set lo up");
    name_server("127.0.0.11:53", [192, 0, 2, 11]);
    name_server("127.0.0.12:53", [192, 0, 2, 12]);
    let mut cluster = Cluster::start(cgroup);
    cluster.join(cgroup);
    cluster.start_pod("one", "first");
    cluster.start_pod("two", "second");
    cluster.works("before any change");
    cluster.endpoints("10.77.0.77");
    let resolves = |server: &str, name: &str, wanted: [u8; 4]| {
        until(&format!("{name} is resolved"), || match resolve(server, name) {
            Ok(address) if address == wanted => Ok(()),
            other => Err(format!("{other:?}, not {wanted:?}\n{}", cluster.log())),
        });
    };
    resolves("10.77.0.77", "a.example", [192, 0, 2, 11]);

    fs::write(cluster.root.path().join("resolv.conf"), "nameserver 127.0.0.12\n").expect("written");
    resolves("10.77.0.77", "b.example", [192, 0, 2, 12]);

    ip("address del 10.77.0.77/24 dev s0");
    ip("address add 10.77.0.88/24 dev s0");
    cluster.wait_for_address("first", "InternalIP", "10.77.0.88");
    cluster.endpoints("10.77.0.88");
    cluster.works("after the server's address changed");
    resolves("10.77.0.88", "c.example", [192, 0, 2, 12]);
    // Only an agent that is connected to the new address starts pods.
    cluster.start_pod("three", "second");

    cluster.in_agent("ip address del 10.77.0.2/24 dev a0");
    cluster.in_agent("ip address add 10.77.0.3/24 dev a0");
    cluster.wait_for_address("second", "InternalIP", "10.77.0.3");
    cluster.works("after the agent's address changed");

    let pid = cluster.server.id().to_string();
    run_program(Command::new("nsenter").args(["--target", &pid, "--uts", "hostname", "renamed"]));
    cluster.wait_for_address("first", "Hostname", "renamed");
    let names = ["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"];
    cluster.wait_for("names of nodes", &names, "first second");
    for node in ["first", "second"] {
        cluster.wait_for_ready(node);
    }
    let mut agent = cluster.agent.take().expect("it runs");
    let ended = [&mut agent, &mut cluster.server].map(|child| end(child, Signal::INT).success());
    assert_eq!(ended, [true, true], "{}", cluster.log());
    for directory in ["agent", "data"] {
        let data = cluster.root.path().join(directory);
        let output = ferry(&["reset", "--yes", "--data-dir"]).arg(data).output().expect("ferry runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
