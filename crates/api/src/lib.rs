//! The built-in kinds: schema, defaults, validation, update rules, table columns, field selectors.
