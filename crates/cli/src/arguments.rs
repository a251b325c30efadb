//! Command line flags in pflag's syntax, with its error messages.

use std::collections::BTreeMap;

use machinery::field::show_str;

/// Form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `--flag`, `--flag=true`, `--flag=false`.
    Switch,
    /// `--flag=value` or `--flag value`; the last one counts.
    Text,
    /// A whole number.
    Number,
    /// `--flag=a,b`; may be repeated.
    List,
    /// `--flag=a`; may be repeated, commas have no meaning.
    Repeated,
}

/// A flag of a verb.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub form: Form,
    pub default: &'static str,
    /// Value of the flag without `=value`; a flag that has one never takes the next word.
    pub bare: Option<&'static str>,
    pub help: &'static str,
}

impl Flag {
    const fn new(name: &'static str, form: Form, default: &'static str, help: &'static str) -> Self {
        Self { name, short: None, form, default, bare: None, help }
    }

    pub const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    pub const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    pub const fn bare(self, value: &'static str) -> Self {
        Self { bare: Some(value), ..self }
    }

    /// The flag as messages name it.
    fn title(&self) -> String {
        match self.short {
            Some(short) => format!("-{short}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

pub const fn switch(name: &'static str, help: &'static str) -> Flag {
    Flag::new(name, Form::Switch, "false", help).bare("true")
}

pub const fn option(name: &'static str, help: &'static str) -> Flag {
    Flag::new(name, Form::Text, "", help)
}

pub const fn number(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag::new(name, Form::Number, default, help)
}

pub const fn list(name: &'static str, help: &'static str) -> Flag {
    Flag::new(name, Form::List, "", help)
}

pub const fn repeated(name: &'static str, help: &'static str) -> Flag {
    Flag::new(name, Form::Repeated, "", help)
}

/// Groups of flags.
pub type Flags<'a> = &'a [&'static [Flag]];

/// Values of flags, and the words that are none.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    values: BTreeMap<&'static str, Vec<String>>,
    defaults: BTreeMap<&'static str, &'static str>,
    pub operands: Vec<String>,
    /// Number of words before `--`.
    pub dash: Option<usize>,
    pub help: bool,
    /// Global flags that a flag of the verb replaces.
    pub shadowed: Vec<&'static str>,
}

impl Matches {
    /// Values of a switch: false unless given or the default.
    pub fn on(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    pub fn explicit(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    pub fn text(&self, name: &str) -> &str {
        self.explicit(name).or_else(|| self.defaults.get(name).copied()).unwrap_or_default()
    }

    pub fn int(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_default()
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.values.get(name).cloned().unwrap_or_default()
    }

    /// Parses words. `flags` are all that the verb has.
    pub fn parse(operands: &[String], flags: Flags<'_>) -> Result<Self, String> {
        let mut matches = Self::default();
        for flag in flags.iter().flat_map(|group| group.iter()) {
            if matches.defaults.contains_key(flag.name) {
                matches.shadowed.push(flag.name);
            } else {
                matches.defaults.insert(flag.name, flag.default);
            }
        }
        let mut operands = operands.iter();
        while let Some(operand) = operands.next() {
            if operand == "--" {
                matches.dash = Some(matches.operands.len());
                matches.operands.extend(operands.by_ref().cloned());
            } else if let Some(long) = operand.strip_prefix("--") {
                matches.long(long, flags, &mut operands)?;
            } else if operand.len() > 1 && operand.starts_with('-') {
                matches.shorts(&operand[1..], flags, &mut operands)?;
            } else {
                matches.operands.push(operand.clone());
            }
        }
        Ok(matches)
    }

    fn long<'w>(
        &mut self,
        text: &str,
        flags: Flags<'_>,
        rest: &mut impl Iterator<Item = &'w String>,
    ) -> Result<(), String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let Some(flag) = find(flags, |flag| flag.name == name) else {
            if name == "help" {
                self.help = true;
                return Ok(());
            }
            return Err(format!("unknown flag: --{name}"));
        };
        let value = match (value, flag.bare) {
            (Some(value), _) => value.to_owned(),
            (None, Some(bare)) => bare.to_owned(),
            (None, None) => {
                rest.next().cloned().ok_or_else(|| format!("flag needs an argument: --{name}"))?
            }
        };
        self.set(flag, value)
    }

    fn shorts<'w>(
        &mut self,
        text: &str,
        flags: Flags<'_>,
        rest: &mut impl Iterator<Item = &'w String>,
    ) -> Result<(), String> {
        let mut at = text;
        while let Some(short) = at.chars().next() {
            let tail = &at[short.len_utf8()..];
            let Some(flag) = find(flags, |flag| flag.short == Some(short)) else {
                if short == 'h' {
                    self.help = true;
                    return Ok(());
                }
                return Err(format!("unknown shorthand flag: {short:?} in -{at}"));
            };
            if let Some(value) = tail.strip_prefix('=') {
                return self.set(flag, value.to_owned());
            }
            match (flag.bare, tail) {
                (Some(bare), _) => {
                    self.set(flag, bare.to_owned())?;
                    at = tail;
                }
                (None, "") => {
                    let value = rest.next().cloned();
                    let value = value.ok_or_else(|| format!("flag needs an argument: {short:?} in -{at}"))?;
                    return self.set(flag, value);
                }
                (None, value) => return self.set(flag, value.to_owned()),
            }
        }
        Ok(())
    }

    fn set(&mut self, flag: &Flag, value: String) -> Result<(), String> {
        let wrong = |function: &str, reason: &str| {
            format!(
                "invalid argument {} for {} flag: strconv.{function}: parsing {}: {reason}",
                show_str(&value),
                show_str(&flag.title()),
                show_str(&value),
            )
        };
        let values = self.values.entry(flag.name).or_default();
        match flag.form {
            Form::Switch => {
                let truth = match value.as_str() {
                    "1" | "t" | "T" | "TRUE" | "true" | "True" => "true",
                    "0" | "f" | "F" | "FALSE" | "false" | "False" => "false",
                    _ => return Err(wrong("ParseBool", "invalid syntax")),
                };
                *values = vec![truth.to_owned()];
            }
            Form::Number => {
                if let Err(error) = value.parse::<i64>() {
                    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
                    let out = matches!(error.kind(), NegOverflow | PosOverflow);
                    let reason = if out { "value out of range" } else { "invalid syntax" };
                    return Err(wrong("ParseInt", reason));
                }
                *values = vec![value];
            }
            Form::Text => *values = vec![value],
            Form::List => values.extend(value.split(',').filter(|part| !part.is_empty()).map(str::to_owned)),
            Form::Repeated => values.push(value),
        }
        Ok(())
    }
}

pub fn find(flags: Flags<'_>, is_it: impl Fn(&Flag) -> bool) -> Option<&'static Flag> {
    flags.iter().flat_map(|group| group.iter()).find(|flag| is_it(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[
        switch("all-namespaces", "").short('A'),
        option("namespace", "").short('n'),
        list("filename", "").short('f'),
        number("tail", "-1", ""),
        option("dry-run", "").default("none").bare("unchanged"),
    ];

    fn parse(line: &str) -> Result<Matches, String> {
        let operands: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Matches::parse(&operands, &[FLAGS])
    }

    #[test]
    fn flag_is_parsed_in_all_forms() {
        let matches = parse("a -An x --filename=a,b -f c b --tail 3 --dry-run -- --z -y").expect("parsed");
        assert!(matches.on("all-namespaces"));
        assert_eq!(
            (matches.text("namespace"), matches.int("tail"), matches.text("dry-run")),
            ("x", 3, "unchanged")
        );
        assert_eq!(matches.all("filename"), ["a", "b", "c"]);
        assert_eq!((matches.operands.join(" ").as_str(), matches.dash), ("a b --z -y", Some(2)));
        assert_eq!(parse("-n=x").expect("parsed").text("namespace"), "x");
        assert_eq!(parse("-nx").expect("parsed").text("namespace"), "x");
        assert_eq!(
            (parse("").expect("parsed").int("tail"), parse("").expect("parsed").text("dry-run")),
            (-1, "none")
        );
        assert!(parse("-h").expect("parsed").help && parse("--help").expect("parsed").help);
    }

    #[test]
    fn wrong_flags_have_pflags_messages() {
        let message = |line: &str| parse(line).expect_err("refused");
        assert_eq!(message("--zz"), "unknown flag: --zz");
        assert_eq!(message("-Az"), "unknown shorthand flag: 'z' in -z");
        assert_eq!(message("-n"), "flag needs an argument: 'n' in -n");
        assert_eq!(message("--namespace"), "flag needs an argument: --namespace");
        let want = "invalid argument \"x\" for \"-A, --all-namespaces\" flag: strconv.ParseBool: parsing \"x\": invalid syntax";
        assert_eq!(message("-A=x"), want);
        let want =
            "invalid argument \"x\" for \"--tail\" flag: strconv.ParseInt: parsing \"x\": invalid syntax";
        assert_eq!(message("--tail=x"), want);
    }
}
