//! Edit: a change of a stored object that its kind's rules do not cover.

use super::update::{ATTEMPTS, Attempt};
use super::{MODIFIED, Registry, Served, WriteContext};
use crate::cache::Entry;
use bytes::Bytes;
use machinery::status::Result;

impl Registry {
    /// Changes an object until it is stored or rejected. `make` computes the new bytes from the current entry, again
    /// for each attempt.
    pub async fn edit(
        &self,
        served: &Served,
        name: &str,
        context: &WriteContext<'_>,
        mut make: impl FnMut(&Entry) -> Result<Bytes>,
    ) -> Result<()> {
        let mut current = self.current(served, name, context).await?;
        for _ in 0..ATTEMPTS {
            let Some(entry) = current else { return Err(served.not_found(name)) };
            let bytes = make(&entry)?;
            if context.dry_run {
                return Ok(());
            }
            match self.swap(served, &entry, bytes, context).await? {
                Attempt::Done(_) => return Ok(()),
                Attempt::Raced(latest) => current = latest,
            }
        }
        Err(served.conflict(name, MODIFIED))
    }
}
