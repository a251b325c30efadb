//! Backends that apply plans to the kernel. The first one that works is used.

use crate::iptables::{Iptables, IptablesError};
use crate::ipvs::{IpvsBackend, IpvsError};
use crate::model::Node;
use crate::nftables::{NftError, Nftables};
use crate::state::{Difference, State};
use crate::userspace::{Userspace, UserspaceError};

/// Proxy modes, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
    Ipvs,
    Userspace,
}

/// Default order.
pub const ORDER: [Mode; 4] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs, Mode::Userspace];

impl Mode {
    /// The mode with this `--proxy-mode` name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        ORDER.into_iter().find(|mode| mode.name() == name)
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Userspace => "userspace",
        }
    }
}

/// Error of a backend.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("nftables")]
    Nftables(#[from] NftError),
    #[error("iptables")]
    Iptables(#[from] IptablesError),
    #[error("ipvs")]
    Ipvs(#[from] IpvsError),
    #[error("userspace")]
    Userspace(#[from] UserspaceError),
    #[error("no proxy mode is available on this node")]
    None,
}

/// Applies plans to the kernel.
pub trait Backend: Send + Sync {
    fn mode(&self) -> Mode;
    /// Checks that the kernel takes the rules, without a change of existing ones.
    fn probe(&self) -> Result<(), BackendError>;
    /// Replaces all rules in the kernel by those of `state`.
    fn replace(&self, state: &State) -> Result<(), BackendError>;
    /// Applies a difference that results in `state`.
    fn apply(&self, difference: &Difference, state: &State) -> Result<(), BackendError>;
    /// Returns false if another process changed the rules.
    fn is_intact(&self) -> Result<bool, BackendError>;
    /// Removes everything.
    fn remove(&self) -> Result<(), BackendError>;
}

/// A working backend: the requested one, or else the first in order. The rules of the last run are left as they are
/// until the first complete plan.
pub fn open(requested: Option<Mode>, node: &Node) -> Result<Box<dyn Backend>, BackendError> {
    let others = ORDER.into_iter().filter(|mode| Some(*mode) != requested);
    for mode in requested.into_iter().chain(others) {
        match attempt(mode, node) {
            Ok(backend) => return Ok(backend),
            Err(error) => {
                tracing::warn!(
                    mode = mode.name(),
                    error = causes(&error),
                    "proxy mode unavailable, trying the next"
                );
            }
        }
    }
    Err(BackendError::None)
}

/// The error with its sources.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(error.source(), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn attempt(mode: Mode, node: &Node) -> Result<Box<dyn Backend>, BackendError> {
    let backend: Box<dyn Backend> = match mode {
        Mode::Nftables => Box::new(Nftables::open(node.clone())?),
        Mode::Iptables => Box::new(Iptables::open(node.clone())?),
        Mode::Ipvs => Box::new(IpvsBackend::open(node.clone())?),
        Mode::Userspace => Box::new(Userspace::open(node.clone())?),
    };
    backend.probe()?;
    Ok(backend)
}

impl Backend for Nftables {
    fn mode(&self) -> Mode {
        Mode::Nftables
    }

    fn probe(&self) -> Result<(), BackendError> {
        Ok(Self::probe(self)?)
    }

    fn replace(&self, state: &State) -> Result<(), BackendError> {
        Ok(Self::replace(self, &state.whole())?)
    }

    fn apply(&self, difference: &Difference, _: &State) -> Result<(), BackendError> {
        Ok(Self::apply(self, difference)?)
    }

    fn is_intact(&self) -> Result<bool, BackendError> {
        Ok(Self::is_intact(self)?)
    }

    fn remove(&self) -> Result<(), BackendError> {
        Ok(Self::remove(self)?)
    }
}
