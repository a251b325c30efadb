//! PodTemplate.

use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, workload};
use machinery::Value;

pub static KIND: Kind = Kind {
    default,
    prepare_create: |template| workload::drop_disabled_template_fields(template, &Value::Null, "template"),
    prepare_update: |new, old| workload::drop_disabled_template_fields(new, old, "template"),
    counts_generation: true,
    ..Kind::new("", "v1", "PodTemplate", "podtemplates", Scope::Namespaced)
};

fn default(template: &mut Value) {
    defaults::default_template(template.child_mut("template"));
}
