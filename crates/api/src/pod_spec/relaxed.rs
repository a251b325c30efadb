//! Rules that are relaxed on update because the stored object violates them.

use super::options::Options;
use super::{affinity, annotations, paths, resources, sysctls};
use crate::validation::label_selector::has_invalid_label_value;
use crate::value::Fields;
use machinery::field::{ErrorList, Path};
use machinery::{Value, names};

/// Runs `check` with the rules for new objects and, on errors, again with the relaxations for `old`, the spec and
/// annotations of the stored object.
pub fn with_old(
    is_pod: bool,
    old: Option<(&Value, &Value)>,
    errors: &mut ErrorList,
    check: impl Fn(&Options, &mut ErrorList),
) {
    let before = errors.len();
    let strict = Options { is_pod, ..Options::default() };
    check(&strict, errors);
    let Some((spec, annotations)) = old.filter(|_| errors.len() > before) else { return };
    let relaxed = relaxed(is_pod, spec, annotations);
    errors.truncate(before);
    check(&relaxed, errors);
}

fn relaxed(is_pod: bool, spec: &Value, old_annotations: &Value) -> Options {
    Options {
        is_pod,
        invalid_deletion_cost: is_pod && !annotations::has_valid_deletion_cost(old_annotations),
        invalid_selector_values: has_bad_affinity_selector(spec),
        invalid_required_node_affinity_values: has_bad_required_node_affinity(spec),
        invalid_spread_selectors: spec.items("topologySpreadConstraints").iter().any(|constraint| {
            let selector = constraint.field("labelSelector");
            !names::validate_label_selector(selector, false, &Path::ROOT).is_empty()
        }),
        older_match_label_keys: spec.items("topologySpreadConstraints").iter().any(|constraint| {
            let mut errors = Vec::new();
            affinity::validate_match_label_keys(constraint, &Path::ROOT, &mut errors);
            !errors.is_empty()
        }),
        indivisible_huge_pages: has_indivisible_huge_pages(spec),
        non_local_token_path: has_non_local_token_path(spec),
        host_sysctls: spec
            .field("securityContext")
            .items("sysctls")
            .iter()
            .any(|sysctl| sysctls::host_namespace_problem(spec, sysctl.text("name")).is_some()),
        user_namespace_devices: spec.opt_flag("hostUsers") == Some(false)
            && super::container_lists(spec)
                .any(|(_, list)| list.iter().any(|c| !c.items("volumeDevices").is_empty())),
        comparing_tolerations: spec
            .items("tolerations")
            .iter()
            .any(|toleration| matches!(toleration.text("operator"), "Lt" | "Gt")),
        any_selinux_change_policy: spec.field("securityContext").has("seLinuxChangePolicy"),
        restart_container_on_init: spec.items("initContainers").iter().any(|container| {
            !super::is_sidecar(container)
                && container
                    .items("resizePolicy")
                    .iter()
                    .any(|policy| policy.text("restartPolicy") == "RestartContainer")
        }),
    }
}

fn has_bad_affinity_selector(spec: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|name| {
        let pods = spec.field("affinity").field(name);
        let required = pods.items("requiredDuringSchedulingIgnoredDuringExecution").iter();
        let preferred = pods.items("preferredDuringSchedulingIgnoredDuringExecution").iter();
        required.chain(preferred.map(|term| term.field("podAffinityTerm"))).any(|term| {
            has_invalid_label_value(term.field("labelSelector"))
                || has_invalid_label_value(term.field("namespaceSelector"))
        })
    })
}

fn has_bad_required_node_affinity(spec: &Value) -> bool {
    let required = spec.at("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution");
    required.items("nodeSelectorTerms").iter().any(|term| {
        let mut errors = Vec::new();
        affinity::validate_node_selector_term(term, false, &Path::ROOT, &mut errors);
        !errors.is_empty()
    })
}

fn has_indivisible_huge_pages(spec: &Value) -> bool {
    super::container_lists(spec).any(|(_, list)| {
        list.iter().any(|container| {
            ["limits", "requests"].iter().any(|amounts| {
                let amounts = container.field("resources").entries(amounts);
                amounts.into_iter().flatten().any(|(name, value)| {
                    resources::is_huge_page(name)
                        && !resources::is_divisible(name, resources::quantity(value))
                })
            })
        })
    })
}

fn has_non_local_token_path(spec: &Value) -> bool {
    spec.items("volumes").iter().any(|volume| {
        volume.field("projected").items("sources").iter().any(|source| {
            let token = source.field("serviceAccountToken");
            let mut errors = Vec::new();
            paths::local_non_reserved(token.text("path"), &Path::ROOT, &mut errors);
            !token.is_null() && !errors.is_empty()
        })
    })
}
