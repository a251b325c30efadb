//! Packages of the `ferry` binary: `xtask package deb` and `xtask package image`.

mod archive;
mod deb;
mod image;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: xtask package deb|image [--binary FILE] [--output DIR]";

/// Options of a package.
struct Options {
    /// Binary to package; by default the `dist` profile is built.
    binary: PathBuf,
    output: PathBuf,
}

/// Builds a package and prints its path.
pub fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let (format, options) = arguments.split_first().context(USAGE)?;
    let write: fn(&Path, &Options) -> Result<PathBuf> = match format.as_str() {
        "deb" => deb::write,
        "image" => image::write,
        _ => bail!(USAGE),
    };
    let (mut binary, mut output) = (None, root.join("target/package"));
    for pair in options.chunks(2) {
        match pair {
            [name, value] if name == "--binary" => binary = Some(PathBuf::from(value)),
            [name, value] if name == "--output" => output = PathBuf::from(value),
            _ => bail!(USAGE),
        }
    }
    let binary = match binary {
        Some(binary) => binary,
        None => build(root)?,
    };
    std::fs::create_dir_all(&output).with_context(|| format!("failed to create {}", output.display()))?;
    println!("{}", write(root, &Options { binary, output })?.display());
    Ok(())
}

fn build(root: &Path) -> Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--profile", "dist", "--package", "ferry"])
        .current_dir(root)
        .status()
        .context("failed to start cargo")?;
    ensure!(built.success(), "building the dist profile failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("dist/ferry"))
}

/// Output of the packaged binary.
fn output_of(binary: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(binary)
        .args(arguments)
        .output()
        .with_context(|| format!("failed to run {}", binary.display()))?;
    ensure!(output.status.success(), "{} {}: {}", binary.display(), arguments.join(" "), output.status);
    Ok(output.stdout)
}

/// Version of the workspace.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Architecture as Debian and the OCI image specification name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Seconds since the epoch for file times: `SOURCE_DATE_EPOCH`, or zero, so that equal inputs yield equal packages.
fn timestamp() -> u64 {
    std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}
