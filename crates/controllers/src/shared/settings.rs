//! Settings of the controllers.

use jiff::SignedDuration;
use runtime::Context;
use std::sync::LazyLock;
use std::time::Duration;

/// Settings of the whole controller manager; see [`Settings::of`]. The defaults are Kubernetes'.
#[derive(Clone, Debug)]
pub struct Settings {
    /// CA certificate of the API server, in PEM: the content of `kube-root-ca.crt`.
    pub root_ca: Option<String>,
    /// Time without a heartbeat after which a node is unhealthy.
    pub node_monitor_grace: SignedDuration,
    /// As above, for a node that has not posted a status yet.
    pub node_startup_grace: SignedDuration,
    /// Maximum number of finished pods; unlimited if absent.
    pub terminated_pods: Option<usize>,
    /// Maximum lifetime of signed certificates.
    pub signing_duration: SignedDuration,
    /// Time without use after which a legacy service account token is invalidated, and after which an invalid one is
    /// deleted.
    pub legacy_token_cleanup: SignedDuration,
    /// Maximum number of endpoints in an EndpointSlice.
    pub endpoints_per_slice: usize,
    pub autoscaler: AutoscalerSettings,
}

/// Settings of the horizontal pod autoscaler.
#[derive(Clone, Debug)]
pub struct AutoscalerSettings {
    /// Interval between reconciliations of an autoscaler.
    pub period: Duration,
    /// Relative deviation from the target within which the size is kept.
    pub tolerance: f64,
    /// Time after a pod's start in which its CPU samples may be skipped.
    pub cpu_initialization: SignedDuration,
    /// Time after a pod's start in which changes of its readiness count as its first.
    pub readiness_delay: SignedDuration,
    /// Time for which past recommendations keep a size from shrinking.
    pub downscale_window: SignedDuration,
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(15),
            tolerance: 0.1,
            cpu_initialization: SignedDuration::from_mins(5),
            readiness_delay: SignedDuration::from_secs(30),
            downscale_window: SignedDuration::from_mins(5),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            root_ca: None,
            node_monitor_grace: SignedDuration::from_secs(50),
            node_startup_grace: SignedDuration::from_secs(60),
            terminated_pods: Some(12_500),
            signing_duration: SignedDuration::from_hours(365 * 24),
            legacy_token_cleanup: SignedDuration::from_hours(365 * 24),
            endpoints_per_slice: 100,
            autoscaler: AutoscalerSettings::default(),
        }
    }
}

impl Settings {
    /// Settings of a loop's process.
    pub fn of(ctx: &Context) -> &Self {
        static DEFAULT: LazyLock<Settings> = LazyLock::new(Settings::default);
        ctx.setting::<Self>().unwrap_or(&DEFAULT)
    }
}
