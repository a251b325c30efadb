//! HorizontalPodAutoscaler.

use crate::{Kind, Scope};

pub static KIND: Kind = Kind {
    ..Kind::new("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Scope::Namespaced)
};

pub static KIND_V1: Kind = Kind {
    ..Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Scope::Namespaced)
};
