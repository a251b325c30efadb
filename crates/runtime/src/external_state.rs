//! Reconciles state outside the API, such as kernel rules, with the API: completely at first and after every failure,
//! by differences in between. What was applied is verified every 30 seconds and after notifications of changes by other
//! processes, and applied again if it differs.

use std::error::Error;
use std::time::Duration;

use base::backoff::Backoff;
use base::clock::deadline_after;
use base::errors::chain;
use base::tasks::TaskGroup;
use tokio::time::Instant;

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Changes within this time are batched.
const BATCH_WINDOW: Duration = Duration::from_millis(5);

/// Interval at which the applied state is verified.
const RESYNC: Duration = Duration::from_secs(30);

/// State outside the API that is reconciled.
///
/// ```
/// use std::collections::BTreeSet;
/// use std::convert::Infallible;
///
/// use base::tasks::TaskGroup;
/// use runtime::{Batching, ExternalState, reconcile};
/// use tokio::sync::watch;
///
/// /// Routes to pods, of which the kernel has `kernel`.
/// struct Routes {
///     wanted: watch::Receiver<BTreeSet<String>>,
///     kernel: BTreeSet<String>,
///     tasks: TaskGroup,
/// }
///
/// impl ExternalState for Routes {
///     type Error = Infallible;
///
///     fn name(&self) -> &'static str {
///         "routes"
///     }
///
///     async fn ready(&mut self) {}
///
///     fn apply(&mut self, _whole: bool) -> Result<(), Infallible> {
///         self.kernel.clone_from(&self.wanted.borrow_and_update());
///         if self.kernel.contains("10.1.0.0/24") {
///             self.tasks.stop();
///         }
///         Ok(())
///     }
///
///     async fn changed(&mut self) -> Batching {
///         let _ = self.wanted.changed().await;
///         Batching::None
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let tasks = TaskGroup::new();
/// let (wanted, receiver) = watch::channel(BTreeSet::new());
/// let routes = Routes { wanted: receiver, kernel: BTreeSet::new(), tasks: tasks.clone() };
/// let reconciled = reconcile(routes, &tasks);
/// wanted.send_modify(|routes| drop(routes.insert("10.1.0.0/24".to_owned())));
/// reconciled.await;
/// # }
/// ```
pub trait ExternalState: Send {
    type Error: Error;

    /// Name for log messages.
    fn name(&self) -> &'static str;

    /// Completes when enough is known to start, and again before every round.
    fn ready(&mut self) -> impl Future<Output = ()> + Send;

    /// Applies the desired state: all of it, regardless of what exists, or the difference to the last call.
    fn apply(&mut self, whole: bool) -> Result<(), Self::Error>;

    /// Returns false if another process changed the applied state, which is then applied completely.
    fn is_intact(&mut self) -> Result<bool, Self::Error> {
        Ok(true)
    }

    /// Completes when the desired state may have changed, or another process may have changed the applied state; returns
    /// the urgency of the change.
    fn changed(&mut self) -> impl Future<Output = Batching> + Send;
}

/// Urgency of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// More changes may follow immediately and are batched with it.
    None,
    /// A caller waits for it: applied without batching.
    Immediate,
    /// Another process may have changed the applied state: it is verified.
    Disturbed,
}

/// Urgency of the next round, or `Disturbed` when the resync is due.
async fn next(state: &mut impl ExternalState, resync: Instant) -> Batching {
    let urgency = tokio::select! {
        urgency = state.changed() => urgency,
        () = tokio::time::sleep_until(resync) => Batching::Disturbed,
    };
    if urgency == Batching::None {
        tokio::time::sleep(BATCH_WINDOW).await;
    }
    urgency
}

/// True if the whole state must be applied again.
fn is_damaged(state: &mut impl ExternalState) -> bool {
    match state.is_intact() {
        Ok(true) => false,
        Ok(false) => {
            tracing::warn!("another process changed {}, applying all of it again", state.name());
            true
        }
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "failed to verify {}, applying all of it again",
                state.name()
            );
            true
        }
    }
}

/// Reconciles until `tasks` stop.
pub async fn reconcile(mut state: impl ExternalState, tasks: &TaskGroup) {
    let (mut whole, mut retry, mut resync) = (true, RETRY, deadline_after(RESYNC));
    loop {
        if tasks.until_stopped(state.ready()).await.is_none() {
            return;
        }
        let wait = match state.apply(whole) {
            Ok(()) => {
                whole = false;
                retry.reset();
                None
            }
            // Another process may have changed the state: apply it completely.
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to apply {}, retrying", state.name());
                whole = true;
                Some(retry.next_delay())
            }
        };
        if let Some(wait) = wait {
            if tasks.until_stopped(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
            continue;
        }
        let Some(urgency) = tasks.until_stopped(next(&mut state, resync)).await else { return };
        if urgency == Batching::Disturbed {
            whole = is_damaged(&mut state);
            resync = deadline_after(RESYNC);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("injected failure")]
    struct InjectedFailure;

    /// Fails in some rounds and records its calls.
    struct RecordingState {
        failing: Vec<usize>,
        rounds: Arc<Mutex<Vec<bool>>>,
        tasks: TaskGroup,
    }

    impl ExternalState for RecordingState {
        type Error = InjectedFailure;

        fn name(&self) -> &'static str {
            "a test"
        }

        async fn ready(&mut self) {}

        fn apply(&mut self, whole: bool) -> Result<(), InjectedFailure> {
            let mut rounds = self.rounds.lock();
            rounds.push(whole);
            if rounds.len() == 5 {
                self.tasks.stop();
            }
            if self.failing.contains(&rounds.len()) { Err(InjectedFailure) } else { Ok(()) }
        }

        async fn changed(&mut self) -> Batching {
            Batching::None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_after_failure_applies_everything() {
        let (tasks, rounds) = (TaskGroup::new(), Arc::new(Mutex::new(Vec::new())));
        let state = RecordingState { failing: vec![1, 3], rounds: Arc::clone(&rounds), tasks: tasks.clone() };
        reconcile(state, &tasks).await;
        assert_eq!(*rounds.lock(), [true, true, false, true, false]);
    }

    /// Differs when verified for the second time, and records what is applied.
    struct DamagedState {
        verified: usize,
        rounds: Arc<Mutex<Vec<bool>>>,
        tasks: TaskGroup,
    }

    impl ExternalState for DamagedState {
        type Error = InjectedFailure;

        fn name(&self) -> &'static str {
            "a test"
        }

        async fn ready(&mut self) {}

        fn apply(&mut self, whole: bool) -> Result<(), InjectedFailure> {
            self.rounds.lock().push(whole);
            Ok(())
        }

        fn is_intact(&mut self) -> Result<bool, InjectedFailure> {
            self.verified += 1;
            if self.verified == 4 {
                self.tasks.stop();
            }
            if self.verified == 3 { Err(InjectedFailure) } else { Ok(self.verified != 2) }
        }

        async fn changed(&mut self) -> Batching {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reconcile_verifies_state_and_applies_everything_if_it_differs() {
        let (tasks, rounds) = (TaskGroup::new(), Arc::new(Mutex::new(Vec::new())));
        let state = DamagedState { verified: 0, rounds: Arc::clone(&rounds), tasks: tasks.clone() };
        let begun = Instant::now();
        reconcile(state, &tasks).await;
        assert_eq!(rounds.lock()[..4], [true, false, true, true]);
        assert_eq!(begun.elapsed(), 4 * RESYNC);
    }
}
