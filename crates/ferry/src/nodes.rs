//! Several nodes on one machine: each is a network namespace with a veth pair to a bridge, and an agent in it.
//!
//! The first node is the machine itself, with the bridge's address. A machine without any address gets that bridge
//! too: pods could not reach the API server otherwise.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use base::clock::Clock;
use base::file::{self, PRIVATE};
use base::machine_network::Family;
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{BootstrapToken, Client};
use ipnet::{IpNet, Ipv4Net};
use sys::mounts;
use sys::netlink::Netlink;
use sys::process::{Namespace, enter, is_namespace_file, unshare};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, oneshot};

use crate::housekeeping_flags::HousekeepingArgs;
use crate::serve::say;
use crate::up::fingerprint;

/// Parent directory of the nodes' data directories.
const DIRECTORY: &str = "nodes";
const MTU: u32 = 1500;
const INTERFACE: &str = "eth0";
/// Lifetime of the bootstrap token of the nodes.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// Time limit for an agent to stop, and delay before a restart.
const STOP_TIMEOUT: Duration = Duration::from_secs(4);
const RESTART_DELAY: Duration = Duration::from_secs(2);

/// Address range of the nodes on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRange(Ipv4Net);

impl std::fmt::Display for NodeRange {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

impl NodeRange {
    /// `172.30.0.0/24`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let range = text.parse::<Ipv4Net>().ok().filter(|range| (8..=28).contains(&range.prefix_len()));
        let range = range.ok_or_else(|| format!("{text:?} is not an IPv4 CIDR such as 172.30.0.0/24"))?;
        Ok(Self(range.trunc()))
    }

    fn address(&self, number: usize) -> Result<IpAddr> {
        let capacity = (1_usize << (32 - self.0.prefix_len())) - 2;
        ensure!(number <= capacity, "{} has addresses for only {capacity} nodes", self.0);
        Ok(Ipv4Addr::from(u32::from(self.0.addr()) + u32::try_from(number).unwrap_or(1)).into())
    }

    /// Addresses of a node with their prefix lengths, one per family.
    fn addresses(&self, number: usize, families: &[Family]) -> Result<Vec<IpNet>> {
        let address = |family: &Family| match family {
            Family::V4 => Ok(IpNet::new(self.address(number)?, self.0.prefix_len())?),
            Family::V6 => Ok(IpNet::new(self.address_v6(number).into(), 64)?),
        };
        families.iter().map(address).collect()
    }

    /// The default range 172.30.0.0/24 has the IPv6 range fd30::/64.
    fn address_v6(&self, number: usize) -> Ipv6Addr {
        let last = u16::try_from(number).unwrap_or(1);
        let [_, second, third, _] = self.0.addr().octets();
        let network = u16::from_be_bytes([second, third]) ^ 0x1e00;
        Ipv6Addr::new(0xfd30, 0, 0, network, 0, 0, 0, last)
    }
}

/// Node in a network namespace.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    number: usize,
    addresses: Vec<IpNet>,
    directory: PathBuf,
}

impl Member {
    fn ips(&self) -> String {
        let ips: Vec<String> = self.addresses.iter().map(|address| address.addr().to_string()).collect();
        ips.join(",")
    }

    fn namespace(&self) -> PathBuf {
        self.directory.join("netns")
    }
}

/// Number of nodes of the cluster in a data directory.
pub fn count(data_dir: &Path) -> usize {
    let entries = std::fs::read_dir(data_dir.join(DIRECTORY)).ok();
    1 + entries.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()).count()
}

/// Data directories of the nodes in network namespaces.
pub fn directories(data_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join(DIRECTORY)).ok();
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Selects the flags of a command line that apply to every node of this machine: pod limit, housekeeping and network
/// policy failure policy.
pub fn flags_of_all_nodes(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let housekeeping = HousekeepingArgs::augment_args(clap::Command::new("node"));
    let others = ["max-pods", "network-policy-failure-policy"];
    let names: Vec<&str> =
        housekeeping.get_arguments().filter_map(clap::Arg::get_long).chain(others).collect();
    let mut flags = Vec::new();
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--") else { continue };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        if names.contains(&name) {
            // A flag without its value was rejected before.
            let value = value.map(str::to_owned).or_else(|| arguments.next()).unwrap_or_default();
            flags.push(format!("--{name}={value}"));
        }
    }
    flags
}

/// Name of the bridge between nodes, derived from the data directory.
pub fn bridge_of(data_dir: &Path) -> String {
    format!("fnodes{:08x}", fingerprint(data_dir))
}

/// Nodes of this machine besides the first.
pub struct Nodes {
    members: Vec<Member>,
    /// Addresses of the first node.
    pub addresses: Vec<IpAddr>,
}

impl Nodes {
    /// Creates the missing parts of the bridge, namespaces and veth pairs for `count` nodes with addresses of these families.
    pub fn prepare(
        data_dir: &Path,
        first: &str,
        count: usize,
        range: NodeRange,
        bridge: &str,
        families: &[Family],
    ) -> Result<Self> {
        let addresses = range.addresses(1, families)?;
        let mut netlink = Netlink::open().context("failed to open a netlink socket")?;
        netlink.add_bridge(bridge, MTU).context("failed to create the bridge between nodes")?;
        for address in &addresses {
            netlink
                .add_address(bridge, address.addr(), address.prefix_len())
                .context("failed to add the bridge address")?;
        }
        netlink.set_up(bridge).context("failed to bring up the bridge")?;
        netlink.set_up("lo").context("failed to bring up loopback")?;
        let mut members = Vec::new();
        for number in 2..=count {
            let name = format!("{first}-{number}");
            let directory = data_dir.join(DIRECTORY).join(&name);
            let member = Member { name, number, addresses: range.addresses(number, families)?, directory };
            let gateways = addresses.iter().map(IpNet::addr).collect();
            member
                .prepare(&mut netlink, bridge, gateways)
                .with_context(|| format!("failed to create node {}", member.name))?;
            members.push(member);
        }
        // Packets between pods of different nodes are forwarded here.
        if !members.is_empty() {
            for family in families {
                let file = match family {
                    Family::V4 => "/proc/sys/net/ipv4/ip_forward",
                    Family::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
                };
                if std::fs::read_to_string(file).is_ok_and(|value| value.trim() == "0") {
                    std::fs::write(file, "1").context("failed to enable packet forwarding")?;
                }
            }
        }
        Ok(Self { members, addresses: addresses.iter().map(IpNet::addr).collect() })
    }

    /// Starts the agents, which join the cluster at `server`, and keeps them running until `tasks` stop.
    pub fn start(
        self,
        server: String,
        flags: Vec<String>,
        cgroup_root: &str,
        administrator: Client,
        tasks: &TaskGroup,
    ) {
        if self.members.is_empty() {
            return;
        }
        let (group, cgroup_root) = (tasks.clone(), cgroup_root.to_owned());
        tasks.spawn(async move {
            let token = BootstrapToken::random();
            let now = Clock::system().now();
            let description = "additional nodes of this machine";
            let created = cluster::create_token(&administrator, &token, Some(TOKEN_LIFE), description, now);
            if let Err(error) = created.await {
                tracing::error!(
                    error = cluster::chain(&error),
                    "failed to create a bootstrap token for the additional nodes, they may not join"
                );
            }
            for member in self.members {
                let mut flags = flags.clone();
                flags.extend(["--server".to_owned(), server.clone()]);
                let cgroup = format!("{cgroup_root}-{}", member.number);
                match member.command(&token, flags, &cgroup) {
                    Ok(command) => {
                        say(format_args!(
                            "Starting node {} at {}; its log is {}",
                            member.name,
                            member.ips(),
                            member.directory.join("agent.log").display()
                        ));
                        let (command, tasks) = (Arc::new(Mutex::new(command)), group.clone());
                        let name = member.name;
                        group.supervise(format!("agent {name}"), move || {
                            supervise_agent(name.clone(), Arc::clone(&command), tasks.clone())
                        });
                    }
                    Err(error) => {
                        tracing::error!(
                            node = member.name,
                            error = format!("{error:#}"),
                            "failed to start the agent"
                        )
                    }
                }
            }
        });
    }
}

impl Member {
    fn prepare(&self, netlink: &mut Netlink, bridge: &str, gateways: Vec<IpAddr>) -> Result<()> {
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("failed to create {}", self.directory.display()))?;
        let pin = self.namespace();
        let is_new = !is_namespace_file(&pin);
        if is_new {
            File::create(&pin).with_context(|| format!("failed to create {}", pin.display()))?;
            let target = pin.clone();
            in_new_thread(move || {
                unshare(&[Namespace::Network]).context("failed to create a network namespace")?;
                let own = Path::new("/proc/thread-self/ns/net");
                mounts::bind(own, &target, false).context("failed to pin the network namespace")
            })?;
        }
        let cable = format!("{}-{}", &bridge[..bridge.len().min(11)], self.number);
        let namespace = File::open(&pin).with_context(|| format!("failed to open {}", pin.display()))?;
        if is_new || netlink.link(&cable)?.is_none() {
            netlink.remove(&cable).context("failed to remove an old veth pair")?;
            netlink
                .add_pair(&cable, INTERFACE, namespace.as_fd(), MTU)
                .context("failed to create the veth pair")?;
        }
        netlink.plug(&cable, bridge).context("failed to attach the veth pair to the bridge")?;
        netlink.set_up(&cable).context("failed to bring up the veth pair")?;
        let addresses = self.addresses.clone();
        in_new_thread(move || {
            enter(namespace.as_fd(), Namespace::Network).context("failed to enter the network namespace")?;
            let mut netlink = Netlink::open()?;
            netlink.set_up("lo").context("failed to bring up loopback")?;
            for address in addresses {
                netlink
                    .add_address(INTERFACE, address.addr(), address.prefix_len())
                    .context("failed to add the node address")?;
            }
            netlink.set_up(INTERFACE).context("failed to bring up the node's interface")?;
            for gateway in gateways {
                netlink
                    .add_route(None, Some(gateway), INTERFACE)
                    .context("failed to add the node's default route")?;
            }
            Ok(())
        })
    }

    fn command(&self, token: &BootstrapToken, flags: Vec<String>, cgroup_root: &str) -> Result<Command> {
        let tokens = self.directory.join("token");
        file::replace(&tokens, token.to_string().as_bytes(), PRIVATE)
            .with_context(|| format!("failed to write {}", tokens.display()))?;
        let log = self.directory.join("agent.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("failed to open {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe().context("failed to find the ferry binary")?);
        command
            .arg("agent")
            .args(flags)
            .arg("--token-file")
            .arg(&tokens)
            .arg("--data-dir")
            .arg(&self.directory)
            .arg("--network-namespace")
            .arg(self.namespace())
            .args(["--hostname-override", &self.name, "--cgroup-root", cgroup_root])
            .args(["--node-ip", &self.ips()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("failed to duplicate the log file descriptor")?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }
}

/// Starts agents from a dedicated thread. The parent death signal is sent when the starting thread ends, and the
/// async runtime ends its threads while the process runs.
struct Starter {
    requests: std::sync::mpsc::Sender<oneshot::Sender<io::Result<Child>>>,
}

impl Starter {
    fn new(command: Arc<Mutex<Command>>) -> Self {
        let (requests, waiting) = std::sync::mpsc::channel::<oneshot::Sender<io::Result<Child>>>();
        let runtime = tokio::runtime::Handle::current();
        base::tasks::spawn_thread(move || {
            let _entered = runtime.enter();
            for request in waiting {
                let _ = request.send(command.blocking_lock().spawn());
            }
        });
        Self { requests }
    }

    async fn start(&self) -> io::Result<Child> {
        let (request, started) = oneshot::channel();
        let ended = || io::Error::other("the agent starter thread has ended");
        self.requests.send(request).map_err(|_| ended())?;
        started.await.map_err(|_| ended())?
    }
}

/// Keeps an agent running until `tasks` stop.
async fn supervise_agent(name: String, command: Arc<Mutex<Command>>, tasks: TaskGroup) {
    let starter = Starter::new(command);
    loop {
        let mut child = match starter.start().await {
            Ok(child) => child,
            Err(error) => {
                tracing::error!(node = name, %error, "failed to start the agent, retrying");
                match tasks.until_stopped(tokio::time::sleep(RESTART_DELAY)).await {
                    Some(()) => continue,
                    None => return,
                }
            }
        };
        tokio::select! {
            ended = child.wait() => {
                let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                tracing::warn!(node = name, status, "agent exited, restarting");
            }
            () = tasks.stopping() => return end(&mut child).await,
        }
        if tasks.until_stopped(tokio::time::sleep(RESTART_DELAY)).await.is_none() {
            return;
        }
    }
}

async fn end(child: &mut Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Runs a function in a new thread, so that namespace changes affect no other thread.
fn in_new_thread(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    base::tasks::spawn_thread(work).join().map_err(|_| anyhow!("a thread panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_addresses_are_taken_from_range() {
        let range = NodeRange::parse("172.30.0.9/24").expect("a range");
        assert_eq!(range.address(1).expect("an address"), IpAddr::from([172, 30, 0, 1]));
        assert_eq!(range.address(254).expect("an address"), IpAddr::from([172, 30, 0, 254]));
        assert!(range.address(255).is_err());
        let addresses = |families: &[Family]| {
            let found = range.addresses(2, families).expect("addresses");
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses(&[Family::V4]), ["172.30.0.2/24"]);
        assert_eq!(addresses(&[Family::V6]), ["fd30::2/64"]);
        assert_eq!(addresses(&[Family::V6, Family::V4]), ["fd30::2/64", "172.30.0.2/24"]);
        for bad in ["", "172.30.0.0", "172.30.0.0/31", "fd00::/64", "172.30.0.0/0"] {
            assert!(NodeRange::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_of_all_nodes_are_passed_to_agents() {
        let line = "ferry up --nodes 2 --image-gc-high-threshold=99 --data-dir d --max-pods 20 --listen :0 --network-policy-failure-policy Ignore";
        let got = flags_of_all_nodes(line.split(' ').map(str::to_owned));
        let wanted =
            ["--image-gc-high-threshold=99", "--max-pods=20", "--network-policy-failure-policy=Ignore"];
        assert_eq!(got, wanted);
    }

    #[test]
    fn bridge_name_fits_kernel_limit() {
        assert!(bridge_of(Path::new("/srv/ferry")).len() < 16);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn agent_outlives_requesting_runtime_thread() {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "sleep", "60"]).kill_on_drop(true);
        let starter = Arc::new(Starter::new(Arc::new(Mutex::new(command))));
        let runtime = tokio::runtime::Handle::current();
        let own = Arc::clone(&starter);
        let started = std::thread::spawn(move || {
            let child = runtime.block_on(own.start()).expect("a process");
            let name = format!("/proc/{}/comm", child.id().expect("it runs"));
            // The signal is set before exec, so wait for the new name.
            let started = std::time::Instant::now();
            while std::fs::read_to_string(&name).is_ok_and(|name| name.trim() != "sleep") {
                assert!(started.elapsed() < Duration::from_secs(20), "no program has been started");
                std::thread::sleep(Duration::from_millis(5));
            }
            child
        });
        let mut child = started.join().expect("no panic");
        let early = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
        assert!(early.is_err(), "the process ended with the requesting thread: {early:?}");
        drop(starter);
        let late = tokio::time::timeout(Duration::from_secs(20), child.wait()).await;
        late.expect("the process ends with the starter thread").expect("a status");
    }
}
