//! Publishes the addresses and the host name of this machine while the process runs, after notifications of the kernel.

use std::path::Path;

use base::file_changes::PolledFile;
use base::machine_network::{MachineNetwork, publish};
use base::tasks::TaskGroup;
use kubelet::node::machine_network;
use runtime::Disturbances;
use sys::netlink::{Changes, notifications};

/// Host name of the kernel. Polling reports an exceptional condition after each change.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Publishes the current state, and changes of it until `tasks` stop.
pub(crate) fn follow(tasks: &TaskGroup) {
    publish(machine_network());
    tasks.supervise_until_stopped("machine-network", || async {
        let mut links = Disturbances::new(notifications(Changes::Routes));
        let mut hostname = HostnameChanges::open();
        loop {
            // The first round finds changes from before the notifications.
            let network = machine_network();
            if publish(network.clone()) {
                report(&network);
            }
            tokio::select! {
                () = links.next() => {}
                () = hostname.next() => {}
            }
        }
    });
}

fn report(network: &MachineNetwork) {
    let MachineNetwork { preferred, hostname, .. } = network;
    if preferred.is_empty() {
        tracing::warn!("the machine has no address, keeping the last one of the node until it has one");
    } else {
        tracing::debug!(addresses = ?preferred, ?hostname, "network of the machine changed");
    }
}

/// Changes of the host name, in any UTS namespace.
struct HostnameChanges(Option<PolledFile>);

impl HostnameChanges {
    fn open() -> Self {
        let opened = PolledFile::open(Path::new(HOSTNAME));
        Self(opened.inspect_err(|error| tracing::debug!(%error, "no notifications of host names")).ok())
    }

    async fn next(&mut self) {
        let Some(file) = &mut self.0 else { return std::future::pending().await };
        if file.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn current_state_is_published() {
        let tasks = TaskGroup::new();
        follow(&tasks);
        let network = base::machine_network::current().expect("a state");
        assert!(network.addresses.iter().any(std::net::IpAddr::is_loopback), "{network:?}");
        tasks.stop();
    }

    /// Sets the host name of a UTS namespace of its own thread.
    #[tokio::test]
    async fn change_of_the_host_name_is_reported() {
        let mut changes = HostnameChanges::open();
        let quiet = tokio::time::timeout(Duration::from_millis(50), changes.next()).await;
        assert!(quiet.is_err(), "no change yet");
        let renamed = base::tasks::spawn_thread(|| sys::process::own_hostname("renamed"));
        if renamed.join().expect("no panic").is_err() {
            return println!("skipped: no permission to set a host name");
        }
        tokio::time::timeout(Duration::from_secs(10), changes.next()).await.expect("a change");
    }
}
