//! Generates Rust for gRPC services from the tables of messages, enums and services: prost messages, tonic clients and,
//! if requested, server traits, for the selected methods and the types they refer to. The output is checked in, so that
//! no build needs a protobuf compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// One generated file.
#[derive(Clone, Copy)]
struct Target {
    /// The table, in `tables/` of this crate or `rpc/` of the reference data.
    source: &'static str,
    output: &'static str,
    about: &'static str,
    /// Methods to generate, as `package.Service/Method`; `package.Service/*` selects all.
    methods: &'static [&'static str],
    /// Generates server traits, too, which need `crate::server` of their crate.
    server: bool,
}

const TARGETS: &[Target] = &[
    Target {
        source: "etcd-v3.json",
        output: "crates/store/src/etcd/rpc.rs",
        about: "The part of etcd's v3 API that the store uses.",
        methods: &[
            "etcdserverpb.KV/Range",
            "etcdserverpb.KV/Txn",
            "etcdserverpb.KV/Compact",
            "etcdserverpb.Watch/Watch",
            "etcdserverpb.Lease/LeaseGrant",
            "etcdserverpb.Lease/LeaseRevoke",
            "etcdserverpb.Lease/LeaseKeepAlive",
            "etcdserverpb.Maintenance/Snapshot",
        ],
        server: false,
    },
    Target {
        source: "cri-v1.json",
        output: "crates/cri/src/v1.rs",
        about: "The container runtime interface, version 1.",
        methods: &["runtime.v1.RuntimeService/*", "runtime.v1.ImageService/*"],
        server: true,
    },
    Target {
        source: "csi-node-v1.json",
        output: "crates/cri/src/csi.rs",
        about: "The container storage interface, version 1, as far as nodes use it.",
        methods: &["csi.v1.Identity/*", "csi.v1.Node/*"],
        server: true,
    },
    Target {
        source: "kubelet-pluginregistration-v1.json",
        output: "crates/cri/src/registration.rs",
        about: "Plugin registration with the kubelet.",
        methods: &["pluginregistration.Registration/*"],
        server: true,
    },
    Target {
        source: "kubelet-deviceplugin-v1beta1.json",
        output: "crates/cri/src/device_plugin.rs",
        about: "Device plugins of the kubelet, version 1 beta 1.",
        methods: &["v1beta1.Registration/*", "v1beta1.DevicePlugin/*"],
        server: true,
    },
    Target {
        source: "kubelet-podresources-v1.json",
        output: "crates/cri/src/pod_resources.rs",
        about: "The kubelet's pod resources API, version 1.",
        methods: &["v1.PodResourcesLister/*"],
        server: true,
    },
    Target {
        source: "kubelet-dra-v1.json",
        output: "crates/cri/src/dra.rs",
        about: "Drivers of dynamic resource allocation, version 1.",
        methods: &["k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/*"],
        server: true,
    },
    Target {
        source: "kubelet-dra-health-v1alpha1.json",
        output: "crates/cri/src/dra_health.rs",
        about: "Health of devices that drivers of dynamic resource allocation report, version 1 alpha 1.",
        methods: &["v1alpha1.DRAResourceHealth/*"],
        server: true,
    },
];

/// Regenerates every target.
pub fn generate(root: &Path) -> Result<()> {
    for target in TARGETS {
        let own = root.join("crates/xtask/tables").join(target.source);
        let shared = root.join("../shared/reference/rpc").join(target.source);
        let source = if own.exists() { own } else { shared };
        let text = std::fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
        let table: Value = serde_json::from_str(&text)?;
        let output = root.join(target.output);
        std::fs::write(&output, render(&table, target)?)?;
        let status = Command::new("rustfmt").args(["--edition", "2024"]).arg(&output).status()?;
        ensure!(status.success(), "rustfmt failed on {}", output.display());
        println!("{}", target.output);
    }
    Ok(())
}

fn render(table: &Value, target: &Target) -> Result<String> {
    let mut services: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    let mut types = BTreeSet::new();
    for wanted in target.methods {
        let (service, method) = wanted.split_once('/').context("service/method")?;
        let methods =
            table["services"][service].as_array().with_context(|| format!("no service {service}"))?;
        let before = types.len();
        for found in methods.iter().filter(|found| method == "*" || found["method"] == method) {
            services.entry(service).or_default().push(found);
            for side in ["request", "response"] {
                reach(table, text(&found[side])?, &mut types)?;
            }
        }
        let known = services.get(service).is_some_and(|found| !found.is_empty());
        ensure!(types.len() > before || known, "no method {wanted}");
    }
    let streams = |side: &str| services.values().flatten().any(|method| method[side] == true);
    let (outgoing, incoming) = (streams("client_streaming"), streams("server_streaming"));
    let mut out = format!(
        "//! {} Generated by `cargo run -p xtask -- rpc`; do not edit.\n\n\
         use tonic::codegen::http::uri::PathAndQuery;\n\
         use tonic::transport::Channel;\n\
         use tonic::{{IntoRequest, {}Response, Status{}}};\n\
         use tonic_prost::ProstCodec;\n",
        target.about,
        if outgoing { "IntoStreamingRequest, " } else { "" },
        if incoming { ", Streaming" } else { "" },
    );
    for name in &types {
        match table["enums"].get(name.as_str()) {
            Some(values) => enumeration(&mut out, name, values)?,
            None => message(&mut out, table, name)?,
        }
    }
    for (service, methods) in services {
        client(&mut out, service, &methods)?;
        if target.server {
            server(&mut out, service, &methods)?;
        }
    }
    Ok(out)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("a string is missing in the table")
}

fn fields(message: &Value) -> impl Iterator<Item = &Value> {
    message["fields"].as_array().into_iter().flatten()
}

/// Adds a type and all types it refers to; map entries become maps.
fn reach(table: &Value, name: &str, types: &mut BTreeSet<String>) -> Result<()> {
    if scalar(name).is_some() {
        return Ok(());
    }
    let message = table["messages"].get(name);
    ensure!(message.is_some() || table["enums"].get(name).is_some(), "no type {name}");
    let entry = message.is_some_and(|message| message["map_entry"] == true);
    if !entry && !types.insert(name.to_owned()) {
        return Ok(());
    }
    for field in message.into_iter().flat_map(fields) {
        reach(table, text(&field["type"])?, types)?;
    }
    Ok(())
}

/// Rust's type for a scalar.
fn scalar(name: &str) -> Option<&'static str> {
    Some(match name {
        "string" => "String",
        "bytes" => "Vec<u8>",
        "bool" => "bool",
        "int32" => "i32",
        "int64" => "i64",
        "uint32" => "u32",
        "uint64" => "u64",
        "double" => "f64",
        "float" => "f32",
        _ => return None,
    })
}

/// `package.Outer.Inner` as `OuterInner`.
fn type_name(name: &str) -> String {
    name.split('.').filter(|part| part.starts_with(|c: char| c.is_ascii_uppercase())).collect()
}

fn camel(name: &str) -> String {
    let capitalized = |part: &str| {
        let mut chars = part.chars();
        let head = chars.next().map(|c| c.to_ascii_uppercase());
        head.into_iter().chain(chars.map(|c| c.to_ascii_lowercase())).collect::<String>()
    };
    name.split('_').map(capitalized).collect()
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && after_lower {
            out.push('_');
        }
        after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        out.push(c.to_ascii_lowercase());
    }
    match out.as_str() {
        "type" | "ref" | "move" | "match" | "self" => format!("r#{out}"),
        _ => out,
    }
}

fn enumeration(out: &mut String, name: &str, values: &Value) -> Result<()> {
    writeln!(
        out,
        "\n#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]"
    )?;
    writeln!(out, "#[repr(i32)]\npub enum {} {{", type_name(name))?;
    let mut values: Vec<_> = values.as_object().context("enum values")?.iter().collect();
    values.sort_by_key(|(_, number)| number.as_i64());
    for (value, number) in values {
        let variant =
            if value.chars().any(|c| c.is_ascii_lowercase()) { value.clone() } else { camel(value) };
        writeln!(out, "    {variant} = {number},")?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

/// The `prost` attribute's kind and the Rust type of a field, before optionality.
fn kind(table: &Value, type_: &str) -> (String, String) {
    match scalar(type_) {
        Some(rust) if type_ == "bytes" => ("bytes = \"vec\"".to_owned(), rust.to_owned()),
        Some(rust) => (type_.to_owned(), rust.to_owned()),
        None if table["enums"].get(type_).is_some() => {
            (format!("enumeration = \"{}\"", type_name(type_)), "i32".to_owned())
        }
        None => ("message".to_owned(), type_name(type_)),
    }
}

fn message(out: &mut String, table: &Value, name: &str) -> Result<()> {
    let message = &table["messages"][name];
    let mut oneofs: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    writeln!(out, "\n#[derive(Clone, PartialEq, prost::Message)]\npub struct {} {{", type_name(name))?;
    for field in fields(message) {
        if let Some(oneof) = field["oneof"].as_str() {
            oneofs.entry(oneof).or_default().push(field);
            continue;
        }
        let (number, type_) = (&field["number"], text(&field["type"])?);
        let field_name = snake(text(&field["name"])?);
        let (mut attribute, mut rust) = kind(table, type_);
        let entry = &table["messages"][type_];
        if entry["map_entry"] == true {
            let mut parts = Vec::new();
            for part in fields(entry) {
                parts.push(kind(table, text(&part["type"])?));
            }
            let [(key, key_rust), (value, value_rust)] = parts.as_slice() else {
                bail!("{type_} is no map entry")
            };
            let value = match value.split_once(" = ") {
                Some(("enumeration", name)) => format!("enumeration({})", name.trim_matches('"')),
                Some((simple, _)) => simple.to_owned(),
                None => value.clone(),
            };
            attribute = format!("btree_map = \"{key}, {value}\"");
            rust = format!("std::collections::BTreeMap<{key_rust}, {value_rust}>");
        } else if field["repeated"] == true {
            attribute.push_str(", repeated");
            rust = format!("Vec<{rust}>");
        } else if attribute == "message" {
            attribute.push_str(", optional");
            rust = format!("Option<{rust}>");
        }
        writeln!(out, "    #[prost({attribute}, tag = \"{number}\")]\n    pub {field_name}: {rust},")?;
    }
    for (oneof, variants) in &oneofs {
        let tags: Vec<_> = variants.iter().map(|field| field["number"].to_string()).collect();
        let union = format!("{}{}", type_name(name), camel(oneof));
        writeln!(out, "    #[prost(oneof = \"{union}\", tags = \"{}\")]", tags.join(", "))?;
        writeln!(out, "    pub {}: Option<{union}>,", snake(oneof))?;
    }
    writeln!(out, "}}")?;
    for (oneof, variants) in oneofs {
        writeln!(out, "\n#[derive(Clone, PartialEq, prost::Oneof)]")?;
        writeln!(out, "pub enum {}{} {{", type_name(name), camel(oneof))?;
        for field in variants {
            let (attribute, rust) = kind(table, text(&field["type"])?);
            writeln!(out, "    #[prost({attribute}, tag = \"{}\")]", field["number"])?;
            writeln!(out, "    {}({rust}),", camel(text(&field["name"])?))?;
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

fn client(out: &mut String, service: &str, methods: &[&Value]) -> Result<()> {
    let name = format!("{}Client", camel(&snake(&type_name(service))));
    writeln!(out, "\n/// Client of `{service}`.\n#[derive(Clone)]\npub struct {name} {{")?;
    writeln!(out, "    inner: tonic::client::Grpc<Channel>,\n}}\n\nimpl {name} {{")?;
    writeln!(out, "    pub fn new(inner: tonic::client::Grpc<Channel>) -> Self {{ Self {{ inner }} }}")?;
    for method in methods {
        let name = text(&method["method"])?;
        let (request, response) =
            (type_name(text(&method["request"])?), type_name(text(&method["response"])?));
        let (outgoing, incoming) = (method["client_streaming"] == true, method["server_streaming"] == true);
        let call = match (outgoing, incoming) {
            (false, false) => "unary",
            (true, false) => "client_streaming",
            (false, true) => "server_streaming",
            (true, true) => "streaming",
        };
        let (argument, convert) = if outgoing {
            (format!("IntoStreamingRequest<Message = {request}>"), "into_streaming_request")
        } else {
            (format!("IntoRequest<{request}>"), "into_request")
        };
        let answer = if incoming { format!("Streaming<{response}>") } else { response.clone() };
        writeln!(
            out,
            "\npub async fn {}(&mut self, request: impl {argument}) -> Result<Response<{answer}>, Status> {{\n\
             self.inner.ready().await.map_err(|error| Status::from_error(error.into()))?;\n\
             let path = PathAndQuery::from_static(\"/{service}/{name}\");\n\
             let codec = ProstCodec::<{request}, {response}>::default();\n\
             self.inner.{call}(request.{convert}(), path, codec).await\n}}",
            snake(name)
        )?;
    }
    writeln!(out, "}}")?;
    Ok(())
}

/// A trait whose methods return Unimplemented by default, and the function that finds the method of a path.
fn server(out: &mut String, service: &str, methods: &[&Value]) -> Result<()> {
    let name = camel(&snake(&type_name(service)));
    let (mut declared, mut routes) = (String::new(), String::new());
    for method in methods {
        let wire = text(&method["method"])?;
        let (request, response) =
            (type_name(text(&method["request"])?), type_name(text(&method["response"])?));
        ensure!(
            method["client_streaming"] != true,
            "{service}/{wire}: streaming requests are not written yet"
        );
        let (answer, serve) = match method["server_streaming"] == true {
            true => (format!("crate::server::ResponseStream<{response}>"), "server_streaming"),
            false => (response, "unary"),
        };
        let function = snake(wire);
        writeln!(
            declared,
            "\nasync fn {function}(&self, _request: tonic::Request<{request}>) -> Result<Response<{answer}>, Status> {{\n\
             Err(Status::unimplemented(\"{wire}\"))\n}}"
        )?;
        writeln!(
            routes,
            "\"/{service}/{wire}\" => crate::server::{serve}(request, move |request| Box::pin(async move {{ service.{function}(request).await }})),"
        )?;
    }
    writeln!(
        out,
        "\n/// Server side of `{service}`; a method that is not written answers `Unimplemented`.\n\
         #[tonic::async_trait]\npub trait {name}: Send + Sync + 'static {{{declared}}}\n\n\
         /// Serves one request to `{service}`; `None` if the path names no method of it.\n\
         pub fn {}<S: {name}, B: crate::server::RequestBody>(service: std::sync::Arc<S>, request: http::Request<B>) -> Option<crate::server::HttpAnswer> {{\n\
         Some(match request.uri().path() {{\n{routes}_ => return None,\n}})\n}}",
        format_args!("serve_{}", snake(&name))
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proto_name_becomes_rust_name() {
        assert_eq!(type_name("runtime.v1.Outer.Inner"), "OuterInner");
        assert_eq!((camel("NOT_EQUAL"), camel("request_put")), ("NotEqual".into(), "RequestPut".into()));
        assert_eq!(
            (snake("LeaseKeepAlive"), snake("KV"), snake("type")),
            ("lease_keep_alive".into(), "kv".into(), "r#type".into())
        );
    }

    #[test]
    fn unreferenced_types_are_not_rendered() {
        let table = serde_json::json!({
            "messages": {
                "p.Ask": {"fields": [
                    {"number": 1, "name": "labels", "type": "p.Ask.LabelsEntry", "repeated": true},
                    {"number": 2, "name": "mode", "type": "p.Mode"},
                    {"number": 3, "name": "one", "type": "p.Answer", "oneof": "which"},
                ]},
                "p.Ask.LabelsEntry": {"map_entry": true, "fields": [
                    {"number": 1, "name": "key", "type": "string"}, {"number": 2, "name": "value", "type": "string"},
                ]},
                "p.Answer": {"fields": [{"number": 1, "name": "ids", "type": "int64", "repeated": true}]},
                "p.Unused": {"fields": []},
            },
            "enums": {"p.Mode": {"ON": 1, "OFF": 0}},
            "services": {"p.Svc": [{"method": "Do", "request": "p.Ask", "response": "p.Answer",
                "client_streaming": false, "server_streaming": true}]},
        });
        let target = Target { source: "", output: "", about: "Test.", methods: &["p.Svc/Do"], server: true };
        let rendered = render(&table, &target).unwrap();
        for expected in [
            "#[prost(btree_map = \"string, string\", tag = \"1\")]",
            "pub mode: i32",
            "#[prost(oneof = \"AskWhich\", tags = \"3\")]",
            "One(Answer)",
            "Off = 0,\n    On = 1,",
            "pub ids: Vec<i64>",
            "Response<Streaming<Answer>>",
            "\"/p.Svc/Do\"",
            "pub trait Svc:",
            "pub fn serve_svc<",
            "crate::server::server_streaming(",
        ] {
            assert!(rendered.contains(expected), "{expected} not in\n{rendered}");
        }
        assert!(!rendered.contains("Unused") && !rendered.contains("LabelsEntry"));
        assert!(!render(&table, &Target { server: false, ..target }).unwrap().contains("trait"));
        assert!(render(&table, &Target { methods: &["p.Svc/No"], ..target }).is_err());
    }
}
