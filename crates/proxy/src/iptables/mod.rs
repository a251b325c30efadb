//! The iptables backend, for kernels and tools that require it: every change rewrites all rules through
//! `iptables-restore`, atomically per family.

mod rules;

use std::io::{self, Write};
use std::process::{Command, Stdio};

use parking_lot::Mutex;

use crate::backend::{Backend, BackendError, Mode};
use crate::model::Node;
use crate::state::{Difference, State};

/// Error of iptables.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    #[error("failed to run {program}")]
    Run { program: &'static str, source: io::Error },
    #[error("{program} rejected the rules: {message}")]
    Refused { program: &'static str, message: String },
}

/// Writes rules with the machine's iptables programs.
#[derive(Debug)]
pub struct Iptables {
    node: Node,
    /// Prefix of the instance's chains.
    prefix: String,
    families: Vec<(bool, &'static str)>,
    /// Own lines of each family after the last change.
    applied: Mutex<Vec<Vec<String>>>,
}

/// Timeout of the iptables lock, in seconds.
const WAIT: &str = "5";

impl Iptables {
    /// A backend in the network namespace of the caller. IPv6 is omitted if the machine has no ip6tables.
    pub fn open(node: Node) -> Result<Self, IptablesError> {
        let there = |program: &'static str| {
            let outcome =
                Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            outcome.map_err(|source| IptablesError::Run { program, source })
        };
        there("iptables-restore")?;
        let mut families = vec![(true, "iptables-restore")];
        if there("ip6tables-restore").is_ok() {
            families.push((false, "ip6tables-restore"));
        }
        let prefix = node.instance.chain_prefix();
        Ok(Self { node, prefix, families, applied: Mutex::default() })
    }
}

impl Iptables {
    /// Rules of the main instance with the names of this one.
    fn named(&self, rules: &str) -> String {
        rules.replace(rules::PREFIX, &self.prefix)
    }

    fn all_own_lines(&self) -> Vec<Vec<String>> {
        self.families.iter().map(|(_, program)| self.own_lines(program)).collect()
    }

    /// The lines with this instance's chains, as the kernel has them.
    fn own_lines(&self, program: &'static str) -> Vec<String> {
        let text = save(program);
        text.lines()
            .filter(|line| !line.starts_with('#') && line.contains(&self.prefix))
            // Chains have counters.
            .map(|line| if line.starts_with(':') { line.split(" [").next().unwrap_or(line) } else { line })
            .map(str::to_owned)
            .collect()
    }
}

fn restore(program: &'static str, text: &str) -> Result<(), IptablesError> {
    restore_with(program, &[], text)
}

fn restore_with(program: &'static str, options: &[&str], text: &str) -> Result<(), IptablesError> {
    let failed = |source| IptablesError::Run { program, source };
    let mut child = Command::new(program)
        .args(["--noflush", "--wait", WAIT])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that exits without reading its input prints the reason.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).chars().take(500).collect();
    Err(IptablesError::Refused { program, message })
}

impl Backend for Iptables {
    fn mode(&self) -> Mode {
        Mode::Iptables
    }

    fn probe(&self) -> Result<(), BackendError> {
        for (ipv4, program) in &self.families {
            let rules = rules::render(&[], &self.node, *ipv4, &[]);
            restore_with(program, &["--test"], &self.named(&rules))?;
        }
        Ok(())
    }

    fn is_intact(&self) -> Result<bool, BackendError> {
        Ok(*self.applied.lock() == self.all_own_lines())
    }

    fn replace(&self, state: &State) -> Result<(), BackendError> {
        let entries = state.whole().added;
        for (ipv4, program) in &self.families {
            // Chains of removed services can be deleted only when no rule refers to them.
            let old = present(program, &self.prefix);
            restore(program, &self.named(&rules::render(&entries, &self.node, *ipv4, &old)))?;
        }
        *self.applied.lock() = self.all_own_lines();
        Ok(())
    }

    fn apply(&self, _: &Difference, state: &State) -> Result<(), BackendError> {
        self.replace(state)
    }

    fn remove(&self) -> Result<(), BackendError> {
        for (_, program) in &self.families {
            let old = present(program, &self.prefix);
            if !old.is_empty() {
                restore(program, &self.named(&rules::detach(&old)))?;
            }
        }
        Ok(())
    }
}

fn save(restore: &'static str) -> String {
    let save = if restore.starts_with("ip6") { "ip6tables-save" } else { "iptables-save" };
    let output = Command::new(save).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// The instance's existing chains, as `table chain`, with the names of the main instance.
fn present(restore: &'static str, prefix: &str) -> Vec<(String, String)> {
    let text = save(restore);
    let mut table = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.to_owned();
        } else if let Some(chain) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next())
            && let Some(name) = chain.strip_prefix(prefix)
        {
            found.push((table.clone(), format!("{}{name}", rules::PREFIX)));
        }
    }
    found
}
