//! Labels and label selectors in a form optimized for comparison.

use std::collections::BTreeMap;

use objects::meta::v1::LabelSelector;

/// Labels sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    #[must_use]
    pub fn of(labels: Option<&BTreeMap<String, String>>) -> Self {
        let pairs = labels.into_iter().flatten();
        Self(pairs.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect())
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        if self.0.len() <= 8 {
            return self.0.iter().find(|(own, _)| &**own == key).map(|(_, value)| &**value);
        }
        let at = self.0.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Labels {
    fn from(pairs: [(&str, &str); N]) -> Self {
        let sorted: BTreeMap<_, _> = pairs.into_iter().collect();
        Self(sorted.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl Operator {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => return None,
        })
    }
}

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    pub key: Box<str>,
    pub operator: Operator,
    pub values: Box<[Box<str>]>,
}

impl Requirement {
    #[must_use]
    pub fn equals(key: &str, value: &str) -> Self {
        Self { key: key.into(), operator: Operator::In, values: Box::new([value.into()]) }
    }

    /// Converts a requirement of the API; `None` if its operator is unknown or its values do not fit the operator.
    #[must_use]
    pub fn of(key: &str, operator: &str, values: Option<&Vec<String>>) -> Option<Self> {
        let mut values: Vec<Box<str>> =
            values.into_iter().flatten().map(|value| value.as_str().into()).collect();
        values.sort_unstable();
        let operator = Operator::parse(operator)?;
        let valid = match operator {
            Operator::In | Operator::NotIn => !values.is_empty(),
            Operator::Exists | Operator::DoesNotExist => values.is_empty(),
            Operator::Gt | Operator::Lt => matches!(&*values, [bound] if bound.parse::<i64>().is_ok()),
        };
        valid.then(|| Self { key: key.into(), operator, values: values.into() })
    }

    #[must_use]
    pub fn matches_value(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|own| &**own == value);
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt | Operator::Lt => {
                let [limit] = &*self.values else { return false };
                let (Some(Ok(value)), Ok(limit)) = (value.map(str::parse::<i64>), limit.parse::<i64>())
                else {
                    return false;
                };
                if self.operator == Operator::Gt { value > limit } else { value < limit }
            }
        }
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_value(labels.get(&self.key))
    }
}

/// A label selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// A missing or invalid selector.
    Nothing,
    /// All of these; an empty list matches everything.
    All(Box<[Requirement]>),
}

impl Selector {
    /// `None` matches nothing, an empty selector everything.
    #[must_use]
    pub fn of(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else { return Self::Nothing };
        let equal = selector.match_labels.iter().flatten();
        let mut requirements: Vec<_> = equal.map(|(key, value)| Requirement::equals(key, value)).collect();
        for expression in selector.match_expressions.iter().flatten() {
            match Requirement::of(&expression.key, &expression.operator, expression.values.as_ref()) {
                // Only labels of nodes are compared as numbers.
                Some(Requirement { operator: Operator::Gt | Operator::Lt, .. }) | None => {
                    return Self::Nothing;
                }
                Some(requirement) => requirements.push(requirement),
            }
        }
        Self::new(requirements)
    }

    /// Sorts requirements, whose order is irrelevant: equal selectors compare equal.
    #[must_use]
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_unstable();
        requirements.dedup();
        Self::All(requirements.into())
    }

    /// The selector with these labels required too.
    #[must_use]
    pub fn and(self, more: impl IntoIterator<Item = Requirement>) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::All(own) => Self::new(own.into_iter().chain(more).collect()),
        }
    }

    /// True if it has no requirement, and so matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(requirements) => requirements.iter().all(|requirement| requirement.matches(labels)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_vectors() {
        for vector in vectors::selectors() {
            let parsed: Option<LabelSelector> = serde_json::from_value(vector.selector).unwrap();
            let labels = Labels::of(Some(&vector.labels));
            assert_eq!(Selector::of(parsed.as_ref()).matches(&labels), vector.matches, "{}", vector.name);
        }
    }

    #[test]
    fn numeric_operators_reject_non_numbers() {
        let labels = Labels::from([("size", "7"), ("name", "x")]);
        for (key, operator, value, expected) in [
            ("size", "Gt", "6", true),
            ("size", "Gt", "7", false),
            ("size", "Lt", "8", true),
            ("name", "Lt", "8", false),
            ("none", "Gt", "0", false),
        ] {
            let requirement = Requirement::of(key, operator, Some(&vec![value.to_owned()])).unwrap();
            assert_eq!(requirement.matches(&labels), expected, "{key} {operator} {value}");
        }
    }

    #[test]
    fn selectors_in_different_order_are_equal() {
        let one = Selector::new(vec![Requirement::equals("a", "1"), Requirement::equals("b", "2")]);
        let other = Selector::new(vec![Requirement::equals("b", "2"), Requirement::equals("a", "1")]);
        assert_eq!(one, other);
    }
}
