//! The dialect of client-go: its own cases, and limits.

use super::*;
use serde_json::json;

/// The output, or the error.
fn run(template: &str, value: &Value, missing: Missing) -> Result<String, String> {
    let template = Template::parse(template).map_err(|error| error.to_string())?;
    template.execute(value, missing).map_err(|error| error.to_string())
}

fn check(value: &Value, missing: Missing, cases: &[(&str, &str)]) {
    for (template, want) in cases {
        assert_eq!(run(template, value, missing).as_deref(), Ok(*want), "{template}");
    }
}

fn check_errors(value: &Value, missing: Missing, cases: &[(&str, &str)]) {
    for (template, want) in cases {
        assert_eq!(run(template, value, missing), Err((*want).to_owned()), "{template}");
    }
}

#[test]
fn lists_are_indexed_and_sliced() {
    let types = json!({
        "bools": [true, false, true, false], "integers": [1, 2, 3, 4], "floats": [1.0, 2.2, 3.3, 4.0],
        "strings": ["one", "two", "three", "four"], "mixed": [true, "one", 1, 1.1],
        "maps": [{"name": "one", "value": 1}, {"name": "two", "value": 2.02}, {"name": "three", "value": 3.03}],
    });
    check(
        &types,
        Missing::Error,
        &[
            ("{ .bools }", "[true,false,true,false]"),
            ("{ .bools[0] }", "true"),
            ("{ .bools[-1] }", "false"),
            ("{ .bools[0:2] }", "true false"),
            ("{ .integers[:2] }", "1 2"),
            ("{ .integers[:4:2] }", "1 3"),
            ("{ .integers[-2] }", "3"),
            ("{ .floats[0] }", "1"),
            ("{ .floats[-2] }", "3.3"),
            ("{ .strings }", r#"["one","two","three","four"]"#),
            ("{ .strings[-2] }", "three"),
            ("{ .mixed[:4:2] }", "true 1"),
            ("{ .maps[0] }", r#"{"name":"one","value":1}"#),
            ("{ .maps[0:2] }", r#"{"name":"one","value":1} {"name":"two","value":2.02}"#),
            ("{ .maps[::2] }", r#"{"name":"one","value":1} {"name":"three","value":3.03}"#),
            ("{ .maps[1::2] }", r#"{"name":"two","value":2.02}"#),
            ("{ .strings[0:0] }", ""),
            ("{ .strings[0:-1] }", "one two three"),
            ("{ .strings[-2:] }", "three four"),
            ("{ .strings[5:5] }", ""),
            ("{ .strings[-5:-5] }", ""),
            ("{ .strings[1:4:2] }", "two four"),
            ("{ .strings[*] }", "one two three four"),
            ("{ .strings[0,2] }", "one three"),
        ],
    );
    check_errors(
        &types,
        Missing::Error,
        &[
            ("{ .strings[-5] }", "array index out of bounds: index -1, length 4"),
            ("{ .strings[4] }", "array index out of bounds: index 4, length 4"),
            ("{ .strings[0:5] }", "array index out of bounds: index 4, length 4"),
            ("{ .strings[3:1] }", "starting index 3 is greater than ending index 1"),
            ("{ .strings[-1:-2] }", "starting index 3 is greater than ending index 2"),
            ("{ .strings[0:4:0] }", "step must be > 0"),
            ("{ .strings[0:4:-1] }", "step must be > 0"),
            ("{ .maps[0][0] }", "map[string]interface {} is not array or slice"),
            ("{ .strings[a] }", "invalid array index a"),
        ],
    );
}

#[test]
fn paths_select_fields_text_and_quotes() {
    let store = json!({
        "Name": "jsonpath", "Labels": {"engineer": 10, "web/html": 15, "k8s-app": 20},
        "Book": [
            {"Author": "Nigel Rees", "Category": "reference", "Price": 8.95},
            {"Author": "Evelyn Waugh", "Category": "fiction", "Price": 12.99},
            {"Author": "Herman Melville", "Category": "fiction", "Price": 8.99},
        ],
        "Bicycle": [{"Color": "red", "IsNew": true, "Price": 19.95}, {"Color": "green", "IsNew": false, "Price": 20.01}],
    });
    check(
        &store,
        Missing::Error,
        &[
            ("hello jsonpath", "hello jsonpath"),
            (r#"{"{"}"#, "{"),
            ("hello {.Name}", "hello jsonpath"),
            ("{$.Labels.web/html}", "15"),
            ("{.Labels.k8s-app}", "20"),
            ("{.Labels['k8s-app']}", "20"),
            ("{.Bicycle[*].Color}", "red green"),
            ("{.Book[*].Author}", "Nigel Rees Evelyn Waugh Herman Melville"),
            (r#"{range .Bicycle[*]}{ "{" }{ @.* }{ "} " }{end}"#, "{red true 19.95} {green false 20.01} "),
            ("{..Price}", "19.95 20.01 8.95 12.99 8.99"),
            ("{...Price}", "19.95 20.01 8.95 12.99 8.99"),
            ("{.Book[-1:]}", r#"{"Author":"Herman Melville","Category":"fiction","Price":8.99}"#),
            ("{..Book[2].Author}", "Herman Melville"),
            ("{.Bicycle[?(@.IsNew==true)].Color}", "red"),
            ("{.Book[?(@.Price>8.97)].Author}", "Evelyn Waugh Herman Melville"),
            ("{.Book[?(@.Category!=\"fiction\")].Author}", "Nigel Rees"),
            (r#"{"a\tb\u00e9\x41\101"}"#, "a\tb\u{e9}AA"),
            (r"{'it\'s'}", "it's"),
            ("{1}{-2.5}{true}", "1-2.5true"),
        ],
    );
    check(&store, Missing::Allow, &[("{.hello}", ""), ("before-{.hello}after", "before-after")]);
    check_errors(
        &store,
        Missing::Error,
        &[
            ("{hello}", "unrecognized identifier hello"),
            ("{.hello}", "hello is not found"),
            ("{.Labels[0]}", "map[string]interface {} is not array or slice"),
            ("{.Book[?(@.Price<>10)]}", "unrecognized filter operator <>"),
            ("{.Book[?(@.Price<10)]}", "incompatible types for comparison"),
            ("{range .Labels.*}{@}{end}{end}", "not in range, nothing to end"),
            ("{............Price}", "invalid multiple recursive descent"),
        ],
    );
}

#[test]
fn unclosed_templates_are_rejected() {
    for (template, want) in [
        ("{.a", "unclosed action"),
        ("{.a\n}", "unclosed action"),
        ("{[0}", "unterminated array"),
        ("{\"a}", "unterminated quoted string"),
        ("{[?(@.a==1}", "unterminated filter"),
        ("{[?(@.a==1)}", "unclosed array expect ]"),
        ("{.a|b#}", ""),
        ("{#}", "unrecognized character in action: U+0023 '#'"),
        ("{1.2.3}", "cannot parse number 1.2.3"),
    ] {
        match Template::parse(template) {
            Ok(_) => assert_eq!(want, "", "{template}"),
            Err(error) => assert_eq!(error.to_string(), want, "{template}"),
        }
    }
}

#[test]
fn filters_select_by_existence_and_comparison() {
    let points = json!([
        {"id": "i1", "x": 4, "y": -5}, {"id": "i2", "x": -2, "y": -5, "z": 1}, {"id": "i3", "x": 8, "y": 3},
        {"id": "i5", "x": 0, "y": 2, "z": 1}, {"id": "i7", "x": null, "y": 4},
    ]);
    check(
        &points,
        Missing::Error,
        &[
            ("{[?(@.z)].id}", "i2 i5"),
            ("{[0]['id']}", "i1"),
            ("{[-1]['x']}", "null"),
            ("{[?(@.y<0)].id}", "i1 i2"),
            ("{[?(@.y>=3)].id}", "i3 i7"),
            ("{[?(@.id==\"i3\")].x}", "8"),
        ],
    );
    let numbers = json!([2, 6, 3, 7]);
    check(&numbers, Missing::Error, &[("{[?(@<5)]}", "2 3"), ("{[?(@>=6)]}", "6 7"), ("{..}", "[2,6,3,7]")]);
}

#[test]
fn ranges_nest_and_may_be_empty() {
    let pods = json!({"items": [
        {"metadata": {"name": "pod1"}, "spec": {"containers": [
            {"name": "foo", "another": [{"name": "value1"}, {"name": "value2"}]},
            {"name": "bar", "another": [{"name": "value1"}, {"name": "value2"}]}]}},
        {"metadata": {"name": "pod2"}, "spec": {"containers": [
            {"name": "baz", "another": [{"name": "value1"}, {"name": "value2"}]}]}},
    ]});
    check(
        &pods,
        Missing::Error,
        &[
            (
                r#"{range .items[*]}{.metadata.name}{":"}{range @.spec.containers[*]}{.name}{","}{end}{"+"}{end}"#,
                "pod1:foo,bar,+pod2:baz,+",
            ),
            (
                r##"{range .items[*]}{.metadata.name}{"~"}{range @.spec.containers[*]}{.name}{":"}{range @.another[*]}{.name}{","}{end}{"+"}{end}{"#"}{end}"##,
                "pod1~foo:value1,value2,+bar:value1,value2,+#pod2~baz:value1,value2,+#",
            ),
            (
                r#"{range .items[*]}{.metadata.name}{"\t"}{range @.spec.containers[*]}{.name}{" "}{end}{"\t"}{range @.spec.containers[*]}{.name}{" "}{end}{"\n"}{end}"#,
                "pod1\tfoo bar \tfoo bar \npod2\tbaz \tbaz \n",
            ),
        ],
    );
    let empty = json!({"items": [], "kind": "List"});
    check(
        &empty,
        Missing::Allow,
        &[
            ("{range .items[*]}{.metadata.name}{end}", ""),
            (
                r#"{range .items[*]}{.metadata.name}{":"}{range @.spec.containers[*]}{.name}{","}{end}{"+"}{end}{.kind}"#,
                "List",
            ),
        ],
    );
}

#[test]
fn kubernetes_lists_are_printed() {
    let node = |name: &str, cpu: &str, ready: bool, addresses: Value| {
        json!({"kind": "None", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": {"cpu": cpu}, "ready": ready, "addresses": addresses}})
    };
    let nodes = json!({"kind": "List",
        "items": [
            node("127.0.0.1", "4", true, json!([{"type": "LegacyHostIP", "address": "127.0.0.1"}])),
            node("127.0.0.2", "8", false, json!([{"type": "LegacyHostIP", "address": "127.0.0.2"},
                {"type": "another", "address": "127.0.0.3"}])),
        ],
        "users": [{"name": "myself", "user": {}},
            {"name": "e2e", "user": {"username": "admin", "password": "secret"}}],
    });
    check(
        &nodes,
        Missing::Error,
        &[
            ("{range .items[*]}{.metadata.name}, {end}{.kind}", "127.0.0.1, 127.0.0.2, List"),
            (r#"{range .items[*]}{.metadata.name}{"\t"}{end}"#, "127.0.0.1\t127.0.0.2\t"),
            ("{.items[*].status.addresses[*].address}", "127.0.0.1 127.0.0.2 127.0.0.3"),
            (
                "{range .items[*]}{range .status.addresses[*]}{.address}, {end}{end}",
                "127.0.0.1, 127.0.0.2, 127.0.0.3, ",
            ),
            (
                "{.items[*]['metadata.name', 'status.capacity']}",
                r#"127.0.0.1 127.0.0.2 {"cpu":"4"} {"cpu":"8"}"#,
            ),
            (
                "{range .items[*]}[{.metadata.name}, {.status.capacity}] {end}",
                r#"[127.0.0.1, {"cpu":"4"}] [127.0.0.2, {"cpu":"8"}] "#,
            ),
            (r#"{.users[?(@.name=="e2e")].user.password}"#, "secret"),
            (r"{.items[0].metadata.labels.kubernetes\.io/hostname}", "127.0.0.1"),
            (r#"{.items[?(@.metadata.labels.kubernetes\.io/hostname=="127.0.0.1")].kind}"#, "None"),
            ("{.items[?(@..ready==true)].metadata.name}", "127.0.0.1"),
        ],
    );
    let template = r#"{.items[?(@.metadata.annotations.color=="blue")].metadata.name}"#;
    let pods = json!({"items": [{"metadata": {"name": "pod1", "annotations": {"color": "blue"}}},
        {"metadata": {"name": "pod2"}}]});
    check(&pods, Missing::Allow, &[(template, "pod1")]);
    check_errors(&pods, Missing::Error, &[(template, "annotations is not found")]);
}

#[test]
fn results_are_available_as_json() {
    let value = json!({"a": [1, {"b": "x"}]});
    let template = Template::parse("{.a[*]}").expect("a template");
    let results = template.results(&value, Missing::Error).expect("results");
    let text: String = results.iter().map(|results| json(results)).collect();
    assert_eq!(text, "[\n    1,\n    {\n        \"b\": \"x\"\n    }\n]\n");
}

#[test]
fn simple_paths_name_their_fields() {
    let fields = |text: &str| {
        Template::parse(text)
            .expect(text)
            .fields()
            .map(|fields| fields.iter().map(|f| (*f).to_owned()).collect())
    };
    assert_eq!(fields("{.spec.a\\.b}"), Some(vec!["spec".to_owned(), "a.b".to_owned()]));
    assert_eq!(fields("{.spec[0]}"), None::<Vec<String>>);
    assert_eq!(fields("{.a}{.b}"), None::<Vec<String>>);
}

#[test]
fn multiplying_templates_are_limited() {
    let mut value = json!({"x": 1});
    for _ in 0..60 {
        value = json!({"a": value, "b": [1, 2, 3]});
    }
    let hostile = format!("{{{}}}", "...*".repeat(12));
    assert_eq!(run(&hostile, &value, Missing::Allow), Err("too many results".to_owned()));
    let deep = "{range .a}".repeat(1000);
    assert_eq!(run(&deep, &value, Missing::Allow), Err("ranges are nested too deeply".to_owned()));
    let nested = format!("{{{}{}}}", "[?(@".repeat(200), ")]".repeat(200));
    assert!(run(&nested, &value, Missing::Allow).is_err());
}
