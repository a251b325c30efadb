//! Command lines with fixed results, and the same ones with a stock kubectl of the same version if the machine has one.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use cli::{Environment, Io};
use testkit::{Scenarios, Server};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Exit status, standard output and standard error of a command.
type Outcome = (i32, String, String);

/// A command line, its input, and its result with `NS` in place of the namespace.
struct Case {
    line: &'static str,
    input: &'static str,
    want: (i32, &'static str, &'static str),
}

const fn case(
    line: &'static str,
    input: &'static str,
    status: i32,
    out: &'static str,
    err: &'static str,
) -> Case {
    Case { line, input, want: (status, out, err) }
}

const MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {x: '1'}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: a, image: busybox, env: [{name: A, value: '1'}, {name: B, value: '2'}]}
      - {name: b, image: busybox}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: '1', b: '<2>'}
";

const CHANGED: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: a, image: 'busybox:2', env: [{name: B, value: '2'}]}
      - {name: c, image: busybox}
";

const INVALID: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: Bad_Name}
";

const UNKNOWN_FIELD: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: unknown-field}
dataa: {a: '1'}
";

const CASES: &[Case] = &[
    case("get pods", "", 0, "", "No resources found in NS namespace.\n"),
    case("get nope", "", 1, "", "error: the server doesn't have a resource type \"nope\"\n"),
    case("get cm nope", "", 1, "", "Error from server (NotFound): configmaps \"nope\" not found\n"),
    case("get cm nope --ignore-not-found", "", 0, "", ""),
    case("get pods x -A", "", 1, "", "error: a resource cannot be retrieved by name across all namespaces\n"),
    case("get pods --zz", "", 1, "", "error: unknown flag: --zz\nSee 'kubectl get --help' for usage.\n"),
    case("apply -f -", MANIFEST, 0, "deployment.apps/web created\nconfigmap/settings created\n", ""),
    case("apply -f -", MANIFEST, 0, "deployment.apps/web unchanged\nconfigmap/settings unchanged\n", ""),
    case("get cm settings -o jsonpath={.data}", "", 0, "{\"a\":\"1\",\"b\":\"\\u003c2\\u003e\"}", ""),
    case(
        "get deploy,cm settings -o name",
        "",
        1,
        "configmap/settings\n",
        "Error from server (NotFound): deployments.apps \"settings\" not found\n",
    ),
    case("get deploy/web cm/settings -o name", "", 0, "deployment.apps/web\nconfigmap/settings\n", ""),
    case(
        "get deploy web --no-headers -o custom-columns=N:.metadata.name,R:.spec.replicas,X:.nope",
        "",
        0,
        "web   2     <none>\n",
        "",
    ),
    case("apply -f -", CHANGED, 0, "deployment.apps/web configured\n", ""),
    case(
        "get deploy web -o go-template={{range.spec.template.spec.containers}}{{.name}}={{.image}};{{end}}",
        "",
        0,
        "a=busybox:2;c=busybox;",
        "",
    ),
    case(
        "get deploy web -o jsonpath={.metadata.labels}{.spec.replicas}{.spec.template.spec.containers[0].env[*].name}",
        "",
        0,
        "3B",
        "",
    ),
    case(
        "apply -f - --server-side --force-conflicts",
        CHANGED,
        0,
        "deployment.apps/web serverside-applied\n",
        "",
    ),
    case("apply -f - --dry-run=server", CHANGED, 0, "deployment.apps/web configured (server dry run)\n", ""),
    case("apply", "", 1, "", "error: must specify one of -f and -k\n"),
    case("apply -f /nope.yaml", "", 1, "", "error: the path \"/nope.yaml\" does not exist\n"),
    case(
        "apply -f -",
        UNKNOWN_FIELD,
        1,
        "",
        "Error from server (BadRequest): error when creating \"STDIN\": ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"dataa\"\n",
    ),
    case(
        "apply -f - --validate=warn",
        UNKNOWN_FIELD,
        0,
        "configmap/unknown-field created\n",
        "Warning: unknown field \"dataa\"\n",
    ),
    case(
        "create -f -",
        INVALID,
        1,
        "",
        "The ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')\n",
    ),
    case("create cm one --from-literal=a=b", "", 0, "configmap/one created\n", ""),
    case(
        "create cm one --from-literal=a=b",
        "",
        1,
        "",
        "error: failed to create configmap: configmaps \"one\" already exists\n",
    ),
    case("create secret generic s --from-literal=a=b", "", 0, "secret/s created\n", ""),
    case("create sa robot", "", 0, "serviceaccount/robot created\n", ""),
    case(
        "create role reader --verb=get,list --resource=pods,deployments.apps",
        "",
        0,
        "role.rbac.authorization.k8s.io/reader created\n",
        "",
    ),
    case(
        "create rolebinding rb --role=reader --user=bob --serviceaccount=x:y",
        "",
        0,
        "rolebinding.rbac.authorization.k8s.io/rb created\n",
        "",
    ),
    case(
        "create deployment d --image=busybox --replicas=2 -o name --dry-run=client",
        "",
        0,
        "deployment.apps/d\n",
        "",
    ),
    case("label cm one x=1", "", 0, "configmap/one labeled\n", ""),
    case("label cm one x=2", "", 1, "", "error: 'x' already has a value (1), and --overwrite is false\n"),
    case("label cm one x=1", "", 0, "configmap/one not labeled\n", ""),
    case("get cm -l x=1 -o name", "", 0, "configmap/one\n", ""),
    case(
        "get cm --show-labels -o name",
        "",
        1,
        "",
        "error: --show-labels option cannot be used with name printer\n",
    ),
    case("label cm one x-", "", 0, "configmap/one unlabeled\n", ""),
    case("annotate cm one note=hello", "", 0, "configmap/one annotated\n", ""),
    case("patch cm one --type=merge -p {\"data\":{\"z\":\"1\"}}", "", 0, "configmap/one patched\n", ""),
    case(
        "patch cm one --type=merge -p {\"data\":{\"z\":\"1\"}}",
        "",
        0,
        "configmap/one patched (no change)\n",
        "",
    ),
    case("scale deploy web --replicas=1", "", 0, "deployment.apps/web scaled\n", ""),
    case(
        "scale deploy web --replicas=1 --current-replicas=9",
        "",
        1,
        "",
        "error: Expected replicas to be 9, was 1\n",
    ),
    case(
        "wait deploy/web --for=jsonpath={.spec.replicas}=1",
        "",
        0,
        "deployment.apps/web condition met\n",
        "",
    ),
    case(
        "wait deploy/web --for=condition=Nope --timeout=100ms",
        "",
        1,
        "",
        "error: timed out waiting for the condition on deployments/web\n",
    ),
    case("set image deploy/web a=busybox:3", "", 0, "deployment.apps/web image updated\n", ""),
    case(
        "set image deploy/web nope=busybox:3",
        "",
        1,
        "",
        "error: unable to find container named \"nope\"\n",
    ),
    case("set env deploy/web C=1 B-", "", 0, "deployment.apps/web env updated\n", ""),
    case("get deploy web -o jsonpath={.spec.template.spec.containers[*].env[*].name}", "", 0, "C C", ""),
    case("expose deploy web --port=80 --name=front", "", 0, "service/front exposed\n", ""),
    case(
        "get svc front -o jsonpath={.spec.selector}{.spec.ports[0].targetPort}",
        "",
        0,
        "{\"app\":\"web\"}80",
        "",
    ),
    case("expose cm settings --port=80", "", 1, "", "error: cannot expose a ConfigMap\n"),
    case("rollout restart deploy/web", "", 0, "deployment.apps/web restarted\n", ""),
    case("rollout pause deploy/web", "", 0, "deployment.apps/web paused\n", ""),
    case("rollout pause deploy/web", "", 1, "", "error: deployments.apps \"web\" is already paused\n"),
    case("rollout resume deploy/web", "", 0, "deployment.apps/web resumed\n", ""),
    case(
        "taint nodes nope a=b:NoSchedule",
        "",
        1,
        "",
        "Error from server (NotFound): nodes \"nope\" not found\n",
    ),
    case("rollout status cm/one", "", 1, "", "error: no status viewer has been implemented for ConfigMap\n"),
    case("auth can-i get pods", "", 0, "yes\n", ""),
    case("auth can-i get pods --as=nobody -q", "", 1, "", ""),
    case("run p --image=busybox --restart=Never -o name --dry-run=client -- sleep 1", "", 0, "pod/p\n", ""),
    case(
        "logs nope",
        "",
        1,
        "",
        "error: error from server (NotFound): pods \"nope\" not found in namespace \"NS\"\n",
    ),
    case("exec nope -- true", "", 1, "", "Error from server (NotFound): pods \"nope\" not found\n"),
    case("delete cm one", "", 0, "configmap \"one\" deleted from NS namespace\n", ""),
    case("delete cm one", "", 1, "", "Error from server (NotFound): configmaps \"one\" not found\n"),
    case("delete cm", "", 1, "", "error: resource(s) were provided, but no name was specified\n"),
    case("delete secret/s -o name", "", 0, "secret/s\n", ""),
    case(
        "delete -f - --wait=false",
        MANIFEST,
        0,
        "deployment.apps \"web\" deleted from NS namespace\nconfigmap \"settings\" deleted from NS namespace\n",
        "",
    ),
];

async fn ours(kubeconfig: &Path, ns: &str, case: &Case) -> Outcome {
    let (io, out, err) = Io::buffers(case.input);
    let operands = operands(ns, case).into_iter().map(Into::into).collect();
    let environment = Environment { kubeconfig: Some(kubeconfig.into()), ..Environment::default() };
    let status = cli::run(operands, environment, io).await;
    (i32::from(status), out.text(), err.text())
}

fn operands(ns: &str, case: &Case) -> Vec<String> {
    let operands = ["-n", ns].into_iter().chain(case.line.split(' '));
    operands.map(str::to_owned).collect()
}

/// A stock kubectl of the version that Ferry's follows.
async fn stock() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in std::env::split_paths(&path).map(|directory| directory.join("kubectl")) {
        let shown = Command::new(&program).args(["version", "--client"]).output().await;
        if shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("Client Version: v1.36."))
        {
            return Some(program);
        }
    }
    None
}

async fn theirs(program: &Path, kubeconfig: &Path, home: &Path, ns: &str, case: &Case) -> Result<Outcome> {
    let mut child = Command::new(program)
        .args(operands(ns, case))
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    // A command that reads nothing closes its end.
    let _ = stdin.write_all(case.input.as_bytes()).await;
    drop(stdin);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), child.wait_with_output()).await??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((ended.status.code().unwrap_or(-1), text(&ended.stdout), text(&ended.stderr)))
}

fn without_namespace((status, out, err): Outcome, ns: &str) -> Outcome {
    (status, out.replace(ns, "NS"), err.replace(ns, "NS"))
}

#[tokio::test(flavor = "multi_thread")]
async fn command_lines_have_the_results_of_kubectl() -> Result<()> {
    let server = Server::start().await?;
    let home = tempfile::tempdir()?;
    let stock = stock().await;
    if stock.is_none() {
        println!("partly skipped: no kubectl v1.36 on PATH; only fixed results are compared");
    }
    for ns in ["ferry-ns", "stock-ns"] {
        let line = if ns == "ferry-ns" { "create ns ferry-ns" } else { "create ns stock-ns" };
        let made = ours(&server.kubeconfig, "default", &case(line, "", 0, "", "")).await;
        ensure!(made.0 == 0, "{made:?}");
    }
    let mut scenarios = Scenarios::default();
    for case in CASES {
        scenarios
            .run_async(case.line, compare(&server.kubeconfig, stock.as_deref(), home.path(), case))
            .await;
    }
    scenarios.finish();
    server.stop().await
}

/// Compares the result of a command line with the fixed one, and with that of the stock program if it is here.
async fn compare(kubeconfig: &Path, stock: Option<&Path>, home: &Path, case: &Case) -> Result<()> {
    let got = without_namespace(ours(kubeconfig, "ferry-ns", case).await, "ferry-ns");
    let want = (case.want.0, case.want.1.to_owned(), case.want.2.to_owned());
    ensure!(got == want, "got {got:?}, want {want:?}");
    if let Some(program) = stock {
        let stock = theirs(program, kubeconfig, home, "stock-ns", case).await?;
        let stock = without_namespace(stock, "stock-ns");
        ensure!(stock == got, "got {got:?}, stock kubectl {stock:?}");
    }
    Ok(())
}
