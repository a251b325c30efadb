//! Label selectors: `env in (a,b),tier!=1,!old`.

mod parser;

use super::ParseError;
use crate::field::{FieldError, Path};
use crate::names::{label_value, qualified_name};
use parser::Parser;
use serde_json::{Map, Value};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted, each once.
    pub values: Vec<String>,
}

/// A conjunction of requirements. `Nothing` matches no object at all (a null selector).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelSelector {
    All(Vec<Requirement>),
    Nothing,
}

/// Source of labels.
pub trait Labels {
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

impl<L: Labels + ?Sized> Labels for Option<&L> {
    fn label(&self, key: &str) -> Option<&str> {
        self.and_then(|l| l.label(key))
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Labels for [(K, V)] {
    fn label(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| k.as_ref() == key).map(|(_, v)| v.as_ref())
    }
}

/// Limit of a requirement's values in an error.
const MAX_ERRORS: usize = 100;

impl LabelSelector {
    /// Parses a selector from a query.
    ///
    /// ```
    /// use machinery::selector::LabelSelector;
    ///
    /// let selector = LabelSelector::parse("app=web,tier in (front, back),!legacy")?;
    /// assert!(selector.matches(&[("app", "web"), ("tier", "back")][..]));
    /// assert!(!selector.matches(&[("app", "web")][..]));
    /// # Ok::<(), machinery::selector::ParseError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut requirements = Parser::new(text).parse()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self::All(requirements))
    }

    /// The selector of a `LabelSelector` object; none (or null) selects nothing, an empty one everything.
    pub fn from_object(selector: Option<&Value>) -> Result<Self, ParseError> {
        let Some(selector) = selector.filter(|s| !s.is_null()) else {
            return Ok(Self::Nothing);
        };
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let values = vec![value.as_str().unwrap_or("").to_owned()];
            requirements.push(Requirement::new(key.clone(), Operator::Equals, values)?);
        }
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.into_iter().flatten() {
            let text = |field| expression.get(field).and_then(Value::as_str).unwrap_or("");
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(ParseError(format!("{other:?} is not a valid label selector operator")));
                }
            };
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(Requirement::new(text("key").to_owned(), operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self::All(requirements))
    }

    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        match self {
            Self::All(requirements) => requirements.iter().all(|r| r.matches(labels)),
            Self::Nothing => false,
        }
    }

    /// Matches every object.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    pub fn requirements(&self) -> &[Requirement] {
        match self {
            Self::All(requirements) => requirements,
            Self::Nothing => &[],
        }
    }
}

impl fmt::Display for LabelSelector {
    /// The canonical form: sorted by key, values sorted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements().iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl Requirement {
    /// Key and value of a requirement that only one value satisfies.
    pub fn only_value(&self) -> Option<(&str, &str)> {
        match (self.operator, self.values.as_slice()) {
            (Operator::In | Operator::Equals | Operator::DoubleEquals, [value]) => Some((&self.key, value)),
            _ => None,
        }
    }

    /// Checks key and values as Kubernetes does, with its messages.
    pub fn new(key: String, operator: Operator, mut values: Vec<String>) -> Result<Self, ParseError> {
        values.sort_unstable();
        values.dedup();
        let mut errors = Vec::new();
        let problems = qualified_name(&key);
        if !problems.is_empty() {
            errors.push(FieldError::invalid_str(&Path::new("key"), &key, problems.join("; ")));
        }
        let path = Path::new("values");
        let shown = || Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => errors.push(FieldError::invalid(
                &path,
                &shown(),
                "for 'in', 'notin' operators, values set can't be empty",
            )),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => errors
                .push(FieldError::invalid(
                    &path,
                    &shown(),
                    "exact-match compatibility requires one single value",
                )),
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.push(FieldError::invalid(
                    &path,
                    &shown(),
                    "values set must be empty for exists and does not exist",
                ))
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    let detail = "for 'Gt', 'Lt' operators, exactly one value is required";
                    errors.push(FieldError::invalid(&path, &shown(), detail));
                }
                let wrong = values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err());
                for (i, value) in wrong.take(MAX_ERRORS) {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid_str(&path.index(i), value, detail));
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            if errors.len() >= MAX_ERRORS {
                break;
            }
            let problems = label_value(value);
            if !problems.is_empty() {
                let path = path.index(i);
                errors.push(FieldError::invalid_str(&path.key(&key), value, problems.join("; ")));
            }
        }
        match errors.as_slice() {
            [] => Ok(Self { key, operator, values }),
            [one] => Err(ParseError(one.to_string())),
            many => {
                let texts: Vec<String> = many.iter().map(ToString::to_string).collect();
                Err(ParseError(format!("[{}]", texts.join(", "))))
            }
        }
    }

    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        let found = labels.label(&self.key);
        // Values are sorted.
        let listed = |value: &str| self.values.binary_search_by(|v| v.as_str().cmp(value)).is_ok();
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => found.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !found.is_some_and(listed),
            Operator::Exists => found.is_some(),
            Operator::DoesNotExist => found.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let found: Option<i64> = found.and_then(|v| v.parse().ok());
                let bound: Option<i64> = self.values.first().and_then(|v| v.parse().ok());
                match (found, bound) {
                    (Some(found), Some(bound)) if self.operator == Operator::GreaterThan => found > bound,
                    (Some(found), Some(bound)) => found < bound,
                    _ => false,
                }
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn parses_to_canonical_form() {
        let table = [
            ("", ""),
            (" env = prod ", "env=prod"),
            ("z,a", "a,z"),
            ("!b,a==1", "a==1,!b"),
            ("a in (y, x,x)", "a in (x,y)"),
            ("a notin ()", "a notin ()"),
            ("a in (,)", "a in ()"),
            ("a in (b,)", "a in (,b)"),
            ("a=", "a="),
            ("a!=b,c>1,d<2", "a!=b,c>1,d<2"),
            ("in in (in)", "in in (in)"),
            ("example.com/a", "example.com/a"),
        ];
        for (text, want) in table {
            assert_eq!(LabelSelector::parse(text).unwrap().to_string(), want, "{text}");
        }
    }

    #[test]
    fn error_texts_match_kubernetes() {
        let table = [
            ("tier>=1", "unable to parse requirement: found '=', expected: identifier"),
            (
                "tier>abc",
                "unable to parse requirement: values[0]: Invalid value: \"abc\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("env in prod", "unable to parse requirement: found 'prod' expected: '('"),
            ("env=prod=x", "found '=', expected: ',' or 'end of string'"),
            ("in (a)", "unable to parse requirement: found '(', expected: in, notin, =, ==, !=, gt, lt"),
            ("=prod", "found '=', expected: !, identifier, or 'end of string'"),
            ("env,", "found '', expected: identifier after ','"),
            ("(env)", "found '(', expected: !, identifier, or 'end of string'"),
            ("env in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("env notin", "unable to parse requirement: found '' expected: '('"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ];
        for (text, want) in table {
            assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), want, "{text}");
        }
        let bad_value = LabelSelector::parse("a=b@").unwrap_err().to_string();
        assert!(
            bad_value.starts_with(
                "unable to parse requirement: values[0][a]: Invalid value: \"b@\": a valid label must be"
            ),
            "{bad_value}"
        );
        let bad_key = LabelSelector::parse("a@").unwrap_err().to_string();
        assert!(
            bad_key.starts_with(
                "unable to parse requirement: <nil>: Invalid value: \"a@\": name part must consist"
            ),
            "{bad_key}"
        );
    }

    #[test]
    fn requirements_match_labels() {
        let labels = json!({"env": "prod", "tier": "2"});
        let labels = labels.as_object().unwrap();
        let pairs = [("env", "prod"), ("tier", "2")];
        for (text, want) in [
            ("", true),
            ("env", true),
            ("!env", false),
            ("env in (dev,prod)", true),
            ("env notin (prod)", false),
            ("other notin (prod)", true),
            ("env!=prod", false),
            ("other!=x", true),
            ("tier>1", true),
            ("tier<2", false),
            ("env>1", false),
            ("env=prod,tier=2", true),
            ("env=prod,tier=3", false),
        ] {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches(labels), want, "{text}");
            assert_eq!(selector.matches(&pairs[..]), want, "{text}");
        }
        assert!(!LabelSelector::Nothing.matches(labels));
        assert!(!LabelSelector::from_object(None).unwrap().matches(labels));
        assert!(LabelSelector::from_object(Some(&json!({}))).unwrap().matches(labels));
    }

    #[test]
    fn selectors_match_vectors() {
        for vector in vectors::selectors() {
            let labels: Vec<(&str, &str)> =
                vector.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let selector = LabelSelector::from_object(Some(&vector.selector));
            let matches = selector.is_ok_and(|selector| selector.matches(&labels[..]));
            assert_eq!(matches, vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn label_selector_objects_are_converted() {
        let object = json!({"matchLabels": {"b": "1"}, "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"}]});
        assert_eq!(LabelSelector::from_object(Some(&object)).unwrap().to_string(), "a in (x,y),b=1,!c");
        let object = json!({"matchExpressions": [{"key": "a", "operator": "Like"}]});
        assert_eq!(
            LabelSelector::from_object(Some(&object)).unwrap_err().to_string(),
            "\"Like\" is not a valid label selector operator"
        );
    }

    proptest! {
        #[test]
        fn label_selector_parse_of_any_text_never_panics(text in "\\PC{0,40}") {
            let _ = LabelSelector::parse(&text);
        }

        #[test]
        fn canonical_form_is_stable(text in "[ab!=<>(), in]{0,20}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                let again = LabelSelector::parse(&selector.to_string());
                prop_assert_eq!(again, Ok(selector));
            }
        }
    }
}
