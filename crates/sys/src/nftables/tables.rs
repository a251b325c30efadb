//! A table of each family, changed alike: each in one step of its own.

use super::{Batch, FAMILIES, Family, NftError, Socket};

/// The two tables of a name, in the network namespace in which they were opened.
#[derive(Debug)]
pub struct Tables {
    socket: Socket,
    name: &'static str,
}

impl Tables {
    pub fn open(name: &'static str) -> Result<Self, NftError> {
        Ok(Self { socket: Socket::open()?, name })
    }

    /// Puts what `fill` writes in place of whatever is there.
    pub fn replace(&self, fill: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        self.apply(|batch, family| {
            batch.remove_table();
            batch.add_table();
            fill(batch, family);
        })
    }

    /// Makes the changes that `change` writes.
    pub fn apply(&self, change: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        for family in FAMILIES {
            let mut batch = Batch::new(family, self.name);
            change(&mut batch, family);
            self.socket.apply(batch)?;
        }
        Ok(())
    }

    /// Removes them; none there is no error.
    pub fn remove(&self) -> Result<(), NftError> {
        self.apply(|batch, _| batch.remove_table())
    }
}
