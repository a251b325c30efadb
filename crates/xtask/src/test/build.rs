//! The one cargo build that yields all test binaries.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test executable with the directory and name of its package.
#[derive(Clone, Debug)]
pub struct Binary {
    /// `package` for unit tests, `package/target` for integration tests.
    pub label: String,
    pub package: String,
    pub directory: PathBuf,
    pub executable: PathBuf,
}

/// A cargo command without the variables that a test process may have inherited from the runner.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.env_remove(super::process::BOOTSTRAP);
    command
}

/// Builds all test targets of the workspace; cargo's progress is shown on the terminal.
pub fn build(root: &Path) -> Result<Vec<Binary>> {
    let mut child = cargo()
        // `--tests` leaves out examples, which have no tests.
        .args(["test", "--workspace", "--tests", "--no-run", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to run cargo test --no-run")?;
    let output = child.stdout.take().context("cargo without output")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(output).lines() {
        let message: Value = serde_json::from_str(&line?).context("a message of cargo")?;
        binaries.extend(binary(&message));
    }
    ensure!(child.wait()?.success(), "cargo test --no-run failed");
    ensure!(!binaries.is_empty(), "the build has no test binaries");
    Ok(binaries)
}

/// The test executable of a `compiler-artifact` message.
fn binary(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = directory.file_name()?.to_str()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let label = match message["target"]["kind"][0].as_str()? {
        "test" => format!("{package}/{target}"),
        // A package with a library and a program has two unit test binaries.
        "bin" if directory.join("src/lib.rs").exists() => format!("{package}/bin"),
        _ => package.clone(),
    };
    Some(Binary { label, package, directory, executable })
}

/// Removes executables of earlier builds: files named as a current one, with another hash.
pub fn prune(binaries: &[Binary]) -> Result<()> {
    let current: BTreeSet<&Path> = binaries.iter().map(|binary| binary.executable.as_path()).collect();
    let stems: BTreeSet<&str> = current.iter().filter_map(|path| stem(path)).collect();
    let directory = binaries.first().and_then(|binary| binary.executable.parent());
    let Some(directory) = directory else { return Ok(()) };
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        // The programs `ferry` and `xtask` have the same names as unit test binaries.
        let stale = path.extension().is_none()
            && !current.contains(path.as_path())
            && stem(&path).is_some_and(|stem| stems.contains(stem) && !["ferry", "xtask"].contains(&stem));
        if stale {
            fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// `store` of `…/deps/store-0123456789abcdef`.
fn stem(path: &Path) -> Option<&str> {
    Some(path.file_name()?.to_str()?.rsplit_once('-')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn artifact(kind: &str, name: &str, test: bool) -> Value {
        json!({
            "reason": "compiler-artifact", "manifest_path": "/w/crates/store/Cargo.toml",
            "target": {"kind": [kind], "name": name}, "profile": {"test": test}, "executable": "/t/deps/store-1",
        })
    }

    #[test]
    fn artifact_of_test_profile_is_binary() {
        let unit = binary(&artifact("lib", "store", true)).expect("unit tests");
        assert_eq!((unit.label.as_str(), unit.directory.as_path()), ("store", Path::new("/w/crates/store")));
        assert_eq!(binary(&artifact("test", "battery", true)).expect("a test").label, "store/battery");
        assert!(binary(&artifact("bin", "store", false)).is_none());
        assert!(binary(&json!({"reason": "build-finished", "success": true})).is_none());
    }

    #[test]
    fn prune_removes_stale_executables_only() {
        let directory = std::env::temp_dir().join(format!("ferry-xtask-prune-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        for name in ["store-1", "store-2", "store-2.d", "libother-1.rlib", "xtask-2", "bench-1"] {
            fs::write(directory.join(name), "").expect("a file");
        }
        let current = |name: &str| Binary {
            label: name.to_owned(),
            package: name.to_owned(),
            directory: directory.clone(),
            executable: directory.join(name),
        };
        let outcome = prune(&[current("store-1"), current("xtask-1")]);
        let mut left: Vec<_> = fs::read_dir(&directory)
            .expect("the directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        left.sort();
        fs::remove_dir_all(&directory).expect("removed");
        outcome.expect("pruned");
        assert_eq!(left, ["bench-1", "libother-1.rlib", "store-1", "store-2.d", "xtask-2"]);
    }
}
