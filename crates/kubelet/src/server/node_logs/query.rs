//! Parameters of a log query.

use jiff::Timestamp;

const MAX_TAIL_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_SERVICE_LENGTH: usize = 256;
/// Maximum length of a pattern, which is an argument of a command.
const MAX_PATTERN: usize = 4096;

/// A query of services, or of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLogQuery {
    pub services: Vec<String>,
    pub files: Vec<String>,
    pub options: JournalOptions,
}

/// Options of a query of services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalOptions {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub tail_lines: Option<i64>,
    pub boot: Option<i64>,
    pub pattern: Option<String>,
}

/// Reads the parameters; `None` if no parameter of a query is among them.
pub fn parse(parameters: &[(String, String)]) -> Result<Option<NodeLogQuery>, String> {
    let mut query = NodeLogQuery::default();
    let mut errors = Vec::new();
    let first = |wanted: &str| {
        let found = parameters.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    let asked: Vec<&str> =
        parameters.iter().filter(|(name, _)| name == "query").map(|(_, value)| value.as_str()).collect();
    for one in &asked {
        if one.contains(['/', '\\']) {
            query.files.push(one.replace('\\', "/"));
        } else if !one.trim().is_empty() {
            query.services.push((*one).to_owned());
        }
    }
    if !asked.is_empty() && query.files.is_empty() && query.services.is_empty() {
        errors.push(format!("query: Invalid value: {asked:?}: may not be empty"));
    }
    let options = &mut query.options;
    for (name, time) in [("sinceTime", &mut options.since), ("untilTime", &mut options.until)] {
        let Some(value) = first(name) else { continue };
        match value.parse() {
            Ok(parsed) => *time = Some(parsed),
            Err(_) => errors.push(format!("{name}: Invalid value: {value:?}: invalid time format")),
        }
    }
    for (name, number) in [("boot", &mut options.boot), ("tailLines", &mut options.tail_lines)] {
        let Some(value) = first(name) else { continue };
        match value.parse() {
            Ok(parsed) => *number = Some(parsed),
            Err(_) => errors.push(format!("{name}: Invalid value: {value:?}: invalid syntax")),
        }
    }
    options.pattern = first("pattern").map(str::to_owned);
    aggregate(&errors)?;
    Ok(Some(query).filter(|query| *query != NodeLogQuery::default()))
}

impl NodeLogQuery {
    /// Checks the query as a whole; its file is checked when it is opened.
    pub fn validate(&self) -> Result<(), String> {
        let mut errors: Vec<String> =
            self.services.iter().filter_map(|service| check_service(service)).collect();
        if self.services.len() > MAX_SERVICES {
            errors.push(format!(
                "query: Too many: {}: must have at most {MAX_SERVICES} items",
                self.services.len()
            ));
        }
        let options = &self.options;
        let has_options = *options != JournalOptions::default();
        let wrong = match (self.files.len(), self.services.len()) {
            (0, 0) => Some("query: Required value: cannot be empty with options".to_owned()),
            (files, services) if files > 0 && services > 0 => {
                Some("cannot specify a file and service".to_owned())
            }
            (files, _) if files > 1 => Some("cannot specify more than one file".to_owned()),
            (1, _) if has_options => Some("cannot specify file with options".to_owned()),
            _ => None,
        };
        errors.extend(wrong.map(|text| match text.strip_prefix("query: ") {
            Some(_) => text,
            None => {
                format!("query: Invalid value: {:?}: {text}", [&self.files[..], &self.services[..]].concat())
            }
        }));
        if let Some((since, until)) = options.since.zip(options.until)
            && since > until
        {
            errors.push(format!("untilTime: Invalid value: \"{until}\": must be after `sinceTime`"));
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            errors.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(lines) = options.tail_lines.filter(|lines| !(0..=MAX_TAIL_LINES).contains(lines)) {
            let range = format!("must be between 0 and {MAX_TAIL_LINES}, inclusive");
            errors.push(format!("tailLines: Invalid value: {lines}: {range}"));
        }
        if options
            .pattern
            .as_ref()
            .is_some_and(|pattern| pattern.len() > MAX_PATTERN || pattern.contains('\0'))
        {
            errors.push(format!("pattern: Invalid value: must have at most {MAX_PATTERN} bytes and no NUL"));
        }
        aggregate(&errors)
    }
}

fn check_service(service: &str) -> Option<String> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    let wrong = if service.len() > MAX_SERVICE_LENGTH {
        format!("length must be less than {MAX_SERVICE_LENGTH}")
    } else if !service.chars().all(is_safe) {
        "input contains unsupported characters".to_owned()
    } else {
        return None;
    };
    Some(format!("query: Invalid value: {service:?}: {wrong}"))
}

/// All errors in one message, as Kubernetes joins them.
fn aggregate(errors: &[String]) -> Result<(), String> {
    match errors {
        [] => Ok(()),
        [one] => Err(one.clone()),
        all => Err(format!("[{}]", all.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::containers::parameters;

    fn query(text: &str) -> Result<Option<NodeLogQuery>, String> {
        parse(&parameters(Some(text)))
    }

    #[test]
    fn parameters_form_a_query() {
        assert_eq!(query(""), Ok(None));
        assert_eq!(query("other=1"), Ok(None));
        let found = query(
            "query=kubelet&query=containerd&tailLines=5&boot=-1&pattern=a%20b&sinceTime=2026-01-02T03:04:05Z",
        );
        let found = found.expect("parses").expect("a query");
        assert_eq!(found.services, ["kubelet", "containerd"]);
        assert_eq!((found.options.tail_lines, found.options.boot), (Some(5), Some(-1)));
        assert_eq!(found.options.pattern.as_deref(), Some("a b"));
        assert_eq!(found.validate(), Ok(()));
        assert_eq!(query("query=%2Ffoo.log").expect("parses").expect("a query").files, ["/foo.log"]);
        assert_eq!(query("query=\\foo.log").expect("parses").expect("a query").files, ["/foo.log"]);
    }

    #[test]
    fn parameters_of_the_wrong_type_are_rejected() {
        for (text, want) in [
            ("query=", "query: Invalid value: [\"\"]: may not be empty"),
            ("query=+", "query: Invalid value: [\" \"]: may not be empty"),
            ("tailLines=x", "tailLines: Invalid value: \"x\": invalid syntax"),
            ("sinceTime=now", "sinceTime: Invalid value: \"now\": invalid time format"),
            (
                "boot=x&untilTime=y",
                "[untilTime: Invalid value: \"y\": invalid time format, boot: Invalid value: \"x\": invalid syntax]",
            ),
        ] {
            assert_eq!(query(text), Err(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn services_that_could_be_options_or_paths_are_rejected() {
        let check = |text: &str| query(text).expect("parses").expect("a query").validate();
        for text in [
            "query=a%20--all",
            "query=a;rm",
            "query=$(id)",
            "query=a%00b",
            "query=a*",
            "query=a&query=b&query=c&query=d&query=e",
            "tailLines=5",
            "query=a&query=/b",
            "query=/a&query=/b",
            "query=/a&tailLines=5",
            "query=a&boot=1",
            "query=a&tailLines=100001",
            "query=a&tailLines=-1",
            "query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-01T03:04:05Z",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
        let long = format!("query={}", "a".repeat(257));
        assert_eq!(
            check(&long).err().map(|error| error.contains("length must be less than 256")),
            Some(true)
        );
        assert_eq!(check("query=foo@1.service&tailLines=0&boot=0"), Ok(()));
    }
}
