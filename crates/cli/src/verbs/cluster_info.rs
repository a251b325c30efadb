//! `kubectl cluster-info`.

use crate::error::CliError;
use crate::printer::escape_terminal;
use crate::resource::{Selection, Target};
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb =
    Verb::new("cluster-info", "Display cluster information", "", &[], |session, _| Box::pin(run(session)));

async fn run(session: &mut Session) -> Result<(), CliError> {
    let server = session.server()?;
    session.io.out.line(&format!("Kubernetes control plane is running at {server}"));
    let resource = session.resource("services").await?;
    let services = Target { resource, ns: "kube-system".to_owned(), name: String::new() };
    let selection =
        Selection { selector: "kubernetes.io/cluster-service=true".to_owned(), ..Selection::default() };
    for (target, service) in session.objects_of(&services, &selection).await? {
        let label = service["metadata"]["labels"]["kubernetes.io/name"].as_str().unwrap_or(&target.name);
        let port = &service["spec"]["ports"][0];
        let port_name = port["name"].as_str().unwrap_or_default();
        let scheme = if port_name == "https" || port["port"] == 443 { "https:" } else { "" };
        let name = if port_name.is_empty() && scheme.is_empty() {
            target.name.clone()
        } else {
            format!("{scheme}{}:{port_name}", target.name)
        };
        let link = format!("{server}/api/v1/namespaces/{}/services/{name}/proxy", target.ns);
        let line = format!("{} is running at {}", escape_terminal(label), escape_terminal(&link));
        session.io.out.line(&line);
    }
    session.io.out.line("\nTo further debug and diagnose cluster problems, use 'kubectl cluster-info dump'.");
    Ok(())
}
