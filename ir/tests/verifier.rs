//! Every file of `tests/verifier` breaks one invariant; its first line says what the verifier answers. With
//! `KERNFUSION_BLESS=1` the first lines are rewritten.

use kernfusion_ir::Graph;
use std::path::Path;

/// The verifier's answer to a file, on one line.
fn answer(text: &str) -> String {
    let graph = Graph::parse(text).expect("a file that parses");
    match graph.verify() {
        Ok(()) => "none".into(),
        Err(error) => error.to_string().replace("\n  ", " "),
    }
}

#[test]
fn files_are_refused_for_the_reason_they_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verifier");
    let bless = std::env::var("KERNFUSION_BLESS").is_ok_and(|value| value == "1");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "kir"));
    files.sort();
    assert!(files.len() >= 9, "the folder holds one file or more for each invariant that text can break");
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let actual = format!("# error: {}", answer(&text));
        let (expected, rest) = text.split_once('\n').expect("a file of several lines");
        if bless {
            let rest = if expected.starts_with("# error:") { rest } else { &text };
            std::fs::write(&path, format!("{actual}\n{rest}")).unwrap();
        } else {
            assert_eq!(actual, expected, "in {}", path.display());
        }
    }
}
