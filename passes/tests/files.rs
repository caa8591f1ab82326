//! File tests: `files/*.kir`, each a comment `# test <pass>,<pass>…`, a graph, a line `# expect`, and what the passes
//! make of it. `KERNFUSION_BLESS=1` rewrites the expectations. The pass `fuse` stands last and prints kernels; `plan`
//! prints the memory plan as well, and `prepare` that with a preparation.

use kernfusion_ir::Graph;
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::plan::{plan, plan_prepared};
use kernfusion_passes::{find, run};
use std::fmt::Write;
use std::path::Path;

/// The line between input and expectation.
const EXPECT: &str = "# expect\n";

/// What the passes named in the first line make of the graph.
fn transformed(text: &str) -> String {
    let (first, _) = text.split_once('\n').expect("a first line");
    let names = first.strip_prefix("# test ").expect("`# test <passes>`");
    let mut graph = Graph::parse(text).expect("the input parses");
    let mut result = String::new();
    for name in names.split(',').map(str::trim) {
        match name {
            "fuse" | "plan" | "prepare" => {
                let kernels = fuse(&graph, Fusion::Full, any_kernel).expect("fuses");
                kernfusion_ir::kernel::verify(&kernels).expect("valid kernels");
                write!(result, "{kernels}").expect("a string");
                for refusal in &kernels.refusals {
                    writeln!(
                        result,
                        "refused {} → {}: {}",
                        refusal.producer, refusal.consumer, refusal.reason
                    )
                    .expect("a string");
                }
                match name {
                    "plan" => write!(result, "{}", plan(kernels)).expect("a string"),
                    "prepare" => write!(result, "{}", plan_prepared(kernels)).expect("a string"),
                    _ => {}
                }
                return result;
            }
            pass => {
                let pass = find(pass).unwrap_or_else(|| panic!("unknown pass {pass}"));
                run(&mut graph, &[pass], None, &mut |_, _| {}).expect("the pass succeeds");
            }
        }
    }
    graph.to_string()
}

/// Shows the first line in which two texts differ.
fn difference(path: &Path, got: &str, expected: &str) -> String {
    let line = got.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count();
    format!("{}: line {} of the result differs; the result is\n{got}", path.display(), line + 1)
}

#[test]
fn files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|f| f.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let text = std::fs::read_to_string(&path).expect("readable");
        let (input, expected) = text.split_once(EXPECT).unwrap_or((&text, ""));
        let got = transformed(input);
        if std::env::var_os("KERNFUSION_BLESS").is_some() {
            let separator = if input.ends_with('\n') { "" } else { "\n" };
            std::fs::write(&path, format!("{input}{separator}{EXPECT}{got}")).expect("writable");
        } else {
            assert!(got.trim() == expected.trim(), "{}", difference(&path, &got, expected));
        }
    }
}
