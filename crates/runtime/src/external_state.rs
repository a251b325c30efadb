//! Reconciles state outside the API, such as kernel rules, with the API: completely at first and after every failure,
//! by differences in between.

use std::error::Error;
use std::time::Duration;

use base::backoff::Backoff;
use base::errors::chain;
use base::tasks::TaskGroup;

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Changes within this time are batched.
const BATCH_WINDOW: Duration = Duration::from_millis(5);

/// State outside the API that is reconciled.
pub trait ExternalState: Send {
    type Error: Error;

    /// Name for log messages.
    fn name(&self) -> &'static str;

    /// Completes when enough is known to start, and again before every round.
    fn ready(&mut self) -> impl Future<Output = ()> + Send;

    /// Applies the desired state: all of it, regardless of what exists, or the difference to the last call.
    fn apply(&mut self, whole: bool) -> Result<(), Self::Error>;

    /// Completes when the desired state may have changed; returns whether more changes may follow immediately.
    fn changed(&mut self) -> impl Future<Output = Batching> + Send;
}

/// Urgency of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// More changes may follow immediately and are batched with it.
    None,
    /// A caller waits for it: applied without batching.
    Immediate,
}

/// Reconciles until `tasks` stop.
pub async fn reconcile(mut state: impl ExternalState, tasks: &TaskGroup) {
    let (mut whole, mut retry) = (true, RETRY);
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
            // Something else may have changed the state: apply it completely.
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to apply {}, retrying", state.name());
                whole = true;
                Some(retry.next_delay())
            }
        };
        let next = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => {
                    if state.changed().await == Batching::None {
                        tokio::time::sleep(BATCH_WINDOW).await;
                    }
                }
            }
        };
        if tasks.until_stopped(next).await.is_none() {
            return;
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
}
