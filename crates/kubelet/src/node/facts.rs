//! Facts about the machine.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use k8s_openapi::api::core::v1::NodeSystemInfo;

fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The machine's name in lower case.
#[must_use]
pub fn hostname() -> String {
    read("/proc/sys/kernel/hostname").to_ascii_lowercase()
}

/// The address this machine is reached at: the one it would use to talk to others. Nothing is sent.
#[must_use]
pub fn node_ips() -> Vec<IpAddr> {
    let outward = |bind: &str, to: &str| -> Option<IpAddr> {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to.parse::<SocketAddr>().ok()?).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
    };
    let found = outward("0.0.0.0:0", "192.0.2.1:9");
    vec![found.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))]
}

/// What the node tells about itself.
#[must_use]
pub fn system_info(runtime: &str, version: &str) -> NodeSystemInfo {
    let release = read("/etc/os-release");
    let field = |name: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    let machine = read("/etc/machine-id");
    let uuid = read("/sys/class/dmi/id/product_uuid").to_ascii_lowercase();
    NodeSystemInfo {
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("{runtime}://{version}"),
        kernel_version: read("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: format!("{}+ferry", super::super::KUBERNETES_VERSION),
        system_uuid: if uuid.is_empty() { machine.clone() } else { uuid },
        machine_id: machine,
        operating_system: "linux".to_owned(),
        os_image: field("PRETTY_NAME").unwrap_or_else(|| "Linux".to_owned()),
        swap: None,
    }
}
