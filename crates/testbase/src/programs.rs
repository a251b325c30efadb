//! Runs other programs, and the test itself in its own namespaces.

use std::path::Path;
use std::process::{Command, Stdio};

/// A command without input.
#[must_use]
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// True if `PATH` has the program.
#[must_use]
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists()))
}

/// Missing requirement of a test that needs root, programs and files.
#[must_use]
pub fn missing(programs: &[&str], files: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let programs = programs.iter().filter(|program| !has(program));
    let files = files.iter().filter(|file| !Path::new(file).exists());
    programs.chain(files).next().map(|missing| format!("no {missing} here"))
}

/// Standard output; panics on failure.
pub fn run(command: &mut Command) -> String {
    attempt(command).unwrap_or_else(|text| panic!("{command:?}: {text}"))
}

/// Output on success or failure.
fn attempt(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(text) } else { Err(text) }
}

/// Runs the ignored test `name` of this program in new mount and isolated network namespaces, and with the `unshare`
/// options `more`. `mark` is set in its environment.
pub fn in_own_namespaces(name: &str, mark: (&str, &str), more: &[&str]) -> Result<(), String> {
    let own = std::env::current_exe().expect("the test's own path");
    let report = attempt(
        Command::new("unshare")
            .args(["--net", "--mount"])
            .args(more)
            .arg("--")
            .arg(own)
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .env(mark.0, mark.1),
    )?;
    println!("{report}");
    // A name that matches no test succeeds with zero tests.
    if report.contains("1 passed") { Ok(()) } else { Err(format!("no test {name} ran:\n{report}")) }
}
