//! Short help: `-h` shows the flags that users of a cluster need first, `--help` shows all.

use clap::Command;

/// Flags in the short help of the commands with many flags.
const FLAGS: [(&str, &[&str]); 3] = [
    (
        "up",
        &[
            "data-dir",
            "listen",
            "nodes",
            "stop-pods",
            "disable",
            "cluster-cidr",
            "service-cluster-ip-range",
            "hostname-override",
            "node-ip",
            "kubelet-listen",
            "max-pods",
            "feature-gates",
        ],
    ),
    (
        "server",
        &[
            "data-dir",
            "listen",
            "advertise-address",
            "disable",
            "cluster-cidr",
            "service-cluster-ip-range",
            "store",
            "etcd-endpoints",
            "audit-policy-file",
            "feature-gates",
        ],
    ),
    (
        "agent",
        &[
            "data-dir",
            "server",
            "token",
            "token-file",
            "certificate-authority",
            "hostname-override",
            "node-ip",
            "kubelet-listen",
            "max-pods",
            "container-runtime-endpoint",
            "disable",
        ],
    ),
];

/// Leaves the other flags out of the short help.
pub fn shorten(command: Command) -> Command {
    FLAGS.into_iter().fold(command, |command, (name, flags)| {
        command.mut_subcommand(name, |subcommand| {
            let subcommand = subcommand.after_help(format!("`ferry {name} --help` lists all flags."));
            subcommand.mut_args(|argument| {
                let is_short = argument.get_long().is_none_or(|long| flags.contains(&long));
                argument.hide_short_help(!is_short)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn short_help_fits_a_screen_and_long_help_is_complete() {
        for (name, flags) in FLAGS {
            let find = |command: &mut Command| command.find_subcommand_mut(name).expect("a command").clone();
            let mut short = shorten(Cli::command());
            short.build();
            let mut all = Cli::command();
            all.build();
            let text = find(&mut short).render_help().to_string();
            assert!(text.lines().count() < 60, "{name} has {} lines:\n{text}", text.lines().count());
            for flag in flags {
                let known = find(&mut all).get_arguments().any(|argument| argument.get_long() == Some(flag));
                assert!(known, "{name} has no flag --{flag}");
            }
            let long =
                |mut command: Command| command.render_long_help().to_string().matches("\n      --").count();
            assert_eq!(long(find(&mut short)), long(find(&mut all)), "{name}");
        }
    }
}
