//! DNS: from pods with the resolvers of busybox and Debian, and against the specification with `dig` where it is
//! installed.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::cluster::{self, Cluster, has, until};
use testbase::scenarios;

const GETENT: &str = "/usr/bin/getent";
const PROGRAMS: [&str; 2] = [GETENT, "/usr/bin/perl"];

fn dig(arguments: &[&str]) -> String {
    cluster::run(Command::new("dig").args(["@10.96.0.10", "+time=2", "+tries=2"]).args(arguments))
        .trim()
        .to_owned()
}

fn records_follow_the_specification(cluster: &Cluster, _: &[(String, String)]) {
    if !has("dig") {
        println!("partly skipped: no dig here");
        return;
    }
    let web = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let ips = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"]);
    let mut ips: Vec<&str> = ips.split(' ').collect();
    ips.sort_unstable();
    let short = |arguments: &[&str]| {
        let text = dig(&[&["+short"], arguments].concat());
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    // Services: forward and reverse lookups, over both transports.
    assert_eq!(short(&["web.default.svc.cluster.local"]), std::slice::from_ref(&web));
    assert_eq!(short(&["+tcp", "web.default.svc.cluster.local"]), std::slice::from_ref(&web));
    assert_eq!(short(&["WEB.Default.svc.cluster.local"]), std::slice::from_ref(&web), "letters of any size");
    assert_eq!(short(&["-x", &web]), ["web.default.svc.cluster.local."]);
    assert_eq!(
        short(&["SRV", "_http._tcp.web.default.svc.cluster.local"]),
        ["0 100 80 web.default.svc.cluster.local."]
    );
    assert_eq!(short(&["kubernetes.default.svc.cluster.local"]), ["10.96.0.1"]);
    // Headless: every ready pod.
    assert_eq!(short(&["headless.default.svc.cluster.local"]), ips);
    assert_eq!(short(&["SRV", "_http._tcp.headless.default.svc.cluster.local"]).len(), ips.len());
    // ExternalName, pods by address, the version of the specification.
    let alias = short(&["elsewhere.default.svc.cluster.local"]);
    assert!(alias.contains(&"web.default.svc.cluster.local.".to_owned()), "{alias:?}");
    let dashed = format!("{}.default.pod.cluster.local", ips[0].replace('.', "-"));
    assert_eq!(short(&[&dashed]), [ips[0]]);
    assert_eq!(short(&["TXT", "dns-version.cluster.local"]), ["\"1.1.0\""]);
    // Missing names return NXDOMAIN with a negative TTL.
    let missing = dig(&["+noall", "+comments", "+authority", "nobody.default.svc.cluster.local"]);
    assert!(missing.contains("NXDOMAIN") && missing.contains("SOA"), "{missing}");
    let empty = dig(&["+noall", "+comments", "+authority", "AAAA", "web.default.svc.cluster.local"]);
    assert!(empty.contains("NOERROR") && empty.contains("SOA"), "{empty}");
    // No upstream is reachable here, and the client gets SERVFAIL.
    let outside = dig(&["+noall", "+comments", "example.org"]);
    assert!(outside.contains("SERVFAIL"), "{outside}");
}

fn pods_resolve_names(cluster: &Cluster, pods: &[(String, String)]) {
    let web = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    for (pod, node) in pods {
        for name in ["web.default.svc.cluster.local", "web"] {
            // Short names use the search path: missing expansions fail first.
            until(&format!("{pod} on {node} finds {name}"), || {
                let text = cluster.inside(pod, &format!("nslookup {name} || true"))?;
                if text.contains(&web) { Ok(()) } else { Err(text) }
            });
        }
        let config = cluster.inside(pod, "cat /etc/resolv.conf").expect("a file");
        assert!(config.contains("nameserver 10.96.0.10") && config.contains("ndots:5"), "{config}");
    }
}

/// Query for the address of the API server's service, as sent by a resolver.
fn question() -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["kubernetes", "default", "svc", "cluster", "local"] {
        message.push(u8::try_from(label.len()).expect("a short label"));
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Reports whether a server answers `message`, sent by UDP from an address in a network namespace.
fn answers(namespace: &Path, from: &str, to: &str, message: &[u8], patience: Duration) -> bool {
    let file = File::open(namespace).expect("the namespace");
    let (from, to, message) = (from.to_owned(), to.to_owned(), message.to_vec());
    let inside = std::thread::spawn(move || {
        sys::process::enter(file.as_fd(), sys::process::Namespace::Network).expect("inside");
        let socket = UdpSocket::bind((from.as_str(), 0)).expect("a socket");
        socket.set_read_timeout(Some(patience)).expect("a limit");
        socket.send_to(&message, &to).expect("sent");
        socket.recv(&mut [0; 1500]).is_ok()
    });
    inside.join().expect("the thread")
}

/// Cluster DNS answers nodes, and no other address.
fn only_the_cluster_is_answered(cluster: &Cluster, _: &[(String, String)]) {
    const ELSEWHERE: &str = "198.51.100.9";
    let second = cluster.second();
    let mut ip = Command::new("nsenter");
    ip.arg(format!("--net={}", second.display()));
    cluster::run(ip.args(["ip", "addr", "add", &format!("{ELSEWHERE}/32"), "dev", "lo"]));
    cluster::run(Command::new("ip").args(["route", "add", ELSEWHERE, "via", "172.30.0.2"]));
    let path = "jsonpath={.endpoints[0].addresses[0]}:{.ports[0].port}";
    let server =
        cluster.kubectl(&["get", "endpointslice", "kube-dns-ferry-ipv4", "-n", "kube-system", "-o", path]);
    until("the second node is answered", || {
        let answered = answers(&second, "172.30.0.2", &server, &question(), Duration::from_secs(2));
        if answered { Ok(()) } else { Err(server.clone()) }
    });
    // The path works in both directions, as another server shows.
    let echo = UdpSocket::bind("172.30.0.1:0").expect("a socket");
    let address = echo.local_addr().expect("an address").to_string();
    let echoing = std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        let (length, from) = echo.recv_from(&mut buffer).expect("a packet");
        echo.send_to(&buffer[..length], from).expect("sent");
    });
    assert!(answers(&second, ELSEWHERE, &address, b"echo", Duration::from_secs(5)));
    echoing.join().expect("the thread");
    assert!(!answers(&second, ELSEWHERE, &server, &question(), Duration::from_secs(2)), "{ELSEWHERE}");
    cluster::run(Command::new("ip").args(["route", "del", ELSEWHERE]));
    let mut ip = Command::new("nsenter");
    ip.arg(format!("--net={}", second.display()));
    cluster::run(ip.args(["ip", "addr", "del", &format!("{ELSEWHERE}/32"), "dev", "lo"]));
}

/// Programs of every Debian with their libraries: a name resolver and a UDP client. `None` on other machines.
pub fn programs_of_debian() -> Vec<PathBuf> {
    let Ok(output) = Command::new("ldd").args(PROGRAMS).output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().map(|word| word.trim_end_matches(':'));
    let files: BTreeSet<PathBuf> = words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect();
    let all = output.status.success() && PROGRAMS.iter().all(|program| files.contains(Path::new(program)));
    if all && text.contains("libc.so.6") { files.into_iter().collect() } else { Vec::new() }
}

/// glibc's resolver: queries both families concurrently, follows the search path, and does reverse lookups.
fn glibc_resolves_names(cluster: &Cluster, pods: &[(String, String)]) {
    if programs_of_debian().is_empty() {
        println!("partly skipped: no getent with a shared libc here");
        return;
    }
    let web = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    for (pod, node) in pods {
        let names = ["web", "web.default", "web.default.svc.cluster.local", "elsewhere"];
        for (database, key) in names.iter().map(|name| ("ahosts", *name)).chain([("hosts", web.as_str())]) {
            let wanted = if database == "hosts" { "web.default.svc.cluster.local" } else { &web };
            until(&format!("{pod} on {node} looks up {key} as Debian does"), || {
                let text = cluster.inside(pod, &format!("{GETENT} {database} {key}"))?;
                if text.contains(wanted) { Ok(()) } else { Err(text) }
            });
        }
        let missing = cluster.inside(pod, &format!("{GETENT} ahosts nobody.default || echo none"));
        assert_eq!(missing.as_deref(), Ok("none"), "on {node}");
    }
}

pub fn run(cluster: &Cluster, pods: &[(String, String)]) {
    scenarios![
        (cluster, pods);
        pods_resolve_names,
        glibc_resolves_names,
        only_the_cluster_is_answered,
        records_follow_the_specification,
    ];
}
