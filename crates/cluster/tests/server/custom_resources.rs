//! Custom resources through a stock kubectl: definition, objects, scale, explain, deletion.

use anyhow::{Result, ensure};
use std::time::Duration;
use testkit::{Kubectl, Server};

const DEFINITION: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What runs and when.
            required: [cronSpec]
            properties:
              cronSpec: {type: string, description: When it runs.}
              replicas: {type: integer, default: 1, minimum: 1, maximum: 10}
          status:
            type: object
            properties: {replicas: {type: integer}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
";

const OBJECT: &str = "\
apiVersion: stable.example.com/v1
kind: CronTab
metadata: {name: one}
spec: {cronSpec: '* * * * */5'}
";

async fn expect(kubectl: &Kubectl, line: &str, want: &str) -> Result<()> {
    let out = kubectl.run(line.split(' ')).await?;
    ensure!(out.contains(want), "kubectl {line}: {want:?} is not in\n{out}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_kubectl_defines_uses_and_deletes_custom_resources() -> Result<()> {
    let server = Server::start().await?;
    let Some(kubectl) = Kubectl::find(&server.kubeconfig)? else { return Ok(()) };
    let out = kubectl.run_with_input(["apply", "-f", "-"], DEFINITION).await?;
    ensure!(out.contains("created"), "{out}");
    let wait = "wait --for=condition=Established --timeout=30s crd/crontabs.stable.example.com";
    expect(&kubectl, wait, "condition met").await?;

    let out = kubectl.run_with_input(["apply", "-f", "-"], OBJECT).await?;
    ensure!(out.contains("crontab.stable.example.com/one created"), "{out}");
    let out = kubectl.run_with_input(["apply", "-f", "-"], OBJECT).await?;
    ensure!(out.contains("unchanged"), "{out}");
    let invalid = OBJECT.replace("cronSpec:", "cronSpecs:");
    ensure!(
        kubectl.run_with_input(["apply", "-f", "-"], &invalid).await.is_err(),
        "an unknown field is rejected"
    );
    expect(&kubectl, "get ct", "SPEC").await?;
    expect(&kubectl, "get ct", "* * * * */5").await?;
    expect(&kubectl, "get all", "crontab.stable.example.com/one").await?;
    expect(&kubectl, "explain crontab.spec.cronSpec", "When it runs.").await?;
    expect(&kubectl, "scale --replicas=3 crontab/one", "scaled").await?;
    expect(&kubectl, "get crontab one -o jsonpath={.spec.replicas}", "3").await?;
    let changed = OBJECT.replace("*/5", "*/7");
    let out =
        kubectl.run_with_input(["apply", "--server-side", "--force-conflicts", "-f", "-"], &changed).await?;
    ensure!(out.contains("serverside-applied"), "{out}");

    expect(&kubectl, "delete crd crontabs.stable.example.com --timeout=30s", "deleted").await?;
    ensure!(kubectl.run(["get", "crontabs"]).await.is_err(), "the resource is removed with its definition");
    // Objects were deleted with their definition: a new one of the same name has none.
    kubectl.run_with_input(["apply", "-f", "-"], DEFINITION).await?;
    expect(&kubectl, wait, "condition met").await?;
    let left = async || {
        kubectl.run(["get", "crontabs", "-o", "name"]).await.unwrap_or_else(|error| error.to_string())
    };
    testkit::eventually("no object of the old definition", Duration::from_secs(30), left, String::is_empty)
        .await;
    Ok(())
}
