//! Generators and checks of this repository.

mod dependencies;
mod docs;
#[cfg(test)]
mod docs_index;
mod edges;
#[cfg(test)]
mod function_length;
mod metrics;
mod package;
mod reference;
mod rpc;
mod schema;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod tables;
mod test;
#[cfg(test)]
mod untested;
#[cfg(test)]
mod unused_dependencies;
#[cfg(test)]
mod vocabulary;

use anyhow::{Result, bail};
use std::path::Path;

/// Name, description and function of a subcommand; the function gets the workspace's directory and the arguments.
type Task = (&'static str, &'static str, fn(&Path, &[String]) -> Result<()>);

const TASKS: &[Task] = &[
    ("dependencies", "check the crates from elsewhere against deny.toml", |root, _| {
        dependencies::check(root)
    }),
    ("docs", "regenerate the texts of the API documentation", |root, _| docs::generate(root)),
    (
        "metrics",
        "regenerate the facts about metrics from test/instrumentation of Kubernetes",
        metrics::generate,
    ),
    ("package", "build a Debian package or an OCI image", package::run),
    ("reference", "regenerate the data that tests compare with", |root, _| reference::generate(root)),
    ("rpc", "regenerate gRPC messages, clients and servers", |root, _| rpc::generate(root)),
    ("edges", "check which crates depend on which", |root, _| edges::check(root)),
    ("schema", "regenerate the tables of API types", |root, _| schema::generate(root)),
    ("test", "build and run the tests of the workspace", test::run),
];

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_default();
    match TASKS.iter().find(|(name, _, _)| *name == wanted) {
        Some((_, _, task)) => task(&root, &arguments.collect::<Vec<_>>()),
        None => {
            for (name, about, _) in TASKS {
                println!("{name}\t{about}");
            }
            bail!("name one of these tasks")
        }
    }
}
