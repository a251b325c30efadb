//! Read scenarios: pages, past and future revisions.

use anyhow::{Result, ensure};

use crate::{Ctx, names, version};

async fn create_some(ctx: &Ctx<'_>, count: usize) -> Result<()> {
    for n in 0..count {
        ctx.create(&format!("m{n}"), "old").await?;
    }
    Ok(())
}

fn token(list: &serde_json::Value) -> &str {
    list["metadata"]["continue"].as_str().unwrap_or_default()
}

pub async fn pages_are_of_one_revision(ctx: &Ctx<'_>) -> Result<()> {
    create_some(ctx, 7).await?;
    let first = ctx.get("?limit=3").await?.body;
    ensure!(names(&first) == ["m0", "m1", "m2"], "{first}");
    ensure!(first["metadata"]["remainingItemCount"] == 4, "{first}");
    // Later changes are not visible.
    ctx.set("m5", "new").await?;
    ctx.create("m33", "new").await?;
    ctx.admin.delete(&ctx.path("/m6")).await?;
    let second = ctx.get(&format!("?limit=3&continue={}", token(&first))).await?.body;
    ensure!(names(&second) == ["m3", "m4", "m5"], "{second}");
    ensure!(second["items"][2]["data"]["value"] == "old", "{second}");
    let third = ctx.get(&format!("?limit=3&continue={}", token(&second))).await?.body;
    ensure!(names(&third) == ["m6"] && token(&third).is_empty(), "{third}");
    ensure!(version(&first) == version(&second) && version(&second) == version(&third), "{third}");
    let now = ctx.get("?labelSelector=value%3Dnew").await?.body;
    ensure!(names(&now) == ["m33", "m5"], "{now}");
    Ok(())
}

pub async fn pages_after_compaction(ctx: &Ctx<'_>) -> Result<()> {
    create_some(ctx, 5).await?;
    let first = ctx.get("?limit=2").await?.body;
    ctx.set("m4", "new").await?;
    ctx.store.compact(ctx.store.barrier().await?).await?;
    let expired = ctx.get(&format!("?limit=2&continue={}", token(&first))).await?;
    ensure!(expired.status == 410 && expired.body["reason"] == "Expired", "{}", expired.body);
    let rest = ctx.get(&format!("?continue={}", token(&expired.body))).await?;
    ensure!(rest.status == 200, "the token of the error continues the list: {}", rest.body);
    ensure!(names(&rest.body) == ["m2", "m3", "m4"], "{}", rest.body);
    ensure!(version(&rest.body) > version(&first), "at the revision of now: {}", rest.body);
    let old = format!("?resourceVersion={}&resourceVersionMatch=Exact", version(&first));
    let gone = ctx.get(&old).await?;
    ensure!(gone.status == 410 && gone.body["reason"] == "Expired", "{}", gone.body);
    Ok(())
}

pub async fn resource_versions(ctx: &Ctx<'_>) -> Result<()> {
    let old = version(&ctx.create("a", "old").await?);
    ctx.set("a", "new").await?;
    let new = version(&ctx.create("b", "new").await?);
    let cases = [
        (String::new(), vec!["a", "b"], "new"),
        ("?resourceVersion=0".to_owned(), vec!["a", "b"], "new"),
        (format!("?resourceVersion={old}"), vec!["a", "b"], "new"),
        (format!("?resourceVersion={old}&resourceVersionMatch=NotOlderThan"), vec!["a", "b"], "new"),
        (format!("?resourceVersion={old}&resourceVersionMatch=Exact"), vec!["a"], "old"),
        (format!("?resourceVersion={old}&limit=5"), vec!["a"], "old"),
        (format!("?resourceVersion={new}&resourceVersionMatch=Exact"), vec!["a", "b"], "new"),
    ];
    for (query, want, value) in cases {
        let list = ctx.get(&query).await?.body;
        ensure!(names(&list) == want && list["items"][0]["data"]["value"] == value, "{query}: {list}");
    }
    let exact = ctx.get(&format!("?resourceVersion={old}&resourceVersionMatch=Exact")).await?.body;
    ensure!(version(&exact) == old, "{exact}");
    let future = ctx.get(&format!("/a?resourceVersion={}", new + 1_000_000)).await?;
    ensure!(future.status == 504 && future.body["reason"] == "Timeout", "{}", future.body);
    Ok(())
}
