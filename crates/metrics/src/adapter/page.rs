//! A page of a pod, reduced to the series that autoscaling uses.

use crate::exposition::{Format, LineTooLong, Lines, SampleError, sample, type_of};
use std::collections::BTreeMap;

const LONGEST_LINE: usize = 64 << 10;
/// End of the names of counters.
pub const COUNTER: &str = "_total";
const SCRAPE: &str = "prometheus.io/scrape";
const PORT: &str = "prometheus.io/port";
const PATH: &str = "prometheus.io/path";
const SCHEME: &str = "prometheus.io/scheme";

/// Address of a pod's metrics, from its annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeTarget {
    pub port: u16,
    pub path: String,
    pub secure: bool,
}

impl ScrapeTarget {
    /// The target that annotations name; `None` if the pod is not to be scraped.
    pub fn of<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        if annotation(SCRAPE) != Some("true") {
            return None;
        }
        let secure = annotation(SCHEME) == Some("https");
        let port = annotation(PORT).map_or(Some(if secure { 443 } else { 80 }), |port| port.parse().ok())?;
        let path = annotation(PATH).unwrap_or("/metrics");
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        (port != 0 && path.len() <= 1024).then_some(Self { port, path, secure })
    }
}

/// Reason why a page is not used. It quotes nothing of the page, which readers of events may not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("more than {0} series")]
    TooManySeries(usize),
    #[error("names and labels of the series take more than {0} bytes")]
    TooLarge(usize),
    #[error("failed to parse line {number}")]
    Sample { number: usize, source: SampleError },
    #[error(transparent)]
    Line(#[from] LineTooLong),
}

/// Labels of a series, sorted.
pub type Labels = Box<[(Box<str>, Box<str>)]>;

/// The series of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metric {
    /// Counters only grow while their process runs, so they have rates.
    pub is_counter: bool,
    pub rows: Vec<(Labels, f64)>,
}

/// Values of a page, by name and labels.
pub type Series = BTreeMap<Box<str>, Metric>;

/// Memory of a name, a series and a label beside their texts, with what the allocator adds.
const SIZE_OF_NAME: usize = 96;
const SIZE_OF_SERIES: usize = 48;
const SIZE_OF_LABEL: usize = 64;

fn size_of_series(labels: &Labels) -> usize {
    let texts = labels.iter().map(|(name, value)| name.len().saturating_add(value.len()));
    texts.fold(SIZE_OF_SERIES, |sum, text| sum.saturating_add(SIZE_OF_LABEL).saturating_add(text))
}

/// Memory of the values of a page, in bytes.
pub fn size(series: &Series) -> usize {
    series.iter().fold(0_usize, |sum, (name, metric)| {
        let rows =
            metric.rows.iter().fold(0_usize, |sum, (labels, _)| sum.saturating_add(size_of_series(labels)));
        sum.saturating_add(SIZE_OF_NAME).saturating_add(name.len()).saturating_add(rows)
    })
}

/// Limits of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    pub series: usize,
    /// Memory of the values, as [`size`] counts it.
    pub bytes: usize,
}

/// A page being read.
#[derive(Debug)]
pub struct PageDecoder {
    lines: Lines,
    page: Page,
}

#[derive(Debug)]
struct Page {
    format: Format,
    limits: PageLimits,
    /// Lines, samples and bytes so far.
    number: usize,
    count: usize,
    bytes: usize,
    /// Name and type of the metric that the last `# TYPE` line names; its samples follow it.
    family: Option<(Box<str>, Box<str>)>,
    series: Series,
}

impl PageDecoder {
    pub fn new(format: Format, limits: PageLimits) -> Self {
        let page =
            Page { format, limits, number: 0, count: 0, bytes: 0, family: None, series: Series::new() };
        Self { lines: Lines::new(LONGEST_LINE), page }
    }

    pub fn push(&mut self, piece: &[u8]) -> Result<(), PageError> {
        let page = &mut self.page;
        self.lines.push(piece, |line| page.take(line))
    }

    /// Memory of the values so far.
    pub fn bytes(&self) -> usize {
        self.page.bytes
    }

    pub fn finish(self) -> Result<Series, PageError> {
        let Self { lines, mut page } = self;
        lines.finish(|line| page.take(line))?;
        Ok(page.series)
    }
}

impl Page {
    fn take(&mut self, line: &[u8]) -> Result<(), PageError> {
        self.number = self.number.saturating_add(1);
        if let Some((name, kind)) = type_of(line) {
            self.family = Some((name.into(), kind.into()));
            return Ok(());
        }
        let parsed = sample(line, self.format);
        let parsed = parsed.map_err(|source| PageError::Sample { number: self.number, source })?;
        let Some(found) = parsed else { return Ok(()) };
        self.count = self.count.saturating_add(1);
        if self.count > self.limits.series {
            return Err(PageError::TooManySeries(self.limits.series));
        }
        // Buckets and timestamps of creation are no measure of load.
        let is_ignored = found.name.ends_with("_bucket") || found.name.ends_with("_created");
        if is_ignored || !found.value.is_finite() {
            return Ok(());
        }
        let mut labels: Vec<(Box<str>, Box<str>)> =
            found.labels.iter().map(|(name, value)| ((&**name).into(), (&**value).into())).collect();
        labels.sort_unstable();
        let labels: Labels = labels.into();
        self.bytes = self.bytes.saturating_add(size_of_series(&labels));
        let metric = match self.series.get_mut(&*found.name) {
            Some(metric) => metric,
            None => {
                self.bytes = self.bytes.saturating_add(SIZE_OF_NAME).saturating_add(found.name.len());
                let is_counter = is_counter(&found.name, self.family.as_ref());
                self.series.entry((&*found.name).into()).or_insert(Metric { is_counter, rows: Vec::new() })
            }
        };
        if self.bytes > self.limits.bytes {
            return Err(PageError::TooLarge(self.limits.bytes));
        }
        metric.rows.push((labels, found.value));
        Ok(())
    }
}

/// Reports whether a series is a counter: by the type of its metric; without one, by its name.
fn is_counter(name: &str, family: Option<&(Box<str>, Box<str>)>) -> bool {
    let part = family.and_then(|(family, kind)| Some((name.strip_prefix(&**family)?, &**kind)));
    match part {
        Some(("" | COUNTER, "counter")) | Some(("_count" | "_sum", "histogram" | "summary")) => true,
        Some(("", _)) => false,
        _ => name.ends_with(COUNTER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(page: &str, series: usize) -> Result<Series, PageError> {
        decode_within(page, PageLimits { series, bytes: 16 << 20 })
    }

    fn decode_within(page: &str, limits: PageLimits) -> Result<Series, PageError> {
        let mut decoder = PageDecoder::new(Format::Text, limits);
        for piece in page.as_bytes().chunks(5) {
            decoder.push(piece)?;
        }
        decoder.finish()
    }

    #[test]
    fn page_keeps_gauges_and_counters() {
        let page =
            "# TYPE a gauge\na{y=\"2\",x=\"1\"} 3\na 4\nb_bucket{le=\"1\"} 5\nb_created 6\nc NaN\nb_count 7";
        let series = decode(page, 100).expect("decodes");
        assert_eq!(series.keys().map(|name| &**name).collect::<Vec<_>>(), ["a", "b_count"]);
        let (labels, value) = &series["a"].rows[0];
        assert_eq!((labels[0].clone(), *value), (("x".into(), "1".into()), 3.0));
    }

    #[test]
    fn page_with_a_hundred_thousand_series_is_refused() {
        let page: String = (0..100_000).map(|number| format!("a{{l=\"{number}\"}} 1\n")).collect();
        assert_eq!(decode(&page, 10_000), Err(PageError::TooManySeries(10_000)));
    }

    #[test]
    fn error_of_a_page_quotes_nothing_of_it() {
        for page in
            ["a 1\npassword=hunter2\n", "a 1\nhunter2 hunter2", "a 1\na{hunter2} 1", "a 1\na 1 hunter2"]
        {
            let error = decode(page, 10).expect_err("refused");
            assert!(matches!(error, PageError::Sample { number: 2, .. }), "{error:?}");
            assert!(!base::errors::chain(&error).contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn page_with_long_labels_is_refused_by_its_bytes() {
        let row = |number: usize| format!("a{{l{number}=\"{}\"}} 1\n", "x".repeat(1000));
        let page: String = (0..20).map(row).collect();
        let limits = PageLimits { series: 1000, bytes: 10_000 };
        assert_eq!(decode_within(&page, limits), Err(PageError::TooLarge(10_000)));
        let few: String = (0..5).map(row).collect();
        let mut decoder = PageDecoder::new(Format::Text, limits);
        decoder.push(few.as_bytes()).expect("decodes");
        let counted = decoder.bytes();
        assert_eq!(size(&decoder.finish().expect("decodes")), counted);
    }

    #[test]
    fn counters_are_known_by_type_then_by_name() {
        let page = "# TYPE up gauge\nup 1\n# TYPE jobs counter\njobs 2\njobs_total 2\n# TYPE odd_total gauge\nodd_total 3\n\
                    # TYPE t histogram\nt_sum 4\nt_count 5\nplain_total 6\nplain 7\n";
        let series = decode(page, 100).expect("decodes");
        let counters: Vec<&str> =
            series.iter().filter(|(_, metric)| metric.is_counter).map(|(name, _)| &**name).collect();
        assert_eq!(counters, ["jobs", "jobs_total", "plain_total", "t_count", "t_sum"]);
    }

    #[test]
    fn annotations_name_the_target() {
        let target = |all: &[(&'static str, &'static str)]| {
            let all: BTreeMap<&str, &str> = all.iter().copied().collect();
            ScrapeTarget::of(|name| all.get(name).copied())
        };
        assert_eq!(target(&[]), None);
        assert_eq!(target(&[(SCRAPE, "false")]), None);
        let plain = ScrapeTarget { port: 80, path: "/metrics".to_owned(), secure: false };
        assert_eq!(target(&[(SCRAPE, "true")]), Some(plain));
        let other = ScrapeTarget { port: 8443, path: "/m".to_owned(), secure: true };
        assert_eq!(target(&[(SCRAPE, "true"), (PORT, "8443"), (PATH, "m"), (SCHEME, "https")]), Some(other));
        assert_eq!(target(&[(SCRAPE, "true"), (PORT, "70000")]), None);
        assert_eq!(target(&[(SCRAPE, "true"), (PORT, "0")]), None);
    }
}
