//! Watch scenarios.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::Streaming;

use crate::{Ctx, LIMIT, version};

async fn next(watch: &mut Streaming) -> Result<Value> {
    tokio::time::timeout(LIMIT, watch.next()).await.context("no event")??.context("the watch ended")
}

/// The next event as `TYPE name value`.
async fn next_line(watch: &mut Streaming) -> Result<String> {
    let event = next(watch).await?;
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let object = &event["object"];
    Ok(format!(
        "{} {} {}",
        text(&event["type"]),
        text(&object["metadata"]["name"]),
        text(&object["data"]["value"])
    ))
}

async fn expect(watch: &mut Streaming, lines: &[&str]) -> Result<()> {
    for want in lines {
        let seen = next_line(watch).await?;
        ensure!(seen == *want, "want {want:?}, saw {seen:?}");
    }
    Ok(())
}

async fn write_some(ctx: &Ctx<'_>) -> Result<()> {
    ctx.create("a", "1").await?;
    ctx.set("a", "2").await?;
    ctx.create("b", "1").await?;
    ctx.admin.delete(&ctx.path("/a")).await?;
    Ok(())
}

pub async fn changes_in_order(ctx: &Ctx<'_>) -> Result<()> {
    let begin = version(&ctx.get("").await?.body);
    let path = ctx.path(&format!("?watch=true&resourceVersion={begin}"));
    let mut live = ctx.admin.stream(&path).await?;
    write_some(ctx).await?;
    let mut late = ctx.admin.stream(&path).await?;
    let lines = ["ADDED a 1", "MODIFIED a 2", "ADDED b 1", "DELETED a 2"];
    expect(&mut live, &lines).await?;
    expect(&mut late, &lines).await?;
    let end = version(&ctx.get("").await?.body);
    let mut after = ctx.admin.stream(&ctx.path(&format!("?watch=true&resourceVersion={end}"))).await?;
    ctx.set("b", "2").await?;
    expect(&mut after, &["MODIFIED b 2"]).await?;
    let path = ctx.path(&format!("?watch=true&resourceVersion={end}&timeoutSeconds=1"));
    let mut short = ctx.admin.stream(&path).await?;
    expect(&mut short, &["MODIFIED b 2"]).await?;
    ensure!(tokio::time::timeout(LIMIT, short.next()).await??.is_none(), "it ends in time and in order");
    Ok(())
}

pub async fn object_leaving_selector_is_deleted(ctx: &Ctx<'_>) -> Result<()> {
    ctx.create("a", "in").await?;
    let mut watch = ctx.admin.stream(&ctx.path("?watch=true&labelSelector=value%3Din")).await?;
    expect(&mut watch, &["ADDED a in"]).await?;
    ctx.set("a", "out").await?;
    ctx.set("a", "in").await?;
    let left = next(&mut watch).await?;
    ensure!(left["type"] == "DELETED" && left["object"]["data"]["value"] == "in", "{left}");
    expect(&mut watch, &["ADDED a in"]).await
}

pub async fn initial_events(ctx: &Ctx<'_>) -> Result<()> {
    ctx.create("a", "1").await?;
    let query =
        "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = ctx.admin.stream(&ctx.path(query)).await?;
    expect(&mut watch, &["ADDED a 1"]).await?;
    let bookmark = next(&mut watch).await?;
    let annotations = &bookmark["object"]["metadata"]["annotations"];
    ensure!(bookmark["type"] == "BOOKMARK", "{bookmark}");
    ensure!(annotations["k8s.io/initial-events-end"] == "true", "{bookmark}");
    ctx.set("a", "2").await?;
    expect(&mut watch, &["MODIFIED a 2"]).await
}

pub async fn watch_from_compacted_revision_expires(ctx: &Ctx<'_>) -> Result<()> {
    let mut watch = ctx.admin.stream(&ctx.path("?watch=true&resourceVersion=1")).await?;
    let error = next(&mut watch).await?;
    ensure!(error["type"] == "ERROR" && error["object"]["code"] == 410, "{error}");
    ensure!(error["object"]["reason"] == "Expired", "{error}");
    ensure!(tokio::time::timeout(LIMIT, watch.next()).await??.is_none(), "it ends");
    Ok(())
}
