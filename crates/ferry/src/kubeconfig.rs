//! `ferry kubeconfig`: the administrator's kubeconfig, merged into the user's or printed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use machinery::codec::yaml;
use serde_json::{Map, Value, json};

use crate::cli::KubeconfigArgs;

pub fn run(arguments: &KubeconfigArgs) -> Result<ExitCode> {
    let own = arguments.data_dir.data_dir.join("kubeconfig");
    let text = match fs::read_to_string(&own) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "{} does not exist: start the cluster first (`ferry up`), or give its --data-dir",
                own.display()
            )
        }
        read => read.with_context(|| format!("reading {}", own.display()))?,
    };
    if arguments.print {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let target =
        arguments.into.clone().or_else(default_target).context("neither $KUBECONFIG nor $HOME is set")?;
    let ours = parse(&text).with_context(|| format!("parsing {}", own.display()))?;
    let theirs = match fs::read_to_string(&target) {
        Ok(text) => parse(&text).with_context(|| format!("parsing {}", target.display()))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", target.display())),
    };
    let merged = merge(theirs, &ours, &arguments.name)?;
    write(&target, &yaml::encode(&Value::Object(merged)))?;
    println!("Context {:?} is in {} and is the current one.", arguments.name, target.display());
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
    outcome.with_context(|| format!("writing {}", target.display()))
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match yaml::decode(text.as_bytes())?.value {
        Value::Object(config) => Ok(config),
        Value::Null => Ok(Map::new()),
        _ => bail!("it is not a kubeconfig"),
    }
}

/// Puts our cluster, user and context into `theirs` under `name`, in place of any of that name.
fn merge(
    mut theirs: Map<String, Value>,
    ours: &Map<String, Value>,
    name: &str,
) -> Result<Map<String, Value>> {
    let user = format!("{name}-admin");
    let take = |list: &str, key: &str| -> Result<Value> {
        ours.get(list)
            .and_then(|entries| entries.get(0))
            .and_then(|entry| entry.get(key))
            .cloned()
            .with_context(|| format!("the cluster's kubeconfig has no {list}"))
    };
    let entries = [
        ("clusters", json!({"name": name, "cluster": take("clusters", "cluster")?})),
        ("users", json!({"name": user, "user": take("users", "user")?})),
        ("contexts", json!({"name": name, "context": {"cluster": name, "user": user}})),
    ];
    theirs.entry("apiVersion").or_insert_with(|| "v1".into());
    theirs.entry("kind").or_insert_with(|| "Config".into());
    for (list, entry) in entries {
        let existing = theirs.entry(list).or_insert_with(|| json!([]));
        if existing.is_null() {
            *existing = json!([]);
        }
        let Value::Array(existing) = existing else { bail!("{list} of the kubeconfig is not a list") };
        match existing.iter_mut().find(|old| old["name"] == entry["name"]) {
            Some(old) => *old = entry,
            None => existing.push(entry),
        }
    }
    theirs.insert("current-context".to_owned(), name.into());
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Map<String, Value> {
        parse(
            "clusters: [{name: ferry, cluster: {server: https://new}}]\nusers: [{name: ferry-admin, user: {token: t}}]",
        )
        .expect("parses")
    }

    #[test]
    fn a_new_file_gets_everything() {
        let merged = Value::Object(merge(Map::new(), &ours(), "ferry").expect("merges"));
        assert_eq!(merged["current-context"], "ferry");
        assert_eq!(merged["clusters"][0]["cluster"]["server"], "https://new");
        assert_eq!(merged["contexts"][0]["context"], json!({"cluster": "ferry", "user": "ferry-admin"}));
    }

    #[test]
    fn other_clusters_stay_and_ours_is_replaced() {
        let theirs = parse(
            "apiVersion: v1\nkind: Config\npreferences: {colors: true}\ncurrent-context: other\nusers: null\nclusters:\n- {name: other, cluster: {server: https://other}}\n- {name: mine, cluster: {server: https://old}}\n",
        )
        .expect("parses");
        let merged = Value::Object(merge(theirs, &ours(), "mine").expect("merges"));
        assert_eq!(merged["clusters"][0]["cluster"]["server"], "https://other");
        assert_eq!(merged["clusters"][1]["cluster"]["server"], "https://new");
        assert_eq!(merged["clusters"].as_array().map(Vec::len), Some(2));
        assert_eq!(merged["preferences"]["colors"], true);
        assert_eq!(merged["current-context"], "mine");
        assert_eq!(merged["users"][0]["name"], "mine-admin");
    }

    #[test]
    fn damaged_files_are_refused() {
        assert!(parse("- a\n- b").is_err());
        let theirs = parse("clusters: many").expect("parses");
        assert!(merge(theirs, &ours(), "ferry").is_err());
    }
}
