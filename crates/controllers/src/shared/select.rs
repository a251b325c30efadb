//! `--controllers`: selection of loops.

use runtime::Row;

/// Unknown name in `--controllers`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown controller {0:?}")]
pub struct UnknownController(pub String);

/// Rows that `patterns` select: `*` is all that run by default, a name enables that loop, `-` and a name disables it.
/// Kubernetes' earlier names, without `-controller`, are accepted too.
pub fn selected<'a>(rows: &'a [Row], patterns: &[String]) -> Result<Vec<&'a Row>, UnknownController> {
    for pattern in patterns.iter().filter(|pattern| *pattern != "*") {
        let name = pattern.strip_prefix('-').unwrap_or(pattern);
        if !rows.iter().any(|row| is_called(row, name)) {
            return Err(UnknownController(name.to_owned()));
        }
    }
    let is_wanted = |row: &&Row| {
        for pattern in patterns {
            match pattern.strip_prefix('-') {
                Some(name) if is_called(row, name) => return false,
                None if is_called(row, pattern) => return true,
                _ => {}
            }
        }
        row.by_default && patterns.iter().any(|pattern| pattern == "*")
    };
    Ok(rows.iter().filter(is_wanted).collect())
}

fn is_called(row: &Row, name: &str) -> bool {
    let own = row.descriptor.name;
    own == name || own.strip_suffix("-controller") == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use runtime::{Action, Context, Descriptor, Key, Loop, LoopError};

    struct Idle;

    #[async_trait]
    impl Loop for Idle {
        async fn reconcile(&self, _: &Key, _: &Context) -> Result<Action, LoopError> {
            Ok(Action::Done)
        }
    }

    const fn described(name: &'static str) -> Descriptor {
        Descriptor { name, resource: "", identity: "", workers: 1 }
    }

    const DESCRIPTORS: [Descriptor; 3] = [described("a-controller"), described("b"), described("optional")];

    #[test]
    fn patterns_select_loops() {
        let row = |at: usize, by_default| Row {
            descriptor: &DESCRIPTORS[at],
            build: |_: &Context| Box::new(Idle) as Box<dyn Loop>,
            by_default,
        };
        let rows = [row(0, true), row(1, true), row(2, false)];
        let cases: [(&[&str], &[&str]); 5] = [
            (&["*"], &["a-controller", "b"]),
            (&["*", "-a"], &["b"]),
            (&["b", "optional"], &["b", "optional"]),
            (&["*", "optional"], &["a-controller", "b", "optional"]),
            (&[], &[]),
        ];
        for (patterns, want) in cases {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            let chosen = selected(&rows, &patterns).expect("known");
            let names: Vec<&str> = chosen.iter().map(|row| row.descriptor.name).collect();
            assert_eq!(names, want, "{patterns:?}");
        }
        let unknown = selected(&rows, &["-nobody".to_owned()]).err();
        assert_eq!(unknown, Some(UnknownController("nobody".to_owned())));
    }
}
