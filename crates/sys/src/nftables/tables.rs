//! Tables of the same name in both families, changed alike, each in its own batch.

use super::{Batch, FAMILIES, Family, NftError, Socket};

/// Both tables of a name, in the network namespace in which they were opened.
#[derive(Debug)]
pub struct Tables {
    socket: Socket,
    name: &'static str,
}

impl Tables {
    pub fn open(name: &'static str) -> Result<Self, NftError> {
        Ok(Self { socket: Socket::open()?, name })
    }

    /// Replaces their content with what `fill` writes.
    pub fn replace(&self, fill: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        self.apply(|batch, family| {
            batch.remove_table();
            batch.add_table();
            fill(batch, family);
        })
    }

    /// Applies the changes that `change` writes.
    pub fn apply(&self, change: impl Fn(&mut Batch, Family)) -> Result<(), NftError> {
        for family in FAMILIES {
            let mut batch = Batch::new(family, self.name);
            change(&mut batch, family);
            self.socket.apply(batch)?;
        }
        Ok(())
    }

    /// Removes the tables; missing ones are no error.
    pub fn remove(&self) -> Result<(), NftError> {
        self.apply(|batch, _| batch.remove_table())
    }
}
