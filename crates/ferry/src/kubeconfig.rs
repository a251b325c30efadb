//! `ferry kubeconfig`: the administrator's kubeconfig, merged into the user's or printed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use machinery::codec::yaml;
use machinery::kubeconfig;
use serde_json::{Map, Value};

use crate::cli::DataDir;

#[derive(Args, Debug)]
pub struct KubeconfigArgs {
    #[command(flatten)]
    pub data_dir: DataDir,

    /// Print the kubeconfig instead of merging it.
    #[arg(long)]
    pub print: bool,

    /// File to merge into; by default the first file of $KUBECONFIG, or ~/.kube/config.
    #[arg(long, value_name = "FILE", conflicts_with = "print")]
    pub into: Option<PathBuf>,

    /// Name of the cluster and context in that file.
    #[arg(long, value_name = "NAME", default_value = "ferry")]
    pub name: String,
}

pub fn run(arguments: &KubeconfigArgs) -> Result<ExitCode> {
    let own = arguments.data_dir.data_dir.join("kubeconfig");
    let text = match fs::read_to_string(&own) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{} does not exist: start the cluster first (`ferry up`), or set --data-dir", own.display())
        }
        read => read.with_context(|| format!("failed to read {}", own.display()))?,
    };
    if arguments.print {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let target =
        arguments.into.clone().or_else(default_target).context("neither $KUBECONFIG nor $HOME is set")?;
    let ours =
        kubeconfig::decode(text.as_bytes()).with_context(|| format!("failed to parse {}", own.display()))?;
    let theirs = match fs::read_to_string(&target) {
        Ok(text) => kubeconfig::decode(text.as_bytes())
            .with_context(|| format!("failed to parse {}", target.display()))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error).with_context(|| format!("failed to read {}", target.display())),
    };
    let merged = merge(theirs, &ours, &arguments.name)?;
    write(&target, &yaml::encode(&Value::Object(merged)))?;
    println!("Added context {:?} to {} and made it the current context.", arguments.name, target.display());
    Ok(ExitCode::SUCCESS)
}

fn default_target() -> Option<PathBuf> {
    let from_list = std::env::var_os("KUBECONFIG")
        .and_then(|list| std::env::split_paths(&list).find(|path| !path.as_os_str().is_empty()));
    from_list.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".kube/config")))
}

fn write(target: &Path, text: &[u8]) -> Result<()> {
    let outcome = (|| {
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        base::file::replace(target, text, base::file::PRIVATE)
    })();
    outcome.with_context(|| format!("failed to write {}", target.display()))
}

/// Sets the cluster, user and context `name` in `theirs`, replacing existing entries of that name.
fn merge(
    mut theirs: Map<String, Value>,
    ours: &Map<String, Value>,
    name: &str,
) -> Result<Map<String, Value>> {
    let (cluster, user) = kubeconfig::current(ours);
    if cluster.is_null() || user.is_null() {
        bail!("the cluster's kubeconfig has no current context");
    }
    let entries = (cluster.clone(), user.clone());
    kubeconfig::set_context(&mut theirs, name, &format!("{name}-admin"), entries)?;
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::kubeconfig::{ClusterEntry, Material, UserEntry};
    use serde_json::json;

    fn parse(text: &str) -> Map<String, Value> {
        kubeconfig::decode(text.as_bytes()).expect("parses")
    }

    fn ours() -> Map<String, Value> {
        let cluster = ClusterEntry { server: "https://new".to_owned(), ..ClusterEntry::default() };
        let user = UserEntry { token: Some(Material::Text("t".to_owned())), ..UserEntry::default() };
        parse(&kubeconfig::render("ferry", "ferry-admin", &cluster, &user))
    }

    #[test]
    fn merge_into_missing_file_writes_all_entries() {
        let merged = Value::Object(merge(Map::new(), &ours(), "ferry").expect("merges"));
        assert_eq!(merged["current-context"], "ferry");
        assert_eq!(merged["clusters"][0]["cluster"]["server"], "https://new");
        assert_eq!(merged["contexts"][0]["context"], json!({"cluster": "ferry", "user": "ferry-admin"}));
    }

    #[test]
    fn merge_replaces_own_entries_and_keeps_others() {
        let theirs = parse(
            "apiVersion: v1\nkind: Config\npreferences: {colors: true}\ncurrent-context: other\nusers: null\nclusters:\n- {name: other, cluster: {server: https://other}}\n- {name: mine, cluster: {server: https://old}}\n",
        );
        let merged = Value::Object(merge(theirs, &ours(), "mine").expect("merges"));
        assert_eq!(merged["clusters"][0]["cluster"]["server"], "https://other");
        assert_eq!(merged["clusters"][1]["cluster"]["server"], "https://new");
        assert_eq!(merged["clusters"].as_array().map(Vec::len), Some(2));
        assert_eq!(merged["preferences"]["colors"], true);
        assert_eq!(merged["current-context"], "mine");
        assert_eq!(merged["users"][0]["name"], "mine-admin");
    }

    #[test]
    fn merge_into_invalid_file_fails() {
        assert!(merge(parse("clusters: many"), &ours(), "ferry").is_err());
        assert!(merge(Map::new(), &Map::new(), "ferry").is_err(), "no current context");
    }
}
