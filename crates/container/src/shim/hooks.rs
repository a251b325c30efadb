//! Hooks of CDI devices, run with the state of the container on standard input, as the OCI runtime specification defines
//! it for `createContainer`.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::spec::Hook;
use super::{ShimError, Step, failure};

const OCI_VERSION: &str = "1.2.0";
const POLL: Duration = Duration::from_millis(5);
/// Maximum output of a failed hook in its error.
const MAX_OUTPUT: u64 = 4096;

/// Runs hooks one after another; the first that fails ends the container.
pub(super) fn run(directory: &Path, hooks: &[Hook]) -> Result<(), ShimError> {
    if hooks.is_empty() {
        return Ok(());
    }
    // Hooks find the root through the configuration in the bundle directory.
    let configuration = json!({"ociVersion": OCI_VERSION, "root": {"path": directory.join("rootfs")}});
    std::fs::write(directory.join("config.json"), configuration.to_string())
        .step(|| "write the bundle of hooks".to_owned())?;
    let state = json!({
        "ociVersion": OCI_VERSION,
        "id": directory.file_name().map(|name| name.to_string_lossy().into_owned()),
        "status": "created",
        "pid": host_pid(),
        "bundle": directory,
    });
    hooks.iter().try_for_each(|hook| one(hook, state.to_string().as_bytes()))
}

fn one(hook: &Hook, state: &[u8]) -> Result<(), ShimError> {
    let step = || format!("run hook {}", hook.program.display());
    let mut command = Command::new(&hook.program);
    if let Some((name, arguments)) = hook.arguments.split_first() {
        command.arg0(name).args(arguments);
    }
    command.env_clear().envs(hook.environment.iter().map(|(name, value)| (name, value)));
    // The output goes to a file: a pipe without a reader could fill up.
    let output = rustix::fs::memfd_create("hook", rustix::fs::MemfdFlags::CLOEXEC).step(step)?;
    let output = std::fs::File::from(output);
    let copies = output.try_clone().and_then(|first| Ok((first, output.try_clone()?))).step(step)?;
    command.stdin(Stdio::piped()).stdout(copies.0).stderr(copies.1).process_group(0);
    let mut child = command.spawn().step(step)?;
    if let Some(mut input) = child.stdin.take() {
        // A hook may ignore its input; the state fits into the pipe.
        let _ = input.write_all(state);
    }
    let deadline = Instant::now() + Duration::from_secs(hook.seconds);
    let status = loop {
        if let Some(status) = child.try_wait().step(step)? {
            break status;
        }
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failure(&step(), format!("no end within {} seconds", hook.seconds)));
        }
        std::thread::sleep(POLL);
    };
    if status.success() {
        return Ok(());
    }
    Err(failure(&step(), format!("{status}: {}", text_of(output))))
}

/// Begin of what a hook wrote.
fn text_of(mut output: std::fs::File) -> String {
    use std::io::Seek as _;
    let mut text = Vec::new();
    let read = output.rewind().and_then(|()| output.take(MAX_OUTPUT).read_to_end(&mut text));
    read.map_or_else(|error| error.to_string(), |_| String::from_utf8_lossy(&text).trim().to_owned())
}

/// PID of this process in the namespace of the host, whose `/proc` is still mounted.
fn host_pid() -> u32 {
    let link = std::fs::read_link("/proc/self").ok();
    link.and_then(|pid| pid.to_str()?.parse().ok()).unwrap_or_else(std::process::id)
}
