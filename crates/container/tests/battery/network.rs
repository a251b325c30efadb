//! The pod network: host ports, masquerading, bandwidth, other plugins, and garbage after a crash.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use cri::v1::*;
use sys::process::{Namespace, enter};

use crate::Node;

const SERVE: &str = "echo page > /tmp/index.html; exec httpd -f -p 8080 -h /tmp";

fn port(host_port: i32, host_ip: &str) -> PortMapping {
    PortMapping { protocol: 0, container_port: 8080, host_port, host_ip: host_ip.to_owned() }
}

/// Response of a server, or the error.
fn fetch(address: &str) -> Result<String, String> {
    let address: SocketAddr = address.parse().unwrap();
    let failed = |error: std::io::Error| format!("{address}: {error}");
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(3)).map_err(failed)?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").map_err(failed)?;
    let mut text = String::new();
    socket.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

async fn served(node: &Node, address: &str) {
    node.until(&format!("{address} answers"), async || {
        let seen = fetch(address)?;
        if seen.contains("page") { Ok(()) } else { Err(seen) }
    })
    .await;
}

impl Node {
    async fn try_pod(&self, config: &PodSandboxConfig) -> Result<String, String> {
        let request = RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let made = self.cri.clone().runtime.run_pod_sandbox(request).await;
        made.map(|made| made.into_inner().pod_sandbox_id).map_err(|status| status.message().to_owned())
    }

    pub async fn remove_pod(&self, id: &str) {
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.cri.clone().runtime.remove_pod_sandbox(request).await.unwrap();
    }

    async fn address(&self, id: &str) -> String {
        self.pod_status(id, false).await.0.network.unwrap().ip
    }

    async fn pod_status(&self, id: &str, verbose: bool) -> (PodSandboxStatus, String) {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        let answer = self.cri.clone().runtime.pod_sandbox_status(request).await.unwrap().into_inner();
        (answer.status.unwrap(), answer.info.get("network").cloned().unwrap_or_default())
    }

    async fn serving(&self, name: &str, ports: Vec<PortMapping>) -> (String, String) {
        let mut config = self.pod(name);
        config.port_mappings = ports;
        let pod = self.run_pod(&config).await;
        let id = self.create(&pod, &config, self.container(name, &["sh", "-c", SERVE])).await;
        self.start_container(&id).await;
        (pod, id)
    }
}

pub async fn host_ports_are_forwarded(node: Node) {
    let (pod, id) = node.serving("web", vec![port(18080, ""), port(18081, "127.0.0.1")]).await;
    let address = node.address(&pod).await;
    served(&node, &format!("{address}:8080")).await;
    served(&node, "10.222.0.1:18080").await;
    // The node's loopback address is forwarded to pods as well.
    served(&node, "127.0.0.1:18080").await;
    served(&node, "127.0.0.1:18081").await;
    assert!(fetch("10.222.0.1:18081").is_err(), "open on the loopback address only");
    // From another pod, and from the pod itself (hairpin).
    let (_, other) = node.run("client", node.container("client", &["sleep", "1000"])).await;
    for from in [&other, &id] {
        let command = "printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 5 10.222.0.1 18080";
        node.until("an answer", async || {
            let seen = node.exec(from, &["sh", "-c", command]).await;
            if seen.1.ends_with("page") { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    }
    // A pod does not reach services on the node's loopback address.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let local = listener.local_addr().unwrap().port().to_string();
    let script =
        format!("ip route add 127.0.0.0/8 via 10.222.0.1 2>/dev/null; nc -w 2 10.222.0.1 {local} </dev/null");
    assert_ne!(node.exec(&other, &["sh", "-c", &script]).await.0, 0);
    let mut config = node.pod("second");
    config.port_mappings = vec![port(18080, "")];
    let error = node.try_pod(&config).await.unwrap_err();
    assert!(error.contains("host port 18080/tcp is in use by another pod"), "{error}");
    assert_eq!(node.pod_status(&pod, true).await.1, "ok");
    node.restart().await;
    served(&node, "10.222.0.1:18080").await;
    node.remove_pod(&pod).await;
    assert!(fetch("10.222.0.1:18080").is_err());
    // The port is free again.
    let (pod, _) = node.serving("third", vec![port(18080, "")]).await;
    served(&node, "10.222.0.1:18080").await;
    node.remove_pod(&pod).await;
}

/// A network namespace that is removed on drop.
struct Elsewhere(&'static str);

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", self.0]).output();
    }
}

impl Elsewhere {
    /// Accepts one connection there and returns its source address.
    fn accept(&self, address: &str) -> std::thread::JoinHandle<String> {
        let (address, namespace) = (address.to_owned(), format!("/run/netns/{}", self.0));
        let (ready, wait) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let file = std::fs::File::open(namespace).unwrap();
            enter(file.as_fd(), Namespace::Network).unwrap();
            let listener = TcpListener::bind(address).unwrap();
            ready.send(()).unwrap();
            let (_, peer) = listener.accept().unwrap();
            peer.ip().to_string()
        });
        wait.recv().unwrap();
        thread
    }
}

pub async fn egress_is_masqueraded(node: Node) {
    if Command::new("ip").arg("-V").output().is_err() {
        println!("skipped: no ip here");
        return;
    }
    let outside = Elsewhere("ferry-outside");
    ip("netns add ferry-outside");
    ip("link add uplink type veth peer name eth0 netns ferry-outside");
    ip("addr add 192.0.2.1/24 dev uplink");
    ip("link set uplink up");
    ip("-n ferry-outside addr add 192.0.2.2/24 dev eth0");
    ip("-n ferry-outside addr add 10.222.9.1/24 dev eth0");
    ip("-n ferry-outside link set eth0 up");
    // The neighbour has a route to this node's pods, other hosts do not.
    ip("-n ferry-outside route add 10.222.0.0/24 via 192.0.2.1 src 10.222.9.1");
    ip("route add 10.222.9.0/24 via 192.0.2.2");
    let (pod, id) = node.run("out", node.container("out", &["sleep", "1000"])).await;
    let address = node.address(&pod).await;
    for (to, seen_as) in [("192.0.2.2", "192.0.2.1"), ("10.222.9.1", address.as_str())] {
        let listening = outside.accept(&format!("{to}:7000"));
        let (code, _, complaint) =
            node.exec(&id, &["sh", "-c", &format!("echo x | nc -w 30 {to} 7000")]).await;
        assert_eq!(code, 0, "{to}: {complaint}");
        assert_eq!(listening.join().unwrap(), seen_as, "{to}");
    }
    let _ = Command::new("ip").args(["link", "del", "uplink"]).output();
}

pub async fn bandwidth_limits_are_applied(node: Node) {
    if Command::new("tc").arg("-V").output().is_err() {
        println!("skipped: no tc here");
        return;
    }
    let mut config = node.pod("slow");
    config.annotations.insert("kubernetes.io/ingress-bandwidth".to_owned(), "10M".to_owned());
    config.annotations.insert("kubernetes.io/egress-bandwidth".to_owned(), "20M".to_owned());
    let pod = node.run_pod(&config).await;
    let id = node.create(&pod, &config, node.container("slow", &["sh", "-c", SERVE])).await;
    node.start_container(&id).await;
    let cable = format!("fe-{}", &pod[..11]);
    let show = |arguments: &[&str]| {
        let output = Command::new("tc").args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let seen = show(&["qdisc", "show", "dev", &cable]);
    assert!(seen.contains("tbf") && seen.contains("rate 10Mbit") && seen.contains("burst 125000b"), "{seen}");
    let inside =
        std::fs::File::open(node.root.join("state/sandboxes").join(&pod).join("namespaces/net")).unwrap();
    let seen = std::thread::spawn(move || {
        enter(inside.as_fd(), Namespace::Network).unwrap();
        String::from_utf8(Command::new("tc").args(["qdisc", "show", "dev", "eth0"]).output().unwrap().stdout)
    });
    let seen = seen.join().unwrap().unwrap();
    assert!(seen.contains("tbf") && seen.contains("rate 20Mbit"), "{seen}");
    served(&node, &format!("{}:8080", node.address(&pod).await)).await;
}

pub async fn foreign_plugins_are_run(node: Node) {
    let programs = ["bridge", "host-local", "portmap", "bandwidth"];
    if let Some(missing) =
        programs.iter().find(|name| !std::path::Path::new("/usr/lib/cni").join(name).exists())
    {
        println!("skipped: no /usr/lib/cni/{missing} here");
        return;
    }
    let list = serde_json::json!({"cniVersion": "1.0.0", "name": "others", "plugins": [
        {"type": "bridge", "bridge": "others0", "isGateway": true, "hairpinMode": true, "ipam": {
            "type": "host-local", "dataDir": node.root.join("leases"),
            "ranges": [[{"subnet": "10.223.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]});
    std::fs::create_dir_all(node.root.join("net.d")).unwrap();
    std::fs::write(node.root.join("net.d/10.conflist"), list.to_string()).unwrap();
    let status =
        node.cri.clone().runtime.status(StatusRequest::default()).await.unwrap().into_inner().status.unwrap();
    assert!(status.conditions.iter().all(|condition| condition.status), "{status:?}");
    let (pod, _) = node.serving("theirs", vec![port(18090, "")]).await;
    let address = node.address(&pod).await;
    assert!(address.starts_with("10.223.0."), "{address}");
    served(&node, &format!("{address}:8080")).await;
    served(&node, "10.223.0.1:18090").await;
    // A restarted daemon disconnects with the configuration that the pod was connected with.
    std::fs::remove_file(node.root.join("net.d/10.conflist")).unwrap();
    node.restart().await;
    node.remove_pod(&pod).await;
    let leases: Vec<String> = std::fs::read_dir(node.root.join("leases/others"))
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("10."))
        .collect();
    assert!(leases.is_empty(), "{leases:?}");
    assert!(fetch("10.223.0.1:18090").is_err());
    let _ = Command::new("ip").args(["link", "del", "others0"]).output();
}

pub async fn crash_remains_are_collected(node: Node) {
    let (pod, _) = node.serving("alive", vec![port(18100, "")]).await;
    let address = node.address(&pod).await;
    // A crashed daemon left an address, a veth pair and a port of an unknown pod.
    let addresses = node.root.join("state/addresses");
    std::fs::write(addresses.join("10.222.0.200"), "dead").unwrap();
    ip("link add fe-dead type veth peer name dead");
    ip("link set fe-dead master ferry0");
    let file = addresses.join("ports.json");
    let mut ports: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    ports["dead"] = ports[&pod].clone();
    ports["dead"][0]["port"] = 18101.into();
    std::fs::write(&file, ports.to_string()).unwrap();
    node.restart().await;
    assert!(!addresses.join("10.222.0.200").exists() && addresses.join(&address).exists());
    let links = sys::netlink::Netlink::open().unwrap().links().unwrap();
    assert!(!links.iter().any(|link| link.name == "fe-dead"), "{links:?}");
    served(&node, "10.222.0.1:18100").await;
    assert!(fetch("10.222.0.1:18101").is_err());
    // Packet rules that were removed are restored with the next pod; until then CHECK reports them.
    let mut batch = sys::nftables::Batch::new(sys::nftables::Family::Ipv4, "ferry-network-ferry0");
    batch.remove_table();
    sys::nftables::Socket::open().unwrap().apply(batch).unwrap();
    let health = node.pod_status(&pod, true).await.1;
    assert!(health.contains("packet rules are missing"), "{health}");
    let (other, _) = node.serving("next", Vec::new()).await;
    served(&node, "10.222.0.1:18100").await;
    node.remove_pod(&other).await;
    node.remove_pod(&pod).await;
}

pub async fn network_metrics_are_reported(node: Node) {
    let (pod, id) = node.serving("measured", Vec::new()).await;
    served(&node, &format!("{}:8080", node.address(&pod).await)).await;
    let mut cri = node.cri.clone();
    let known = cri.runtime.list_metric_descriptors(ListMetricDescriptorsRequest {}).await.unwrap();
    let known = known.into_inner().descriptors;
    let found = cri.runtime.list_pod_sandbox_metrics(ListPodSandboxMetricsRequest {}).await.unwrap();
    let found = found.into_inner().pod_metrics;
    assert_eq!((found.len(), found[0].pod_sandbox_id.as_str()), (1, pod.as_str()));
    let value = |metrics: &[Metric], name: &str| {
        let metric = metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}"));
        let described = known.iter().find(|known| known.name == name).expect("described");
        assert_eq!(described.label_keys.len(), metric.label_values.len(), "{name}");
        metric.value.as_ref().unwrap().value
    };
    assert!(value(&found[0].metrics, "container_network_receive_bytes_total") > 0);
    let container = &found[0].container_metrics[0];
    assert_eq!(container.container_id, id);
    assert!(value(&container.metrics, "container_memory_usage_bytes") > 0);
    assert!(value(&container.metrics, "container_start_time_seconds") > 1_700_000_000);
    assert!(value(&container.metrics, "container_fs_usage_bytes") > 0);
    for name in [
        "container_fs_limit_bytes",
        "container_processes",
        "container_threads",
        "container_file_descriptors",
        "container_sockets",
        "container_last_seen",
        "container_memory_max_usage_bytes",
        "container_spec_cpu_period",
        "container_spec_cpu_shares",
    ] {
        assert!(value(&container.metrics, name) > 0, "{name}");
    }
    assert!(known.iter().all(|known| !known.help.is_empty() && !known.label_keys.is_empty()));
    let stats = PodSandboxStatsRequest { pod_sandbox_id: pod };
    let stats = cri.runtime.pod_sandbox_stats(stats).await.unwrap().into_inner().stats.unwrap();
    let network = stats.linux.unwrap().network.unwrap();
    assert_eq!(network.default_interface.unwrap().name, "eth0");
    let (_, limit, _) = node.exec(&id, &["sh", "-c", "ulimit -Sn"]).await;
    assert_eq!(limit, "1024");
}
