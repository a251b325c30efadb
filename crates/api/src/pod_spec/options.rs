//! Tolerated violations of old objects.

/// Relaxations of pod spec validation. New objects have none; every flag only allows more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The spec is a pod's own, not a template's.
    pub is_pod: bool,
    pub invalid_deletion_cost: bool,
    pub invalid_selector_values: bool,
    pub invalid_required_node_affinity_values: bool,
    pub invalid_spread_selectors: bool,
    /// The old constraints violate the rule about `matchLabelKeys`: only the older rule applies.
    pub older_match_label_keys: bool,
    pub indivisible_huge_pages: bool,
    pub non_local_token_path: bool,
    pub host_sysctls: bool,
    pub user_namespace_devices: bool,
    pub comparing_tolerations: bool,
    pub restart_container_on_init: bool,
    /// The old spec has a `seLinuxChangePolicy`; new ones may only be `Recursive`.
    pub any_selinux_change_policy: bool,
}
