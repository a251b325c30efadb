//! Capabilities by name and number.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Names in the order of their numbers.
const NAMES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What containers get unless told otherwise, as of every runtime that Kubernetes knows.
const DEFAULTS: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// The number of a capability, with or without `CAP_`, in any case.
#[must_use]
pub fn number(name: &str) -> Option<u32> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == short).and_then(|at| u32::try_from(at).ok())
}

/// All that this kernel knows, as bits.
#[must_use]
pub fn all() -> u64 {
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").ok();
    let last = last.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(40).min(62);
    (1 << (last + 1)) - 1
}

/// The default set, as bits.
#[must_use]
pub fn defaults() -> u64 {
    DEFAULTS.iter().filter_map(|name| number(name)).fold(0, |bits, bit| bits | 1 << bit)
}

/// What this process can pass on at most.
pub fn bounding() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok())
        .ok_or_else(|| io::Error::other("no CapBnd"))
}

/// Takes everything but `keep` out of the bounding set.
pub fn bound(keep: u64) -> io::Result<()> {
    let now = bounding()?;
    for bit in 0..63 {
        if now >> bit & 1 == 1 && keep >> bit & 1 == 0 {
            rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit))?;
        }
    }
    Ok(())
}

/// Sets what the calling thread may do and pass on, and with `ambient` what plain programs inherit.
pub fn set(effective: u64, permitted: u64, inheritable: u64, ambient: u64) -> io::Result<()> {
    let bits = CapabilitySet::from_bits_retain;
    let sets = CapabilitySets {
        effective: bits(effective),
        permitted: bits(permitted),
        inheritable: bits(inheritable),
    };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::clear_ambient_capability_set()?;
    for bit in 0..63 {
        if ambient >> bit & 1 == 1 {
            rustix::thread::configure_capability_in_ambient_set(bits(1 << bit), true)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, expected) in [
            ("CAP_CHOWN", Some(0)),
            ("net_admin", Some(12)),
            ("CHECKPOINT_RESTORE", Some(40)),
            ("ALL", None),
            ("CAP_CAP_CHOWN", None),
        ] {
            assert_eq!(number(name), expected, "{name}");
        }
        assert_eq!(defaults(), 0xa804_25fb);
        assert_eq!(all() & defaults(), defaults());
    }
}
