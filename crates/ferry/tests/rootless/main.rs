//! `ferry up` without root: it prints the missing features and the commands for them; the API, services with external
//! endpoints, and DNS work.
//!
//! The test re-executes itself in an isolated network namespace. It needs root (to switch users), setpriv and
//! kubectl; otherwise it is skipped with a message.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testbase::blocking::{Kubectl, until};
use testbase::programs::{in_own_namespaces, missing, run};
use testbase::scenarios;

/// Set for the re-executed test inside the network namespace.
const INSIDE: &str = "FERRY_TEST_ROOTLESS_IN_ITS_OWN_NETWORK";
const NOBODY: u32 = 65_534;
const OWN: &str = "192.0.2.10";
const ONE_REQUEST: Duration = Duration::from_secs(5);

#[test]
fn up_without_root_serves_api_services_and_dns() {
    // Only root can switch users.
    if let Some(reason) = missing(&["unshare", "ip", "setpriv", "kubectl"], &[]) {
        println!("skipped: {reason}");
        return;
    }
    in_own_namespaces("rootless_scenarios_in_network_namespace", (INSIDE, "1"), &[])
        .unwrap_or_else(|text| panic!("{text}"));
}

/// Command that runs the program as an unprivileged user.
fn ferry(program: &Path) -> Command {
    let nobody = NOBODY.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"]);
    command.arg(program).env_remove("HOME").stdin(Stdio::null());
    command
}

/// Copy of the program that every user can execute.
fn program(directory: &Path) -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_ferry"));
    if ferry(&built).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return built;
    }
    let copy = directory.join("ferry");
    fs::copy(built, &copy).expect("a copy");
    copy
}

struct Up {
    process: Child,
    directory: tempfile::TempDir,
}

impl Up {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("owner changed");
        let file = |name: &str| fs::File::create(directory.path().join(name)).expect("a file");
        let program = program(directory.path());
        let several = ferry(&program)
            .args(["up", "--nodes", "3", "--data-dir"])
            .arg(directory.path().join("no"))
            .output();
        let several = several.expect("ferry runs");
        let text = String::from_utf8_lossy(&several.stderr).into_owned();
        assert!(!several.status.success() && text.contains("sudo ferry up --nodes 3"), "{text}");
        let mut up = ferry(&program);
        up.args(["up", "--listen", "0.0.0.0:0", "--data-dir"]).arg(directory.path().join("data"));
        let process = up.stdout(file("said")).stderr(file("log")).spawn().expect("ferry runs");
        Self { process, directory }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Response of a TCP server to an HTTP request.
fn ask(to: &str) -> Result<String, String> {
    let to: SocketAddr = to.parse().map_err(|error| format!("{to}: {error}"))?;
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&to, ONE_REQUEST).map_err(text)?;
    stream.set_read_timeout(Some(ONE_REQUEST)).map_err(text)?;
    stream.write_all(b"GET /proxyMode HTTP/1.0\r\n\r\n").map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    Ok(answer)
}

/// Resolves a name over UDP.
fn look_up(server: &str, name: &str) -> Result<[u8; 4], String> {
    let text = |error: std::io::Error| error.to_string();
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(text)?;
    socket.set_read_timeout(Some(ONE_REQUEST)).map_err(text)?;
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).expect("a label"));
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    socket.send_to(&query, server).map_err(text)?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).map_err(text)?;
    let last = answer[..length].last_chunk::<4>().copied();
    last.filter(|_| answer[7] == 1).ok_or_else(|| format!("{:?}", &answer[..length]))
}

#[test]
#[ignore = "started by its sibling in a network namespace of its own"]
fn rootless_scenarios_in_network_namespace() {
    if std::env::var_os(INSIDE).is_none() {
        println!("skipped: only in a network namespace of its own");
        return;
    }
    for arguments in [
        "link set lo up",
        "link add outside type bridge",
        &format!("addr add {OWN}/24 dev outside"),
        "link set outside up",
    ] {
        run(Command::new("ip").args(arguments.split(' ')));
    }
    let up = Up::start();
    let data = up.directory.path().join("data");
    let kubectl = Kubectl::new(data.join("kubeconfig"), up.directory.path());
    until("the API answers", || {
        kubectl
            .attempt(&["get", "namespace", "default"])
            .map_err(|error| format!("{error}\n{}{}", up.read("said"), up.read("log")))
    });
    scenarios![
        (&kubectl, &up);
        missing_privileges_are_described,
        api_server_is_reachable_as_service,
        proxy_uses_userspace_mode,
        services_reach_external_endpoints,
        names_are_resolved,
    ];
}

fn missing_privileges_are_described(_: &Kubectl, up: &Up) {
    until("all notes are printed", || {
        let output = up.read("said");
        let words = [
            "Not running as root",
            "sudo ferry up",
            "ferry agent",
            "ferry simulate",
            "ferry server",
            "Ready after",
        ];
        match words.iter().find(|word| !output.contains(**word)) {
            None => Ok(()),
            Some(word) => Err(format!("{word:?} is missing: {output}")),
        }
    });
}

/// The API server as a service of its own cluster.
fn api_server_is_reachable_as_service(_: &Kubectl, up: &Up) {
    until("the API server's service", || {
        let to: SocketAddr = "127.96.0.1:10443".parse().expect("an address");
        TcpStream::connect_timeout(&to, ONE_REQUEST).map_err(|error| format!("{error}\n{}", up.read("log")))
    });
}

fn proxy_uses_userspace_mode(_: &Kubectl, _: &Up) {
    until("the mode of the proxy", || {
        let answer = ask("127.0.0.1:10249")?;
        if answer.ends_with("userspace") { Ok(()) } else { Err(answer) }
    });
}

fn names_are_resolved(_: &Kubectl, _: &Up) {
    until("the address of the service `kubernetes`", || {
        let found = look_up("127.96.0.10:10053", "kubernetes.default.svc.cluster.local")?;
        if found == [10, 96, 0, 1] { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// A service with manual endpoints is reachable on the loopback network and at its node port.
fn services_reach_external_endpoints(kubectl: &Kubectl, up: &Up) {
    let listener = TcpListener::bind((OWN, 0)).expect("listening");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut some = [0; 64];
            let _ = stream.read(&mut some);
            let _ = stream.write_all(b"outside");
        }
    });
    let made = kubectl.apply(&format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: outside}}
spec: {{type: NodePort, ports: [{{port: 80, nodePort: 30080}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: outside-1, labels: {{kubernetes.io/service-name: outside}}}}
addressType: IPv4
ports: [{{name: "", port: {port}, protocol: TCP}}]
endpoints: [{{addresses: ["{OWN}"]}}]
"#
    ));
    made.expect("a service");
    let ip = kubectl
        .attempt(&["get", "service", "outside", "-o", "jsonpath={.spec.clusterIP}"])
        .expect("an address");
    let loopback = ip.replacen("10.", "127.", 1);
    for to in ["127.0.0.1:30080".to_owned(), format!("{OWN}:30080"), format!("{loopback}:10080")] {
        until(&format!("the service is reached at {to}"), || match ask(&to) {
            Ok(answer) if answer == "outside" => Ok(()),
            other => Err(format!("{other:?}\n{}", up.read("log"))),
        });
    }
}
