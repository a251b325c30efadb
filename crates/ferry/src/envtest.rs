//! `ferry envtest`: an API server for operator tests, in a temporary directory that is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use base::tasks::TaskGroup;
use clap::{Args, Parser};
use cluster::{Config, ControlPlane};

use crate::cli::{Cli, Command};
use crate::serve::{self, Role, say, stop_on_signal};

/// Binaries that controller-runtime's test environment looks for, and that a link to Ferry replaces.
const ASSETS: [&str; 2] = ["etcd", "kube-apiserver"];

/// The API server is ready in a fraction of a second. Without a command, `ferry envtest` prints the environment
/// variables that tests need and serves until a signal; with a command, such as `ferry envtest -- go test ./...`, it
/// runs the command with these variables and exits with its status.
#[derive(Args, Debug)]
pub struct EnvtestArgs {
    /// Also run the controllers, so that namespaces and owned objects are deleted and workloads have pods; without
    /// them, objects stay unchanged.
    #[arg(long)]
    pub controllers: bool,

    /// Additional flag of `ferry apiserver`; may be repeated.
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    pub api_server_flag: Vec<String>,

    /// The command to run, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Directory that is removed on drop.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ferry-envtest-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("failed to create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "failed to remove the test environment");
        }
    }
}

pub async fn run(arguments: EnvtestArgs) -> Result<ExitCode> {
    let tasks = TaskGroup::new();
    stop_on_signal(&tasks)?;
    let directory = TemporaryDirectory::new()?;
    let plane = ControlPlane::build(configuration(&arguments, &directory.0)?, tasks.clone()).await?;
    let assets = directory.0.join("assets");
    link_assets(&assets)?;
    let variables = [
        ("KUBECONFIG", PathBuf::from(plane.kubeconfig())),
        ("KUBEBUILDER_ASSETS", assets),
        ("USE_EXISTING_CLUSTER", PathBuf::from("true")),
    ];
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let served = plane.run(Box::new(move || {
        let _ = ready.send(());
    }));
    let tests = async {
        if is_ready.await.is_err() {
            return Ok(ExitCode::FAILURE);
        }
        let status = run_tests(&arguments.command, &variables, &tasks).await;
        tasks.stop();
        status
    };
    let (served, status) = tokio::join!(served, tests);
    served?;
    status
}

/// Configuration of an API server on a free loopback port, with the flags that controller-runtime sets.
fn configuration(arguments: &EnvtestArgs, directory: &Path) -> Result<Config> {
    let (command, role) = match arguments.controllers {
        true => ("server", Role::Server),
        false => ("apiserver", Role::ApiServer),
    };
    let data_dir = directory.join("data");
    let mut words: Vec<String> = vec!["ferry".to_owned(), command.to_owned()];
    words.push(format!("--data-dir={}", data_dir.display()));
    words.extend(["--listen=127.0.0.1:0", "--shutdown-grace=2s"].map(str::to_owned));
    if arguments.controllers {
        words.push("--disable=dns,metrics-server,network-policy,proxy,routes".to_owned());
    } else {
        // Without controllers no service accounts exist for pods.
        words.push("--disable-admission-plugins=ServiceAccount".to_owned());
    }
    words.extend(arguments.api_server_flag.iter().cloned());
    let cli = Cli::try_parse_from(words).context("--api-server-flag")?;
    match cli.command {
        Command::Server(serve) | Command::Apiserver(serve) => serve::configure(serve, role),
        _ => bail!("--api-server-flag: only flags of the API server are accepted"),
    }
}

/// Links Kubernetes' binaries to this one; kubectl is the one on the PATH, or this binary if there is none.
fn link_assets(assets: &Path) -> Result<()> {
    let link = |original: &Path, name: &str| {
        let link = assets.join(name);
        std::os::unix::fs::symlink(original, &link)
            .with_context(|| format!("failed to create {}", link.display()))
    };
    std::fs::create_dir(assets).with_context(|| format!("failed to create {}", assets.display()))?;
    let ferry = std::env::current_exe().context("failed to find the ferry binary")?;
    for name in ASSETS {
        link(&ferry, name)?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let kubectl = std::env::split_paths(&path).map(|directory| directory.join("kubectl"));
    match kubectl.into_iter().find(|file| file.is_file()) {
        Some(kubectl) => link(&kubectl, "kubectl"),
        None => link(&ferry, "kubectl"),
    }
}

/// Runs the command with the variables; without a command, prints them and waits for a signal.
async fn run_tests(command: &[String], variables: &[(&str, PathBuf)], tasks: &TaskGroup) -> Result<ExitCode> {
    let [program, rest @ ..] = command else {
        for (name, value) in variables {
            say(format_args!("export {name}={}", value.display()));
        }
        tasks.stopping().await;
        return Ok(ExitCode::SUCCESS);
    };
    let mut child = tokio::process::Command::new(program)
        .args(rest)
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("failed to run {program}"))?;
    let status = tokio::select! {
        status = child.wait() => status.with_context(|| format!("failed to wait for {program}"))?,
        () = tasks.stopping() => {
            let _ = child.kill().await;
            return Ok(ExitCode::FAILURE);
        }
    };
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
