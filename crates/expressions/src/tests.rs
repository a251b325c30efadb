//! End-to-end tests of expressions.

use crate::{
    Check, Composition, Decision, Decisions, Environment, Fault, Inputs, Program, Type, Value,
    authorizer_type, composed_type,
};
use serde_json::{Value as Json, json};

fn environment() -> Environment {
    let user = Type::object("kubernetes.UserInfo", [("username", Type::String)]);
    let request =
        Type::object("kubernetes.AdmissionRequest", [("operation", Type::String), ("userInfo", user)]);
    Environment::new([("object", Type::Dyn), ("request", request), ("authorizer", authorizer_type())])
}

fn evaluate(text: &str, object: &Json) -> Result<Json, String> {
    let program = environment().compile(text).map_err(|error| error.to_string())?;
    let request = json!({"operation": "CREATE", "userInfo": {"username": "alice"}});
    let variables = [Value::from(object), Value::from(&request), Check::authorizer()];
    let inputs = Inputs { variables: &variables, ..Inputs::default() };
    let (outcome, _) = program.evaluate(&inputs);
    outcome.map_err(|fault| fault.to_string())?.to_json()
}

#[test]
fn language_expressions_evaluate() {
    let object = json!({
        "metadata": {"name": "web", "labels": {"a": "1", "b": "2"}},
        "spec": {"replicas": 3, "ratio": 2.5, "ports": [80, 443], "empty": [], "nothing": null},
    });
    for (text, want) in [
        ("1 + 2 * 3 - 4 / 2 % 3", json!(5)),
        ("-7 / 2", json!(-3)),
        ("2u + 3u", json!(5)),
        ("'a' + 'b' + \"c\"", json!("abc")),
        ("[1, 2] + [3]", json!([1, 2, 3])),
        ("object.spec.replicas > 2 && object.spec.ratio < 3", json!(true)),
        ("object.spec.replicas == 3.0", json!(true)),
        ("1 in [1, 2] && !('c' in object.metadata.labels)", json!(true)),
        ("has(object.spec.missing) ? 'yes' : 'no'", json!("no")),
        ("has(object.spec.nothing)", json!(true)),
        ("object.spec.nothing == null", json!(true)),
        ("object.metadata.labels.all(k, k.size() == 1)", json!(true)),
        ("object.spec.ports.exists(p, p > 100)", json!(true)),
        ("object.spec.ports.exists_one(p, p > 100)", json!(true)),
        ("object.spec.ports.map(p, p + 1)", json!([81, 444])),
        ("object.spec.ports.map(p, p > 100, p + 1)", json!([444])),
        ("object.spec.ports.filter(p, p < 100)", json!([80])),
        ("object.spec.ports[1]", json!(443)),
        ("object.metadata.labels['a']", json!("1")),
        ("object.metadata.?labels.?c.orValue('none')", json!("none")),
        ("object.metadata.?labels['a'].orValue('x')", json!("1")),
        ("object.?spec.?nowhere.?deeper.hasValue()", json!(false)),
        ("object.spec.ports[?5].or(optional.of(1)).value()", json!(1)),
        ("[?object.?missing, ?object.spec.ports[?0]]", json!([80])),
        ("{'a': 1, ?'b': object.?missing}", json!({"a": 1})),
        ("object.metadata.?name.optMap(n, n + '!').orValue('')", json!("web!")),
        ("object.?missing.optFlatMap(m, m.?x).hasValue()", json!(false)),
        ("object.spec.ports.exists(p, p / 0 == 1 || p == 443)", json!(true)),
        ("(1 / 0 == 1) || true", json!(true)),
        ("type(1) == int && type('') == string && type([]) == list", json!(true)),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v * 10)", json!({"a": 10, "b": 20})),
        ("{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v)", json!({"b": 2})),
        ("['x', 'y'].transformList(i, v, string(i) + v)", json!(["0x", "1y"])),
        ("{'a': 'x'}.transformMapEntry(k, v, {v: k})", json!({"x": "a"})),
        ("object.metadata.labels.all(k, v, k != v)", json!(true)),
        ("object.metadata.labels.exists(k, v, v == '2')", json!(true)),
        ("object.metadata.labels.existsOne(k, v, v == '2')", json!(true)),
    ] {
        assert_eq!(evaluate(text, &object), Ok(want), "{text}");
    }
}

#[test]
fn library_functions_evaluate() {
    for (text, want) in [
        ("'hello'.startsWith('he') && 'hello'.contains('ell') && 'hello'.matches('^h.*o$')", json!(true)),
        ("'tacocat'.indexOf('a') + 'tacocat'.lastIndexOf('a')", json!(6)),
        ("'hello hello'.replace('he', 'we', 1)", json!("wello hello")),
        ("'a,b,c'.split(',', 2)", json!(["a", "b,c"])),
        ("'abc'.substring(1, 2) + 'x'.upperAscii() + ' y '.trim()", json!("bXy")),
        ("['a', 'b'].join('-')", json!("a-b")),
        ("'%s is %d and %.2f'.format([dyn('x'), dyn(5), dyn(2.5)])", json!("x is 5 and 2.50")),
        ("'%s'.format([[dyn('a'), dyn(1.5)]])", json!("[\"a\", 1.500000]")),
        ("strings.quote('a\"b')", json!("\"a\\\"b\"")),
        ("'abc123'.find('[0-9]+')", json!("123")),
        ("'a1b2'.findAll('[0-9]')", json!(["1", "2"])),
        ("[3, 1, 2].sort() == [1, 2, 3] && [1, 2].isSorted() && [1, 2].sum() == 3", json!(true)),
        ("['ccc', 'a', 'bb'].sortBy(s, s.size())", json!(["a", "bb", "ccc"])),
        ("[[1], [2, 3]].flatten() + [1, 1].distinct() + lists.range(2)", json!([1, 2, 3, 1, 0, 1])),
        ("[1, 2, 3].slice(1, 3).reverse()", json!([3, 2])),
        ("[4, 7].max() - [4, 7].min()", json!(3)),
        (
            "sets.contains([1, 2], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1], [1, 1])",
            json!(true),
        ),
        (
            "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('2').add(3).asInteger() == 5",
            json!(true),
        ),
        ("isQuantity('10x')", json!(false)),
        ("url('https://example.com:80/x?a=b').getHost()", json!("example.com:80")),
        ("ip('::1').isLoopback() && ip('10.0.0.1').family() == 4 && !isIP('300.1.1.1')", json!(true)),
        (
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.1.2.3/8').masked().ip() == ip('10.0.0.0')",
            json!(true),
        ),
        ("semver('1.2.3').major() == 1 && semver('v1.2', true).isLessThan(semver('1.10.0'))", json!(true)),
        ("format.dns1123Label().validate('Not_A_Label').hasValue()", json!(true)),
        ("format.named('uuid').hasValue() && !format.named('none').hasValue()", json!(true)),
        (
            "duration('90m') > duration('1h') && timestamp('2023-01-01T00:00:00Z').getFullYear() == 2023",
            json!(true),
        ),
        (
            "timestamp('2023-01-02T00:00:00Z') - timestamp('2023-01-01T00:00:00Z') == duration('24h')",
            json!(true),
        ),
        ("string(timestamp('2023-01-01T00:00:00Z') + duration('1s'))", json!("2023-01-01T00:00:01Z")),
        ("int('42') + int(3.9) + int(true ? 1u : 2u)", json!(46)),
    ] {
        assert_eq!(evaluate(text, &json!({})), Ok(want), "{text}");
    }
}

#[test]
fn type_errors_are_found_at_compilation() {
    for (text, want) in [
        (
            "nosuch.x",
            "ERROR: <input>:1:1: undeclared reference to 'nosuch' (in container '')\n | nosuch.x\n | ^",
        ),
        (
            "request.operation == 1",
            "ERROR: <input>:1:19: found no matching overload for '_==_' applied to '(string, int)'\n | request.operation == 1\n | ..................^",
        ),
        ("request.nosuch", "ERROR: <input>:1:8: undefined field 'nosuch'\n | request.nosuch\n | .......^"),
        (
            "'a'.startsWith(1)",
            "ERROR: <input>:1:15: found no matching overload for 'startsWith' applied to 'string.(int)'\n | 'a'.startsWith(1)\n | ..............^",
        ),
        ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a']\n | ....^"),
        ("1 && true", "ERROR: <input>:1:1: expected type 'bool' but found 'int'\n | 1 && true\n | ^"),
        (
            "'a'.all(x, true)",
            "ERROR: <input>:1:1: expression of type 'string' cannot be range of a comprehension (must be list, map, or dynamic)\n | 'a'.all(x, true)\n | ^",
        ),
        ("f(1)", "ERROR: <input>:1:2: undeclared reference to 'f' (in container '')\n | f(1)\n | .^"),
        ("'x'.y", "ERROR: <input>:1:4: type 'string' does not support field selection\n | 'x'.y\n | ...^"),
        (
            "'a'.matches('(')",
            "ERROR: <input>:1:13: invalid matches argument\n | 'a'.matches('(')\n | ............^",
        ),
        (
            "duration('1x') == duration('1s')",
            "ERROR: <input>:1:10: invalid duration argument\n | duration('1x') == duration('1s')\n | .........^",
        ),
        (
            "Object{}",
            "ERROR: <input>:1:7: undeclared reference to 'Object' (in container '')\n | Object{}\n | ......^",
        ),
        ("has(object)", "ERROR: <input>:1:5: invalid argument to has() macro\n | has(object)\n | ....^"),
    ] {
        assert_eq!(evaluate(text, &json!({})), Err(format!("compilation failed: {want}")), "{text}");
    }
    let patches = environment().with_patch_types();
    let wanted = crate::apply_configuration_type();
    let object = "Object{metadata: Object.metadata{labels: {'a': 'b'}}}";
    assert!(patches.compile_to(object, std::slice::from_ref(&wanted)).is_ok());
    let of =
        |text: &str, wanted: &[Type]| patches.compile_to(text, wanted).map(|_| ()).map_err(|e| e.to_string());
    assert_eq!(of("'x'", &[wanted]), Err("must evaluate to Object but got string".to_owned()));
    let list = Type::list(crate::json_patch_type());
    assert_eq!(
        of("[JSONPatch{op: 'add', path: jsonpatch.escapeKey('a/b')}]", std::slice::from_ref(&list)),
        Ok(())
    );
    assert_eq!(of("1", &[list]), Err("must evaluate to list(JSONPatch) but got int".to_owned()));
    assert_eq!(
        of("1", &[Type::String, Type::Null]),
        Err("must evaluate to one of [string null_type] but got int".to_owned())
    );
    assert!(of("JSONPatch{nosuch: 1}", &[]).is_err_and(|why| why.contains("undefined field 'nosuch'")));
}

#[test]
fn evaluation_errors_match_kubernetes() {
    let object = json!({"a": {"b": "text"}, "l": [1]});
    for (text, want) in [
        ("object.x", "no such key: x"),
        ("object.x.y.z", "no such key: x"),
        ("object.l[3]", "index out of bounds: 3"),
        ("object.a.b + 1", "no such overload"),
        ("1 / 0", "division by zero"),
        ("int('x')", "type conversion error from 'string' to 'int'"),
        (
            "quantity('x')",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("9223372036854775807 + 1", "integer overflow"),
        ("object.l.filter(x, object.nosuch)", "no such key: nosuch"),
    ] {
        assert_eq!(evaluate(text, &object), Err(want.to_owned()), "{text}");
    }
}

#[test]
fn evaluation_stops_at_cost_limit() {
    let object = json!({"l": vec![1; 1000], "s": "x".repeat(100_000)});
    for text in [
        "object.l.all(a, object.l.all(b, object.l.all(c, a + b + c >= 0)))",
        "object.l.map(a, object.l.map(b, object.s)).size() == 0",
        "lists.range(1000000000).size() == 0",
        "object.s.replace('', object.s).size() == 0",
        "object.l.all(a, !object.s.matches('(x+x+)+y'))",
    ] {
        let outcome = evaluate(text, &object);
        assert_eq!(outcome, Err("operation cancelled: actual cost limit exceeded".to_owned()), "{text}");
    }
    let wrong = format!("[{}]", vec!["nosuch"; 10_000].join(","));
    assert!(evaluate(&wrong, &object).is_err_and(|why| why.ends_with("9900 more errors were truncated")));
    let deep = format!("object{}", ".a".repeat(5000));
    assert!(evaluate(&deep, &object).is_err_and(|why| why.contains("nested too deeply")));
    let many = format!("true{}", " && true".repeat(2000));
    assert_eq!(evaluate(&many, &object), Ok(json!(true)));
    let mut nested = json!(1);
    for _ in 0..5000 {
        nested = serde_json::Value::Array(vec![nested]);
    }
    let program = environment().compile("object == object").expect("compiles");
    let inputs = Inputs { variables: &[Value::from(&nested)], ..Inputs::default() };
    assert!(program.evaluate(&inputs).0.is_err(), "it costs too much");
    // Dropping so deep a value takes more stack than a test has.
    std::mem::forget(nested);
}

#[test]
fn pattern_compilations_beyond_limit_exceed_cost() {
    let patterns: Vec<String> = (0..1000).map(|index| format!("a{{{index}}}")).collect();
    let object = json!({"p": patterns});
    let outcome = evaluate("object.p.exists(p, 'b'.matches(p + 'c'))", &object);
    assert_eq!(outcome, Err("operation cancelled: actual cost limit exceeded".to_owned()));
    assert_eq!(evaluate("object.p.all(p, !'b'.matches('c' + 'd'))", &object), Ok(json!(true)), "one pattern");
}

#[test]
fn evaluation_with_a_lower_limit_ends_with_its_cost() {
    let object = json!({"l": vec![1; 1000]});
    let environment = environment();
    let variables = [Value::from(&object)];
    let run = |text: &str, limit: u64| {
        let program = environment.compile(text).expect("compiles");
        program.evaluate(&Inputs { variables: &variables, limit, ..Inputs::default() }).0
    };
    // The right operand alone decides, but the left one exceeded the cost limit.
    let text = "object.l.all(a, a == 1) || true";
    assert!(matches!(run(text, 100), Err(Fault::Cost)));
    assert_eq!(run(text, 1_000_000).expect("a value").as_bool(), Some(true));
    assert_eq!(run("1 == 1", 100).expect("a value").as_bool(), Some(true));
}

#[test]
fn composed_variables_are_evaluated_once() {
    let mut environment = environment().with_composed("variables");
    let mut programs: Vec<(String, Result<Program, String>)> = Vec::new();
    for (name, text) in
        [("a", "object.n + 1"), ("b", "variables.a * 2"), ("bad", "object.nosuch"), ("t", "'text'")]
    {
        let program = environment.compile(text).map_err(|error| error.to_string());
        let of = program.as_ref().map_or(Type::Dyn, |program| composed_type(program.result_type()));
        environment.compose(name, of);
        programs.push((name.to_owned(), program));
    }
    let object = json!({"n": 1});
    let variables = [Value::from(&object)];
    let composition = Composition::new(&programs);
    let inputs = Inputs { variables: &variables, composed: Some(&composition), ..Inputs::default() };
    let run = |text: &str| {
        let program = environment.compile(text).map_err(|error| error.to_string())?;
        program.evaluate(&inputs).0.map_err(|fault| fault.to_string())?.to_json()
    };
    assert_eq!(run("variables.a + variables.b"), Ok(json!(6)));
    let first = composition.take_cost();
    assert!(first > 0);
    assert_eq!(run("variables.b"), Ok(json!(4)));
    assert_eq!(composition.take_cost(), 0);
    assert_eq!(
        run("variables.bad"),
        Err("composited variable \"bad\" fails to evaluate: no such key: nosuch".to_owned())
    );
    assert_eq!(run("variables.bad == 1 || true"), Ok(json!(true)));
    assert_eq!(run("has(variables.a)"), Ok(json!(true)));
    assert!(run("variables.nosuch").is_err_and(|why| why.contains("undefined field 'nosuch'")));
    assert!(run("variables.t + 1").is_err_and(|why| why.contains("applied to '(string, int)'")));
}

#[test]
fn authorizer_checks_are_reported_and_resolved() {
    let text = "authorizer.group('').resource('secrets').namespace('x').check('get').allowed()";
    let program = environment().compile(text).expect("compiles");
    let variables = [Value::Null, Value::Null, Check::authorizer()];
    let mut answers = Decisions::default();
    let inputs = Inputs { variables: &variables, answers: Some(&answers), ..Inputs::default() };
    let Err(Fault::NeedsDecision(check)) = program.evaluate(&inputs).0 else {
        panic!("no authorizer check is reported");
    };
    assert_eq!(check.verb, "get");
    answers.add((*check).clone(), Decision { allowed: true, reason: String::new(), error: None });
    let inputs = Inputs { variables: &variables, answers: Some(&answers), ..Inputs::default() };
    let (outcome, cost) = program.evaluate(&inputs);
    assert_eq!(outcome.expect("answered").as_bool(), Some(true));
    assert!(cost > 350_000);
    let three = format!("{text} && {text} && {text}");
    let program = environment().compile(&three).expect("compiles");
    assert!(matches!(program.evaluate(&inputs).0, Err(Fault::Cost)));
}
