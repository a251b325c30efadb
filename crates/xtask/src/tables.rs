//! Completeness of the tables: every file has a row.

use std::path::Path;

#[test]
fn every_kind_has_a_row() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/src/kinds");
    let table = std::fs::read_to_string(folder.join("mod.rs")).expect("the table of kinds");
    let mut kinds = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder of kinds") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        if path.extension().is_none_or(|extension| extension != "rs") || name == "mod" {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a source file");
        if !source.contains(": Kind =") {
            continue;
        }
        kinds += 1;
        assert!(table.contains(&format!("&{name}::")), "crates/api/src/kinds/{name}.rs has no row in mod.rs");
    }
    assert!(kinds > 50, "only {kinds} kinds found");
}
