//! Runs a stock kubectl against a server, if the machine has one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// No command of a test takes longer, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A kubectl bound to one kubeconfig, with caches of its own.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: tempfile::TempDir,
}

impl Kubectl {
    /// The kubectl on `PATH`; says `skipped:` and returns nothing if there is none.
    pub fn find(kubeconfig: &Path) -> Result<Option<Self>> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let Some(program) =
            std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.is_file())
        else {
            eprintln!("skipped: no kubectl on PATH");
            return Ok(None);
        };
        let home = tempfile::tempdir().context("a home for kubectl")?;
        Ok(Some(Self { program, kubeconfig: kubeconfig.to_owned(), home }))
    }

    /// The command, for callers that want its streams; `KUBECONFIG` and `HOME` are set.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.home.path())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl and returns what it printed; fails if it does.
    pub async fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        self.run_with_input(arguments, "").await
    }

    /// As [`Kubectl::run`], with something on standard input.
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
        let mut child = command.spawn().with_context(|| format!("starting {shown}"))?;
        let mut stdin = child.stdin.take().context("a pipe to kubectl")?;
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        let ended = tokio::time::timeout(LIMIT, child.wait_with_output()).await;
        let output = ended.with_context(|| format!("{shown}: still running after {LIMIT:?}"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        ensure!(output.status.success(), "{shown}: {}\n{out}{err}", output.status);
        Ok(out)
    }
}
