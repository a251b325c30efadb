//! Runs a stock kubectl against a server, if it is installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// Time limit of any command, on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A kubectl with one kubeconfig and a cache directory of its own.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    /// The kubectl on `PATH`; prints `skipped:` and returns `None` without one.
    pub fn find(kubeconfig: &Path) -> Result<Option<Self>> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let Some(program) =
            std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.is_file())
        else {
            eprintln!("skipped: no kubectl on PATH");
            return Ok(None);
        };
        let home = tempfile::tempdir().context("failed to create a home directory for kubectl")?;
        Ok(Some(Self { program, kubeconfig: kubeconfig.to_owned(), home }))
    }

    /// The command, for callers that need its streams; `KUBECONFIG` and `HOME` are set.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.home.path())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl and returns its output; a failed command is an error.
    pub async fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        self.run_with_input(arguments, "").await
    }

    /// As [`Kubectl::run`], with `input` on stdin.
    pub async fn run_with_input<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &str,
    ) -> Result<String> {
        use std::process::Stdio;
        use tokio::io::AsyncWriteExt;
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = format!("{:?}", command.as_std());
        let mut child = command.spawn().with_context(|| format!("failed to start {shown}"))?;
        let mut stdin = child.stdin.take().context("kubectl has no stdin pipe")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let ended = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await;
        let output = ended.with_context(|| format!("{shown}: still running after {TIMEOUT:?}"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "{shown}: {}\n{out}{err}", output.status);
        Ok(out)
    }
}
