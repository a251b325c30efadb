//! Taints and tolerations.

use objects::core::v1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Effect {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            _ => return None,
        })
    }

    /// True if the effect rejects a pod, rather than lowering the node's score.
    #[must_use]
    pub fn forbids(self) -> bool {
        self != Self::PreferNoSchedule
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: Box<str>,
    pub value: Box<str>,
    pub effect: Effect,
}

impl Taint {
    #[must_use]
    pub fn new(key: &str, value: &str, effect: Effect) -> Self {
        Self { key: key.into(), value: value.into(), effect }
    }

    #[must_use]
    pub fn of(taint: &v1::Taint) -> Option<Self> {
        let value = taint.value.as_deref().unwrap_or_default();
        Some(Self::new(&taint.key, value, Effect::parse(&taint.effect)?))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Exists,
    /// Unknown operators tolerate nothing.
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    key: Box<str>,
    value: Box<str>,
    comparison: Comparison,
    /// `None` tolerates every effect.
    pub effect: Option<Effect>,
}

impl Toleration {
    #[must_use]
    pub fn of(toleration: &v1::Toleration) -> Self {
        let effect = toleration.effect.as_deref().filter(|effect| !effect.is_empty());
        let comparison = match toleration.operator.as_deref() {
            None | Some("" | "Equal") => Comparison::Equal,
            Some("Exists") => Comparison::Exists,
            Some(_) => Comparison::Never,
        };
        Self {
            key: toleration.key.as_deref().unwrap_or_default().into(),
            value: toleration.value.as_deref().unwrap_or_default().into(),
            comparison: if effect.is_some_and(|effect| Effect::parse(effect).is_none()) {
                Comparison::Never
            } else {
                comparison
            },
            effect: effect.and_then(Effect::parse),
        }
    }

    #[must_use]
    pub fn bears(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match self.comparison {
                Comparison::Exists => true,
                Comparison::Equal => self.value == taint.value,
                Comparison::Never => false,
            }
    }
}

#[must_use]
pub fn is_borne(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| toleration.bears(taint))
}

/// True if an untolerated taint rejects the pod.
#[must_use]
pub fn forbid(taints: &[Taint], tolerations: &[Toleration]) -> bool {
    taints.iter().any(|taint| taint.effect.forbids() && !is_borne(tolerations, taint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_match_vectors() {
        for vector in vectors::tolerations() {
            let toleration = Toleration::of(&serde_json::from_value(vector.toleration).unwrap());
            let taint = Taint::of(&serde_json::from_value(vector.taint).unwrap()).unwrap();
            assert_eq!(toleration.bears(&taint), vector.tolerated, "{}", vector.name);
        }
    }

    #[test]
    fn prefer_no_schedule_rejects_nothing() {
        assert!(!forbid(&[Taint::new("a", "", Effect::PreferNoSchedule)], &[]));
        assert!(forbid(&[Taint::new("a", "", Effect::NoExecute)], &[]));
    }
}
