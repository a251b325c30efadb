//! `--vmodule`: verbosity of single files.

use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer};

use super::level;

/// File patterns and their verbosity; the first that matches counts. A pattern is compared with a file's name without its
/// ending, `mod` and `lib` being the name of the directory or crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VModule(Vec<(String, u32)>);

impl VModule {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn verbosity(&self, file: &str) -> Option<u32> {
        let name = module(file);
        self.0.iter().find(|(pattern, _)| matches(pattern, name)).map(|(_, verbosity)| *verbosity)
    }
}

impl FromStr for VModule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |item: &str| {
            let pair =
                item.split_once('=').filter(|(pattern, level)| !pattern.is_empty() && !level.is_empty());
            let (pattern, level) = pair.ok_or("syntax error: expect comma-separated list of filename=N")?;
            if pattern.contains(['[', '\\']) {
                return Err(format!("file pattern {pattern:?}: only * and ? are supported"));
            }
            let verbosity = level.parse().ok().filter(|level| i32::try_from(*level).is_ok());
            let verbosity: u32 = verbosity.ok_or_else(|| format!("invalid verbosity {level:?}"))?;
            Ok((pattern.to_owned(), verbosity))
        };
        text.split(',').filter(|item| !item.is_empty()).map(parse).collect::<Result<_, String>>().map(Self)
    }
}

/// The name that patterns are compared with.
fn module(file: &str) -> &str {
    let mut parts = file.trim_end_matches(".rs").rsplit('/');
    match parts.next().unwrap_or_default() {
        "mod" => parts.next().unwrap_or_default(),
        "lib" | "main" => parts.find(|part| *part != "src").unwrap_or_default(),
        name => name,
    }
}

/// Compares a name with a pattern of `*` and `?`, in time proportional to the product of their lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut to, mut back) = (0, 0, None);
    while to < name.len() {
        match pattern.get(at) {
            Some('*') => {
                back = Some((at, to));
                at += 1;
            }
            Some(one) if *one == '?' || *one == name[to] => {
                at += 1;
                to += 1;
            }
            _ => match back {
                Some((star, from)) => {
                    (at, to) = (star + 1, from + 1);
                    back = Some((star, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|one| *one == '*')
}

/// Enables lines within the verbosity of the process or of the file.
pub(super) struct Verbosity {
    pub targets: Targets,
    pub modules: VModule,
}

impl Verbosity {
    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        let own = metadata.file().and_then(|file| self.modules.verbosity(file));
        match own {
            Some(verbosity) => *metadata.level() <= level(verbosity),
            None => self.targets.would_enable(metadata.target(), metadata.level()),
        }
    }
}

impl<S: Subscriber> Layer<S> for Verbosity {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.allows(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.allows(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let common = Layer::<S>::max_level_hint(&self.targets)?;
        let own = self.modules.0.iter().map(|(_, verbosity)| level(*verbosity)).max();
        Some(own.map_or(common, |own| own.max(common)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_compared_with_file_names() {
        let modules: VModule = "listener=4,fair*=2,,s?rve=6".parse().expect("valid");
        for (file, want) in [
            ("crates/apiserver/src/serve/listener.rs", Some(4)),
            ("crates/apiserver/src/chain/fairness/mod.rs", Some(2)),
            ("crates/apiserver/src/serve/mod.rs", Some(6)),
            ("crates/apiserver/src/serve/listeners.rs", None),
            ("crates/store/src/lib.rs", None),
        ] {
            assert_eq!(modules.verbosity(file), want, "{file}");
        }
        assert_eq!(module("crates/store/src/lib.rs"), "store");
        let many = "*a".repeat(50);
        assert!(!matches(&many, &"b".repeat(1000)) && matches("*", "") && matches("a*b*c", "axxbyybc"));
        for (text, want) in [
            ("a", "syntax error"),
            ("=2", "syntax error"),
            ("a=", "syntax error"),
            ("a=-1", "invalid verbosity"),
            ("a=4294967295", "invalid verbosity"),
            ("[a]=1", "only * and ?"),
        ] {
            let error = text.parse::<VModule>().expect_err(text);
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}
