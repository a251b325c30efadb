//! The table of verbs: one row and one file each.

mod annotate;
mod api_resources;
mod api_versions;
mod apply;
mod auth;
mod cluster_info;
mod config;
mod cordon;
mod create;
mod delete;
mod exec;
mod expose;
mod generators;
mod get;
mod label;
mod logs;
mod patch;
mod replace;
mod rollout;
mod run;
mod scale;
mod set;
mod sort;
mod taint;
mod uncordon;
mod version;
mod wait;

use futures_util::future::LocalBoxFuture;
use machinery::field::show_str;

use crate::arguments::{Flag, Flags, Matches, find};
use crate::error::CliError;
use crate::flags::{GLOBAL, Globals};
use crate::session::Session;
use crate::{Environment, Io};

/// A command in progress.
pub type Running<'a> = LocalBoxFuture<'a, Result<(), CliError>>;

/// A verb, or one of the commands below a verb.
#[derive(Debug)]
pub struct Verb {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub summary: &'static str,
    /// Arguments after the name.
    pub usage: &'static str,
    pub flags: &'static [&'static [Flag]],
    /// Nothing for a verb that only has commands below it.
    pub run: Option<for<'a> fn(&'a mut Session, &'a Matches) -> Running<'a>>,
    pub verbs: &'static [Verb],
}

impl Verb {
    /// A verb without aliases and commands below it.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        usage: &'static str,
        flags: &'static [&'static [Flag]],
        run: for<'a> fn(&'a mut Session, &'a Matches) -> Running<'a>,
    ) -> Self {
        Self { name, aliases: &[], summary, usage, flags, run: Some(run), verbs: &[] }
    }

    /// A verb that only has commands below it.
    pub const fn group(name: &'static str, summary: &'static str, verbs: &'static [Self]) -> Self {
        Self { name, aliases: &[], summary, usage: "SUBCOMMAND", flags: &[], run: None, verbs }
    }

    pub const fn aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub const fn verbs(self, verbs: &'static [Self]) -> Self {
        Self { verbs, ..self }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

/// Verbs in the order of the help.
const VERBS: &[&Verb] = &[
    &create::VERB,
    &expose::VERB,
    &run::VERB,
    &set::VERB,
    &get::VERB,
    &delete::VERB,
    &rollout::VERB,
    &scale::VERB,
    &cluster_info::VERB,
    &cordon::VERB,
    &uncordon::VERB,
    &taint::VERB,
    &logs::VERB,
    &exec::VERB,
    &auth::VERB,
    &apply::VERB,
    &patch::VERB,
    &replace::VERB,
    &wait::VERB,
    &label::VERB,
    &annotate::VERB,
    &config::VERB,
    &api_resources::VERB,
    &api_versions::VERB,
    &version::VERB,
];

/// Parses and runs a command line.
pub async fn run(mut operands: Vec<String>, environment: Environment, io: &Io) -> Result<(), CliError> {
    let Some(at) = next_operand(&operands, &[GLOBAL]) else {
        Matches::parse(&operands, &[GLOBAL]).map_err(|error| wrong_flag(&error, "kubectl"))?;
        return Err(CliError::Help(help()));
    };
    let name = operands.remove(at);
    let Some(mut verb) = VERBS.iter().copied().find(|verb| verb.is_called(&name)) else {
        return match name.as_str() {
            "help" => Err(CliError::Help(help_about(&operands))),
            "options" => {
                Err(CliError::Help(options("The following options can be passed to any command:", GLOBAL)))
            }
            name => Err(unknown(name)),
        };
    };
    let mut path = format!("kubectl {}", verb.name);
    while !verb.verbs.is_empty() {
        let flags = all_flags(verb);
        let Some(at) = next_operand(&operands, &flags) else { break };
        match verb.verbs.iter().find(|below| below.is_called(&operands[at])) {
            Some(below) => {
                operands.remove(at);
                verb = below;
                path = format!("{path} {}", verb.name);
            }
            None if verb.run.is_none() => {
                let operand = show_str(&operands[at]);
                return Err(CliError::Text(format!(
                    "unknown command {operand}\nSee '{path} -h' for help and examples"
                )));
            }
            None => break,
        }
    }
    let flags = all_flags(verb);
    let matches = Matches::parse(&operands, &flags).map_err(|error| wrong_flag(&error, &path))?;
    let (Some(run), false) = (verb.run, matches.help) else {
        return Err(CliError::Help(verb_help(verb, &path)));
    };
    let globals = Globals::read(&matches)?;
    let warnings_as_errors = globals.warnings_as_errors;
    let mut session = Session::new(globals, environment, io.clone(), path);
    run(&mut session, &matches).await?;
    match session.warnings.len() {
        count if warnings_as_errors && count > 0 => {
            let noun = if count == 1 { "warning" } else { "warnings" };
            Err(CliError::Text(format!("{count} {noun} received")))
        }
        _ => Ok(()),
    }
}

fn all_flags(verb: &Verb) -> Vec<&'static [Flag]> {
    verb.flags.iter().copied().chain([GLOBAL]).collect()
}

/// The position of the first word that is no flag and no flag's value.
fn next_operand(operands: &[String], flags: Flags<'_>) -> Option<usize> {
    let mut at = 0;
    while let Some(operand) = operands.get(at) {
        let takes_next = |flag: Option<&Flag>| flag.is_some_and(|flag| flag.bare.is_none());
        if operand == "--" {
            return None;
        }
        if let Some(long) = operand.strip_prefix("--") {
            at += usize::from(!long.contains('=') && takes_next(find(flags, |flag| flag.name == long)));
        } else if operand.len() > 1 && operand.starts_with('-') {
            let mut chars = operand.chars().skip(1);
            let (first, second) = (chars.next(), chars.next());
            at += usize::from(second.is_none() && takes_next(find(flags, |flag| flag.short == first)));
        } else {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn wrong_flag(error: &str, path: &str) -> CliError {
    CliError::Text(format!("{error}\nSee '{path} --help' for usage."))
}

/// The error of an unknown verb, with similar ones.
fn unknown(name: &str) -> CliError {
    let mut text = format!("unknown command {} for \"kubectl\"", show_str(name));
    let mut similar: Vec<&str> = VERBS
        .iter()
        .map(|verb| verb.name)
        .filter(|verb| distance(name, verb) <= 2 || verb.starts_with(&name.to_lowercase()))
        .collect();
    similar.sort_unstable();
    if !similar.is_empty() {
        text.push_str("\n\nDid you mean this?");
        for verb in similar {
            text.push_str(&format!("\n\t{verb}"));
        }
    }
    CliError::Text(text)
}

/// The number of edits between two words; long words are far from all verbs.
fn distance(left: &str, right: &str) -> usize {
    const LONGEST: usize = 64;
    if left.len() > LONGEST {
        return LONGEST;
    }
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in right.iter().enumerate() {
            let cost = (diagonal + usize::from(a != *b)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[right.len()]
}

fn help() -> String {
    let mut text = "kubectl controls the Kubernetes cluster manager.\n\nCommands:\n".to_owned();
    for verb in VERBS {
        text.push_str(&format!("  {:<15} {}\n", verb.name, verb.summary));
    }
    text.push_str("\nUsage:\n  kubectl [flags] [options]\n\n");
    text.push_str("Use \"kubectl <command> --help\" for more information about a given command.\n");
    text.push_str(
        "Use \"kubectl options\" for a list of global command-line options (applies to all commands).",
    );
    text
}

fn help_about(operands: &[String]) -> String {
    let mut found: Option<&Verb> = None;
    let mut path = "kubectl".to_owned();
    for operand in operands {
        let next = match found {
            None => VERBS.iter().copied().find(|verb| verb.is_called(operand)),
            Some(verb) => verb.verbs.iter().find(|verb| verb.is_called(operand)),
        };
        let Some(verb) = next else { break };
        path = format!("{path} {}", verb.name);
        found = Some(verb);
    }
    found.map_or_else(help, |verb| verb_help(verb, &path))
}

fn verb_help(verb: &Verb, path: &str) -> String {
    let mut text = format!("{}.\n", verb.summary.trim_end_matches('.'));
    if !verb.aliases.is_empty() {
        text.push_str(&format!("\nAliases:\n  {}, {}\n", verb.name, verb.aliases.join(", ")));
    }
    if !verb.verbs.is_empty() {
        text.push_str("\nAvailable Commands:\n");
        for below in verb.verbs {
            text.push_str(&format!("  {:<19} {}\n", below.name, below.summary));
        }
    }
    for group in verb.flags {
        if text.contains("\nOptions:") {
            text.push_str(options("", group).trim_start_matches('\n'));
        } else {
            text.push_str(&options("\nOptions:", group));
        }
    }
    text.push_str(&format!("\nUsage:\n  {path} {} [options]\n\n", verb.usage));
    text.push_str(
        "Use \"kubectl options\" for a list of global command-line options (applies to all commands).",
    );
    text
}

fn options(title: &str, flags: &[Flag]) -> String {
    let mut text = format!("{title}\n");
    for flag in flags {
        let short = flag.short.map_or("    ".to_owned(), |short| format!("-{short}, "));
        text.push_str(&format!("    {short}--{}={}:\n\t{}\n", flag.name, show_default(flag), flag.help));
    }
    text
}

fn show_default(flag: &Flag) -> String {
    use crate::arguments::Form;
    match flag.form {
        Form::Switch | Form::Number => flag.default.to_owned(),
        Form::Text => format!("'{}'", flag.default),
        Form::List | Form::Repeated => "[]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn outcome(line: &str) -> (u8, String, String) {
        let (io, out, err) = Io::buffers("");
        let operands = line.split_whitespace().map(Into::into).collect();
        let status = crate::run(operands, Environment::default(), io).await;
        (status, out.text(), err.text())
    }

    #[tokio::test]
    async fn unknown_verbs_and_flags_have_kubectls_messages() {
        let rows = [
            (
                "versoin",
                "error: unknown command \"versoin\" for \"kubectl\"\n\nDid you mean this?\n\tversion\n",
            ),
            ("xyzxyz", "error: unknown command \"xyzxyz\" for \"kubectl\"\n"),
            ("get --zz", "error: unknown flag: --zz\nSee 'kubectl get --help' for usage.\n"),
            ("get -n", "error: flag needs an argument: 'n' in -n\nSee 'kubectl get --help' for usage.\n"),
        ];
        for (line, want) in rows {
            assert_eq!(outcome(line).await, (1, String::new(), want.to_owned()), "{line}");
        }
    }

    #[tokio::test]
    async fn help_lists_every_verb() {
        let (status, text, _) = outcome("").await;
        assert_eq!(status, 0);
        for verb in VERBS {
            assert!(text.contains(&format!("\n  {} ", verb.name)), "{}", verb.name);
            let (status, text, _) = outcome(&format!("{} --help", verb.name)).await;
            assert!(status == 0 && text.contains("Usage:"), "{}", verb.name);
        }
    }

    #[test]
    fn every_file_has_a_row_and_flags_are_distinct() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verbs");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .expect("a directory")
            .filter_map(|entry| {
                let path = entry.expect("an entry").path();
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let name = path.file_stem()?.to_str()?.replace('_', "-");
                (name != "mod" && text.contains("pub const VERB: Verb")).then_some(name)
            })
            .collect();
        files.sort();
        let mut rows: Vec<String> = VERBS.iter().map(|verb| verb.name.to_owned()).collect();
        rows.sort();
        assert_eq!(files, rows);
        fn check(verb: &Verb) {
            // A flag of a verb may replace a global one.
            let names: Vec<&str> =
                verb.flags.iter().flat_map(|group| group.iter()).map(|flag| flag.name).collect();
            let distinct: std::collections::HashSet<&str> = names.iter().copied().collect();
            assert_eq!(names.len(), distinct.len(), "{}: {names:?}", verb.name);
            verb.verbs.iter().for_each(check);
        }
        VERBS.iter().for_each(|verb| check(verb));
    }
}
