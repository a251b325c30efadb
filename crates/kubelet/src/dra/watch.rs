//! Connections of drivers and the health of their devices, followed while they are registered; and claims of pods that
//! are gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cri::dra_health::{DraresourceHealthClient, NodeWatchResourcesRequest};
use tonic::Code;
use tonic::client::Grpc;

use super::Dra;
use super::drivers::DriverPlugin;
use crate::pods::Workers;
use crate::shared::Shared;

/// Delay of the next attempt to reach a driver.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Interval of attempts to unprepare the claims of pods that are gone.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum interval between reports of one driver; further ones wait in its connection.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Passes changes of health on, deletes the ResourceSlices of drivers that are gone and unprepares the claims of pods
/// that are, until the kubelet stops.
pub async fn follow(shared: Arc<Shared>, workers: Arc<Workers>) {
    let dra = shared.dra.clone();
    let news = async {
        loop {
            dra.changes().await.iter().for_each(|uid| workers.wake(uid));
        }
    };
    let reconcile = async {
        loop {
            tokio::time::sleep(RECONCILE_INTERVAL).await;
            for uid in dra.pods().into_iter().filter(|uid| !workers.contains(uid)) {
                if let Err(error) = dra.unprepare(&uid).await {
                    tracing::info!(pod = uid, %error, "failed to unprepare dynamic resources, retrying");
                }
            }
        }
    };
    tokio::join!(news, reconcile, dra.0.plugins.wipe(&dra.0.client, &dra.0.node));
}

impl Dra {
    /// Follows a plugin until it is removed.
    pub(super) async fn watch(&self, plugin: &Arc<DriverPlugin>) {
        let removed = plugin.removed.notified();
        let connection = async {
            let mut changes = plugin.connections.subscribe();
            loop {
                self.0.plugins.sync(&plugin.driver);
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let health = async {
            loop {
                self.watch_health(plugin).await;
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        tokio::select! {
            () = removed => {}
            () = connection => {}
            () = health => {}
        }
        self.clear_health(&plugin.driver);
        self.0.plugins.sync(&plugin.driver);
    }

    /// Follows the health of a driver's devices until the stream ends. The call also opens the connection, by which the
    /// driver counts as present.
    async fn watch_health(&self, plugin: &DriverPlugin) {
        let mut client = DraresourceHealthClient::new(Grpc::new(plugin.channel.clone()));
        let mut stream = match client.node_watch_resources(NodeWatchResourcesRequest {}).await {
            Ok(stream) => stream.into_inner(),
            Err(status) if status.code() == Code::Unimplemented => {
                // The driver reports no health; its connection is opened again once it has ended.
                let mut changes = plugin.connections.subscribe();
                let _ = changes.wait_for(|count| *count == 0).await;
                return;
            }
            Err(status) => {
                tracing::debug!(
                    driver = plugin.driver,
                    error = status.message(),
                    "DRA driver is not responding"
                );
                return;
            }
        };
        loop {
            match stream.message().await {
                Ok(Some(report)) => {
                    let changed = self.0.health.lock().report(&plugin.driver, report.devices, Instant::now());
                    self.notify(&plugin.driver, &changed);
                    tokio::time::sleep(REPORT_INTERVAL).await;
                }
                Ok(None) => break,
                Err(status) => {
                    tracing::debug!(
                        driver = plugin.driver,
                        error = status.message(),
                        "stream of device health ended"
                    );
                    break;
                }
            }
        }
        self.clear_health(&plugin.driver);
    }

    fn clear_health(&self, driver: &str) {
        self.0.health.lock().clear(driver);
        let pods = self.0.claims.lock();
        let pods = pods.values().filter(|claim| claim.driver_state.contains_key(driver));
        let pods: BTreeSet<String> = pods.flat_map(|claim| claim.pod_uids.keys().cloned()).collect();
        self.0.news.lock().extend(pods);
        self.0.changed.notify_one();
    }

    /// Notes the pods that use devices.
    fn notify(&self, driver: &str, devices: &[(String, String)]) {
        let claims = self.0.claims.lock();
        let uses = |claim: &&super::claims::ClaimInfo| {
            let own =
                claim.driver_state.get(driver).and_then(|state| state.devices.as_deref()).unwrap_or_default();
            own.iter().any(|one| {
                devices.iter().any(|(pool, device)| one.pool_name == *pool && one.device_name == *device)
            })
        };
        let pods: BTreeSet<String> =
            claims.values().filter(uses).flat_map(|claim| claim.pod_uids.keys().cloned()).collect();
        self.0.news.lock().extend(pods);
        self.0.changed.notify_one();
    }
}
