//! The table of operators in `docs/import.md` is that of the code, and each operator has a judge: a fixture that has it.
//! `KERNFUSION_BLESS=1` writes the table again.

use crate::fixture;
use kernfusion_import::operators;
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
    for fixture in fixture::names() {
        for name in fixture::archive(&fixture).operators().into_keys() {
            judges.entry(name.into()).or_default().push(fixture.clone());
        }
    }
    judges
}

fn table() -> String {
    let judges = judges();
    let mut table = String::from("| operator | gives | judged in |\n|---|---|---|\n");
    for operator in operators() {
        let judges = judges.get(operator.name).unwrap_or_else(|| panic!("{} has no judge", operator.name));
        writeln!(table, "| `{}` | {} | {} |", operator.name, operator.gives, shown(judges)).unwrap();
    }
    table
}

/// The first of many fixtures, and how many more there are.
fn shown(judges: &[String]) -> String {
    const MOST: usize = 4;
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
    let table = table();
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
