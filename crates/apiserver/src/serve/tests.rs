//! Tests of the serving layer.
