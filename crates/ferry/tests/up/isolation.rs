//! Several clusters on one machine: started, used and reset in several orders.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use testbase::blocking::Kubectl;
use testbase::programs::run as run_program;

use super::ferry;
use super::machine::until;

struct Cluster {
    name: &'static str,
    directory: PathBuf,
    kubectl: Kubectl,
    ferry: Child,
}

impl Cluster {
    /// Starts a cluster with default ranges and ports.
    fn start(root: &Path, name: &'static str, nodes: &str) -> Self {
        let directory = root.join(name);
        let log = fs::File::create(root.join(format!("{name}.log"))).expect("a log");
        let ferry = ferry(&["up", "--listen", "0.0.0.0:0", "--hostname-override", name, "--nodes", nodes])
            .arg("--data-dir")
            .arg(&directory)
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("ferry runs");
        Self { name, kubectl: Kubectl::new(directory.join("kubeconfig"), root), directory, ferry }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.with_extension("log")).unwrap_or_default()
    }

    fn wait_until_ready(&self, nodes: usize) {
        let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        until(&format!("{} has {nodes} ready nodes", self.name), || {
            match self.kubectl.attempt(&["get", "nodes", "-o", ready]) {
                Ok(text) if text.split(' ').filter(|status| *status == "True").count() == nodes => Ok(()),
                other => Err(format!("{other:?}\n{}", self.log())),
            }
        });
    }

    fn text(&self, arguments: &[&str]) -> String {
        self.kubectl.attempt(arguments).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    /// Address of the service `kubernetes`.
    fn service(&self) -> String {
        self.text(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"])
    }

    /// Waits until the API server answers at its service.
    fn answers(&self, when: &str) {
        let server = format!("https://{}:443", self.service());
        until(&format!("{} answers at {server} {when}", self.name), || {
            let answer = self.kubectl.attempt(&[
                "--server",
                &server,
                "--request-timeout=3s",
                "get",
                "--raw",
                "/readyz",
            ]);
            answer
                .and_then(|text| if text == "ok" { Ok(()) } else { Err(text) })
                .map_err(|error| format!("{error}\n{}", self.log()))
        });
    }

    fn reset(mut self) {
        let output =
            ferry(&["reset", "--yes", "--data-dir"]).arg(&self.directory).output().expect("ferry runs");
        let _ = self.ferry.wait();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!self.directory.exists());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.ferry.kill();
        let _ = self.ferry.wait();
    }
}

fn tables() -> BTreeSet<String> {
    let output = Command::new("nft").args(["list", "tables"]).output().expect("nft runs");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

pub fn run() {
    run_program(Command::new("ip").args(["link", "set", "lo", "up"]));
    port_of_another_program_ends_the_start();
    let root = tempfile::tempdir().expect("a directory");
    let links = || -> BTreeSet<String> {
        let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let (tables_before, links_before) = (tables(), links());
    for order in [[0, 1, 2], [2, 0, 1]] {
        let mut clusters: Vec<Option<Cluster>> = Vec::new();
        for (name, nodes) in [("one", 1), ("two", 1), ("three", 3)] {
            let cluster = Cluster::start(root.path(), name, &nodes.to_string());
            cluster.wait_until_ready(nodes);
            clusters.push(Some(cluster));
        }
        let services: BTreeSet<String> = clusters.iter().flatten().map(Cluster::service).collect();
        assert_eq!(services.len(), 3, "{services:?}");
        let ranges = ["get", "nodes", "-o", "jsonpath={.items[*].spec.podCIDR}"];
        let pods: Vec<String> = clusters
            .iter()
            .flatten()
            .flat_map(|cluster| cluster.text(&ranges).split(' ').map(str::to_owned).collect::<Vec<_>>())
            .collect();
        assert_eq!((pods.len(), pods.iter().collect::<BTreeSet<_>>().len()), (5, 5), "{pods:?}");
        clusters.iter().flatten().for_each(|cluster| cluster.answers("beside the others"));
        // A flush of all rules interrupts the services of all clusters for a short time only.
        run_program(Command::new("nft").args(["flush", "ruleset"]));
        clusters.iter().flatten().for_each(|cluster| cluster.answers("after a flush of all rules"));
        for at in order {
            clusters[at].take().expect("a cluster").reset();
            clusters.iter().flatten().for_each(|cluster| cluster.answers("after the reset of another"));
        }
        assert_eq!((tables(), links()), (tables_before.clone(), links_before.clone()), "left behind");
    }
}

/// The exit status and the message of a node that cannot start.
fn port_of_another_program_ends_the_start() {
    let _other = TcpListener::bind("0.0.0.0:10250").expect("the port of the kubelet is free");
    let root = tempfile::tempdir().expect("a directory");
    let output = ferry(&["up", "--listen", "127.0.0.1:0", "--hostname-override", "n", "--data-dir"])
        .arg(root.path().join("data"))
        .output()
        .expect("ferry runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("0.0.0.0:10250") && text.contains("--kubelet-listen"), "{text}");
}
