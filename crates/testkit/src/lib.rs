//! Harnesses shared by tests: a server on a free port, its client, waits that report what they saw.
