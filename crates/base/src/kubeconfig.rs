//! Kubeconfig files with everything embedded.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::pki::Identity;

/// The name Ferry gives its cluster, user and context in a kubeconfig.
pub const NAME: &str = "ferry";

/// The kubeconfig of `identity` for the server at `url`, whose certificates `authority_pem` vouches for.
#[must_use]
pub fn render(url: &str, authority_pem: &str, identity: &Identity) -> String {
    let mut text = String::with_capacity(4096);
    let entry = |text: &mut String, key: &str, pem: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {key}: {}", STANDARD.encode(pem));
    };
    text.push_str("apiVersion: v1\nkind: Config\npreferences: {}\ncurrent-context: ferry\n");
    let _ = write!(text, "clusters:\n- name: {NAME}\n  cluster:\n    server: {url}\n");
    entry(&mut text, "certificate-authority-data", authority_pem);
    let _ =
        write!(text, "contexts:\n- name: {NAME}\n  context:\n    cluster: {NAME}\n    user: {NAME}-admin\n");
    let _ = write!(text, "users:\n- name: {NAME}-admin\n  user:\n");
    entry(&mut text, "client-certificate-data", &identity.chain_pem);
    entry(&mut text, "client-key-data", identity.key_pem());
    text
}
