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

/// Default capabilities of containers, as in every runtime that Kubernetes supports.
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

/// Number of a capability name, with or without `CAP_`, in any case.
///
/// ```
/// use sys::capabilities::{defaults, number};
///
/// let bit = number("CAP_CHOWN").expect("a capability");
/// assert_eq!(number("chown"), Some(bit));
/// assert!(defaults() & 1 << bit != 0);
/// assert!(defaults() & 1 << number("SYS_ADMIN").expect("a capability") == 0);
/// ```
#[must_use]
pub fn number(name: &str) -> Option<u32> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|known| *known == short).and_then(|at| u32::try_from(at).ok())
}

/// All capabilities of this kernel, as bits.
#[must_use]
pub fn all() -> u64 {
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap").ok();
    let last = last.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(40).min(62);
    (1 << (last + 1)) - 1
}

/// Default capabilities, as bits.
#[must_use]
pub fn defaults() -> u64 {
    DEFAULTS.iter().filter_map(|name| number(name)).fold(0, |bits, bit| bits | 1 << bit)
}

/// Bounding set of the calling thread. Queries the kernel for each bit: `/proc` may belong to a container.
pub fn bounding() -> io::Result<u64> {
    let mut held = 0;
    for bit in 0..u64::BITS - 1 {
        match rustix::thread::capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(true) => held |= 1 << bit,
            Ok(false) => {}
            // First number unknown to this kernel; all later ones are unknown too.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(held)
}

/// Drops all capabilities but `keep` from the bounding set, and fails if any other remains.
pub fn bound(keep: u64) -> io::Result<()> {
    let now = bounding()?;
    for bit in 0..u64::BITS - 1 {
        if now >> bit & 1 == 1 && keep >> bit & 1 == 0 {
            rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit))?;
        }
    }
    match bounding()? & !keep {
        0 => Ok(()),
        left => Err(io::Error::other(format!("capabilities {left:#x} are still in the bounding set"))),
    }
}

/// Sets the effective, permitted and inheritable capabilities of the calling thread, and with `ambient` those
/// inherited by plain programs.
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
    fn capability_names_map_to_numbers() {
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

    #[test]
    fn bounding_set_forged_proc_status_drops_everything_else() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        // Bounding set and mount namespace are per thread.
        let left = std::thread::spawn(|| {
            use crate::mounts::{MountPropagationFlags, bind, propagate};
            let directory = tempfile::tempdir().unwrap();
            let forged = directory.path().join("status");
            std::fs::write(&forged, "CapBnd:\t00000000a80425fb\n").unwrap();
            crate::process::unshare(&[crate::process::Namespace::Mount]).unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            propagate(std::path::Path::new("/"), private).unwrap();
            bind(&forged, std::path::Path::new("/proc/self/status"), false).unwrap();
            bound(defaults()).unwrap();
            (0..=40)
                .filter(|bit| {
                    let bit = CapabilitySet::from_bits_retain(1 << bit);
                    rustix::thread::capability_is_in_bounding_set(bit).unwrap()
                })
                .fold(0, |bits: u64, bit| bits | 1 << bit)
        })
        .join()
        .unwrap();
        assert_eq!(left & !defaults(), 0, "{left:x}");
    }
}
