//! What every control loop stands on: informers, queues, the harness, events, leader election.
//!
//! A loop is a [`Loop`] with a [`Descriptor`]. It is built with a [`Context`], from which it takes caches
//! ([`Context::cache`]) and says which changes make it look at which [`Key`] ([`Context::watch`] and its siblings). The
//! [`Harness`] owns everything else: queue, workers, retries, spans, metrics, and the cause on every write.

#![warn(clippy::arithmetic_side_effects)]

mod events;
mod expectations;
mod harness;
mod informer;
mod keep;
mod key;
mod leader;
mod metrics;
mod pass;
mod queue;

pub use events::{EventType, Occurrence, Recorder, reference};
pub use expectations::Expectations;
pub use harness::{Action, Context, Descriptor, Harness, Identities, Loop, LoopError, Row, Workers};
pub use informer::{Cache, Change, Informers, Selection};
pub use keep::{Haste, Kept, keep};
pub use key::{Key, controller_of};
pub use leader::{LeaderElection, Leading, lead};
pub use metrics::LoopMetrics;
pub use queue::{Queue, Trigger};
