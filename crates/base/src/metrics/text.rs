//! Prometheus' text format of gathered families.
//!
//! Nine of ten lines of a page are buckets of histograms. The labels of a series are formatted once, and so are the bounds
//! of a family; a line copies both.

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType};

/// The page of families.
pub fn encode(families: &[MetricFamily]) -> Vec<u8> {
    let mut page = Page::default();
    for family in families {
        page.family(family);
    }
    page.text
}

#[derive(Default)]
struct Page {
    text: Vec<u8>,
    /// Labels of the series being written, without braces.
    labels: Vec<u8>,
    /// Bounds of the buckets of the family, and their text.
    bounds: Vec<(f64, String)>,
}

impl Page {
    fn family(&mut self, family: &MetricFamily) {
        let name = family.name();
        let kind = match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::GAUGE => "gauge",
            MetricType::HISTOGRAM => "histogram",
            MetricType::SUMMARY => "summary",
            MetricType::UNTYPED => "untyped",
        };
        if !family.help().is_empty() {
            self.all(&["# HELP ", name, " "]);
            escape(&mut self.text, family.help(), false);
            self.text.push(b'\n');
        }
        self.all(&["# TYPE ", name, " ", kind, "\n"]);
        self.bounds.clear();
        for metric in family.get_metric() {
            self.labels.clear();
            for label in metric.get_label() {
                self.label(label);
            }
            match family.get_field_type() {
                MetricType::COUNTER => self.sample(name, "", "", metric.get_counter().get_value()),
                MetricType::GAUGE => self.sample(name, "", "", metric.get_gauge().get_value()),
                // The library has no metric of this type.
                MetricType::UNTYPED => {}
                MetricType::HISTOGRAM => self.histogram(name, metric),
                MetricType::SUMMARY => {
                    let summary = metric.get_summary();
                    for quantile in summary.get_quantile() {
                        let label = format!("quantile=\"{}\"", quantile.quantile());
                        self.sample(name, "", &label, quantile.value());
                    }
                    self.sample(name, "_sum", "", summary.sample_sum());
                    self.count(name, "_count", "", summary.sample_count());
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, metric: &Metric) {
        let histogram = metric.get_histogram();
        let mut has_infinity = false;
        for (number, bucket) in histogram.get_bucket().iter().enumerate() {
            let bound = bucket.upper_bound();
            has_infinity |= bound == f64::INFINITY;
            // Series of a family have the same bounds.
            let text = match self.bounds.get_mut(number) {
                Some((known, text)) if known.total_cmp(&bound).is_eq() => std::mem::take(text),
                _ => format!("le=\"{}\"", Value(bound)),
            };
            self.count(name, "_bucket", &text, bucket.cumulative_count());
            match self.bounds.get_mut(number) {
                Some(known) => *known = (bound, text),
                None => self.bounds.push((bound, text)),
            }
        }
        if !has_infinity {
            self.count(name, "_bucket", "le=\"+Inf\"", histogram.get_sample_count());
        }
        self.sample(name, "_sum", "", histogram.get_sample_sum());
        self.count(name, "_count", "", histogram.get_sample_count());
    }

    fn all(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.extend_from_slice(part.as_bytes()));
    }

    fn label(&mut self, label: &LabelPair) {
        if !self.labels.is_empty() {
            self.labels.push(b',');
        }
        self.labels.extend_from_slice(label.name().as_bytes());
        self.labels.extend_from_slice(b"=\"");
        escape(&mut self.labels, label.value(), true);
        self.labels.push(b'"');
    }

    /// Name and labels of a sample; `extra` is the label that a bucket or quantile has in addition.
    fn begin(&mut self, name: &str, suffix: &str, extra: &str) {
        self.all(&[name, suffix]);
        if !self.labels.is_empty() || !extra.is_empty() {
            self.text.push(b'{');
            self.text.extend_from_slice(&self.labels);
            if !self.labels.is_empty() && !extra.is_empty() {
                self.text.push(b',');
            }
            self.all(&[extra, "}"]);
        }
        self.text.push(b' ');
    }

    fn sample(&mut self, name: &str, suffix: &str, extra: &str, value: f64) {
        use std::io::Write as _;
        self.begin(name, suffix, extra);
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "{}", Value(value));
    }

    fn count(&mut self, name: &str, suffix: &str, extra: &str, mut value: u64) {
        self.begin(name, suffix, extra);
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + u8::try_from(value % 10).unwrap_or(0);
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.text.extend_from_slice(&digits[first..]);
        self.text.push(b'\n');
    }
}

/// A value as Prometheus writes it.
struct Value(f64);

impl std::fmt::Display for Value {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            value if value.is_nan() => formatter.write_str("NaN"),
            value if value == f64::INFINITY => formatter.write_str("+Inf"),
            value if value == f64::NEG_INFINITY => formatter.write_str("-Inf"),
            value => std::fmt::Display::fmt(&value, formatter),
        }
    }
}

fn escape(out: &mut Vec<u8>, text: &str, quotes: bool) {
    for byte in text.bytes() {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'"' if quotes => out.extend_from_slice(b"\\\""),
            byte => out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{
        Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
        TextEncoder,
    };

    #[test]
    fn page_is_that_of_the_library() {
        let registry = Registry::new();
        let counters =
            IntCounterVec::new(Opts::new("c_total", "A \\ and\na line."), &["a", "b"]).expect("a name");
        counters.with_label_values(&["x\"y\\z\n", ""]).inc_by(u64::from(u32::MAX));
        counters.with_label_values(&["", "é"]).inc();
        let gauge = Gauge::new("g", "Gauge.").expect("a name");
        gauge.set(-1.5e-7);
        let gauges = GaugeVec::new(Opts::new("large", "Large."), &["l"]).expect("a name");
        gauges.with_label_values(&["v"]).set(1e18);
        let buckets = vec![0.005, 0.1, 1.0, 2.5, 1e6];
        let histograms =
            HistogramVec::new(HistogramOpts::new("h", "Histogram.").buckets(buckets.clone()), &["l"])
                .expect("a name");
        for value in [0.001, 0.1, 3.0, 1e9] {
            histograms.with_label_values(&["a"]).observe(value);
            histograms.with_label_values(&["b"]).observe(value * 2.0);
        }
        let with_infinity = HistogramOpts::new("i", "Infinity.").buckets(vec![1.0, f64::INFINITY]);
        let with_infinity = Histogram::with_opts(with_infinity).expect("a name");
        with_infinity.observe(7.0);
        registry.register(Box::new(counters)).expect("registers");
        registry.register(Box::new(gauge)).expect("registers");
        registry.register(Box::new(gauges)).expect("registers");
        registry.register(Box::new(histograms)).expect("registers");
        registry.register(Box::new(with_infinity)).expect("registers");
        let families = registry.gather();
        let mut wanted = Vec::new();
        TextEncoder::new().encode(&families, &mut wanted).expect("encodes");
        assert_eq!(String::from_utf8(encode(&families)), String::from_utf8(wanted));
    }

    #[test]
    fn values_that_are_no_numbers_have_the_names_of_prometheus() {
        let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.25].map(|value| Value(value).to_string());
        assert_eq!(all, ["NaN", "+Inf", "-Inf", "0.25"]);
    }
}
