//! Reasons for skipping a test that `--deny-skips` accepts: features that the kernel of a CI machine may lack. A program that
//! can be installed is not a reason; `scripts/test` installs it.

const ACCEPTED: &[&str] = &[
    // Kernel modules and mount options.
    "ipvs does not work here",
    "no device to try with",
    "cannot mount a file system",
    "on-line resizing required",
    // Database of cargo-deny, which is fetched from the network.
    "advisories of crates",
    // Halves of tests that run as a process of the other half.
    "only in a network namespace of its own",
    "only in namespaces of its own",
    "the process that the test of hostile requests starts",
    // Debian has an older kubectl; the fixed results are compared in any case.
    "no kubectl v1.36 on path",
];

pub fn is_accepted(reason: &str) -> bool {
    ACCEPTED.iter().any(|accepted| reason.to_lowercase().contains(accepted))
}
