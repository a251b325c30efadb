//! The control loops, one per file.
