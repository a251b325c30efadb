//! The Debian package and the OCI image that `xtask package` builds: installed, started, stopped and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::machine::{Machine, until};
use testbase::programs::{has, run};

pub fn test(cgroup: &str) {
    for program in ["dpkg", "strip", "ldd"] {
        if !has(program) {
            println!("skipped: no {program} here");
            return;
        }
    }
    if !xtask().exists() {
        println!("skipped: xtask is not built: cargo build --workspace --bin xtask");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    check(cgroup, directory.path());
}

/// The task runner, which `scripts/test` builds before the tests.
fn xtask() -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    own.ancestors().nth(2).expect("a build directory").join("xtask")
}

/// Builds a package of `binary` and returns its path.
fn package(format: &str, binary: &Path, output: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut task = Command::new(xtask());
    task.args(["package", format, "--binary"]).arg(binary).arg("--output").arg(output).current_dir(root);
    PathBuf::from(run(&mut task).trim())
}

/// Runs dpkg on a root directory of the test, with an empty database.
fn dpkg(root: &Path, arguments: &[&str]) {
    run(Command::new("dpkg")
        .arg(format!("--root={}", root.display()))
        .args(["--force-script-chrootless", "--force-depends", "--log=/dev/null"])
        .args(arguments));
}

fn check(cgroup: &str, directory: &Path) {
    // Debug information would be most of the package.
    let binary = directory.join("ferry");
    run(Command::new("strip").arg("-o").arg(&binary).arg(env!("CARGO_BIN_EXE_ferry")));
    let deb = package("deb", &binary, directory);
    let image = package("image", &binary, directory);
    fs::remove_file(&binary).expect("the stripped binary");

    let root = directory.join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("a directory");
    fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("a directory");
    fs::write(root.join("var/lib/dpkg/status"), "").expect("an empty database");
    dpkg(&root, &["--install", &deb.display().to_string()]);
    for path in ["usr/share/man/man1/ferry-up.1.gz", "usr/share/bash-completion/completions/ferry"] {
        assert!(root.join(path).exists(), "{path}");
    }
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/ferry.service")).expect("a unit");
    assert!(unit.contains("\nExecStart=/usr/bin/ferry up "), "{unit}");

    let mut machine = Machine::new(cgroup);
    machine.binary = Some(root.join("usr/bin/ferry"));
    machine.up(&[]);
    runs_in_pods(&machine, &image);
    machine.stop(Signal::TERM);
    machine.reset();

    dpkg(&root, &["--remove", "ferry"]);
    assert!(!root.join("usr/bin/ferry").exists());
    assert!(root.join("etc/default/ferry").exists(), "configuration files stay until a purge");
    dpkg(&root, &["--purge", "ferry"]);
    assert!(!root.join("etc/default/ferry").exists());
}

/// The image as pods: a command that ends, and a control plane that gets ready and ends when it is stopped.
fn runs_in_pods(machine: &Machine, image: &Path) {
    let imported = machine.ferry(&["images", "import", &image.display().to_string()]);
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let version = env!("CARGO_PKG_VERSION");
    machine.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: version}}
spec:
  restartPolicy: Never
  containers:
  - {{name: ferry, image: "ferry:{version}", imagePullPolicy: Never, args: [version]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: server}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 600
  containers:
  - name: ferry
    image: "ferry:{version}"
    imagePullPolicy: Never
    args: [server, --data-dir=/data, "--listen=0.0.0.0:6443"]
    volumeMounts: [{{name: data, mountPath: /data}}]
    readinessProbe: {{httpGet: {{scheme: HTTPS, port: 6443, path: /readyz}}, periodSeconds: 1, timeoutSeconds: 30}}
  volumes: [{{name: data, emptyDir: {{}}}}]
"#
    ));
    machine.wait_for("pod/version", "{.status.phase}", "Succeeded");
    until("the version in the log", || match machine.try_kubectl(&["logs", "version"]) {
        Ok(text) if text.contains(&format!("ferry {version}")) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    machine.wait_for("pod/server", "{.status.conditions[?(@.type==\"Ready\")].status}", "True");
    // Far shorter than the grace period: the process ends by SIGTERM.
    machine.kubectl(&["delete", "pod", "server", "--timeout=120s"]);
}
