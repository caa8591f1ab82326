//! The tables of operators in `docs/import.md` are those of the code, and each operator has a judge: a fixture that has it.
//! `KERNFUSION_BLESS=1` writes the table again.

use crate::fixture;
use kernfusion_import::{Imported, Operator, operators};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str =
    "<!-- the table of `import/src/operators`: KERNFUSION_BLESS=1 cargo test -p kernfusion-import page -->\n";
const END: &str = "<!-- end of the table -->\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// For each operator the fixtures that have it.
fn judges() -> BTreeMap<String, Vec<String>> {
    let mut judges: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |fixture: &str, imported: Imported| {
        for name in imported.operators().into_keys() {
            judges.entry(name.into()).or_default().push(fixture.into());
        }
    };
    for fixture in fixture::names() {
        add(&fixture, fixture::archive(&fixture));
    }
    let folder = fixture::folder();
    for fixture in fixture::onnx_names(&folder) {
        add(&fixture, fixture::onnx(&folder, &fixture).unwrap());
    }
    judges
}

fn tables() -> String {
    let judges = judges();
    let mut of_pytorch = String::from("| operator | gives | judged in |\n|---|---|---|\n");
    let mut of_onnx = String::from("| operator | version | gives | judged in |\n|---|---|---|---|\n");
    for Operator { name, gives, .. } in operators().filter(|operator| operator.onnx_version().is_none()) {
        writeln!(of_pytorch, "| `{name}` | {gives} | {} |", shown(&judges, name)).unwrap();
    }
    for operator in operators() {
        let Some(version) = operator.onnx_version() else { continue };
        let Operator { name, gives, .. } = operator;
        writeln!(of_onnx, "| `{name}` | {version} | {gives} | {} |", shown(&judges, name)).unwrap();
    }
    format!("{of_pytorch}\n{of_onnx}")
}

/// The first of many fixtures, and how many more there are.
fn shown(judges: &BTreeMap<String, Vec<String>>, operator: &str) -> String {
    const MOST: usize = 4;
    let judges = judges.get(operator).unwrap_or_else(|| panic!("{operator} has no judge"));
    match judges.get(MOST..) {
        Some(more) if more.len() > 1 => format!("{} and {} more", judges[..MOST].join(", "), more.len()),
        _ => judges.join(", "),
    }
}

#[test]
fn every_operator_has_a_judge_and_a_row_on_the_page() {
    let path = root().join("../docs/import.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let table = tables();
    if std::env::var_os("KERNFUSION_BLESS").is_some() {
        std::fs::write(path, [before, BEGIN, &table, END, after].concat()).unwrap();
    } else {
        assert_eq!(found, table);
    }
}

#[test]
fn no_operator_stands_in_the_table_twice() {
    let mut names: Vec<_> = operators().map(|operator| operator.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// Fixtures are packed, so that a clone of the repository stays small.
#[test]
fn fixtures_take_less_than_a_mebibyte() {
    let files = std::fs::read_dir(fixture::folder()).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 1 << 20, "{bytes} bytes");
}
