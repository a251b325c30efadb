//! What every control loop stands on: informers, queues, the harness, events, leader election.
