//! `ferry check`: whether this machine is fit to run a cluster.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::cli::CheckArgs;

/// Enough descriptors for a thousand clients and some files.
const WANTED_FILES: u64 = 4096;

/// What one look found: something to know, or something to mend.
type Finding = Result<String, String>;

pub fn run(arguments: &CheckArgs) -> Result<ExitCode> {
    let findings = [
        ("data directory", data_directory(&arguments.data_dir.data_dir)),
        ("API address", address(arguments)),
        ("open files", open_files()),
    ];
    let mut healthy = true;
    for (what, finding) in findings {
        match finding {
            Ok(note) => println!("ok       {what}: {note}"),
            Err(problem) => {
                healthy = false;
                println!("problem  {what}: {problem}");
            }
        }
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every write waits for the disk, so its speed is the cluster's.
fn data_directory(path: &Path) -> Finding {
    let probe = path.join(".check");
    let begin = Instant::now();
    std::fs::create_dir_all(path)
        .and_then(|()| base::file::create(&probe, b"check", base::file::PRIVATE))
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|error| format!("cannot write to {}: {error}", path.display()))?;
    Ok(format!("{} takes a durable write in {:.1} ms", path.display(), begin.elapsed().as_secs_f64() * 1e3))
}

fn address(arguments: &CheckArgs) -> Finding {
    TcpListener::bind(arguments.listen)
        .map(|_| format!("{} is free", arguments.listen))
        .map_err(|error| format!("cannot listen on {}: {error}", arguments.listen))
}

fn open_files() -> Finding {
    match base::limits::open_files() {
        Some(limit) if limit < WANTED_FILES => {
            Err(format!("the limit is {limit}; raise it to {WANTED_FILES} or more"))
        }
        Some(limit) => Ok(format!("up to {limit}")),
        None => Ok("no limit".to_owned()),
    }
}
