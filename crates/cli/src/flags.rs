//! Flags that every verb has, and groups of flags that several have.

use std::path::PathBuf;
use std::time::Duration;

use client::Overrides;

use crate::arguments::{Flag, Matches, list, number, option, switch};
use crate::error::{CliError, fail};

pub const GLOBAL: &[Flag] = &[
    option("as", "Username to impersonate for the operation."),
    list("as-group", "Group to impersonate for the operation; may be repeated."),
    option("as-uid", "UID to impersonate for the operation."),
    option("cache-dir", "Accepted for compatibility: nothing is cached."),
    option("certificate-authority", "Path to a cert file for the certificate authority"),
    option("client-certificate", "Path to a client certificate file for TLS"),
    option("client-key", "Path to a client key file for TLS"),
    option("cluster", "The name of the kubeconfig cluster to use"),
    option("context", "The name of the kubeconfig context to use"),
    switch("disable-compression", "Accepted for compatibility: responses are not compressed."),
    switch("insecure-skip-tls-verify", "If true, the server's certificate will not be checked for validity."),
    option("kubeconfig", "Path to the kubeconfig file to use for CLI requests."),
    switch("match-server-version", "Require server version to match client version."),
    option("namespace", "If present, the namespace scope for this CLI request").short('n'),
    option("request-timeout", "The length of time to wait before giving up on a single server request.")
        .default("0"),
    option("server", "The address and port of the Kubernetes API server").short('s'),
    option("tls-server-name", "Server name to use for server certificate validation."),
    option("token", "Bearer token for authentication to the API server"),
    option("user", "The name of the kubeconfig user to use"),
    number("v", "0", "Number for the log level verbosity; accepted for compatibility.").short('v'),
    switch(
        "warnings-as-errors",
        "Treat warnings received from the server as errors and exit with a non-zero exit code",
    ),
];

/// Settings of the connection.
#[derive(Clone, Debug, Default)]
pub struct Globals {
    pub kubeconfig: Option<PathBuf>,
    pub overrides: Overrides,
    pub impersonate: Vec<(&'static str, String)>,
    pub request_timeout: Option<Duration>,
    pub warnings_as_errors: bool,
}

impl Globals {
    pub fn read(matches: &Matches) -> Result<Self, CliError> {
        let text = |name: &str| {
            let is_own = matches.shadowed.contains(&name);
            matches.explicit(name).filter(|value| !value.is_empty() && !is_own).map(str::to_owned)
        };
        let path = |name: &str| text(name).map(PathBuf::from);
        let mut impersonate = Vec::new();
        impersonate.extend(text("as").map(|user| ("impersonate-user", user)));
        impersonate.extend(matches.all("as-group").into_iter().map(|group| ("impersonate-group", group)));
        impersonate.extend(text("as-uid").map(|uid| ("impersonate-uid", uid)));
        Ok(Self {
            kubeconfig: path("kubeconfig"),
            overrides: Overrides {
                context: text("context"),
                cluster: text("cluster"),
                user: text("user"),
                namespace: text("namespace"),
                server: text("server"),
                token: text("token"),
                tls_server_name: text("tls-server-name"),
                certificate_authority: path("certificate-authority"),
                client_certificate: path("client-certificate"),
                client_key: path("client-key"),
                insecure: matches.explicit("insecure-skip-tls-verify").map(|text| text == "true"),
            },
            impersonate,
            request_timeout: match matches.text("request-timeout") {
                "" | "0" => None,
                explicit => Some(duration(explicit)?),
            },
            warnings_as_errors: matches.on("warnings-as-errors"),
        })
    }
}

/// A duration such as `90s`; a number alone is seconds. Negative ones are none.
pub fn duration(text: &str) -> Result<Duration, CliError> {
    let nanos = match text.parse::<i64>() {
        Ok(seconds) => seconds.checked_mul(1_000_000_000).ok_or(()),
        Err(_) => machinery::codec::time::parse_duration(text).map_err(|_| ()),
    };
    match nanos {
        Ok(nanos) => Ok(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))),
        Err(()) => fail(format!("time: invalid duration {}", machinery::field::show_str(text))),
    }
}

/// A time limit; zero means none and a negative one a week, as in kubectl.
pub fn time_limit(text: &str) -> Result<Duration, CliError> {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    if text.starts_with('-') { Ok(WEEK) } else { duration(text) }
}

/// Flags by which manifests are named.
pub const FILES: &[Flag] = &[
    list("filename", "Filename, directory, or URL to files that contain the configuration").short('f'),
    switch("recursive", "Process the directory used in -f, --filename recursively.").short('R'),
];

pub const SELECTOR: &[Flag] = &[option("selector", "Selector (label query) to filter on").short('l')];

pub const FIELD_SELECTOR: &[Flag] = &[option("field-selector", "Selector (field query) to filter on")];

pub const EVERYWHERE: &[Flag] =
    &[switch("all-namespaces", "If present, list the requested object(s) across all namespaces.").short('A')];

/// `-o` and the flags of its formats.
pub const OUTPUT: &[Flag] = &[
    option("output", "Output format. One of: (json, yaml, name, wide, jsonpath, custom-columns).").short('o'),
    option(
        "template",
        "Template string or path to template file to use when -o=jsonpath, -o=custom-columns.",
    ),
    switch("allow-missing-template-keys", "If true, ignore any errors in templates when a field is missing.")
        .default("true"),
    switch(
        "show-managed-fields",
        "If true, keep the managedFields when printing objects in JSON or YAML format.",
    ),
];

pub const DRY_RUN: &[Flag] =
    &[option("dry-run", "Must be \"none\", \"server\", or \"client\".").default("none").bare("unchanged")];

pub const FIELD_MANAGER: &[Flag] =
    &[option("field-manager", "Name of the manager used to track field ownership.")];

pub const VALIDATE: &[Flag] =
    &[option("validate", "Must be one of: strict (or true), warn, ignore (or false).")
        .default("strict")
        .bare("strict")];

/// Way in which a write leaves the cluster unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DryRun {
    None,
    Client,
    Server,
}

impl DryRun {
    pub fn read(matches: &Matches) -> Result<Self, CliError> {
        match matches.text("dry-run") {
            "none" | "" | "false" => Ok(Self::None),
            "client" | "true" => Ok(Self::Client),
            "server" => Ok(Self::Server),
            "unchanged" => fail(
                "--dry-run flag without a value was specified. A value must be set: \"none\", \"server\", or \"client\".",
            ),
            other => {
                fail(format!("Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\"."))
            }
        }
    }

    /// Text after the name of an operation.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// The query of a write.
pub fn write_query(dry_run: DryRun, manager: &str, validation: Option<&str>) -> Vec<(&'static str, String)> {
    let mut query = Vec::new();
    if dry_run == DryRun::Server {
        query.push(("dryRun", "All".to_owned()));
    }
    if !manager.is_empty() {
        query.push(("fieldManager", manager.to_owned()));
    }
    if let Some(validation) = validation {
        query.push(("fieldValidation", validation.to_owned()));
    }
    query
}

/// The server's name of a value of `--validate`.
pub fn field_validation(matches: &Matches) -> Result<&'static str, CliError> {
    match matches.text("validate") {
        "strict" | "true" | "" => Ok("Strict"),
        "warn" => Ok("Warn"),
        "ignore" | "false" => Ok("Ignore"),
        other => fail(format!(
            "invalid - validate option {}; must be one of: strict (or true), warn, ignore (or false)",
            machinery::field::show_str(other)
        )),
    }
}
