//! Reasons for skipping a test that `--deny-skips` accepts: features that the kernel of a CI machine may lack. A
//! missing program is not such a reason; `scripts/test` installs it.

const ACCEPTED: &[&str] = &[
    // Kernel modules and mount options.
    "ipvs is not available on this machine",
    "no device to try with",
    "cannot mount a file system",
    "on-line resizing required",
    // Database of cargo-deny, which is fetched from the network.
    "advisories of crates",
    // Parts of tests that run as a child process of another test.
    "only in a network namespace of its own",
    "only in namespaces of its own",
    "the process that the test of hostile requests starts",
    // Debian has an older kubectl; the fixed results are compared in any case.
    "no kubectl v1.36 on path",
    // Comparisons with programs and files that `scripts/test` takes from the Go module proxy, where Go is installed.
    "the real metrics-server is not here",
    "the rules of kube-prometheus are not here",
    // Debian has an older one, whose module cannot be installed by name; `docs/testing.md` says how to build it.
    "prometheus 3 is not here",
    "go tool pprof is not here",
];

pub fn is_accepted(reason: &str) -> bool {
    ACCEPTED.iter().any(|accepted| reason.to_lowercase().contains(accepted))
}
