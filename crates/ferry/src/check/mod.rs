//! `ferry check`: tests whether this machine can run a cluster, and prints remedies.

mod kernel;
mod limits;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use rustix::process::geteuid;

use crate::cli::DataDir;
use crate::flags::parse_listen;

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Address that the API server will listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:6443", value_parser = parse_listen)]
    pub listen: SocketAddr,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Passed, with a note.
    Fine(String),
    /// A cluster runs, but degraded.
    Weak(String),
    /// A cluster cannot run.
    Wrong(String),
}

use Finding::{Fine, Weak, Wrong};

/// Subject and result of a check.
type Row = (&'static str, Finding);

pub fn run(arguments: &CheckArgs) -> Result<ExitCode> {
    let data_dir = &arguments.data_dir.data_dir;
    let mut rows: Vec<Row> = vec![
        ("data directory", data_directory(data_dir)),
        ("API address", address(arguments)),
        ("privileges", privileges()),
    ];
    rows.extend(limits::all(data_dir));
    if geteuid().is_root() {
        rows.extend(kernel::all(data_dir));
    }
    let mut wrong = 0;
    for (what, finding) in rows {
        match finding {
            Fine(note) => println!("ok       {what}: {note}"),
            Weak(note) => println!("weak     {what}: {note}"),
            Wrong(note) => {
                wrong += 1;
                println!("problem  {what}: {note}");
            }
        }
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Warnings about scarce resources for the start of a cluster; an error if they are too scarce to start.
pub fn before_start(data_dir: &Path) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut rows = limits::all(data_dir);
    if geteuid().is_root() {
        rows.push(kernel::control_groups_row());
    }
    for (what, finding) in rows {
        match finding {
            Fine(_) => {}
            Weak(note) => notes.push(format!("{what}: {note}")),
            Wrong(note) => anyhow::bail!("{what}: {note}"),
        }
    }
    Ok(notes)
}

/// Every write waits for the disk, so its latency bounds the cluster's.
fn data_directory(path: &Path) -> Finding {
    let probe = path.join(".check");
    let begin = Instant::now();
    let existed = path.exists();
    let written = std::fs::create_dir_all(path)
        .and_then(|()| base::file::create(&probe, b"check", base::file::PRIVATE))
        .and_then(|()| std::fs::remove_file(&probe));
    let took = begin.elapsed().as_secs_f64() * 1e3;
    if !existed {
        let _ = std::fs::remove_dir(path);
    }
    match written {
        Ok(()) => Fine(format!("{} completes a durable write in {took:.1} ms", path.display())),
        Err(error) => Wrong(format!("cannot write to {}: {error}; set another --data-dir", path.display())),
    }
}

fn address(arguments: &CheckArgs) -> Finding {
    let data_dir = &arguments.data_dir.data_dir;
    let own = || matches!(crate::data_dir_lock::running(data_dir), Ok(Some(_)));
    match TcpListener::bind(arguments.listen) {
        Ok(_) => Fine(format!("{} is free", arguments.listen)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && own() => {
            Fine(format!("{} is in use, the cluster in {} is running", arguments.listen, data_dir.display()))
        }
        Err(error) => Wrong(format!("cannot listen on {}: {error}; set another --listen", arguments.listen)),
    }
}

fn privileges() -> Finding {
    if geteuid().is_root() {
        Fine("root".to_owned())
    } else {
        Weak(
            "not root: `ferry server` runs a control plane, but containers need `sudo ferry up`; kernel features were not checked"
                .to_owned(),
        )
    }
}
