//! Cuts a stream of bytes into lines.

/// A line is longer than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {0} bytes")]
pub struct LineTooLong(pub usize);

/// Lines of a page that arrives in pieces. Memory is bounded by the longest line.
#[derive(Debug)]
pub struct Lines {
    partial: Vec<u8>,
    limit: usize,
}

impl Lines {
    pub fn new(limit: usize) -> Self {
        Self { partial: Vec::new(), limit }
    }

    /// Calls `each` with every line that `piece` completes.
    pub fn push<E: From<LineTooLong>>(
        &mut self,
        mut piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = memchr::memchr(b'\n', piece) {
            let (line, rest) = piece.split_at(end);
            if self.partial.is_empty() {
                self.check(line.len())?;
                each(line)?;
            } else {
                self.check(self.partial.len().saturating_add(line.len()))?;
                self.partial.extend_from_slice(line);
                each(&self.partial)?;
                self.partial.clear();
            }
            piece = rest.get(1..).unwrap_or_default();
        }
        self.check(self.partial.len().saturating_add(piece.len()))?;
        self.partial.extend_from_slice(piece);
        Ok(())
    }

    /// Calls `each` with the last line, if it has no line feed.
    pub fn finish<E>(self, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if self.partial.is_empty() { Ok(()) } else { each(&self.partial) }
    }

    fn check(&self, length: usize) -> Result<(), LineTooLong> {
        if length > self.limit { Err(LineTooLong(self.limit)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&str], limit: usize) -> Result<Vec<String>, LineTooLong> {
        let mut found = Vec::new();
        let mut each = |line: &[u8]| {
            found.push(String::from_utf8_lossy(line).into_owned());
            Ok::<_, LineTooLong>(())
        };
        let mut lines = Lines::new(limit);
        for piece in pieces {
            lines.push(piece.as_bytes(), &mut each)?;
        }
        lines.finish(&mut each)?;
        Ok(found)
    }

    #[test]
    fn lines_across_pieces_are_joined() {
        let lines = cut(&["a\nb", "", "c\n", "\nd"], 10).expect("short lines");
        assert_eq!(lines, ["a", "bc", "", "d"]);
    }

    #[test]
    fn line_over_the_limit_is_an_error() {
        assert_eq!(cut(&["12345\n"], 4), Err(LineTooLong(4)));
        assert_eq!(cut(&["123", "45"], 4), Err(LineTooLong(4)));
        assert_eq!(cut(&["1234\n1234"], 4).map(|lines| lines.len()), Ok(2));
    }
}
