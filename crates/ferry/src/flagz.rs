//! Flags of this process as `/flagz` shows them: given or default values, without secrets.

use base::redact::{CLASSIFIED, is_secret, without_user_info};
use clap::{ArgMatches, Command};

/// Stores the flags of the command that runs.
pub fn set(root: &Command, matches: &ArgMatches) {
    let (mut command, mut matches) = (root, matches);
    let mut flags = of(command, matches);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, inner);
        flags.extend(of(command, matches));
    }
    flags.sort();
    flags.dedup_by(|one, other| one.0 == other.0);
    base::zpages::set_flags(flags);
}

/// Flags of one level of the command line.
fn of(command: &Command, matches: &ArgMatches) -> Vec<(String, String)> {
    let named = command.get_arguments().filter_map(|argument| Some((argument, argument.get_long()?)));
    let flags = named.filter(|(_, name)| !matches!(*name, "help" | "version")).map(|(argument, name)| {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
        let values: Vec<_> = values.into_iter().flatten().map(|value| value.to_string_lossy()).collect();
        let is_secret = is_secret(name) && !values.is_empty();
        let shown = if is_secret { CLASSIFIED.to_owned() } else { without_user_info(&values.join(",")) };
        (name.to_owned(), shown)
    });
    flags.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn flags_have_given_and_default_values_without_secrets() {
        let mut root = Cli::command();
        let words = [
            "ferry",
            "server",
            "--request-timeout=2m0s",
            "--metrics-sink=influxdb:http://h?user=u&pw=very-secret",
            "--etcd-servers=https://u:very-secret@etcd:2379",
            "--oidc-issuer-url=https://u:very-secret@issuer",
            "--oidc-client-id=ferry",
            "-v=3",
        ];
        let matches = root.try_get_matches_from_mut(words).expect("valid");
        let mut flags = of(&root, &matches);
        let (name, inner) = matches.subcommand().expect("a command");
        flags.extend(of(root.find_subcommand(name).expect("known"), inner));
        let value = |name: &str| flags.iter().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str());
        assert_eq!(value("request-timeout"), Some("2m0s"));
        assert_eq!(value("max-requests-inflight"), Some("400"));
        assert_eq!(value("token-auth-file"), Some(""));
        assert_eq!(value("profiling"), Some("true"));
        assert_eq!((value("metrics-sink"), value("etcd-endpoints")), (Some(CLASSIFIED), Some(CLASSIFIED)));
        assert!(flags.iter().all(|(_, value)| !value.contains("very-secret")));
    }
}
