//! Scenarios of container escapes, shared by the tests of the runtime and those with pods.

/// Links of the image that lead to kernel file systems: name and destination.
pub const LINKS: &[(&str, &str)] = &[
    ("to-proc", "/proc"),
    ("to-self", "/proc/self"),
    ("to-sys", "../../sys"),
    ("to-root", "/"),
    ("deep/link", "../to-self"),
];

/// Mount targets at and below `/proc` and `/sys`, by name and through [`LINKS`]; true for a file instead of a
/// directory. CVE-2025-31133 and CVE-2025-52881 mount over the files used for masking or for writing security labels.
pub const TARGETS: &[(&str, bool)] = &[
    ("/proc", false),
    ("/proc/self", false),
    ("/proc/self/status", true),
    ("/proc/self/attr", false),
    ("/proc/thread-self", false),
    ("/proc/1", false),
    ("/proc/sys", false),
    ("/proc/sys/kernel/core_pattern", true),
    ("/proc/../proc/self", false),
    ("/to-proc", false),
    ("/to-proc/self/status", true),
    ("/to-self", false),
    ("/to-self/status", true),
    ("/to-root/proc/self", false),
    ("/deep/link/status", true),
    ("/sys", false),
    ("/sys/kernel", false),
    ("/sys/fs/cgroup", false),
    ("/to-sys/kernel", false),
];
/// Part of the error of a mount at one of [`TARGETS`].
pub const REFUSED: &str = "cannot be mounted because";

/// The kubelet's default for `procMount: Default`.
pub const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Writes that a container must not be able to make.
pub const WRITES: &[&str] =
    &["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/panic_on_oom"];

/// Commands that would undo masks and read-only mounts.
pub const MOUNTS: &[&str] = &["umount /proc/sys", "mount -o remount,rw /proc/sys", "mount -t proc none /tmp"];

/// The capabilities of a container that requests none.
pub const CAPABILITIES: &str = "00000000a80425fb";
