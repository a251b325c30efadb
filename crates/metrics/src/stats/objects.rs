//! Splits a summary into the object of the node and those of its pods while it arrives, so that no summary is in memory
//! as a whole.

/// Length of the object of a node or pod, at most.
const LONGEST_OBJECT: usize = 1 << 20;
/// Depth of a summary, at most.
const DEEPEST: u32 = 32;
/// Length of the keys that matter.
const LONGEST_KEY: usize = 8;

/// Reason why a summary was not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error("the summary is no JSON object")]
    NotAnObject,
    #[error("the summary ends early")]
    Incomplete,
    #[error("an object is longer than {LONGEST_OBJECT} bytes")]
    TooLong,
    #[error("the summary is nested too deeply")]
    TooDeep,
}

/// The owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Node,
    Pod,
}

/// A summary being split. Objects are passed on as they are, without a check of their syntax.
#[derive(Debug, Default)]
pub struct Objects {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The last string at depth one: the key of the value that follows.
    key: Vec<u8>,
    /// The value at depth one that is being read is the list of pods.
    in_pods: bool,
    /// The object being read: its owner, and the depth outside of it.
    owner: Option<(Owner, u32)>,
    object: Vec<u8>,
    is_complete: bool,
}

impl Objects {
    /// Takes a piece, and calls `visit` for each object that it completes.
    pub fn push<E: From<SplitError>>(
        &mut self,
        piece: &[u8],
        mut visit: impl FnMut(Owner, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for byte in piece {
            self.byte(*byte)?;
            if let Some((owner, outside)) = self.owner
                && self.depth == outside
            {
                visit(owner, &self.object)?;
                self.owner = None;
                self.object.clear();
            }
        }
        Ok(())
    }

    /// Bytes of the object that is being read.
    pub fn buffered(&self) -> usize {
        self.object.len()
    }

    /// Checks that the summary is complete.
    pub fn finish(&self) -> Result<(), SplitError> {
        if self.is_complete { Ok(()) } else { Err(SplitError::Incomplete) }
    }

    fn byte(&mut self, byte: u8) -> Result<(), SplitError> {
        if self.in_string {
            self.character(byte);
        } else {
            self.structure(byte)?;
        }
        if self.owner.is_some() {
            if self.object.len() >= LONGEST_OBJECT {
                return Err(SplitError::TooLong);
            }
            self.object.push(byte);
        }
        Ok(())
    }

    fn character(&mut self, byte: u8) {
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.in_string = false;
            return;
        }
        if self.depth == 1 && self.key.len() <= LONGEST_KEY {
            self.key.push(byte);
        }
    }

    fn structure(&mut self, byte: u8) -> Result<(), SplitError> {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if self.is_complete || (self.depth == 0 && byte != b'{') => {
                return Err(SplitError::NotAnObject);
            }
            b'"' => {
                self.in_string = true;
                if self.depth == 1 {
                    self.key.clear();
                }
            }
            b'{' | b'[' => {
                let owner = match (byte, self.depth) {
                    (b'{', 1) if self.key == b"node" => Some(Owner::Node),
                    (b'{', 2) if self.in_pods => Some(Owner::Pod),
                    _ => None,
                };
                if let (None, Some(owner)) = (self.owner, owner) {
                    self.owner = Some((owner, self.depth));
                }
                self.in_pods |= byte == b'[' && self.depth == 1 && self.key == b"pods";
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(SplitError::TooDeep);
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.checked_sub(1).ok_or(SplitError::NotAnObject)?;
                if self.depth == 1 {
                    self.in_pods = false;
                    self.key.clear();
                }
                self.is_complete = self.depth == 0;
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Result<Vec<(Owner, String)>, SplitError> {
        let mut results = Vec::new();
        for size in [1, 7, 4096] {
            let (mut objects, mut found) = (Objects::default(), Vec::new());
            let mut outcome = Ok(());
            for piece in text.as_bytes().chunks(size) {
                outcome = outcome.and_then(|()| {
                    objects.push(piece, |owner, object| {
                        found.push((owner, String::from_utf8_lossy(object).into_owned()));
                        Ok::<(), SplitError>(())
                    })
                });
            }
            results.push(outcome.and_then(|()| objects.finish()).map(|()| found));
        }
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        results.remove(0)
    }

    #[test]
    fn summary_is_split_into_node_and_pods() {
        let text = r#" {"x": {"node": {}}, "node": {"a": "}\"", "pods": [{}]}, "pods": [{"b": [1, {}]}, {"pods": []}],
            "other": [{}], "rest": "pods"} "#;
        let wanted = [
            (Owner::Node, r#"{"a": "}\"", "pods": [{}]}"#.to_owned()),
            (Owner::Pod, r#"{"b": [1, {}]}"#.to_owned()),
            (Owner::Pod, r#"{"pods": []}"#.to_owned()),
        ];
        assert_eq!(split(text).as_deref(), Ok(&wanted[..]));
        assert_eq!(split("{}"), Ok(Vec::new()));
    }

    #[test]
    fn text_that_is_no_summary_is_an_error() {
        for (text, wanted) in [
            ("", SplitError::Incomplete),
            ("{\"node\": {", SplitError::Incomplete),
            ("[]", SplitError::NotAnObject),
            ("{}}", SplitError::NotAnObject),
            ("nothing", SplitError::NotAnObject),
            (&"{\"a\":".repeat(40), SplitError::TooDeep),
            (&format!("{{\"node\": {{\"x\": \"{}\"}}}}", "x".repeat(LONGEST_OBJECT)), SplitError::TooLong),
        ] {
            assert_eq!(split(text), Err(wanted), "{}", text.get(..20).unwrap_or(text));
        }
    }
}
