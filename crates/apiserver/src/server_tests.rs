use super::*;
use crate::authorize::AuthorizationConfig;
use crate::test_server::{ALICE, TestServer};
use http::Method;
use std::time::Duration;
use testbase::Responder;

const PODS: &str = "/api/v1/pods";

/// The response for a user without permissions of its own, polled until it is the expected one or a deadline has
/// passed.
async fn answer(server: &TestServer, want: u16) -> u16 {
    let mut code = 0;
    for _ in 0..500 {
        code = server.ask(ALICE, Method::GET, PODS, "application/json", "").await.0;
        if code == want {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    code
}

/// Waits for a condition, ten seconds at most.
async fn until(holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the condition does not hold after ten seconds");
}

/// Lines of the metrics that contain a text.
fn shown(metrics: &Metrics, text: &str) -> Vec<String> {
    let all = String::from_utf8(metrics.encode().expect("encoded")).expect("UTF-8");
    let lines = all.lines().filter(|line| line.starts_with("apiserver_authorization") && line.contains(text));
    lines.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_file_is_reloaded_unless_invalid() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("authorization.yaml");
    let write = |text: &str| {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: {text}\n"
        );
        // Rename, as editors and kubelets replace files.
        let new = directory.path().join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(&new, &path).expect("renamed");
    };
    let allowing = Responder::start(|_, review| {
        let mut review = review.clone();
        review["status"] = serde_json::json!({"allowed": true});
        (200, review)
    })
    .await
    .expect("a server");
    let kubeconfig = allowing.kubeconfig(directory.path(), "/authorize").expect("written");
    let webhook = "authorizedTTL: 1m, unauthorizedTTL: 1m, timeout: 3s, subjectAccessReviewVersion: v1, \
                   matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny";
    let connection = format!("{{type: KubeConfigFile, kubeConfigFile: {}}}", kubeconfig.display());
    let deny = "{type: AlwaysDeny, name: deny}";
    let allow =
        format!("{{type: Webhook, name: allow, webhook: {{{webhook}, connectionInfo: {connection}}}}}");
    write(&format!("[{deny}]"));
    let config = AuthorizationConfig { file: Some(path.clone()), ..AuthorizationConfig::default() };
    let file = AuthorizationFile::of(&config).expect("read").expect("a file");
    let server = TestServer::start();
    server.chain.rest.registry.authorization.replace(file.reload().expect("usable"));
    let tasks = TaskGroup::new();
    let metrics = Metrics::new(&Clock::system()).expect("metrics");
    let reloads = ReloadMetrics::new(&metrics, "authorization", &Clock::system()).expect("new names");
    follow_authorization(Arc::new(file), &server.chain.rest.registry, reloads, &tasks);
    assert_eq!(answer(&server, 403).await, 403);
    assert!(shown(&metrics, "reloads_total").is_empty());
    let first = shown(&metrics, "last_config_info");
    assert_eq!(first.len(), 1);

    write(&format!("[{allow}, {deny}]"));
    assert_eq!(answer(&server, 200).await, 200);

    // An invalid file and one with other types change nothing.
    until(|| shown(&metrics, "last_config_info") != first).await;
    let second = shown(&metrics, "last_config_info");
    for (text, failures) in
        [("[{type: Nonsense".to_owned(), "1"), ("[{type: AlwaysAllow, name: all}]".to_owned(), "2")]
    {
        write(&text);
        let counted = || {
            shown(&metrics, "automatic_reloads_total{")
                .iter()
                .any(|line| line.contains("failure") && line.ends_with(failures))
        };
        until(counted).await;
        assert_eq!(answer(&server, 200).await, 200);
        assert_eq!(shown(&metrics, "last_config_info"), second);
    }
    write(&format!("[{deny}]"));
    assert_eq!(answer(&server, 403).await, 403);
    until(|| shown(&metrics, "last_config_info") == first).await;
    let totals = shown(&metrics, "automatic_reloads_total{");
    assert!(totals.iter().any(|line| line.contains("success") && line.ends_with(" 2")), "{totals:?}");
    assert_eq!(shown(&metrics, "automatic_reload_last_timestamp_seconds{").len(), 2);
    tasks.stop();
}
