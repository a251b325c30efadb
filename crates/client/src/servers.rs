//! Further addresses of the API server of a kubeconfig, for clients of a server whose address changes.
//!
//! A connection is tried at the address that worked last, then at that of the kubeconfig, then at the others. Every one
//! has to present a certificate of the kubeconfig's authority for that address before credentials are sent, so a wrong
//! address costs time only.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Limit of known addresses; the oldest is forgotten.
const MAX_KNOWN: usize = 4;
/// Time for the address in use to accept a connection, before others are tried.
const PROBE: Duration = Duration::from_secs(2);

/// Further addresses of an API server, kept in a file.
#[derive(Debug)]
pub struct Servers {
    /// One address per line, the last known first.
    file: PathBuf,
    state: Mutex<State>,
    /// Counts abandoned addresses: connections end with each.
    abandoned: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    known: Vec<SocketAddr>,
    /// Address of the last connection; that of the kubeconfig if absent.
    used: Option<SocketAddr>,
    probing: bool,
}

impl Servers {
    /// Reads the addresses of an earlier run; a missing or invalid file has none.
    #[must_use]
    pub fn open(file: PathBuf) -> Self {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let known = text.lines().filter_map(|line| line.trim().parse().ok()).take(MAX_KNOWN).collect();
        let state = Mutex::new(State { known, ..State::default() });
        Self { file, state, abandoned: watch::Sender::new(0) }
    }

    /// Addresses to try; `None` is that of the kubeconfig.
    pub(crate) fn candidates(&self) -> Vec<Option<SocketAddr>> {
        let state = self.state.lock();
        let others = state.known.iter().copied().filter(|known| state.used != Some(*known)).map(Some);
        state.used.map(Some).into_iter().chain([None]).chain(others).collect()
    }

    /// Records the address of a verified connection.
    pub(crate) fn connected(&self, address: Option<SocketAddr>) {
        let mut state = self.state.lock();
        if state.used == address {
            return;
        }
        state.used = address;
        let Some(address) = address else { return };
        tracing::info!(%address, "connected to the API server at another address");
        state.known.retain(|known| *known != address);
        state.known.insert(0, address);
        state.known.truncate(MAX_KNOWN);
        let text: String = state.known.iter().map(|known| format!("{known}\n")).collect();
        if let Err(error) = base::file::replace(&self.file, text.as_bytes(), base::file::PRIVATE) {
            tracing::warn!(%error, file = %self.file.display(), "failed to record the API server's address");
        }
    }

    /// Completes when the address of the connections that exist now is abandoned.
    pub(crate) fn abandonment(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut abandoned = self.abandoned.subscribe();
        async move {
            if abandoned.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Considers an address from which the API server, identified by its certificate, connected to this machine. If
    /// the one in use (`primary` is that of the kubeconfig, `host:port`) accepts no connections, it is abandoned.
    pub async fn consider(&self, ip: IpAddr, primary: &str) {
        let Some(port) = primary.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) else { return };
        let address = SocketAddr::new(ip.to_canonical(), port);
        let used = {
            let mut state = self.state.lock();
            let in_use = state.used.map_or_else(|| primary.to_owned(), |used| used.to_string());
            if state.probing || in_use == address.to_string() {
                return;
            }
            if !state.known.contains(&address) {
                state.known.insert(0, address);
                state.known.truncate(MAX_KNOWN);
            }
            state.probing = true;
            in_use
        };
        let answers = matches!(tokio::time::timeout(PROBE, TcpStream::connect(&used)).await, Ok(Ok(_)));
        self.state.lock().probing = false;
        if !answers {
            tracing::info!(%address, unreachable = used, "the API server has moved, reconnecting");
            self.abandoned.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unreachable_address_is_abandoned_and_verified_one_is_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("servers");
        let servers = Servers::open(file.clone());
        assert_eq!(servers.candidates(), [None]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let primary = listener.local_addr().expect("an address");
        let moved = SocketAddr::new([127, 0, 0, 2].into(), primary.port());
        // The address in use answers: the other one is only remembered.
        let mut abandoned = Box::pin(servers.abandonment());
        servers.consider(moved.ip(), &primary.to_string()).await;
        assert!(futures_util::FutureExt::now_or_never(&mut abandoned).is_none());
        assert_eq!(servers.candidates(), [None, Some(moved)]);
        assert!(!file.exists(), "unverified addresses are not recorded");
        drop(listener);
        servers.consider(moved.ip(), &primary.to_string()).await;
        abandoned.await;
        servers.connected(Some(moved));
        assert_eq!(servers.candidates(), [Some(moved), None]);
        assert_eq!(Servers::open(file).candidates(), [None, Some(moved)]);
        for last in 3..20 {
            servers.consider([127, 0, 0, last].into(), &primary.to_string()).await;
        }
        assert_eq!(servers.candidates().len(), MAX_KNOWN + 2);
    }
}
