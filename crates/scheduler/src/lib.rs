//! Gives pods a node: queue, cache, plugins, preemption, profiles, extenders.
