//! Atomic batches of changes.

use super::message::Writer;
use super::{Expr, TableFamily, Verdict};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;
const DESTROY_TABLE: u16 = 26;
const TABLE_USER_DATA: u16 = 6;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// Maximum size of an element message: the length of a nested attribute has 16 bits.
const MESSAGE_BYTES: usize = 30_000;

const SET_MAP: u32 = 8;
const SET_TIMEOUT: u32 = 0x10;
const SET_DYNAMIC: u32 = 0x20;
const SET_INTERVAL: u32 = 4;
const DATA_VERDICT: u32 = 0xffff_ff00;

/// Hook of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// `nat` or `filter`.
    pub kind: &'static str,
    /// 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting.
    pub number: u32,
    pub priority: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    pub name: &'a str,
    pub hook: Option<Hook>,
}

/// Data of a set's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// None: a plain set.
    Nothing,
    Verdict,
    /// Values of this length, and their display type for tools.
    Bytes {
        length: u32,
        kind: u32,
    },
}

/// A set or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    pub name: &'a str,
    pub key_length: u32,
    /// Display type of the key for tools: the types of its parts, six bits each.
    pub key_kind: u32,
    pub value: Value,
    /// Dynamic set: rules add elements, which expire; at most this many.
    pub dynamic: Option<u32>,
    /// Interval set: keys are ranges.
    pub interval: bool,
}

/// An element to add.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    Key(Vec<u8>),
    Verdict(Vec<u8>, Verdict),
    Bytes(Vec<u8>, Vec<u8>),
    /// End of a range: the first key behind it.
    IntervalEnd(Vec<u8>),
}

impl Element {
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Key(key) | Self::Verdict(key, _) | Self::Bytes(key, _) | Self::IntervalEnd(key) => key,
        }
    }

    fn write(&self, out: &mut Writer, with_value: bool) {
        out.nest(1, |out| {
            out.nest(1, |out| out.attribute(1, self.key()));
            match self {
                Self::Verdict(_, verdict) if with_value => out.nest(2, |out| verdict.write(out)),
                Self::Bytes(_, value) if with_value => out.nest(2, |out| out.attribute(1, value)),
                Self::IntervalEnd(_) => out.number(3, 1),
                _ => {}
            }
        });
    }
}

/// Changes to one table.
#[derive(Clone, Debug)]
pub struct Batch {
    family: TableFamily,
    table: String,
    pub(super) out: Writer,
    pub(super) sequence: u32,
    /// Description of each message, for errors.
    pub(super) steps: Vec<String>,
}

impl Batch {
    #[must_use]
    pub fn new(family: impl Into<TableFamily>, table: &str) -> Self {
        let (family, table) = (family.into(), table.to_owned());
        let mut batch = Self { family, table, out: Writer::default(), sequence: 0, steps: Vec::new() };
        batch.out.message(BATCH_BEGIN, REQUEST, 0, 0, SUBSYSTEM, |_| {});
        batch
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Size of the batch in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    fn step(&mut self, kind: u16, flags: u16, what: String, body: impl FnOnce(&mut Writer)) {
        self.sequence += 1;
        self.steps.push(what);
        let (sequence, family) = (self.sequence, self.family.code());
        self.out.message(SUBSYSTEM << 8 | kind, REQUEST | ACK | flags, sequence, family, 0, body);
    }

    /// Creates the table if it is missing.
    pub fn add_table(&mut self) {
        let table = self.table.clone();
        self.step(NEW_TABLE, CREATE, format!("add table {table}"), |out| out.text(1, &table));
    }

    /// Recreates the table empty, with a mark that [`super::Socket::mark`] reads back.
    pub fn replace_table(&mut self, mark: &[u8]) {
        self.remove_table();
        let table = self.table.clone();
        self.step(NEW_TABLE, CREATE, format!("add table {table}"), |out| {
            out.text(1, &table);
            out.attribute(TABLE_USER_DATA, mark);
        });
    }

    /// Removes the table with its content, if it exists.
    pub fn remove_table(&mut self) {
        let table = self.table.clone();
        self.step(DESTROY_TABLE, 0, format!("remove table {table}"), |out| out.text(1, &table));
    }

    pub fn add_chain(&mut self, chain: &Chain<'_>) {
        let table = self.table.clone();
        self.step(NEW_CHAIN, CREATE, format!("add chain {}", chain.name), |out| {
            out.text(1, &table);
            out.text(3, chain.name);
            if let Some(hook) = &chain.hook {
                out.nest(4, |out| {
                    out.number(1, hook.number);
                    out.number(2, hook.priority as u32);
                });
                out.text(7, hook.kind);
            }
        });
    }

    pub fn remove_chain(&mut self, name: &str) {
        let table = self.table.clone();
        self.step(DELETE_CHAIN, 0, format!("remove chain {name}"), |out| {
            out.text(1, &table);
            out.text(3, name);
        });
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        let table = self.table.clone();
        self.step(DELETE_RULE, 0, format!("flush chain {name}"), |out| {
            out.text(1, &table);
            out.text(2, name);
        });
    }

    /// Appends a rule to its chain.
    pub fn add_rule(&mut self, chain: &str, steps: &[Expr]) {
        let table = self.table.clone();
        self.step(NEW_RULE, CREATE | APPEND, format!("add rule to chain {chain}"), |out| {
            out.text(1, &table);
            out.text(2, chain);
            out.nest(4, |out| steps.iter().for_each(|step| step.write(out)));
        });
    }

    pub fn add_set(&mut self, set: &Set<'_>) {
        let table = self.table.clone();
        let id = self.sequence + 1;
        self.step(NEW_SET, CREATE, format!("add set {}", set.name), |out| {
            let mut flags = 0;
            flags |= if set.value == Value::Nothing { 0 } else { SET_MAP };
            flags |= if set.dynamic.is_some() { SET_DYNAMIC | SET_TIMEOUT } else { 0 };
            flags |= if set.interval { SET_INTERVAL } else { 0 };
            out.text(1, &table);
            out.text(2, set.name);
            out.number(3, flags);
            out.number(4, set.key_kind);
            out.number(5, set.key_length);
            match set.value {
                Value::Nothing => {}
                Value::Verdict => {
                    out.number(6, DATA_VERDICT);
                    out.number(7, 0);
                }
                Value::Bytes { length, kind } => {
                    out.number(6, kind);
                    out.number(7, length);
                }
            }
            out.number(10, id);
            if let Some(size) = set.dynamic {
                out.nest(9, |out| out.number(1, size));
            }
        });
    }

    /// Removes a set that is no longer referenced by a rule.
    pub fn remove_set(&mut self, name: &str) {
        let table = self.table.clone();
        self.step(DELETE_SET, 0, format!("remove set {name}"), |out| {
            out.text(1, &table);
            out.text(2, name);
        });
    }

    pub fn add_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = &'a Element>) {
        self.elements(NEW_ELEMENT, CREATE, "add elements to", set, elements, true);
    }

    pub fn remove_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = &'a Element>) {
        self.elements(DELETE_ELEMENT, 0, "remove elements from", set, elements, false);
    }

    fn elements<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        what: &str,
        set: &str,
        elements: impl IntoIterator<Item = &'a Element>,
        with_value: bool,
    ) {
        let mut elements = elements.into_iter().peekable();
        let table = self.table.clone();
        while elements.peek().is_some() {
            self.step(kind, flags, format!("{what} {set}"), |out| {
                out.text(1, &table);
                out.text(2, set);
                out.nest(3, |out| {
                    let start = out.len();
                    while out.len() - start < MESSAGE_BYTES
                        && let Some(element) = elements.next()
                    {
                        element.write(out, with_value);
                    }
                });
            });
        }
    }

    /// Encodes the complete batch.
    pub(super) fn finish(mut self) -> (Writer, Vec<String>) {
        self.out.message(BATCH_END, REQUEST, self.sequence + 1, 0, SUBSYSTEM, |_| {});
        (self.out, self.steps)
    }
}
