//! Several nodes on one machine: each is a network namespace with a cable to a bridge, and an agent in it.
//!
//! The first node is the machine itself, with the bridge's address. A machine without any address gets that bridge too:
//! pods could not reach the API server otherwise.

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
use base::tasks::TaskGroup;
use clap::Args;
use cluster::{BootstrapToken, Client};
use sys::mounts;
use sys::netlink::Netlink;
use sys::process::{Namespace, enter, is_namespace_file, unshare};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, oneshot};

use crate::serve::say;
use crate::upkeep_flags::UpkeepArgs;

/// Where the nodes' directories are.
const DIRECTORY: &str = "nodes";
const MTU: u32 = 1500;
const INTERFACE: &str = "eth0";
/// How long the token counts by which the nodes join.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);
/// How long an agent may take to end, and how long to wait before one that ended is started again.
const PATIENCE: Duration = Duration::from_secs(4);
const AGAIN: Duration = Duration::from_secs(2);

/// The addresses of nodes on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRange {
    base: Ipv4Addr,
    prefix: u8,
}

impl NodeRange {
    /// `172.30.0.0/24`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a range of IPv4 addresses such as 172.30.0.0/24");
        let (base, prefix) = text.split_once('/').ok_or_else(bad)?;
        let (base, prefix): (Ipv4Addr, u8) =
            (base.parse().map_err(|_| bad())?, prefix.parse().map_err(|_| bad())?);
        if !(8..=28).contains(&prefix) {
            return Err(bad());
        }
        Ok(Self { base: Ipv4Addr::from(u32::from(base) & (u32::MAX << (32 - prefix))), prefix })
    }

    fn address(&self, number: usize) -> Result<IpAddr> {
        let room = (1_usize << (32 - self.prefix)) - 2;
        ensure!(number <= room, "{}/{} has addresses for {room} nodes only", self.base, self.prefix);
        Ok(Ipv4Addr::from(u32::from(self.base) + u32::try_from(number).unwrap_or(1)).into())
    }

    /// The addresses of a node with their prefix lengths, of both families if there are two.
    fn addresses(&self, number: usize, both: bool) -> Result<Vec<(IpAddr, u8)>> {
        let mut addresses = vec![(self.address(number)?, self.prefix)];
        if both {
            let last = u16::try_from(number).unwrap_or(1);
            addresses.push((Ipv6Addr::new(0xfd30, 0, 0, 0, 0, 0, 0, last).into(), 64));
        }
        Ok(addresses)
    }
}

/// A node in a namespace.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    number: usize,
    addresses: Vec<(IpAddr, u8)>,
    directory: PathBuf,
}

impl Member {
    fn ips(&self) -> String {
        let ips: Vec<String> = self.addresses.iter().map(|(address, _)| address.to_string()).collect();
        ips.join(",")
    }

    fn namespace(&self) -> PathBuf {
        self.directory.join("netns")
    }
}

/// How many nodes the cluster of a data directory has.
pub fn count(data_dir: &Path) -> usize {
    let entries = std::fs::read_dir(data_dir.join(DIRECTORY)).ok();
    1 + entries.into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()).count()
}

/// The data directories of the nodes in namespaces.
pub fn directories(data_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join(DIRECTORY)).ok();
    entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Of a command line, the flags that hold for every node of this machine: how many pods, housekeeping, and what happens
/// to pods without enforced policies.
pub fn flags_of_all_nodes(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let housekeeping = UpkeepArgs::augment_args(clap::Command::new("node"));
    let others = ["max-pods", "network-policy-failure-policy"];
    let names: Vec<&str> =
        housekeeping.get_arguments().filter_map(clap::Arg::get_long).chain(others).collect();
    let mut flags = Vec::new();
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--") else { continue };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        if names.contains(&name) {
            // A flag without its value has been refused before.
            let value = value.map(str::to_owned).or_else(|| arguments.next()).unwrap_or_default();
            flags.push(format!("--{name}={value}"));
        }
    }
    flags
}

/// The name of the bridge between nodes, the same for the same data directory.
pub fn bridge(fingerprint: u32) -> String {
    format!("fnodes{fingerprint:08x}")
}

/// The nodes of this machine besides the first.
pub struct Nodes {
    members: Vec<Member>,
    /// The first node's addresses.
    pub addresses: Vec<IpAddr>,
}

impl Nodes {
    /// Makes the bridge, the namespaces and the cables for `count` nodes, as far as they are not there; with IPv6 besides
    /// IPv4 if `both`.
    pub fn prepare(
        data_dir: &Path,
        first: &str,
        count: usize,
        range: NodeRange,
        bridge: &str,
        both: bool,
    ) -> Result<Self> {
        let addresses = range.addresses(1, both)?;
        let mut netlink = Netlink::open().context("talking to the kernel about links")?;
        netlink.add_bridge(bridge, MTU).context("making the bridge between nodes")?;
        for (address, prefix) in &addresses {
            netlink.add_address(bridge, *address, *prefix).context("giving the bridge its address")?;
        }
        netlink.set_up(bridge).context("bringing up the bridge")?;
        netlink.set_up("lo").context("bringing up loopback")?;
        let mut members = Vec::new();
        for number in 2..=count {
            let name = format!("{first}-{number}");
            let directory = data_dir.join(DIRECTORY).join(&name);
            let member = Member { name, number, addresses: range.addresses(number, both)?, directory };
            let gateways = addresses.iter().map(|(address, _)| *address).collect();
            member
                .prepare(&mut netlink, bridge, gateways)
                .with_context(|| format!("making node {}", member.name))?;
            members.push(member);
        }
        // Packets between nodes' pods pass through here.
        if !members.is_empty() {
            let files = ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"];
            for file in files.into_iter().take(if both { 2 } else { 1 }) {
                if std::fs::read_to_string(file).is_ok_and(|value| value.trim() == "0") {
                    std::fs::write(file, "1").context("letting packets be forwarded")?;
                }
            }
        }
        Ok(Self { members, addresses: addresses.into_iter().map(|(address, _)| address).collect() })
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
            let description = "nodes of this machine";
            let created = cluster::create_token(&administrator, &token, Some(TOKEN_LIFE), description, now);
            if let Err(error) = created.await {
                tracing::error!(
                    error = cluster::chain(&error),
                    "no token for the other nodes: they may not join"
                );
            }
            for member in self.members {
                let mut flags = flags.clone();
                flags.extend(["--server".to_owned(), server.clone()]);
                let cgroup = format!("{cgroup_root}-{}", member.number);
                match member.command(&token, flags, &cgroup) {
                    Ok(command) => {
                        say(format_args!(
                            "Node {} at {} joins; its log is {}",
                            member.name,
                            member.ips(),
                            member.directory.join("agent.log").display()
                        ));
                        let (command, tasks) = (Arc::new(Mutex::new(command)), group.clone());
                        let name = member.name;
                        group.supervise(format!("agent {name}"), move || {
                            keep(name.clone(), Arc::clone(&command), tasks.clone())
                        });
                    }
                    Err(error) => {
                        tracing::error!(node = member.name, error = format!("{error:#}"), "no agent")
                    }
                }
            }
        });
    }
}

impl Member {
    fn prepare(&self, netlink: &mut Netlink, bridge: &str, gateways: Vec<IpAddr>) -> Result<()> {
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("making {}", self.directory.display()))?;
        let pin = self.namespace();
        let is_new = !is_namespace_file(&pin);
        if is_new {
            File::create(&pin).with_context(|| format!("making {}", pin.display()))?;
            let target = pin.clone();
            apart(move || {
                unshare(&[Namespace::Network]).context("making a network namespace")?;
                let own = Path::new("/proc/thread-self/ns/net");
                mounts::bind(own, &target, false).context("keeping the network namespace")
            })?;
        }
        let cable = format!("{}-{}", &bridge[..bridge.len().min(11)], self.number);
        let namespace = File::open(&pin).with_context(|| format!("opening {}", pin.display()))?;
        if is_new || netlink.link(&cable)?.is_none() {
            netlink.remove(&cable).context("removing an old cable")?;
            netlink.add_pair(&cable, INTERFACE, namespace.as_fd(), MTU).context("making the cable")?;
        }
        netlink.plug(&cable, bridge).context("plugging in the cable")?;
        netlink.set_up(&cable).context("bringing up the cable")?;
        let addresses = self.addresses.clone();
        apart(move || {
            enter(namespace.as_fd(), Namespace::Network).context("entering the network namespace")?;
            let mut netlink = Netlink::open()?;
            netlink.set_up("lo").context("bringing up loopback")?;
            for (address, prefix) in addresses {
                netlink.add_address(INTERFACE, address, prefix).context("giving the node its address")?;
            }
            netlink.set_up(INTERFACE).context("bringing up the node's interface")?;
            for gateway in gateways {
                netlink.add_route(None, Some(gateway), INTERFACE).context("giving the node a route")?;
            }
            Ok(())
        })
    }

    fn command(&self, token: &BootstrapToken, flags: Vec<String>, cgroup_root: &str) -> Result<Command> {
        let tokens = self.directory.join("token");
        file::replace(&tokens, token.to_string().as_bytes(), PRIVATE)
            .with_context(|| format!("writing {}", tokens.display()))?;
        let log = self.directory.join("agent.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
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
            .stdout(log.try_clone().context("sharing the log")?)
            .stderr(log)
            .kill_on_drop(true);
        Ok(command)
    }
}

/// Starts agents from a thread of its own. An agent gets a signal at the end of the thread that started it, and the
/// runtime ends threads of its own while the process goes on.
struct Starter {
    requests: std::sync::mpsc::Sender<oneshot::Sender<io::Result<Child>>>,
}

impl Starter {
    fn new(command: Arc<Mutex<Command>>) -> Self {
        let (requests, waiting) = std::sync::mpsc::channel::<oneshot::Sender<io::Result<Child>>>();
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            let _entered = runtime.enter();
            for request in waiting {
                let _ = request.send(command.blocking_lock().spawn());
            }
        });
        Self { requests }
    }

    async fn start(&self) -> io::Result<Child> {
        let (request, started) = oneshot::channel();
        let ended = || io::Error::other("the thread that starts agents has ended");
        self.requests.send(request).map_err(|_| ended())?;
        started.await.map_err(|_| ended())?
    }
}

/// Keeps an agent running until `tasks` stop.
async fn keep(name: String, command: Arc<Mutex<Command>>, tasks: TaskGroup) {
    let starter = Starter::new(command);
    loop {
        let mut child = match starter.start().await {
            Ok(child) => child,
            Err(error) => {
                tracing::error!(node = name, %error, "the agent cannot be started; trying again");
                tokio::select! {
                    () = tokio::time::sleep(AGAIN) => continue,
                    () = tasks.stopping() => return,
                }
            }
        };
        tokio::select! {
            ended = child.wait() => {
                let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                tracing::warn!(node = name, status, "the agent ended; it is started again");
            }
            () = tasks.stopping() => return end(&mut child).await,
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = tasks.stopping() => return,
        }
    }
}

async fn end(child: &mut Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Does something in a thread of its own, whose namespaces nobody else shares.
fn apart(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    std::thread::spawn(work).join().map_err(|_| anyhow!("a thread panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nodes() {
        let range = NodeRange::parse("172.30.0.9/24").expect("a range");
        assert_eq!(range.address(1).expect("room"), IpAddr::from([172, 30, 0, 1]));
        assert_eq!(range.address(254).expect("room"), IpAddr::from([172, 30, 0, 254]));
        assert!(range.address(255).is_err());
        for bad in ["", "172.30.0.0", "172.30.0.0/31", "fd00::/64", "172.30.0.0/0"] {
            assert!(NodeRange::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_holds_for_every_node_is_passed_on() {
        let line = "ferry up --nodes 2 --image-gc-high-threshold=99 --data-dir d --max-pods 20 --listen :0 --network-policy-failure-policy Ignore";
        let got = flags_of_all_nodes(line.split(' ').map(str::to_owned));
        let wanted =
            ["--image-gc-high-threshold=99", "--max-pods=20", "--network-policy-failure-policy=Ignore"];
        assert_eq!(got, wanted);
    }

    #[test]
    fn names_fit_the_kernel() {
        assert!(bridge(u32::MAX).len() < 16);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn agent_outlives_the_runtime_thread_that_asked_for_it() {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "sleep", "60"]).kill_on_drop(true);
        let starter = Arc::new(Starter::new(Arc::new(Mutex::new(command))));
        let runtime = tokio::runtime::Handle::current();
        let asking = Arc::clone(&starter);
        let asked = std::thread::spawn(move || {
            let child = runtime.block_on(asking.start()).expect("a process");
            let name = format!("/proc/{}/comm", child.id().expect("it runs"));
            // Only then has it asked for the signal.
            let started = std::time::Instant::now();
            while std::fs::read_to_string(&name).is_ok_and(|name| name.trim() != "sleep") {
                assert!(started.elapsed() < Duration::from_secs(20), "no program has been started");
                std::thread::sleep(Duration::from_millis(5));
            }
            child
        });
        let mut child = asked.join().expect("no panic");
        let early = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
        assert!(early.is_err(), "it ended with the thread that asked: {early:?}");
        drop(starter);
        let late = tokio::time::timeout(Duration::from_secs(20), child.wait()).await;
        late.expect("it ends with the thread that started it").expect("a status");
    }
}
