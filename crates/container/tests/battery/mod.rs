//! Table of the tests.

mod cdi;
mod crash;
mod escape;
mod hostile;
pub mod image;
mod isolation;
mod lifecycle;
mod network;
mod pull;
mod streams;
mod users;

use crate::Test;

/// Environment variable with the number of kills.
pub const KILLS: &str = "FERRY_KILLS";

macro_rules! table {
    ($($module:ident::$name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, Test)] = &[
            $((concat!(stringify!($module), "::", stringify!($name)), |node| Box::pin($module::$name(node)))),*
        ];
    };
}

table![
    lifecycle::container_runs_from_creation_to_removal,
    cdi::cdi_devices_are_added,
    lifecycle::exit_codes_and_reasons_are_reported,
    lifecycle::stop_signals_then_kills_after_grace,
    lifecycle::logs_are_reopened,
    lifecycle::daemon_restart_restores_containers,
    lifecycle::shared_pid_namespace_outlives_container,
    lifecycle::cancelled_start_leaves_no_process,
    lifecycle::events_are_sent_to_subscribers,
    lifecycle::shims_share_memory_and_survive_zygote,
    isolation::container_sees_only_its_own_resources,
    isolation::forbidden_operations_fail,
    isolation::mounts_have_requested_options,
    isolation::image_in_use_is_not_removed,
    isolation::users_and_capabilities_are_applied,
    isolation::privileged_container_has_host_devices,
    isolation::pods_reach_each_other,
    network::host_ports_are_forwarded,
    network::egress_is_masqueraded,
    network::bandwidth_limits_are_applied,
    network::foreign_plugins_are_run,
    network::crash_remains_are_collected,
    network::network_metrics_are_reported,
    crash::daemon_killed_repeatedly_loses_nothing,
    escape::cve_2025_31133_volume_in_proc_or_sys_is_rejected,
    escape::proc_and_sys_allowed_mounts_work,
    escape::masked_and_read_only_paths_hold,
    escape::bounding_set_has_default_capabilities,
    escape::cve_2019_5736_binary_of_shim_cannot_be_written,
    escape::cve_2024_21626_descriptors_do_not_leak,
    escape::cve_2025_52565_terminal_on_volume_is_rejected,
    hostile::hostile_layers_are_rejected,
    hostile::whiteouts_hide_only_lower_layers,
    hostile::image_links_at_mount_points_fail_the_start,
    hostile::volume_targets_are_resolved_inside_the_root,
    hostile::volume_replaced_by_link_fails_the_start,
    hostile::paths_in_pod_settings_fail_the_start,
    hostile::standard_streams_open_by_name,
    users::pod_root_is_unprivileged_on_host,
    users::root_of_host_cannot_be_mapped,
    pull::misbehaving_registries_are_handled,
    pull::pull_requires_credentials,
    pull::mirrors_and_platforms_are_selected,
    pull::equal_pulls_share_one_download,
    pull::pull_from_docker_registry_works,
    streams::exec_over_websocket_works,
    streams::exec_with_terminal_resizes,
    streams::attach_copies_streams,
    streams::attach_to_open_stdin_ends_with_client,
    streams::port_forward_over_spdy_works,
    streams::port_forward_over_channels_works,
];

/// Tests that run a second time with cgroup v2. On a machine that uses v1 its hierarchy has no controllers, so tests
/// that need one are excluded.
pub const ON_VERSION_2: &[&str] = &[
    "lifecycle::logs_are_reopened",
    "lifecycle::events_are_sent_to_subscribers",
    "lifecycle::stop_signals_then_kills_after_grace",
    "lifecycle::daemon_restart_restores_containers",
    "lifecycle::shared_pid_namespace_outlives_container",
    "isolation::forbidden_operations_fail",
    "isolation::privileged_container_has_host_devices",
];
