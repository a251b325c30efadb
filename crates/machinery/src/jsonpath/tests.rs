//! The dialect of client-go.
