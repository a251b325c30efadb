//! Compares `docs/` with its index, `docs/README.md`.

use std::collections::BTreeSet;
use std::path::Path;

const INDEX: &str = "README.md";

/// Pages of the folder that the index lacks, and pages of the index that the folder lacks.
fn differences(pages: &BTreeSet<String>, index: &str) -> Vec<String> {
    let targets = index.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    // Pages outside of the folder are not of this index.
    let listed: BTreeSet<String> =
        targets.filter(|target| !target.contains('/')).map(str::to_owned).collect();
    let unlisted = pages.difference(&listed).map(|page| format!("{page} is not in {INDEX}"));
    let absent = listed.difference(pages).map(|page| format!("{page} in {INDEX} does not exist"));
    unlisted.chain(absent).collect()
}

#[test]
fn every_page_is_in_the_index() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let names = std::fs::read_dir(&folder).expect("docs").map(|entry| entry.expect("an entry").file_name());
    let mut pages: BTreeSet<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    pages.retain(|page| page.ends_with(".md") && page != INDEX);
    let index = std::fs::read_to_string(folder.join(INDEX)).expect("an index");
    assert_eq!(differences(&pages, &index), Vec::<String>::new());
}

#[test]
fn missing_pages_and_entries_are_reported() {
    let pages = BTreeSet::from(["a.md".to_owned(), "b.md".to_owned()]);
    let index = "| [a.md](a.md), [c](c.md) | text |\n| [README](../README.md) | text |";
    assert_eq!(differences(&pages, index), ["b.md is not in README.md", "c.md in README.md does not exist"]);
}
