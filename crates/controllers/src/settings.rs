//! What loops need to know of the cluster besides its objects.

/// Settings of the whole controller manager; `ctx.setting::<Settings>()` gives them.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The authority of the API server's certificate, in PEM: what `kube-root-ca.crt` holds.
    pub root_ca: Option<String>,
}
