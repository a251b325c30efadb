//! Write scenarios.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::json;

use crate::{Ctx, names, version};

pub async fn object_lifecycle(ctx: &Ctx<'_>) -> Result<()> {
    let created = ctx.create("one", "1").await?;
    ensure!(created["metadata"]["uid"].is_string() && version(&created) > 0, "{created}");
    let again = ctx.admin.post(&ctx.path(""), &json!({"metadata": {"name": "one"}})).await?;
    ensure!(again.status == 409 && again.body["reason"] == "AlreadyExists", "{}", again.body);
    ensure!(ctx.get("/one").await?.body == created, "the created object is read back");

    let mut changed = created.clone();
    changed["data"] = json!({"value": "2"});
    let updated = ctx.admin.put(&ctx.path("/one"), &changed).await?;
    ensure!(updated.status == 200 && version(&updated.body) > version(&created), "{}", updated.body);
    let stale = ctx.admin.put(&ctx.path("/one"), &changed).await?;
    ensure!(stale.status == 409 && stale.body["reason"] == "Conflict", "{}", stale.body);
    let same = ctx.admin.put(&ctx.path("/one"), &updated.body).await?;
    ensure!(version(&same.body) == version(&updated.body), "writing the same is no write");

    let dry = ctx.admin.delete(&ctx.path("/one?dryRun=All")).await?;
    ensure!(dry.status == 200 && ctx.get("/one").await?.status == 200, "{}", dry.body);
    let deleted = ctx.admin.delete(&ctx.path("/one")).await?;
    ensure!(deleted.status == 200 && deleted.body["status"] == "Success", "{}", deleted.body);
    let gone = ctx.get("/one").await?;
    ensure!(gone.status == 404 && gone.body["reason"] == "NotFound", "{}", gone.body);
    Ok(())
}

pub async fn patches(ctx: &Ctx<'_>) -> Result<()> {
    ctx.create("patched", "1").await?;
    let cases = [
        ("application/merge-patch+json", json!({"data": {"merge": "yes", "value": null}})),
        ("application/json-patch+json", json!([{"op": "add", "path": "/data/json", "value": "yes"}])),
        ("application/strategic-merge-patch+json", json!({"data": {"strategic": "yes"}})),
    ];
    for (content_type, patch) in cases {
        let reply = ctx.patch("patched", content_type, &patch).await?;
        ensure!(reply.status == 200, "{content_type}: {}", reply.body);
    }
    let seen = ctx.get("/patched").await?.body;
    ensure!(seen["data"] == json!({"merge": "yes", "json": "yes", "strategic": "yes"}), "{seen}");
    Ok(())
}

pub async fn apply(ctx: &Ctx<'_>) -> Result<()> {
    let apply = async |manager: &str, force: bool, data: serde_json::Value| {
        let object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": data});
        let rest = format!("applied?fieldManager={manager}&force={force}");
        ctx.patch(&rest, "application/apply-patch+yaml", &object).await
    };
    let created = apply("a", false, json!({"x": "1", "y": "1"})).await?;
    ensure!(created.status == 201, "{}", created.body);
    let conflict = apply("b", false, json!({"x": "2"})).await?;
    ensure!(conflict.status == 409, "{}", conflict.body);
    let cause = &conflict.body["details"]["causes"][0];
    ensure!(cause["reason"] == "FieldManagerConflict" && cause["field"] == ".data.x", "{}", conflict.body);
    let forced = apply("b", true, json!({"x": "2"})).await?;
    ensure!(forced.status == 200 && forced.body["data"]["x"] == "2", "{}", forced.body);
    let omitted = apply("a", false, json!({})).await?;
    ensure!(
        omitted.body["data"] == json!({"x": "2"}),
        "fields without an applier are removed: {}",
        omitted.body
    );
    Ok(())
}

pub async fn delete_collection(ctx: &Ctx<'_>) -> Result<()> {
    for (name, value) in [("a", "go"), ("b", "stay"), ("c", "go")] {
        ctx.create(name, value).await?;
    }
    let path = ctx.path("?labelSelector=value%3Dgo");
    let reply = ctx.admin.request(Method::DELETE, &path, "", "").await?;
    ensure!(reply.status == 200, "{}", reply.body);
    let left = ctx.get("").await?.body;
    ensure!(names(&left) == ["b"], "{left}");
    Ok(())
}

/// Clients that read, increment and write back, retrying on conflict.
pub async fn concurrent_updates_lose_nothing(ctx: &Ctx<'_>) -> Result<()> {
    const EACH: usize = 5;
    ctx.create("counter", "0").await?;
    let client = async || {
        for _ in 0..EACH {
            loop {
                let mut object = ctx.get("/counter").await?.body;
                let count: u64 = object["data"]["value"].as_str().unwrap_or_default().parse()?;
                object["data"]["value"] = (count + 1).to_string().into();
                let reply = ctx.admin.put(&ctx.path("/counter"), &object).await?;
                match reply.status.as_u16() {
                    200 => break,
                    409 => {}
                    _ => anyhow::bail!("{}", reply.body),
                }
            }
        }
        Ok(())
    };
    let results = futures_util::future::join_all((0..4).map(|_| client())).await;
    results.into_iter().collect::<Result<Vec<()>>>()?;
    let end = ctx.get("/counter").await?.body;
    let count: Option<usize> = end["data"]["value"].as_str().and_then(|text| text.parse().ok());
    ensure!(count == Some(4 * EACH), "{end}");
    Ok(())
}
