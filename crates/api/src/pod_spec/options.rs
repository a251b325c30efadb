//! What old objects may keep although new ones may not have it.

/// Relaxations of pod spec validation. All off is the rule for new objects; every flag only ever allows more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The spec is a pod's own, not a template's.
    pub is_pod: bool,
    pub invalid_deletion_cost: bool,
    pub invalid_selector_values: bool,
    pub invalid_required_node_affinity_values: bool,
    pub invalid_spread_selectors: bool,
    /// The old constraints break the rule about `matchLabelKeys`: the older rule is enough.
    pub older_match_label_keys: bool,
    pub indivisible_huge_pages: bool,
    pub non_local_token_path: bool,
    pub host_sysctls: bool,
    pub user_namespace_devices: bool,
    pub comparing_tolerations: bool,
    pub restart_container_on_init: bool,
    /// The old spec has some `seLinuxChangePolicy`; new ones may only ask for `Recursive`.
    pub any_selinux_change_policy: bool,
}
