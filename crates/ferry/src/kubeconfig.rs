//! `ferry kubeconfig`: the administrator's kubeconfig or one for another user, merged into a file or printed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use base::clock::Clock;
use base::pki::{Authority, Identity};
use clap::Args;
use machinery::codec::yaml;
use machinery::kubeconfig::{self, ClusterEntry, Material, UserEntry};
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

    /// Name of the cluster and context in that file [default: ferry; with --user, the user's name and `@ferry`].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Issue a client certificate for this user, such as system:kube-scheduler, instead of the administrator's. It is valid
    /// for a year and cannot be revoked.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Group of the user; at most two.
    #[arg(long = "group", value_name = "GROUP", requires = "user")]
    pub groups: Vec<String>,
}

/// Maximum number of groups in a certificate.
const MAX_GROUPS: usize = 2;
/// Maximum length of a name in a certificate.
const MAX_NAME: usize = 64;
/// Name of the administrator's context.
const DEFAULT_NAME: &str = "ferry";

pub fn run(arguments: &KubeconfigArgs) -> Result<ExitCode> {
    let own = arguments.data_dir.data_dir.join("kubeconfig");
    let text = match fs::read_to_string(&own) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{} does not exist: start the cluster first (`ferry up`), or set --data-dir", own.display())
        }
        read => read.with_context(|| format!("failed to read {}", own.display()))?,
    };
    let mut ours =
        kubeconfig::decode(text.as_bytes()).with_context(|| format!("failed to parse {}", own.display()))?;
    let mut user = format!("{}-admin", arguments.name.as_deref().unwrap_or(DEFAULT_NAME));
    if let Some(name) = &arguments.user {
        let directory = arguments.data_dir.data_dir.join("pki");
        let identity = issue(&directory, name, &arguments.groups, &Clock::system())?;
        ours = kubeconfig_of(&ours, name, &identity)?;
        user.clone_from(name);
    }
    if arguments.print {
        let text =
            if arguments.user.is_some() { yaml::encode(&Value::Object(ours)) } else { text.into_bytes() };
        print!("{}", String::from_utf8_lossy(&text));
        return Ok(ExitCode::SUCCESS);
    }
    let context = arguments.name.clone().unwrap_or_else(|| match &arguments.user {
        Some(user) => format!("{user}@{DEFAULT_NAME}"),
        None => DEFAULT_NAME.to_owned(),
    });
    let target =
        arguments.into.clone().or_else(default_target).context("neither $KUBECONFIG nor $HOME is set")?;
    let theirs = match fs::read_to_string(&target) {
        Ok(text) => kubeconfig::decode(text.as_bytes())
            .with_context(|| format!("failed to parse {}", target.display()))?,
        Err(error) if error.kind() == ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error).with_context(|| format!("failed to read {}", target.display())),
    };
    let merged = merge(theirs, &ours, &context, &user)?;
    write(&target, &yaml::encode(&Value::Object(merged)))?;
    println!("Added context {context:?} to {} and made it the current context.", target.display());
    Ok(ExitCode::SUCCESS)
}

/// A client certificate, signed by the cluster's authority of clients.
fn issue(directory: &Path, user: &str, groups: &[String], clock: &Clock) -> Result<Identity> {
    ensure!(groups.len() <= MAX_GROUPS, "a certificate has at most {MAX_GROUPS} groups");
    for (flag, name) in
        [("--user", user)].into_iter().chain(groups.iter().map(|group| ("--group", group.as_str())))
    {
        let is_usable =
            !name.is_empty() && !name.contains(char::is_control) && name.chars().count() <= MAX_NAME;
        ensure!(is_usable, "{flag} {name:?} is not a name of 1 to {MAX_NAME} printable characters");
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let authority = Authority::of_clients(directory)?;
    Ok(authority.issue_client_in(user, &groups, clock.now())?)
}

/// The kubeconfig `ours` with another user.
fn kubeconfig_of(ours: &Map<String, Value>, user: &str, identity: &Identity) -> Result<Map<String, Value>> {
    let (cluster, _) = kubeconfig::current(ours);
    let cluster = ClusterEntry::read(cluster, Path::new(""))?;
    let text = |pem: &str| Material::Text(pem.to_owned());
    let certificate = Some((text(&identity.chain_pem), text(&identity.client_key_pem())));
    let credentials = UserEntry { certificate, ..UserEntry::default() };
    let context = format!("{user}@{DEFAULT_NAME}");
    let rendered = kubeconfig::render(&context, user, &cluster, &credentials);
    Ok(kubeconfig::decode(rendered.as_bytes())?)
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
    user_name: &str,
) -> Result<Map<String, Value>> {
    let (cluster, user) = kubeconfig::current(ours);
    if cluster.is_null() || user.is_null() {
        bail!("the cluster's kubeconfig has no current context");
    }
    let entries = (cluster.clone(), user.clone());
    kubeconfig::set_context(&mut theirs, name, user_name, entries)?;
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let merged = Value::Object(merge(Map::new(), &ours(), "ferry", "ferry-admin").expect("merges"));
        assert_eq!(merged["current-context"], "ferry");
        assert_eq!(merged["clusters"][0]["cluster"]["server"], "https://new");
        assert_eq!(merged["contexts"][0]["context"], json!({"cluster": "ferry", "user": "ferry-admin"}));
    }

    #[test]
    fn merge_replaces_own_entries_and_keeps_others() {
        let theirs = parse(
            "apiVersion: v1\nkind: Config\npreferences: {colors: true}\ncurrent-context: other\nusers: null\nclusters:\n- {name: other, cluster: {server: https://other}}\n- {name: mine, cluster: {server: https://old}}\n",
        );
        let merged = Value::Object(merge(theirs, &ours(), "mine", "mine-admin").expect("merges"));
        assert_eq!(merged["clusters"][0]["cluster"]["server"], "https://other");
        assert_eq!(merged["clusters"][1]["cluster"]["server"], "https://new");
        assert_eq!(merged["clusters"].as_array().map(Vec::len), Some(2));
        assert_eq!(merged["preferences"]["colors"], true);
        assert_eq!(merged["current-context"], "mine");
        assert_eq!(merged["users"][0]["name"], "mine-admin");
    }

    #[test]
    fn other_user_gets_a_certificate_of_the_cluster() {
        let directory = tempfile::tempdir().expect("a directory");
        let (at, clock) = (directory.path().join("pki"), Clock::system());
        base::pki::Pki::open(&at, &base::pki::ServingNames::default(), clock.now()).expect("certificates");
        let groups = ["a".to_owned(), "b".to_owned()];
        let identity = issue(&at, "system:kube-scheduler", &groups, &clock).expect("a certificate");
        let user = base::pki::user_of_certificate(&identity.chain[0]).expect("a user");
        assert_eq!((user.name.as_str(), user.groups), ("system:kube-scheduler", groups.to_vec()));
        let made = kubeconfig_of(&ours(), "system:kube-scheduler", &identity).expect("a kubeconfig");
        assert_eq!(kubeconfig::current_context(&made), "system:kube-scheduler@ferry");
        let (cluster, user) = kubeconfig::current(&made);
        assert_eq!(cluster["server"], "https://new");
        assert!(user["client-key-data"].is_string() && user["token"].is_null(), "no other credentials");
    }

    #[test]
    fn names_that_a_certificate_cannot_have_are_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = |user: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            issue(directory.path(), user, &groups, &Clock::system()).expect_err("rejected").to_string()
        };
        assert!(text("", &[]).starts_with("--user \"\" is not a name"));
        assert!(text("a\nb", &[]).starts_with("--user"));
        assert!(text(&"x".repeat(65), &[]).starts_with("--user"));
        assert!(text("a", &[""]).starts_with("--group"));
        assert_eq!(text("a", &["1", "2", "3"]), "a certificate has at most 2 groups");
        assert!(text("a", &[]).contains("client-ca"), "no authority");
    }

    #[test]
    fn merge_into_invalid_file_fails() {
        assert!(merge(parse("clusters: many"), &ours(), "ferry", "u").is_err());
        assert!(merge(Map::new(), &Map::new(), "ferry", "u").is_err(), "no current context");
    }
}
