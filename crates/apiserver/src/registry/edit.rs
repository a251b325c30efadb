//! Edit: a change of what is stored of an object that none of its kind's rules concern.

use super::update::{ATTEMPTS, Attempt};
use super::{MODIFIED, Registry, Served, WriteContext};
use crate::cache::Entry;
use bytes::Bytes;
use machinery::status::Result;

impl Registry {
    /// Changes an object until it is stored or refused. `make` tells its new form from the present one, again for each
    /// attempt.
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
