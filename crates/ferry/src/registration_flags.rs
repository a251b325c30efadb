//! Flags of a node that is registered for the first time, with Kubernetes' names.

use clap::Args;
use cluster::{RegistrationConfig, Taint};

#[derive(Args, Clone, Debug, Default)]
pub struct RegistrationArgs {
    /// Register the node with the given list of taints.
    #[arg(long, value_name = "KEY[=VALUE]:EFFECT[,...]", value_delimiter = ',', value_parser = parse_taint, help_heading = "Node")]
    pub register_with_taints: Vec<Taint>,

    /// Unique identifier for identifying the node in a machine database, i.e. cloud provider.
    #[arg(long, value_name = "ID", help_heading = "Node")]
    pub provider_id: Option<String>,

    /// The provider for cloud services. Set to empty string for running with no cloud provider. Set to `external` for
    /// running with a cloud controller manager, which initializes the node.
    #[arg(long, value_name = "NAME", value_parser = ["", "external"], help_heading = "Node")]
    pub cloud_provider: Option<String>,
}

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

fn parse_taint(text: &str) -> Result<Taint, String> {
    let (left, effect) = text.split_once(':').ok_or("KEY[=VALUE]:EFFECT")?;
    let (key, value) = left.split_once('=').map_or((left, None), |(key, value)| (key, Some(value)));
    if !EFFECTS.contains(&effect) {
        return Err(format!("invalid taint effect: {effect:?}, must be one of {}", EFFECTS.join(", ")));
    }
    if let Some(wrong) = machinery::names::qualified_name(key).first() {
        return Err(format!("invalid taint key {key:?}: {wrong}"));
    }
    if let Some(wrong) = machinery::names::label_value(value.unwrap_or("")).first() {
        return Err(format!("invalid taint value {value:?}: {wrong}"));
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.filter(|value| !value.is_empty()).map(str::to_owned),
        effect: effect.to_owned(),
        ..Taint::default()
    })
}

impl RegistrationArgs {
    pub fn config(self) -> RegistrationConfig {
        RegistrationConfig {
            taints: self.register_with_taints,
            provider_id: self.provider_id.filter(|id| !id.is_empty()),
            external_cloud: self.cloud_provider.as_deref() == Some("external"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_parsed() {
        let taint = |text: &str| parse_taint(text).map(|taint| (taint.key, taint.value, taint.effect));
        let with =
            |value: Option<&str>| Ok(("a/b".to_owned(), value.map(str::to_owned), "NoSchedule".to_owned()));
        assert_eq!(taint("a/b=c:NoSchedule"), with(Some("c")));
        assert_eq!(taint("a/b:NoSchedule"), with(None));
        assert_eq!(taint("a/b=:NoSchedule"), with(None));
        for wrong in
            ["a/b", "a/b:Never", ":NoSchedule", "a b:NoSchedule", "a=b c:NoSchedule", "a/b/c:NoSchedule"]
        {
            taint(wrong).expect_err(wrong);
        }
    }
}
