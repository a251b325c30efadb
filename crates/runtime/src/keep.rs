//! Keeping something outside the API, such as rules of the kernel, at what the API says: brought there whole at first and
//! after every failure, by differences in between.

use std::error::Error;
use std::time::Duration;

use base::errors::chain;
use base::tasks::TaskGroup;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Changes that come within this time are made together.
const GATHER: Duration = Duration::from_millis(5);

/// What is kept.
pub trait Kept: Send {
    type Error: Error;

    /// What it is called when it cannot be brought to what it should be.
    fn name(&self) -> &'static str;

    /// Completes when enough is known to begin, and again before every round.
    fn known(&mut self) -> impl Future<Output = ()> + Send;

    /// Brings it to what it should be: all of it, whatever is there, or what differs from the last time.
    fn bring(&mut self, whole: bool) -> Result<(), Self::Error>;

    /// Completes when something may differ, and says whether more of it may come at once.
    fn changed(&mut self) -> impl Future<Output = Haste> + Send;
}

/// How soon a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// Others may follow at once, and are made together with it.
    None,
    /// Somebody waits for it.
    AtOnce,
}

/// Keeps it until `tasks` stop.
pub async fn keep(mut kept: impl Kept, tasks: &TaskGroup) {
    let stopping = tasks.stopping();
    tokio::pin!(stopping);
    let (mut whole, mut retry) = (true, FIRST_RETRY);
    loop {
        tokio::select! {
            () = &mut stopping => return,
            () = kept.known() => {}
        }
        let wait = match kept.bring(whole) {
            Ok(()) => {
                (whole, retry) = (false, FIRST_RETRY);
                None
            }
            // Somebody else may have been at it: begin anew.
            Err(error) => {
                tracing::warn!(error = chain(&error), "{} could not be set; trying again", kept.name());
                let wait = retry;
                (whole, retry) = (true, retry.saturating_mul(2).min(LAST_RETRY));
                Some(wait)
            }
        };
        let next = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => {
                    if kept.changed().await == Haste::None {
                        tokio::time::sleep(GATHER).await;
                    }
                }
            }
        };
        tokio::select! {
            () = &mut stopping => return,
            () = next => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("not now")]
    struct NotNow;

    /// Fails in some rounds, and notes how it was called.
    struct Noted {
        failing: Vec<usize>,
        rounds: Arc<Mutex<Vec<bool>>>,
        tasks: TaskGroup,
    }

    impl Kept for Noted {
        type Error = NotNow;

        fn name(&self) -> &'static str {
            "a test"
        }

        async fn known(&mut self) {}

        fn bring(&mut self, whole: bool) -> Result<(), NotNow> {
            let mut rounds = self.rounds.lock();
            rounds.push(whole);
            if rounds.len() == 5 {
                self.tasks.stop();
            }
            if self.failing.contains(&rounds.len()) { Err(NotNow) } else { Ok(()) }
        }

        async fn changed(&mut self) -> Haste {
            Haste::None
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_made_whole() {
        let (tasks, rounds) = (TaskGroup::new(), Arc::new(Mutex::new(Vec::new())));
        let kept = Noted { failing: vec![1, 3], rounds: Arc::clone(&rounds), tasks: tasks.clone() };
        keep(kept, &tasks).await;
        assert_eq!(*rounds.lock(), [true, true, false, true, false]);
    }
}
