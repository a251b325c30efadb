//! Tokens from a file: one line each, `token,user,uid[,"group1,group2"]`.

use super::Authenticated;
use crate::user::UserInfo;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("failed to read token file {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("token file {path}, line {line}: {reason}")]
    Line { path: PathBuf, line: usize, reason: &'static str },
}

#[derive(Debug, Default)]
pub struct StaticTokens {
    users: HashMap<Box<str>, UserInfo>,
}

impl StaticTokens {
    pub fn read(path: &Path) -> Result<Self, TokenFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenFileError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|(line, reason)| TokenFileError::Line {
            path: path.to_owned(),
            line,
            reason,
        })
    }

    fn parse(text: &str) -> Result<Self, (usize, &'static str)> {
        let mut users = HashMap::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let columns = columns(line).ok_or((index + 1, "unterminated quote"))?;
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err((index + 1, "at least token, user name and user uid are required"));
            };
            if token.is_empty() {
                tracing::warn!(line = index + 1, "ignoring empty token in token file");
                continue;
            }
            let groups = rest.first().map(|list| list.split(',').map(str::to_owned).collect());
            let user = UserInfo {
                name: name.clone(),
                uid: uid.clone(),
                groups: groups.unwrap_or_default(),
                ..UserInfo::default()
            };
            if users.insert(token.as_str().into(), user).is_some() {
                tracing::warn!(line = index + 1, "duplicate token in token file, using the last one");
            }
        }
        Ok(Self { users })
    }

    pub fn authenticate(&self, token: &str) -> Option<Authenticated> {
        let user = self.users.get(token)?.clone();
        Some(Authenticated { user, audiences: Vec::new() })
    }
}

/// Columns of a CSV line; `None` if a quote is unterminated.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let column = columns.last_mut()?;
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                column.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            letter => column.push(letter),
        }
    }
    (!quoted).then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_file_lines_are_parsed() {
        let text = "t1,alice,1,\"dev,ops\"\n\nt2,bob,2\n,nobody,3\n";
        let tokens = StaticTokens::parse(text).unwrap();
        assert_eq!(tokens.authenticate("t1").unwrap().user.groups, ["dev", "ops"]);
        let bob = tokens.authenticate("t2").unwrap().user;
        assert_eq!((bob.name.as_str(), bob.uid.as_str()), ("bob", "2"));
        assert!(bob.groups.is_empty());
        assert!(tokens.authenticate("").is_none());
        assert!(tokens.authenticate("t3").is_none());
        for (text, line) in [("t,alice", 1), ("a,b,c\nt,\"alice,1", 2)] {
            assert_eq!(StaticTokens::parse(text).unwrap_err().0, line, "{text}");
        }
    }
}
