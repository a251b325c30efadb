//! pprof's `profile.proto`, gzip-compressed.

use std::collections::HashMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::Samples;
use super::symbols::Symbols;

pub const CONTENT_TYPE: &str = "application/octet-stream";

#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<Unit>,
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<Unit>,
    #[prost(int64, tag = "12")]
    pub period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Unit {
    #[prost(int64, tag = "1")]
    pub name: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Mapping {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int64, tag = "2")]
    pub name: i64,
    #[prost(int64, tag = "3")]
    pub system_name: i64,
}

/// Strings of a profile, each once. The first one is empty.
struct Strings {
    all: Vec<String>,
    index: HashMap<String, i64>,
}

impl Strings {
    fn of(&mut self, text: &str) -> i64 {
        if let Some(at) = self.index.get(text) {
            return *at;
        }
        let at = i64::try_from(self.all.len()).unwrap_or_default();
        self.all.push(text.to_owned());
        self.index.insert(text.to_owned(), at);
        at
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Builds the message: locations and functions are numbered in the order of their first use.
pub fn message(samples: &Samples, symbols: &Symbols) -> Profile {
    let mut strings = Strings { all: Vec::new(), index: HashMap::new() };
    strings.of("");
    let mut unit = |one: super::ValueType| Unit { name: strings.of(one.name), unit: strings.of(one.unit) };
    let mut profile = Profile {
        sample_type: samples.types.iter().map(|one| unit(*one)).collect(),
        duration_nanos: i64::try_from(samples.duration.as_nanos()).unwrap_or(i64::MAX),
        period_type: Some(unit(samples.period_type)),
        period: signed(samples.period),
        ..Profile::default()
    };
    profile.mapping.push(Mapping {
        id: 1,
        memory_start: symbols.start,
        memory_limit: symbols.end,
        filename: strings.of(&symbols.path),
        has_functions: true,
    });
    let mut locations: HashMap<u64, u64> = HashMap::new();
    let mut functions: HashMap<String, u64> = HashMap::new();
    for (frames, values) in &samples.stacks {
        let mut location_id = Vec::with_capacity(frames.len());
        for (depth, frame) in frames.iter().enumerate() {
            // A return address is after the call; the innermost frame of a CPU profile is the interrupted instruction.
            let address = (*frame as u64).saturating_sub(u64::from(depth > 0));
            let next = locations.len() as u64 + 1;
            let id = *locations.entry(address).or_insert(next);
            location_id.push(id);
            if id != next {
                continue;
            }
            let line = symbols.name(address).map(|name| {
                let next = functions.len() as u64 + 1;
                let id = *functions.entry(name.to_owned()).or_insert(next);
                if id == next {
                    let name = strings.of(name);
                    profile.function.push(Function { id, name, system_name: name });
                }
                Line { function_id: id }
            });
            let mapping_id = u64::from(symbols.contains(address));
            profile.location.push(Location { id, mapping_id, address, line: line.into_iter().collect() });
        }
        let value = values.iter().map(|value| signed(*value)).collect();
        profile.sample.push(Sample { location_id, value });
    }
    profile.string_table = strings.all;
    profile
}

pub fn profile(samples: &Samples, symbols: &Symbols) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to a vector does not fail.
    let _ = writer.write_all(&message(samples, symbols).encode_to_vec());
    writer.finish().unwrap_or_default()
}
