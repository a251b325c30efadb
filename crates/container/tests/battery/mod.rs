//! The tests, in a table.

mod crash;
mod escape;
mod escape_table;
mod hostile;
pub mod image;
mod isolation;
mod lifecycle;
mod network;
mod pull;
mod streams;
mod users;

use crate::Test;

/// How often the daemon is killed, in the environment.
pub const KILLS: &str = "FERRY_KILLS";

macro_rules! table {
    ($($module:ident::$name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, Test)] = &[
            $((concat!(stringify!($module), "::", stringify!($name)), |node| Box::pin($module::$name(node)))),*
        ];
    };
}

table![
    lifecycle::a_container_from_beginning_to_end,
    lifecycle::exit_codes_and_reasons,
    lifecycle::stopping,
    lifecycle::logs_are_reopened,
    lifecycle::the_daemon_may_go_and_come_back,
    lifecycle::shared_pid_namespace,
    lifecycle::a_start_that_is_given_up,
    lifecycle::events,
    lifecycle::shims_are_small_and_free,
    isolation::what_a_container_sees,
    isolation::what_a_container_may_not,
    isolation::mounts,
    isolation::images_in_use,
    isolation::users_and_capabilities,
    isolation::privileged,
    isolation::pods_reach_each_other,
    network::host_ports,
    network::the_way_out,
    network::bandwidth_limits,
    network::plugins_of_others,
    network::what_a_crash_leaves,
    network::metrics,
    crash::killed_again_and_again,
    escape::cve_2025_31133_volume_in_proc_or_sys_is_refused,
    escape::proc_and_sys_allowed_mounts_work,
    escape::masked_and_read_only_paths_hold,
    escape::bounding_set_has_default_capabilities,
    escape::cve_2019_5736_binary_of_shim_cannot_be_written,
    escape::cve_2024_21626_descriptors_do_not_leak,
    escape::cve_2025_52565_terminal_on_volume_is_refused,
    hostile::layers,
    hostile::layers_hide_what_is_below_and_nothing_else,
    hostile::containers,
    hostile::streams_by_name,
    users::root_is_nobody_outside,
    pull::misbehaving_registries,
    pull::who_may_pull,
    pull::mirrors_and_platforms,
    pull::pulls_of_the_same_are_one,
    pull::from_a_real_registry,
    streams::exec_over_a_websocket,
    streams::exec_with_a_terminal,
    streams::attach_to_a_container,
    streams::attach_to_input_that_stays_open,
    streams::port_forward_over_spdy,
    streams::port_forward_over_channels,
];

/// Those that run a second time where control groups are of version 2. Its hierarchy has no controllers on a machine
/// that uses version 1, so what needs one is not among them.
pub const ON_VERSION_2: &[&str] = &[
    "lifecycle::logs_are_reopened",
    "lifecycle::events",
    "lifecycle::stopping",
    "lifecycle::the_daemon_may_go_and_come_back",
    "lifecycle::shared_pid_namespace",
    "isolation::what_a_container_may_not",
    "isolation::privileged",
];
