//! Values of Secrets are never on disk in plain text, regardless of their use by pods, and not in a backup either.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::machine::{IMAGE, Machine, until};

/// Uses a Secret in every possible way, without printing it.
fn pod() -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: reader}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: reader
    image: {IMAGE}
    command: [sh, -c]
    args:
    - |
      [ -n "$ONE" ] && [ "$ONE" = "$(cat /volume/password)" ] && [ "$ONE" = "$(cat /projected/password)" ] &&
      [ "$ONE" = "$ALL_password" ] && [ "$ONE" = "$0" ] && echo same
      exec sleep 100000
    - $(ONE)
    env:
    - {{name: ONE, valueFrom: {{secretKeyRef: {{name: marker, key: password}}}}}}
    envFrom:
    - {{prefix: ALL_, secretRef: {{name: marker}}}}
    volumeMounts:
    - {{name: volume, mountPath: /volume}}
    - {{name: projected, mountPath: /projected}}
    startupProbe: {{exec: {{command: [sh, -c, "test -n $ONE"]}}}}
  volumes:
  - {{name: volume, secret: {{secretName: marker}}}}
  - {{name: projected, projected: {{sources: [{{secret: {{name: marker}}}}]}}}}
"#
    )
}

/// Files below a directory that contain one of the texts, on the directory's own file system only or everywhere.
fn containing(directory: &Path, texts: &[Vec<u8>], everywhere: bool) -> Vec<PathBuf> {
    let device = |path: &Path| fs::symlink_metadata(path).map(|found| found.dev()).ok();
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
            if !everywhere && device(&path) != device(directory) {
                continue;
            }
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                let content = fs::read(&path).unwrap_or_default();
                let has = |text: &Vec<u8>| content.windows(text.len()).any(|window| window == text);
                if texts.iter().any(has) {
                    found.push(path);
                }
            }
        }
    }
    found
}

pub fn run(cgroup: &str) {
    let mut machine = Machine::start(cgroup);
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a random text");
    let marker = format!("marker{}", random.trim().replace('-', ""));
    // The length is a multiple of three, so that its base64 does not depend on the preceding bytes.
    let marker = &marker[..36];
    let encoded = marker_base64(marker.as_bytes());
    let texts = [marker.as_bytes().to_vec(), encoded.into_bytes()];
    machine.kubectl(&["create", "secret", "generic", "marker", &format!("--from-literal=password={marker}")]);
    machine.apply(&pod());
    machine
        .wait_until("pod/reader", "{.status.containerStatuses[0].ready}", "is true", |text| text == "true");
    assert_eq!(machine.kubectl(&["logs", "reader"]), "same\n");
    let data = machine.data();
    let none: [PathBuf; 0] = [];
    assert_eq!(containing(&data, &texts, false), none, "on disk while the pod runs");
    assert!(!containing(&data, &texts, true).is_empty(), "in memory, where the search finds it");

    // A restarted daemon finds the container, and what commands in it need.
    machine.kill();
    machine.up(&[]);
    let printed = machine.kubectl(&["exec", "reader", "--", "sh", "-c", "echo $ONE"]);
    assert_eq!(printed.trim(), marker);
    assert_eq!(
        machine.kubectl(&[
            "get",
            "pod",
            "reader",
            "-o",
            "jsonpath={.status.containerStatuses[0].restartCount}"
        ]),
        "0"
    );
    assert_eq!(containing(&data, &texts, false), none, "on disk after a restart");

    machine.kubectl(&["delete", "pod", "reader", "--wait"]);
    machine.kubectl(&["delete", "secret", "marker"]);
    let backup = machine.directory.path().join("backup");
    let output = machine.ferry(&["backup", &backup.display().to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for place in [&data, &backup] {
        assert_eq!(containing(place, &texts, false), none, "on disk after deletion and backup");
        until("it is no longer in memory either", || match containing(place, &texts, true) {
            found if found.is_empty() => Ok(()),
            found => Err(format!("{found:?}")),
        });
    }
    machine.reset();
}

fn marker_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    assert!(bytes.len().is_multiple_of(3));
    let sixths = bytes.chunks(3).flat_map(|three| {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(LETTERS[(bits >> shift & 63) as usize]))
    });
    sixths.collect()
}
