//! `kubectl api-resources`.

use client::ResourceInfo;

use crate::arguments::{Flag, Matches, list, option, switch};
use crate::error::{CliError, fail};
use crate::printer::TabWriter;
use crate::session::Session;
use crate::verbs::Verb;

pub const VERB: Verb = Verb::new(
    "api-resources",
    "Print the supported API resources on the server",
    "",
    &[FLAGS],
    |session, matches| Box::pin(run(session, matches)),
);

const FLAGS: &[Flag] = &[
    option("api-group", "Limit to resources in the specified API group."),
    switch("cached", "Accepted for compatibility: nothing is cached."),
    list("categories", "Limit to resources that belong to the specified categories."),
    switch("namespaced", "If false, non-namespaced resources will be returned, otherwise returning namespaced resources by default.").default(""),
    switch("no-headers", "When using the default output format, don't print headers."),
    option("output", "Output format. One of: (wide, name).").short('o'),
    option("sort-by", "If non-empty, sort list of resources using specified field: name or kind."),
    list("verbs", "Limit to resources that support the specified verbs."),
];

async fn run(session: &mut Session, matches: &Matches) -> Result<(), CliError> {
    if !matches.operands.is_empty() {
        return fail(format!(
            "unexpected arguments: [{}]\nSee 'kubectl api-resources -h' for help and examples",
            matches.operands.join(" ")
        ));
    }
    let (output, sort) = (matches.text("output"), matches.text("sort-by"));
    if !matches!(output, "" | "wide" | "name") {
        return fail(format!("--output {output} is not available"));
    }
    if !matches!(sort, "" | "name" | "kind") {
        return fail("--sort-by accepts only name or kind");
    }
    let discovery = session.discovery().await?;
    let wanted = |info: &&ResourceInfo| {
        let has_all = |wanted: Vec<String>, have: &[String]| wanted.iter().all(|one| have.contains(one));
        matches.explicit("api-group").is_none_or(|group| info.key.group == group)
            && matches.explicit("namespaced").is_none_or(|wanted| info.key.namespaced == (wanted == "true"))
            && has_all(matches.all("verbs"), &info.verbs)
            && has_all(matches.all("categories"), &info.categories)
            && !info.verbs.is_empty()
    };
    let mut resources: Vec<&ResourceInfo> = discovery.preferred.iter().filter(wanted).collect();
    match sort {
        "kind" => resources.sort_by(|left, right| left.kind.cmp(&right.kind)),
        "name" => resources.sort_by(|left, right| left.key.resource.cmp(&right.key.resource)),
        _ => resources.sort_by(|left, right| {
            left.key.group.cmp(&right.key.group).then_with(|| left.key.resource.cmp(&right.key.resource))
        }),
    }
    if output == "name" {
        for resource in resources {
            session.io.out.line(&resource.key.qualified());
        }
        return Ok(());
    }
    let wide = output == "wide";
    let mut writer = TabWriter::default();
    if !matches.on("no-headers") && !resources.is_empty() {
        let mut headers = vec!["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"];
        headers.extend(wide.then_some(["VERBS", "CATEGORIES"]).into_iter().flatten());
        writer.row(&headers);
    }
    for info in resources {
        let mut cells = vec![
            info.key.resource.clone(),
            info.short_names.join(","),
            info.key.api_version(),
            info.key.namespaced.to_string(),
            info.kind.clone(),
        ];
        if wide {
            cells.extend([info.verbs.join(","), info.categories.join(",")]);
        }
        writer.row(&cells);
    }
    let text = writer.flush();
    session.io.out.text(&text);
    Ok(())
}
