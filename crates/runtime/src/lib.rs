//! Foundation of the control loops: informers, queues, the harness, events, leader election.
//!
//! A loop is a [`Loop`] with a [`Descriptor`]. It is built with a [`Context`], which provides caches
//! ([`Context::cache`]) and maps changes to [`Key`]s ([`Context::watch`] and its siblings). The [`Harness`] owns
//! everything else: queue, workers, retries, spans, metrics, and the cause on every write.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![warn(clippy::arithmetic_side_effects)]

mod disturbances;
mod events;
mod expectations;
mod external_state;
mod harness;
mod informer;
mod key;
mod leader;
mod metrics;
mod queue;
mod reconciliation;

pub use disturbances::Disturbances;
pub use events::{EventType, Occurrence, Recorder, reference};
pub use expectations::Expectations;
pub use external_state::{Batching, ExternalState, reconcile};
pub use harness::{Action, Context, Descriptor, Harness, Identities, Loop, LoopError, Row, Workers};
pub use informer::{Cache, Change, Informers, Selection, SyncStatus};
pub use key::{Key, controller_of};
pub use leader::{LeaderElection, Leading, lead};
pub use metrics::LoopMetrics;
pub use queue::{Queue, Trigger};
