//! `Cargo.lock`: packages and their sources.

use super::rules::Rules;

/// An external package, or one of the workspace (without a source).
#[derive(Debug, PartialEq)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub source: String,
}

pub fn packages(lock: &str) -> Vec<Package> {
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
        line.map(|value| value.trim_matches('"').to_owned()).unwrap_or_default()
    };
    let blocks = lock.split("[[package]]").skip(1);
    blocks
        .map(|block| Package {
            name: field(block, "name"),
            version: field(block, "version"),
            source: field(block, "source"),
        })
        .collect()
}

/// Packages from registries and repositories that are not allowed.
pub fn problems(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let is_allowed = |source: &str| match source.split_once('+') {
        Some(("registry" | "sparse", registry)) => rules.registries.contains(registry),
        Some(("git", url)) => {
            let repository = url.split(['?', '#']).next().unwrap_or_default();
            rules.repositories.contains(repository)
        }
        _ => source.is_empty(),
    };
    let refused = packages.iter().filter(|package| !is_allowed(&package.source));
    refused.map(|package| format!("{} comes from {}", package.name, package.source)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_other_sources_are_refused() {
        let lock = "version = 4\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry+https://index\"\n\n[[package]]\nname = \"b\"\nversion = \"1.0.0\"\nsource = \"registry+https://other\"\n\n[[package]]\nname = \"c\"\nversion = \"1.0.0\"\nsource = \"git+https://repository?rev=1#1\"\n";
        let packages = packages(lock);
        assert_eq!(packages.len(), 4);
        assert_eq!((packages[1].name.as_str(), packages[1].version.as_str()), ("a", "1.0.0"));
        let mut rules = Rules::default();
        rules.registries.insert("https://index".to_owned());
        assert_eq!(
            problems(&rules, &packages),
            ["b comes from registry+https://other", "c comes from git+https://repository?rev=1#1"]
        );
        rules.repositories.insert("https://repository".to_owned());
        assert_eq!(problems(&rules, &packages).len(), 1);
    }
}
