//! Command lines and flags without secrets, for pages about the process.

/// Value shown in place of a secret.
pub const CLASSIFIED: &str = "CLASSIFIED";

/// Flags whose values are or may contain secrets: URLs of sinks and of etcd can have passwords.
const SECRETS: [&str; 6] =
    ["etcd-endpoints", "etcd-servers", "etcd-servers-overrides", "metrics-sink", "password", "token"];

/// Reports whether the value of a flag may contain a secret.
#[must_use]
pub fn is_secret(flag: &str) -> bool {
    SECRETS.contains(&flag)
}

/// Replaces user and password of a URL in `text`.
///
/// ```
/// let shown = base::redact::without_user_info("influxdb:http://me:secret@host:8086/k8s");
/// assert_eq!(shown, "influxdb:http://CLASSIFIED@host:8086/k8s");
/// ```
#[must_use]
pub fn without_user_info(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (scheme, after) = rest.split_at(at + "://".len());
        shown.push_str(scheme);
        let end = after.find(['/', '?', '#', ',', ' ']).unwrap_or(after.len());
        let (authority, after) = after.split_at(end);
        match authority.rsplit_once('@') {
            Some((_, host)) => shown.push_str(&format!("{CLASSIFIED}@{host}")),
            None => shown.push_str(authority),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// Arguments of a command line without secrets. All words that follow a secret flag are values of it, up to the next flag.
#[must_use]
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut in_secret = false;
    let shown = words.into_iter().map(|word| {
        let Some(flag) = word.strip_prefix('-').map(|flag| flag.trim_start_matches('-')) else {
            return if in_secret { CLASSIFIED.to_owned() } else { without_user_info(word) };
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        in_secret = is_secret(name);
        match value {
            Some(_) if in_secret => format!("{}{CLASSIFIED}", &word[..=word.find('=').unwrap_or_default()]),
            _ => without_user_info(word),
        }
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_has_no_secrets() {
        let words = [
            "ferry",
            "up",
            "--metrics-sink=influxdb:http://h?user=u&pw=hidden",
            "--metrics-sink",
            "influxdb:http://h?pw=hidden",
            "--token",
            "hidden",
            "-v",
            "2",
            "--oidc-issuer-url=https://u:hid@den@issuer/path",
            "--etcd-servers=http://a:hidden@b:2379,http://c",
        ];
        let shown = command_line(words);
        assert_eq!(shown[2], "--metrics-sink=CLASSIFIED");
        assert_eq!(shown[3..9], ["--metrics-sink", CLASSIFIED, "--token", CLASSIFIED, "-v", "2"]);
        assert_eq!(shown[9], "--oidc-issuer-url=https://CLASSIFIED@issuer/path");
        assert_eq!(shown[10], "--etcd-servers=CLASSIFIED");
        assert!(!shown.join(" ").contains("hid"));
    }
}
