//! Seccomp filters: profiles in the common JSON format of container runtimes, compiled to BPF.

mod compile;
mod default;
mod syscalls;

use std::io;

use serde::{Deserialize, Serialize};

pub use compile::compile;

/// Filter action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
    #[serde(rename = "SCMP_ACT_KILL", alias = "SCMP_ACT_KILL_THREAD")]
    KillThread,
    #[serde(rename = "SCMP_ACT_KILL_PROCESS")]
    KillProcess,
    #[serde(rename = "SCMP_ACT_LOG")]
    Log,
    #[serde(rename = "SCMP_ACT_TRAP")]
    Trap,
    #[serde(rename = "SCMP_ACT_TRACE")]
    Trace,
}

/// Comparison operator of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Comparison {
    #[serde(rename = "SCMP_CMP_EQ")]
    Equal,
    #[serde(rename = "SCMP_CMP_NE")]
    NotEqual,
    #[serde(rename = "SCMP_CMP_LT")]
    Less,
    #[serde(rename = "SCMP_CMP_LE")]
    LessOrEqual,
    #[serde(rename = "SCMP_CMP_GE")]
    GreaterOrEqual,
    #[serde(rename = "SCMP_CMP_GT")]
    Greater,
    /// `argument & value == valueTwo`.
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Argument {
    pub index: u32,
    pub value: u64,
    #[serde(default)]
    pub value_two: u64,
    pub op: Comparison,
}

/// Conditions for including or excluding a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    pub caps: Vec<String>,
    pub arches: Vec<String>,
    pub min_kernel: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    #[serde(default)]
    pub names: Vec<String>,
    /// Single name, as in older profiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub action: Action,
    #[serde(default)]
    pub errno_ret: Option<u32>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub args: Vec<Argument>,
    #[serde(default)]
    pub includes: Condition,
    #[serde(default)]
    pub excludes: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    pub default_action: Action,
    #[serde(default)]
    pub default_errno_ret: Option<u32>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub syscalls: Vec<Rule>,
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("invalid seccomp profile")]
    Syntax(#[from] serde_json::Error),
    #[error("invalid argument index {0} of {1}: system calls have six arguments")]
    Argument(u32, String),
    #[error("filter has {0} instructions, the kernel accepts at most 4096")]
    TooLong(usize),
}

impl Profile {
    /// Parses a JSON profile.
    pub fn parse(json: &[u8]) -> Result<Self, ProfileError> {
        Ok(serde_json::from_slice(json)?)
    }

    /// The default profile, for a container with these capabilities.
    #[must_use]
    pub fn runtime_default(capabilities: u64) -> Self {
        let rule = |names: &[&str], args: Vec<Argument>| Rule {
            names: names.iter().map(|&name| name.to_owned()).collect(),
            name: None,
            action: Action::Allow,
            errno_ret: None,
            args,
            includes: Condition::default(),
            excludes: Condition::default(),
        };
        let argument = |index, op, value, value_two| Argument { index, value, value_two, op };
        let mut syscalls = vec![rule(default::ALLOWED, Vec::new())];
        for persona in [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
            syscalls.push(rule(&["personality"], vec![argument(0, Comparison::Equal, persona, 0)]));
        }
        // Sockets of all families except AF_VSOCK, which reaches the hypervisor.
        syscalls.push(rule(&["socket"], vec![argument(0, Comparison::NotEqual, 40, 0)]));
        let has =
            |name: &str| crate::capabilities::number(name).is_some_and(|bit| capabilities >> bit & 1 == 1);
        for (capability, names) in default::WITH_CAPABILITY {
            if has(capability) {
                syscalls.push(rule(names, Vec::new()));
            }
        }
        if !has("SYS_ADMIN") {
            // New processes and threads, but no new namespaces.
            const NAMESPACES: u64 = 0x7e02_0000;
            syscalls.push(rule(&["clone"], vec![argument(0, Comparison::MaskedEqual, NAMESPACES, 0)]));
            // Its flags are in memory, which a filter cannot read: the C library falls back to clone.
            syscalls.push(Rule {
                action: Action::Errno,
                errno_ret: Some(libc::ENOSYS as u32),
                ..rule(&["clone3"], Vec::new())
            });
        }
        Self { default_action: Action::Errno, default_errno_ret: None, syscalls }
    }
}

/// A classic BPF instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    pub jump_true: u8,
    pub jump_false: u8,
    pub operand: u32,
}

/// Installs the filter for all further system calls of this process. Without CAP_SYS_ADMIN, `no_new_privs` must be
/// set before.
#[expect(unsafe_code, reason = "the filter is passed to the kernel by address")]
pub fn install(filter: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Instruction,
    }
    let len = u16::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = Program { len, filter: filter.as_ptr() };
    const SET_MODE_FILTER: libc::c_long = 1;
    // SAFETY: program and filter are alive during the call; the kernel copies and verifies them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, &raw const program) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
