//! Lines of results; with a second server, ratios.

/// One measured quantity: Ferry's, and the other server's if there is one.
pub struct Line {
    pub name: String,
    pub unit: &'static str,
    pub ferry: f64,
    pub other: Option<f64>,
    /// True if more is better (throughput), false if less is (time, memory).
    pub more_is_better: bool,
}

/// Prints a Markdown table row for docs/performance.md.
pub fn print(lines: &[Line]) {
    let compared = lines.iter().any(|line| line.other.is_some());
    if compared {
        println!("| | unit | Ferry | other | ratio |\n|---|---|---|---|---|");
    } else {
        println!("| | unit | Ferry |\n|---|---|---|");
    }
    for line in lines {
        let ferry = show(line.ferry);
        match line.other {
            Some(other) => {
                let (better, worse) =
                    if line.more_is_better { (line.ferry, other) } else { (other, line.ferry) };
                let ratio = if worse > 0.0 { format!("{:.1}×", better / worse) } else { "–".to_owned() };
                println!("| {} | {} | {ferry} | {} | {ratio} |", line.name, line.unit, show(other));
            }
            None if compared => println!("| {} | {} | {ferry} | – | – |", line.name, line.unit),
            None => println!("| {} | {} | {ferry} |", line.name, line.unit),
        }
    }
}

fn show(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}
