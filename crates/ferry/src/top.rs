//! `ferry top`: usage over the last hours, with sparklines and advice about requests.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use base::version::user_agent;
use clap::{Args, ValueEnum};
use cluster::{Client, HISTORY_GROUP, HISTORY_VERSION};
use machinery::quantity::Quantity;
use serde_json::Value;

use crate::cli::DataDir;
use crate::flags::parse_duration;

#[derive(Args, Debug)]
pub struct TopArgs {
    /// Resource to show.
    #[arg(value_name = "nodes|pods", default_value = "pods")]
    pub resource: TopResource,

    /// Time to look back.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub since: Duration,

    /// Namespace of the pods; all of them if not given.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Resource to sort by, the highest 95th percentile first.
    #[arg(long, value_name = "cpu|memory")]
    pub sort_by: Option<SortBy>,

    /// Output format.
    #[arg(long, short, value_name = "table|json", default_value = "table")]
    pub output: TopOutput,

    /// The kubeconfig to use; by default that of the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    pub data_dir: DataDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopResource {
    #[value(alias = "node")]
    Nodes,
    #[value(alias = "pod")]
    Pods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    Cpu,
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopOutput {
    Table,
    Json,
}

/// Points of a sparkline.
const WIDTH: usize = 24;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// `ferry top`.
pub async fn run(arguments: TopArgs) -> Result<ExitCode> {
    let kubeconfig = arguments.kubeconfig.unwrap_or_else(|| arguments.data_dir.data_dir.join("kubeconfig"));
    let client = Client::connect(&kubeconfig, &user_agent("ferry-top"))?;
    let path = path(arguments.resource, arguments.namespace.as_deref(), arguments.since);
    let mut list: Value = client.read(&path).await.context("failed to read the usage history")?;
    if let (Some(by), Some(items)) = (arguments.sort_by, list["items"].as_array_mut()) {
        let key = if by == SortBy::Cpu { "cpu" } else { "memory" };
        items.sort_by_key(|item| std::cmp::Reverse(amount(&item[key]["p95"])));
    }
    match arguments.output {
        TopOutput::Json => println!("{}", serde_json::to_string_pretty(&list)?),
        TopOutput::Table => print!("{}", table(arguments.resource, &list)),
    }
    Ok(ExitCode::SUCCESS)
}

fn path(resource: TopResource, namespace: Option<&str>, since: Duration) -> String {
    let base = format!("/apis/{HISTORY_GROUP}/{HISTORY_VERSION}");
    let query = format!("?sinceSeconds={}&points={WIDTH}", since.as_secs().max(1));
    match (resource, namespace) {
        (TopResource::Nodes, _) => format!("{base}/nodes{query}"),
        (TopResource::Pods, None) => format!("{base}/pods{query}"),
        (TopResource::Pods, Some(ns)) => format!("{base}/namespaces/{ns}/pods{query}"),
    }
}

/// A quantity in thousandths.
fn amount(value: &Value) -> i64 {
    value.as_str().and_then(|text| Quantity::parse(text).ok()).map_or(0, |amount| amount.milli_value())
}

/// Averages as bars, scaled to the highest; blank without points.
fn sparkline(history: &Value) -> String {
    let values: Vec<Option<u64>> = history.as_array().into_iter().flatten().map(Value::as_u64).collect();
    let highest = values.iter().flatten().copied().max().unwrap_or(0).max(1);
    let last = BARS.len() as u128 - 1;
    let bar = |value: &Option<u64>| match value {
        None => ' ',
        Some(value) => {
            let level = u128::from(*value) * last / u128::from(highest);
            BARS[usize::try_from(level.min(last)).unwrap_or(0)]
        }
    };
    values.iter().map(bar).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// Memory in mebibytes, as `kubectl top` prints it.
fn mebibytes(value: &Value) -> String {
    match value.as_str().and_then(|text| Quantity::parse(text).ok()) {
        Some(amount) => format!("{}Mi", amount.value() / (1 << 20)),
        None => "-".to_owned(),
    }
}

fn advice(usage: &Value, shown: &str) -> String {
    match usage["advice"].as_str() {
        None => "-".to_owned(),
        Some("keep") => "keep".to_owned(),
        Some(advice) => format!("{advice} to {shown}"),
    }
}

fn table(resource: TopResource, list: &Value) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let is_pods = resource == TopResource::Pods;
    let heads: &[&str] = if is_pods {
        &[
            "NAMESPACE",
            "NAME",
            "CPU P95",
            "REQUEST",
            "ADVICE",
            "CPU",
            "MEMORY P95",
            "REQUEST",
            "ADVICE",
            "MEMORY",
        ]
    } else {
        &["NAME", "CPU P95", "CPU MAX", "CPU", "MEMORY P95", "MEMORY MAX", "MEMORY"]
    };
    rows.push(heads.iter().map(|head| (*head).to_owned()).collect());
    for item in list["items"].as_array().into_iter().flatten() {
        let (meta, cpu, memory) = (&item["metadata"], &item["cpu"], &item["memory"]);
        let lines = (sparkline(&cpu["history"]), sparkline(&memory["history"]));
        rows.push(if is_pods {
            vec![
                text(&meta["namespace"]).to_owned(),
                text(&meta["name"]).to_owned(),
                text(&cpu["p95"]).to_owned(),
                text(&cpu["request"]).to_owned(),
                advice(cpu, text(&cpu["recommended"])),
                lines.0,
                mebibytes(&memory["p95"]),
                mebibytes(&memory["request"]),
                advice(memory, &mebibytes(&memory["recommended"])),
                lines.1,
            ]
        } else {
            let name = text(&meta["name"]).to_owned();
            let [p95, max] = [text(&cpu["p95"]), text(&cpu["max"])].map(str::to_owned);
            vec![name, p95, max, lines.0, mebibytes(&memory["p95"]), mebibytes(&memory["max"]), lines.1]
        });
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut printed = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("   ");
        // Writing to a string cannot fail.
        let _ = writeln!(printed, "{}", line.trim_end());
    }
    printed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sparklines_are_scaled_to_the_highest() {
        assert_eq!(sparkline(&json!([0, 7, null, 14])), "▁▄ █");
        assert_eq!(sparkline(&json!([0, 0])), "▁▁");
        assert_eq!(sparkline(&json!([u64::MAX])), "█");
        assert_eq!(sparkline(&json!(null)), "");
    }

    #[test]
    fn table_has_usage_requests_and_advice() {
        let list = json!({"items": [{
            "metadata": {"namespace": "ns", "name": "a"},
            "cpu": {"p95": "100m", "request": "1", "advice": "lower", "recommended": "115m", "history": [1, 2]},
            "memory": {"p95": "200Mi", "request": "256Mi", "advice": "keep", "recommended": "256Mi", "history": []},
        }]});
        let table = table(TopResource::Pods, &list);
        let row = table.lines().nth(1).expect("a row");
        let cells: Vec<&str> = row.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["ns", "a", "100m", "1", "lower to 115m", "▄█", "200Mi", "256Mi", "keep"]);
        assert_eq!(
            path(TopResource::Pods, Some("ns"), Duration::from_secs(60)),
            "/apis/usage.ferry.dev/v1alpha1/namespaces/ns/pods?sinceSeconds=60&points=24"
        );
    }
}
