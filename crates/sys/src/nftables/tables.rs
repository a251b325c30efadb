//! Tables of the same name in both families, changed alike, each in its own batch.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Batch, Content, FAMILIES, Family, NftError, Socket};

/// Time after a change until the content of the tables is read.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// Both tables of a name, in the network namespace in which they were opened.
#[derive(Debug)]
pub struct Tables {
    socket: Socket,
    name: String,
    known: Mutex<Known>,
}

/// Last known state of the tables, to detect changes by other processes.
#[derive(Debug, Default)]
struct Known {
    /// The kernel's generation of all tables at which these were last known to be intact.
    generation: Option<u32>,
    /// Their content, if it was read since the last change.
    content: Option<[Content; 2]>,
    /// Time of the last change.
    changed: Option<Instant>,
}

impl Tables {
    pub fn open(name: impl Into<String>) -> Result<Self, NftError> {
        Ok(Self { socket: Socket::open()?, name: name.into(), known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces their content with what `fill` writes.
    pub fn replace(&self, fill: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        self.send(true, |batch, family| {
            batch.remove_table();
            batch.add_table();
            fill(batch, family);
        })
    }

    /// Applies the changes that `change` writes.
    pub fn apply(&self, change: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        self.send(false, change)
    }

    /// `whole`: the result does not depend on what the tables contained.
    fn send(&self, whole: bool, change: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        let mut known = self.known();
        let last = std::mem::take(&mut *known);
        let before = self.socket.generation()?;
        let was_trusted = whole || last.generation == Some(before);
        let mut batches = 0;
        for family in FAMILIES {
            let mut batch = Batch::new(family, &self.name);
            change(&mut batch, family);
            batches += u32::from(!batch.is_empty());
            self.socket.apply(batch)?;
        }
        // A larger difference means that another process changed tables meanwhile, perhaps these.
        let after = self.socket.generation()?;
        known.changed = Some(Instant::now());
        known.generation = (was_trusted && after == before.wrapping_add(batches)).then_some(after);
        Ok(())
    }

    /// Returns false if another process removed or changed the tables since they were last applied.
    pub fn are_intact(&self) -> Result<bool, NftError> {
        let mut known = self.known();
        let generation = self.socket.generation()?;
        let is_trusted = known.generation == Some(generation);
        // Reading large tables takes time: not after each of many changes.
        let is_recent = known.changed.is_some_and(|changed| changed.elapsed() < SETTLE_TIME);
        if is_trusted && (known.content.is_some() || is_recent) {
            return Ok(true);
        }
        let content = [self.content(FAMILIES[0])?, self.content(FAMILIES[1])?];
        let [Some(one), Some(other)] = content else { return Ok(false) };
        let content = [one, other];
        let is_intact = match known.content {
            Some(last) => content == last,
            // Another table changed before the content was read for the first time.
            None => is_trusted || one.rules > 0,
        };
        // Otherwise it changed while it was read, and is read again by the next call.
        if is_intact && self.socket.generation()? == generation {
            (known.generation, known.content) = (Some(generation), Some(content));
        }
        Ok(is_intact)
    }

    fn content(&self, family: Family) -> Result<Option<Content>, NftError> {
        self.socket.content(family, &self.name)
    }

    /// Removes the tables; missing ones are no error.
    pub fn remove(&self) -> Result<(), NftError> {
        self.apply(|batch, _| batch.remove_table())?;
        *self.known() = Known::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::Chain;
    use crate::process::{Namespace, unshare};

    /// Uses a network namespace of this thread, which disappears with it.
    #[test]
    fn tables_changed_by_others_are_not_intact() {
        let worker = std::thread::spawn(|| {
            if unshare(&[Namespace::Network]).is_err() {
                return println!("skipped: no permission to create network namespaces");
            }
            let tables = Tables::open("one").expect("a socket");
            let fill = |batch: &mut Batch, _| {
                batch.add_chain(&Chain { name: "c", hook: None });
                batch.add_rule("c", &[]);
            };
            let check = |what: &str, intact: bool| {
                assert_eq!(tables.are_intact().expect("read"), intact, "{what}");
            };
            check("missing", false);
            tables.replace(fill).expect("applied");
            check("applied", true);
            check("unchanged", true);
            // Tables of other instances do not matter.
            let other = Tables::open("two").expect("a socket");
            other.replace(fill).expect("applied");
            check("another table added", true);
            let foreign = Tables::open("one").expect("a socket");
            foreign.apply(|batch, _| batch.add_rule("c", &[])).expect("applied");
            check("rule added", false);
            check("still changed", false);
            tables.replace(fill).expect("applied");
            other.remove().expect("removed");
            check("applied again, before another table was removed", true);
            foreign.apply(|batch, _| batch.flush_chain("c")).expect("flushed");
            check("flushed", false);
            tables.replace(fill).expect("applied");
            foreign.remove().expect("removed");
            check("removed", false);
            tables.replace(fill).expect("applied");
            tables.remove().expect("removed");
            check("removed by the owner", false);
        });
        worker.join().expect("joined");
    }
}
