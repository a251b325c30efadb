//! Text formats with their own grammar.

use super::{outcome, steps};
use crate::engine::Target;
use expressions::admission::{self, Options};
use expressions::{Check, Environment, Inputs, Value};
use machinery::codec::time;
use machinery::names;
use machinery::quantity::Quantity;
use machinery::selector::{FieldSelector, LabelSelector};
use std::sync::LazyLock;

/// The input as text.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

pub static LABEL_SELECTOR: Target = Target {
    name: "label-selector",
    corpus: &[b"a=b,c!=d", b"x in (a,b),y notin (c), !z, e", b"n>5,m<7,example.com/k==v"],
    dictionary: &[b" in (", b" notin (", b")", b"!=", b"==", b"!", b",", b"example.com/", b">", b"in"],
    run: |input| {
        let Some(text) = text(input) else { return 0 };
        let read = LabelSelector::parse(text);
        if let Ok(selector) = &read {
            let shown = selector.to_string();
            let again = LabelSelector::parse(&shown).expect("what was written is read again");
            assert_eq!(again.to_string(), shown);
            let _ = selector.matches(&[("a", "b"), ("n", "6")][..]);
        }
        outcome(&read, read.as_ref().map_or(0, |selector| steps(selector.requirements().len())))
    },
    floor: 1 << 20,
    factor: 400,
};

pub static FIELD_SELECTOR: Target = Target {
    name: "field-selector",
    corpus: &[b"metadata.name=a,status.phase!=Running", b"a==b\\,c"],
    dictionary: &[b"\\,", b"\\=", b"\\\\", b"!=", b"==", b",", b"metadata.name"],
    run: |input| {
        let Some(text) = text(input) else { return 0 };
        let read = FieldSelector::parse(text);
        if let Ok(selector) = &read {
            let again = FieldSelector::parse(&selector.to_string()).expect("what was written is read again");
            // Terms are sorted by their text, in which `==` may replace `=`.
            let sorted = |selector: &FieldSelector| {
                let mut terms: Vec<_> =
                    selector.terms.iter().map(|t| (t.field.clone(), t.value.clone())).collect();
                terms.sort();
                terms
            };
            assert_eq!(sorted(&again), sorted(selector));
            let _ = selector.matches(|_| Some("a"));
        }
        outcome(&read, read.as_ref().map_or(0, |selector| steps(selector.terms.len())))
    },
    floor: 1 << 20,
    factor: 200,
};

pub static QUANTITY: Target = Target {
    name: "quantity",
    corpus: &[b"1", b"1.5Gi", b"-250m", b"1e3", b"0.000000001", b"12E"],
    dictionary: &[b"Ki", b"Ei", b"n", b"u", b"m", b"k", b"E", b"e", b"e-", b".", b"-", b"+", b"000000000"],
    run: |input| {
        let Some(text) = text(input).map(str::trim) else { return 0 };
        let read = Quantity::parse(text);
        if let Ok(quantity) = &read {
            let canonical =
                machinery::quantity::canonical(text).expect("it has a canonical form").into_owned();
            let again = machinery::quantity::canonical(&canonical).expect("which is a quantity").into_owned();
            // Exponents saturate at one billion, also in the canonical form.
            let exponent = text.rsplit(['e', 'E']).next().map_or(0, str::len);
            assert!(again == canonical || exponent > 8, "{text}: {canonical}, {again}");
            let _ = (quantity.value(), quantity.milli_value(), quantity.as_f64(), quantity.sign());
        }
        outcome(&read, text.len())
    },
    floor: 1 << 20,
    factor: 100,
};

pub static TIME: Target = Target {
    name: "time",
    corpus: &[b"2026-01-01T00:00:00Z", b"2026-02-28T23:59:60.123456+01:30", b"1h2m3.5s", b"-9223372036s"],
    dictionary: &[b"T", b"Z", b"+00:00", b"h", b"ms", b"ns", b"us", b".", b"-"],
    run: |input| {
        let Some(text) = text(input) else { return 0 };
        for micros in [false, true] {
            if let Ok(instant) = time::parse(text, micros) {
                let _ = time::format(instant, micros);
            }
        }
        let duration = time::parse_duration(text);
        if let Ok(nanos) = duration {
            assert_eq!(time::parse_duration(&time::format_duration(nanos)), Ok(nanos), "{text}");
        }
        outcome(&duration, text.len())
    },
    floor: 1 << 20,
    factor: 100,
};

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| {
    let options =
        Options { has_params: true, has_authorizer: true, has_patch_types: true, has_composed: false };
    admission::environment(options)
});

pub static EXPRESSION: Target = Target {
    name: "expression",
    corpus: &[
        b"object.spec.replicas <= 5 && has(object.metadata.labels)",
        b"object.items.all(x, x.matches('^a+$')) ? [1, 2].map(y, y * 2) : []",
        b"cel.bind(v, 'a' + 'b', v.upperAscii()) == 'AB'",
        b"quantity('1Gi').isGreaterThan(quantity('1M')) || url('https://a/b').getHost() == 'a'",
        b"JSONPatch{op: 'add', path: '/a', value: {'k': 1u}}",
        b"ip('::1').family() == 6 && cidr('10.0.0.0/8').containsIP('10.0.0.1')",
        b"optional.of(1).orValue(2) == {'a': 1}[?'a'].orValue(0)",
    ],
    dictionary: &[
        b".all(x, ",
        b".map(x, ",
        b".filter(x, ",
        b"object",
        b"oldObject",
        b"has(",
        b"matches('",
        b".format([",
        b"'%s'",
        b"lists.range(",
        b"[",
        b"]",
        b"{",
        b"}",
        b"? ",
        b": ",
        b"&& ",
        b"|| ",
        b"!",
        b"-",
        b"1u",
        b"b'\\xff'",
        b"dyn(",
        b"type(",
        b"duration('1h')",
        b"timestamp('2026-01-01T00:00:00Z')",
        b"semver('1.2.3')",
        b".split(',')",
        b".replace('a','b')",
        b".sum()",
        b"authorizer",
    ],
    run: |input| {
        let Some(text) = text(input) else { return 0 };
        // Longer texts are compiled on a separate thread, whose memory is not counted here.
        let compiled = ENVIRONMENT.compile(text);
        if let Ok(program) = &compiled {
            let object = serde_json::json!({"spec": {"replicas": 3}, "metadata": {"labels": {"a": "b"}}, "items": ["a", "bb"]});
            let value = || Value::from(&object);
            let variables =
                [value(), value(), value(), value(), value(), Check::authorizer(), Check::authorizer()];
            let (evaluated, _) = program.evaluate(&Inputs { variables: &variables, ..Inputs::default() });
            return outcome(&evaluated, 1);
        }
        outcome(&compiled, 0)
    },
    floor: 256 << 20,
    factor: 4000,
};

pub static NAMES: Target = Target {
    name: "names",
    corpus: &[b"example.com/name", b"a.b-c", b"10.0.0.1", b"fe80::1", b"10.0.0.0/8"],
    dictionary: &[b"/", b".", b"-", b"_", b":", b"::", b"%25"],
    run: |input| {
        let Some(text) = text(input) else { return 0 };
        let problems = names::qualified_name(text);
        outcome(&problems.first().map_or(Ok(()), Err), 0)
    },
    floor: 1 << 20,
    factor: 200,
};
