//! Generators and checks of this repository.

mod dependencies;
mod docs;
mod edges;
mod rpc;
mod schema;
#[cfg(test)]
mod tables;

use anyhow::{Result, bail};
use std::path::Path;

/// A subcommand's name, what it does, the function.
type Task = (&'static str, &'static str, fn(&Path) -> Result<()>);

const TASKS: &[Task] = &[
    ("dependencies", "check the crates from elsewhere against deny.toml", dependencies::check),
    ("docs", "regenerate the texts of the API documentation", docs::generate),
    ("rpc", "regenerate gRPC messages, clients and servers", rpc::generate),
    ("edges", "check which crates depend on which", edges::check),
    ("schema", "regenerate the tables of API types", schema::generate),
];

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let wanted = std::env::args().nth(1).unwrap_or_default();
    match TASKS.iter().find(|(name, _, _)| *name == wanted) {
        Some((_, _, task)) => task(&root),
        None => {
            for (name, about, _) in TASKS {
                println!("{name}\t{about}");
            }
            bail!("which task?")
        }
    }
}
