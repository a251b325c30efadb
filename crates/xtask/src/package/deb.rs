//! The Debian package: binary, systemd units, completions, manual pages.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::archive::{Archive, gzip, write_ar};
use super::{Options, architecture, output_of, timestamp, version};

/// Files of the repository in the package: source, target, mode.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/systemd/ferry.service", "usr/lib/systemd/system/ferry.service", 0o644),
    ("packaging/systemd/ferry-agent.service", "usr/lib/systemd/system/ferry-agent.service", 0o644),
    ("packaging/debian/default", "etc/default/ferry", 0o644),
    ("LICENSE", "usr/share/doc/ferry/copyright", 0o644),
    ("README.md", "usr/share/doc/ferry/README.md", 0o644),
    ("SECURITY.md", "usr/share/doc/ferry/SECURITY.md", 0o644),
];

/// Configuration files, which dpkg preserves if an administrator has changed them.
const CONFFILES: &str = "/etc/default/ferry\n";

/// Shells and the paths of their completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/ferry"),
    ("zsh", "usr/share/zsh/vendor-completions/_ferry"),
    ("fish", "usr/share/fish/vendor_completions.d/ferry.fish"),
];

const MAINTAINER_SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Writes `ferry_VERSION_ARCHITECTURE.deb`.
pub fn write(root: &Path, options: &Options) -> Result<PathBuf> {
    let data = data(root, &options.binary)?;
    let control = control(root, data.len())?;
    let path = options.output.join(format!("ferry_{}_{}.deb", version(), architecture()));
    let mut file = File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
    let members: &[(&str, &[u8])] =
        &[("debian-binary", b"2.0\n"), ("control.tar.gz", &gzip(&control)?), ("data.tar.gz", &gzip(&data)?)];
    write_ar(&mut file, timestamp(), members)
        .with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

fn data(root: &Path, binary: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::new(timestamp());
    archive.copy("usr/bin/ferry", 0o755, binary)?;
    for (source, target, mode) in FILES {
        archive.copy(target, *mode, &root.join(source))?;
    }
    let changelog = std::fs::read(root.join("CHANGELOG.md")).context("failed to read CHANGELOG.md")?;
    archive.file("usr/share/doc/ferry/changelog.gz", 0o644, &gzip(&changelog)?)?;
    for (shell, path) in COMPLETIONS {
        archive.file(path, 0o644, &output_of(binary, &["completion", shell])?)?;
    }
    let pages = tempfile::tempdir().context("failed to create a temporary directory")?;
    output_of(binary, &["man", "--output", &pages.path().display().to_string()])?;
    let mut names: Vec<_> = std::fs::read_dir(pages.path())?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort_unstable();
    for name in names {
        let page =
            std::fs::read(pages.path().join(&name)).with_context(|| format!("failed to read {name}"))?;
        archive.file(&format!("usr/share/man/man1/{name}.gz"), 0o644, &gzip(&page)?)?;
    }
    archive.finish()
}

fn control(root: &Path, installed_bytes: usize) -> Result<Vec<u8>> {
    let fields = format!(
        "Package: ferry\nVersion: {}\nArchitecture: {}\nMaintainer: The Ferry authors <ferry@localhost>\n\
         Installed-Size: {}\nDepends: libc6, libgcc-s1\nSection: admin\nPriority: optional\n\
         Description: Kubernetes in one binary\n\
         \x20API server, store, scheduler, controllers, kubelet, container runtime, pod\n\
         \x20network, service proxy and DNS of Kubernetes v1.36. `ferry up` runs a cluster\n\
         \x20on this machine, `ferry agent` joins one.\n",
        version(),
        architecture(),
        installed_bytes.div_ceil(1024),
    );
    let mut archive = Archive::new(timestamp());
    archive.file("control", 0o644, fields.as_bytes())?;
    archive.file("conffiles", 0o644, CONFFILES.as_bytes())?;
    for name in MAINTAINER_SCRIPTS {
        archive.copy(name, 0o755, &root.join("packaging/debian").join(name))?;
    }
    archive.finish()
}
