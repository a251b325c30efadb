//! Text in columns, as Go's tabwriter aligns it for kubectl.

const MINIMUM: usize = 6;
const PADDING: usize = 3;

/// Aligns cells that tabs end. Widths are retained between flushes, so that rows of a watch are aligned.
#[derive(Debug)]
pub struct TabWriter {
    text: String,
    minimum: usize,
    padding: usize,
    widths: Vec<usize>,
    remembered: Vec<usize>,
}

impl Default for TabWriter {
    fn default() -> Self {
        Self::new(MINIMUM, PADDING)
    }
}

impl TabWriter {
    pub fn new(minimum: usize, padding: usize) -> Self {
        Self { text: String::new(), minimum, padding, widths: Vec::new(), remembered: Vec::new() }
    }

    /// Adds text with tabs and line breaks of its own.
    #[cfg(test)]
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a line of cells.
    pub fn row<T: AsRef<str>>(&mut self, cells: &[T]) {
        for (index, cell) in cells.iter().enumerate() {
            if index > 0 {
                self.text.push('\t');
            }
            self.text.push_str(cell.as_ref());
        }
        self.text.push('\n');
    }

    /// The aligned text.
    pub fn flush(&mut self) -> String {
        let text = std::mem::take(&mut self.text);
        let mut lines: Vec<Vec<&str>> = text.split('\n').map(|line| line.split('\t').collect()).collect();
        let ends_with_newline = text.ends_with('\n');
        if ends_with_newline || text.is_empty() {
            lines.pop();
        }
        let mut out = String::with_capacity(text.len() * 2);
        self.format(&lines, 0, lines.len(), &mut out);
        if !ends_with_newline && out.ends_with('\n') {
            out.pop();
        }
        out
    }

    fn format(&mut self, lines: &[Vec<&str>], first: usize, end: usize, out: &mut String) {
        let column = self.widths.len();
        let (mut at, mut written) = (first, first);
        while at < end {
            // The last cell of a line belongs to no column.
            let in_column = |line: usize| column + 1 < lines[line].len();
            if !in_column(at) {
                at += 1;
                continue;
            }
            self.write(&lines[written..at], out);
            let mut block_end = at;
            let mut width = self.remembered.get(column).copied().unwrap_or(0).max(self.minimum);
            while block_end < end && in_column(block_end) {
                width = width.max(lines[block_end][column].chars().count() + self.padding);
                block_end += 1;
            }
            match self.remembered.get_mut(column) {
                Some(known) => *known = (*known).max(width),
                None => self.remembered.push(width),
            }
            self.widths.push(width);
            self.format(lines, at, block_end, out);
            self.widths.pop();
            at = block_end;
            written = block_end;
        }
        self.write(&lines[written..end], out);
    }

    fn write(&self, lines: &[Vec<&str>], out: &mut String) {
        for line in lines {
            for (index, cell) in line.iter().enumerate() {
                out.push_str(cell);
                if index + 1 < line.len() {
                    let width = self.widths.get(index).copied().unwrap_or(0);
                    out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
                }
            }
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_widths_are_remembered() {
        let mut writer = TabWriter::default();
        writer.row(&["NAME", "AGE"]);
        writer.row(&["longer-name", "3d"]);
        assert_eq!(writer.flush(), "NAME          AGE\nlonger-name   3d\n");
        writer.row(&["x", "1s"]);
        assert_eq!(writer.flush(), "x             1s\n");
    }

    #[test]
    fn blocks_of_lines_have_widths_of_their_own() {
        let mut writer = TabWriter::new(0, 2);
        writer.push("Name:\tx\nLabels:\ta=b\n\nEvents:\n  a\tb\n");
        assert_eq!(
            writer.flush(),
            "Name:    x\nLabels:  a=b\n\nEvents:\n  a  b\n".replace("  a  b", "  a      b")
        );
        assert_eq!(TabWriter::default().flush(), "");
    }

    #[test]
    fn width_counts_characters() {
        let mut writer = TabWriter::default();
        writer.row(&["é-äöüß", "b"]);
        writer.row(&["1234567", "b"]);
        assert_eq!(writer.flush(), "é-äöüß    b\n1234567   b\n");
    }
}
