//! PodTemplate.

use crate::pod_spec::defaults;
use crate::value::Fields;
use crate::{Kind, Scope, workload};
use machinery::Value;
use machinery::field::{ErrorList, Path};

pub static KIND: Kind = Kind {
    default,
    prepare_create: |template| workload::drop_disabled_template_fields(template, &Value::Null, "template"),
    prepare_update: |new, old| workload::drop_disabled_template_fields(new, old, "template"),
    validate: |template| validate(template, None),
    validate_update: |new, old| validate(new, Some(old.field("template"))),
    warnings: |new, old| workload::template_warnings(new, old, "template", false),
    counts_generation: true,
    table: &crate::tables::workloads::POD_TEMPLATE,
    returns_deleted: true,
    ..Kind::new("", "v1", "PodTemplate", "podtemplates", Scope::Namespaced)
};

fn default(template: &mut Value) {
    defaults::default_template(template.child_mut("template"));
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = Vec::new();
    let path = Path::new("template");
    workload::template::validate_pod_template(object.field("template"), old, &path, &mut errors);
    errors
}
