//! Options of the CPU manager's static policy.

use std::collections::BTreeMap;

/// Options of the static policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaticOptions {
    pub full_cores_only: bool,
    pub distribute_across_nodes: bool,
    pub strict_reservation: bool,
    pub prefer_caches: bool,
}

const FULL_CORES: &str = "full-pcpus-only";
const DISTRIBUTE: &str = "distribute-cpus-across-numa";
const STRICT: &str = "strict-cpu-reservation";
const CACHES: &str = "prefer-align-cpus-by-uncorecache";
/// Options of level alpha, which are not supported.
const ALPHA: [&str; 2] = ["align-by-socket", "distribute-cpus-across-cores"];

/// Boolean values of Go's `strconv.ParseBool`.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

fn disabled(level: &str, option: &str) -> String {
    format!("CPU Manager Policy {level}-level Options not enabled, but option {option:?} provided")
}

impl StaticOptions {
    /// Reads the options under the feature gates; errors have Kubernetes' words.
    pub fn parse(options: &BTreeMap<String, String>, enabled: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (name, value) in options {
            if name == DISTRIBUTE && !enabled("CPUManagerPolicyBetaOptions") {
                return Err(disabled("Beta", name));
            }
            let field = match name.as_str() {
                FULL_CORES => &mut parsed.full_cores_only,
                DISTRIBUTE => &mut parsed.distribute_across_nodes,
                STRICT => &mut parsed.strict_reservation,
                CACHES => &mut parsed.prefer_caches,
                alpha if ALPHA.contains(&alpha) && enabled("CPUManagerPolicyAlphaOptions") => {
                    return Err(format!("unsupported cpumanager option: {alpha:?}"));
                }
                alpha if ALPHA.contains(&alpha) => return Err(disabled("Alpha", alpha)),
                _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
            };
            *field = boolean(value).ok_or_else(|| {
                format!("bad value for option {name:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")
            })?;
        }
        if parsed.prefer_caches && parsed.distribute_across_nodes {
            return Err(format!(
                "static policy options {CACHES} and {DISTRIBUTE} can not be used at the same time"
            ));
        }
        Ok(parsed)
    }
}
