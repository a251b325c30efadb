//! Reasons for skipping a test that `--deny-skips` accepts: features that the kernel of a CI machine may lack. A program that
//! can be installed is not a reason; `scripts/test` installs it.

const ACCEPTED: &[&str] = &[
    // Kernel modules and mount options.
    "ipvs does not work here",
    "no device to try with",
    "cannot mount a file system",
    // Database of cargo-deny, which is fetched from the network.
    "advisories of crates",
    // The half of a test that runs in the namespaces of the other half.
    "only in a network namespace of its own",
    "only in namespaces of its own",
];

pub fn is_accepted(reason: &str) -> bool {
    ACCEPTED.iter().any(|accepted| reason.to_lowercase().contains(accepted))
}
