//! Decoding of request bodies into the built-in types: values, strict findings and error texts.

use machinery::codec::json::{self, Decoded, JsonError};
use machinery::codec::{restore, typed};
use serde_json::{Value, json};

fn decode(kind: (&str, &str, &str), text: &str) -> Result<Decoded, JsonError> {
    let schema = api::schema::schema().kind(kind.0, kind.1, kind.2).expect("a known kind");
    json::decode_typed(text.as_bytes(), schema)
}

const POD: (&str, &str, &str) = ("", "v1", "Pod");

#[test]
fn absent_zero_and_null_encode_like_kubernetes() {
    let pod = decode(POD, r#"{"spec":{"containers":[{"name":"c","ports":[],"tty":false},null],"hostname":"","nodeSelector":{"a":null},"priority":null,"terminationGracePeriodSeconds":0}}"#).unwrap();
    assert_eq!(
        pod.value,
        json!({
            "metadata": {},
            "spec": {
                "containers": [{"name": "c", "resources": {}}, {"name": "", "resources": {}}],
                "nodeSelector": {"a": ""},
                "terminationGracePeriodSeconds": 0,
            },
            "status": {},
        })
    );
    assert_eq!(pod.strict, [""; 0]);
    let deployment = decode(("apps", "v1", "Deployment"), r#"{"spec":{}}"#).unwrap();
    assert_eq!(deployment.value["spec"]["selector"], Value::Null);
    assert_eq!(deployment.value["spec"]["template"]["spec"], json!({"containers": null}));
}

#[test]
fn scalars_become_canonical() {
    let text = r#"{"metadata":{"creationTimestamp":"2024-01-01T02:00:00.5+02:00"},
        "spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":0.5,"memory":"1024Mi"}}}]}}"#;
    let pod = decode(POD, text).unwrap().value;
    assert_eq!(pod["metadata"]["creationTimestamp"], "2024-01-01T00:00:00Z");
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "500m", "memory": "1Gi"}));
    let secret = decode(("", "v1", "Secret"), "{\"data\":{\"k\":\"aG\\nk=\"}}").unwrap().value;
    assert_eq!(secret["data"]["k"], "aGk=");
}

#[test]
fn strict_findings_are_in_document_order() {
    let text = r#"{"zzz":1,"spec":{"Replicas":1,"replicas":1,"replicas":2,"template":{"spec":{"containers":[{"name":"a","foo":1}]}}},"aaa":{"b":1,"b":2}}"#;
    let deployment = decode(("apps", "v1", "Deployment"), text).unwrap();
    assert_eq!(deployment.value["spec"]["replicas"], 2);
    assert_eq!(
        deployment.strict,
        [
            "unknown field \"zzz\"",
            "unknown field \"spec.Replicas\"",
            "duplicate field \"spec.replicas\"",
            "unknown field \"spec.template.spec.containers[0].foo\"",
            "unknown field \"aaa\"",
        ]
    );
    let untyped = json::decode(br#"{"a":{"b":1,"b":2},"a":3}"#).unwrap();
    assert_eq!(untyped.value, json!({"a": 3}));
    assert_eq!(untyped.strict, ["duplicate field \"a.b\"", "duplicate field \"a\""]);
}

#[test]
fn duplicate_fields_merge_into_earlier_values() {
    let kind = ("apps", "v1", "Deployment");
    for (first, again, want) in [
        (r#""replicas":1"#, r#""replicas":2"#, json!({"replicas": 2})),
        (r#""replicas":1"#, r#""replicas":null"#, json!({})),
        (r#""minReadySeconds":1"#, r#""minReadySeconds":null"#, json!({"minReadySeconds": 1})),
        (
            r#""strategy":{"type":"Recreate"}"#,
            r#""strategy":null"#,
            json!({"strategy": {"type": "Recreate"}}),
        ),
        (
            r#""selector":{"matchLabels":{"a":"b"}}"#,
            r#""selector":{"matchLabels":{"c":"d"}}"#,
            json!({"selector": {"matchLabels": {"a": "b", "c": "d"}}}),
        ),
        (
            r#""strategy":{"type":"Recreate"}"#,
            r#""strategy":{"rollingUpdate":{}}"#,
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {}}}),
        ),
    ] {
        let decoded = decode(kind, &format!("{{\"spec\":{{{first},{again}}}}}")).unwrap();
        let plain = decode(kind, &format!("{{\"spec\":{want}}}")).unwrap();
        assert_eq!(decoded.value, plain.value, "{first} {again}");
        assert_eq!(decoded.strict.len(), 1, "{first} {again}");
    }
}

#[test]
fn bytes_are_text_or_numbers() {
    let secret = |text: &str| decode(("", "v1", "Secret"), &format!("{{\"data\":{{\"k\":{text}}}}}"));
    for (text, want) in [("null", ""), ("[]", ""), ("[104,105]", "aGk="), ("[null]", "AA==")] {
        assert_eq!(secret(text).unwrap().value["data"]["k"], want, "{text}");
    }
    for (text, found) in [("[300]", "number 300"), ("[\"a\"]", "string")] {
        let want = format!("json: cannot unmarshal {found} into Go struct field Secret.data of type uint8");
        assert_eq!(secret(text).unwrap_err().to_string(), want);
    }
}

#[test]
fn decode_records_paths_of_empty_lists_and_maps() {
    let text = r#"{"metadata":{"labels":{}},"spec":{"rules":[],"tls":[{"hosts":[]}]}}"#;
    let decoded = decode(("networking.k8s.io", "v1", "Ingress"), text).unwrap();
    let noted: Vec<_> =
        decoded.emptied.iter().map(|emptied| (emptied.path.as_str(), emptied.is_list)).collect();
    assert_eq!(noted, [("metadata.labels", false), ("spec.rules", true), ("spec.tls[0].hosts", true)]);
}

#[test]
fn restore_decodes_merged_data_by_its_own_rules() {
    let restore = |kind: (&str, &str, &str), mut value: Value| {
        let schema = api::schema::schema().kind(kind.0, kind.1, kind.2).unwrap();
        restore::restore(&mut value, schema).map(|()| value).map_err(|error| error.to_string())
    };
    let deployment = ("apps", "v1", "Deployment");
    for (input, want) in [
        (json!(2_147_483_648_i64), json!(-2_147_483_648_i64)),
        (json!(4_294_967_296_i64), json!(0)),
        (json!(1e300), json!(0)),
        (json!(3.0), json!(3)),
    ] {
        let restored = restore(deployment, json!({"spec": {"replicas": input}})).unwrap();
        assert_eq!(restored["spec"]["replicas"], want, "{input}");
    }
    for (kind, value, want) in [
        (deployment, json!({"spec": {"replicas": 1.5}}), "cannot convert float64 to int32"),
        (deployment, json!({"spec": {"replicas": "1"}}), "unrecognized type: int32"),
        (deployment, json!({"spec": {"paused": 1}}), "unrecognized type: bool"),
        (deployment, json!({"metadata": []}), "cannot restore struct from: slice"),
        (deployment, json!({"metadata": "x"}), "cannot restore struct from: string"),
        (deployment, json!({"metadata": {"labels": []}}), "cannot restore map from slice"),
        (deployment, json!({"metadata": {"finalizers": {}}}), "cannot restore slice from map"),
        (deployment, json!({"metadata": {"name": 1}}), "cannot convert int64 to string"),
        (deployment, json!({"metadata": {"name": true}}), "unrecognized type: string"),
        (
            deployment,
            json!({"spec": {"strategy": {"type": 1}}}),
            "cannot convert int64 to v1.DeploymentStrategyType",
        ),
        (deployment, json!({"spec": {"strategy": {"type": {}}}}), "unrecognized type: string"),
        (
            deployment,
            json!({"metadata": {"creationTimestamp": true}}),
            "json: cannot unmarshal bool into Go value of type string",
        ),
        (
            ("", "v1", "Secret"),
            json!({"data": {"a": "!"}}),
            "error decoding from json: illegal base64 data at input byte 0",
        ),
    ] {
        assert_eq!(restore(kind, value), Err(want.to_owned()));
    }
}

#[test]
fn type_errors_match_kubernetes() {
    let cases = [
        (
            POD,
            r#"{"metadata":{"labels":"x"}}"#,
            "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            POD,
            r#"{"spec":{"containers":[{"env":[{"value":1}]}]}}"#,
            "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
        ),
        (
            POD,
            r#"{"spec":{"volumes":[{"secret":[]}]}}"#,
            "json: cannot unmarshal array into Go struct field Volume.spec.volumes.VolumeSource.secret of type v1.SecretVolumeSource",
        ),
        (
            POD,
            r#"{"spec":{"hostUsers":"x","containers":1}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostUsers of type bool",
        ),
        (
            POD,
            r#"{"spec":{"containers":[{"imagePullPolicy":{}}]}}"#,
            "json: cannot unmarshal object into Go struct field Container.spec.containers.imagePullPolicy of type v1.PullPolicy",
        ),
        (POD, "[]", "json: cannot unmarshal array into Go value of type v1.Pod"),
        (
            ("apps", "v1", "Deployment"),
            r#"{"spec":{"replicas":1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            ("apps", "v1", "Deployment"),
            r#"{"spec":{"replicas":3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            POD,
            r#"{"metadata":{"creationTimestamp":5}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
        (
            POD,
            r#"{"spec":{"hostname":1,"containers":[{"resources":{"limits":{"cpu":"x"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (("", "v1", "Secret"), r#"{"data":{"k":"not base64!"}}"#, "illegal base64 data at input byte 3"),
        (
            ("", "v1", "ResourceQuota"),
            r#"{"spec":{"hard":{"pods":"5\n"}}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ];
    for (kind, text, want) in cases {
        let error = decode(kind, text).expect_err(text);
        assert_eq!(error.to_string(), want, "{text}");
        let schema = api::schema::schema().kind(kind.0, kind.1, kind.2).unwrap();
        let mut value: Value = serde_json::from_str(text).unwrap();
        assert!(typed::normalize(&mut value, schema).is_err(), "{text}");
    }
}

#[test]
fn syntax_errors_match_kubernetes() {
    for (text, want) in [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ("{ not json", "invalid character 'n' looking for beginning of object key string"),
        ("dummy", "invalid character 'd' looking for beginning of value"),
        (r#"{"a" 1}"#, "invalid character '1' after object key"),
        (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("{} x", "invalid character 'x' after top-level value"),
        ("nul", "invalid character ' ' in literal null (expecting 'l')"),
        ("nulx", "invalid character 'x' in literal null (expecting 'l')"),
        ("01", "invalid character '1' after top-level value"),
        ("-x", "invalid character 'x' in numeric literal"),
        ("\"\u{1}\"", "invalid character '\\x01' in string literal"),
        (r#""\x""#, "invalid character 'x' in string escape code"),
    ] {
        assert_eq!(json::decode(text.as_bytes()), Err(JsonError::Syntax(want.to_owned())), "{text}");
    }
    let deep = "[".repeat(1_000_000);
    assert_eq!(
        json::decode(deep.as_bytes()).unwrap_err().to_string(),
        "invalid character '[' exceeded max depth"
    );
}
