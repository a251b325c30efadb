//! CBOR over HTTP: offered and accepted if its feature gate is enabled, rejected otherwise.

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use machinery::codec::cbor;
use serde_json::{Value, json};
use testkit::{Client, Reply, Server};

const PATH: &str = "/api/v1/namespaces/default/secrets";
const CBOR: &str = "application/cbor";
/// Self-described CBOR tag that every document starts with.
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

async fn send(client: &Client, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Reply> {
    let mut request = Request::builder().method(method).uri(path).header(ACCEPT, CBOR);
    if !kind.is_empty() {
        request = request.header(CONTENT_TYPE, kind);
    }
    client.exchange(request.body(Full::new(body.into()))?).await
}

fn encode(value: &Value) -> Vec<u8> {
    cbor::encode(value, None)
}

fn decode(reply: &Reply) -> Result<Value> {
    ensure!(reply.headers["content-type"] == CBOR, "{:?} {:?}", reply.headers, reply.bytes);
    ensure!(reply.bytes.starts_with(&SELF_DESCRIBED), "{:?}", reply.bytes);
    Ok(cbor::decode(&reply.bytes)?)
}

fn secret(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"key": "dmFsdWU="}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cbor_is_supported_by_every_verb() -> Result<()> {
    let server = Server::start_with(|config| config.api.limits.cbor = true).await?;
    let admin = &server.admin;
    let created = send(admin, Method::POST, PATH, CBOR, encode(&secret("one"))).await?;
    ensure!(created.status == 201, "{} {:?}", created.status, created.bytes);
    let mut object = decode(&created)?;
    ensure!(object["metadata"]["uid"].is_string() && object["data"]["key"] == "dmFsdWU=", "{object}");
    let as_json = admin.get(&format!("{PATH}/one")).await?.body;
    ensure!(as_json == object, "one object in two encodings: {as_json} {object}");

    object["data"] = json!({"key": "bmV3"});
    let updated = send(admin, Method::PUT, &format!("{PATH}/one"), CBOR, encode(&object)).await?;
    ensure!(decode(&updated)?["data"]["key"] == "bmV3", "{:?}", updated.bytes);

    let wanted = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "applied"},
        "stringData": {"a": "b"}});
    let path = format!("{PATH}/applied?fieldManager=test");
    let applied = send(admin, Method::PATCH, &path, "application/apply-patch+cbor", encode(&wanted)).await?;
    ensure!(applied.status == 201, "{} {:?}", applied.status, decode(&applied));
    let owner = &decode(&applied)?["metadata"]["managedFields"][0];
    ensure!(owner["operation"] == "Apply" && owner["manager"] == "test", "{owner}");

    let list = decode(&send(admin, Method::GET, PATH, "", Vec::new()).await?)?;
    let names: Vec<_> =
        list["items"].as_array().into_iter().flatten().map(|i| &i["metadata"]["name"]).collect();
    ensure!(list["kind"] == "SecretList" && names.contains(&&json!("applied")), "{list}");
    let missing = send(admin, Method::GET, &format!("{PATH}/none"), "", Vec::new()).await?;
    ensure!(missing.status == 404 && decode(&missing)?["reason"] == "NotFound", "{:?}", missing.bytes);
    let options = encode(&json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}));
    let deleted = send(admin, Method::DELETE, &format!("{PATH}/one"), CBOR, options).await?;
    ensure!(deleted.status == 200, "{:?}", decode(&deleted));
    ensure!(admin.get(&format!("{PATH}/one")).await?.status == 200, "that was a dry run");
    for garbage in [&b""[..], &[0xff], &[0xa1, 0x61], &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]]
    {
        let refused = send(admin, Method::POST, PATH, CBOR, garbage.to_vec()).await?;
        ensure!(refused.status == 400 && decode(&refused)?["reason"] == "BadRequest", "{garbage:?}");
    }
    let stranger = server.client_as("nobody", None)?;
    let forbidden = send(&stranger, Method::GET, PATH, "", Vec::new()).await?;
    ensure!(forbidden.status == 403 && decode(&forbidden)?["reason"] == "Forbidden", "{:?}", forbidden.bytes);
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cbor_watch_is_a_sequence() -> Result<()> {
    let server = Server::start_with(|config| config.api.limits.cbor = true).await?;
    ensure!(server.admin.post(PATH, &secret("seen")).await?.status == 201);
    let path = format!("{PATH}?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dseen");
    let request = Request::builder().uri(path).header(ACCEPT, CBOR).body(Full::<Bytes>::default())?;
    let reply = server.admin.send(request).await?;
    ensure!(reply.headers()["content-type"] == "application/cbor-seq", "{:?}", reply.headers());
    let bytes = reply.into_body().collect().await?.to_bytes();
    let event = cbor::decode(&bytes)?;
    ensure!(event["type"] == "ADDED" && event["object"]["data"]["key"] == "dmFsdWU=", "{event}");
    server.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cbor_without_feature_gate_is_rejected() -> Result<()> {
    let server = Server::start().await?;
    let refused = server.admin.request(Method::POST, PATH, CBOR, encode(&secret("one"))).await?;
    ensure!(refused.status == 415, "{}", refused.body);
    let path = format!("{PATH}/one?fieldManager=test");
    let kind = "application/apply-patch+cbor";
    let refused = server.admin.request(Method::PATCH, &path, kind, encode(&secret("one"))).await?;
    ensure!(refused.status == 415, "{}", refused.body);
    let refused = send(&server.admin, Method::GET, PATH, "", Vec::new()).await?;
    ensure!(refused.status == 406, "{}", refused.body);
    server.stop().await
}
