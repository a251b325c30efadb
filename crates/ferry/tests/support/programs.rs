//! Other programs, and the test itself as one, in namespaces of its own.

use std::path::Path;
use std::process::Command;

pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists()))
}

/// What a test needs besides root and does not find here.
pub fn missing(programs: &[&str], files: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    let programs = programs.iter().filter(|program| !has(program));
    let files = files.iter().filter(|file| !Path::new(file).exists());
    programs.chain(files).next().map(|missing| format!("no {missing} here"))
}

/// What it prints; it has to succeed.
pub fn run(command: &mut Command) -> String {
    attempt(command).unwrap_or_else(|text| panic!("{command:?}: {text}"))
}

/// What it prints, if it succeeds and if it fails.
fn attempt(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(text) } else { Err(text) }
}

/// Runs the ignored test `name` of this program in namespaces of its own: mounts, and a network without a way out, and
/// what `more` asks of `unshare`. `mark` is set in its environment.
pub fn in_own_namespaces(name: &str, mark: (&str, &str), more: &[&str]) -> Result<(), String> {
    let own = std::env::current_exe().expect("the test's own path");
    let said = attempt(
        Command::new("unshare")
            .args(["--net", "--mount"])
            .args(more)
            .arg("--")
            .arg(own)
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .env(mark.0, mark.1),
    )?;
    println!("{said}");
    // A name that matches no test succeeds with zero tests.
    if said.contains("1 passed") { Ok(()) } else { Err(format!("no test {name} ran:\n{said}")) }
}
