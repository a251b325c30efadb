//! Server-side apply: field sets, structured merge, managers.
