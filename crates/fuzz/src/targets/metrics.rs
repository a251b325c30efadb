//! Pages of metrics.

use super::{outcome, steps};
use crate::engine::Target;
use ::metrics::exposition::{Format, LineTooLong, Lines, SampleError, sample};

const LONGEST_LINE: usize = 4096;

/// Reads a page line by line, in chunks of odd length.
fn read(input: &[u8], format: Format) -> Result<usize, String> {
    let mut count = 0_usize;
    let mut lines = Lines::new(LONGEST_LINE);
    let mut each = |line: &[u8]| -> Result<(), PageError> {
        assert!(line.len() <= LONGEST_LINE, "a line is longer than its limit");
        if let Some(found) = sample(line, format)? {
            assert!(!found.name.is_empty(), "a sample without a name");
            count += found.labels.len() + 1;
        }
        Ok(())
    };
    let mut page = || {
        for piece in input.chunks(7) {
            lines.push(piece, &mut each)?;
        }
        std::mem::replace(&mut lines, Lines::new(0)).finish(&mut each)
    };
    page().map_err(|error: PageError| error.to_string())?;
    Ok(count)
}

#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error(transparent)]
    Line(#[from] LineTooLong),
    #[error(transparent)]
    Sample(#[from] SampleError),
}

pub static EXPOSITION: Target = Target {
    name: "exposition",
    corpus: &[
        b"# TYPE a counter\na_total{x=\"1\",y=\"b\\\"c\\n\"} 3.5 1395066363000\nb NaN\n",
        b"foo_bucket{le=\"0.1\"} 8 1520879607.789 # {trace_id=\"a\"} 0.67 1.5\n# EOF\n",
        b"{\"my.metric\",\"l\"=\"v\"} 1e9\n",
    ],
    dictionary: &[b"{", b"}", b"\"", b"\\", b"=", b",", b" ", b"\n", b"+Inf", b"NaN", b"#", b"1e308", b"-"],
    run: |input| {
        let text = read(input, Format::Text);
        let _ = read(input, Format::OpenMetrics);
        outcome(&text, steps(input.len()))
    },
    floor: 1 << 20,
    factor: 64,
};
