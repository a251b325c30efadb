//! Other programs, and the test itself as one, in namespaces of its own.

use std::process::Command;

pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists()))
}

/// What it prints; it has to succeed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// Runs the ignored test `name` of this program in namespaces of its own: mounts, and a network without a way out.
/// `mark` is set in its environment.
pub fn in_own_namespaces(name: &str, mark: &str) {
    let own = std::env::current_exe().expect("the test's own path");
    let text = run(Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(own)
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(mark, "1"));
    println!("{text}");
}
