//! What the sources must look like. Modules of a crate import each other in one direction; between crates Cargo holds it. Defects that `benches/planted.sh` plants still fit the code,
//! and files that the docs name are there.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the packages that are published.
const PACKAGES: [&str; 10] =
    [".", "ir", "passes", "codegen", "codegen/runtime", "codegen/cpu", "codegen/cuda", "lm", "import", "cli"];

/// The modules at the top of a crate with the text of all their files, unit tests and comments left out.
fn modules(source: &Path) -> BTreeMap<String, String> {
    let mut modules: BTreeMap<String, String> = BTreeMap::new();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        if name != "lib" && name != "main" {
            let text: String =
                files(&path).iter().map(|file| code(&fs::read_to_string(file).unwrap())).collect();
            modules.entry(name).or_default().push_str(&text);
        }
    }
    modules
}

fn files(path: &Path) -> Vec<PathBuf> {
    files_with_end(path, "rs").into_iter().filter(|file| !file.ends_with("tests.rs")).collect()
}

fn files_with_end(path: &Path, end: &str) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        return entries.flat_map(|entry| files_with_end(&entry.unwrap().path(), end)).collect();
    }
    let is_one = path.extension().is_some_and(|extension| extension == end);
    is_one.then(|| path.to_path_buf()).into_iter().collect()
}

fn code(text: &str) -> String {
    let tests =
        text.find("#[cfg(test)]\nmod tests {").or_else(|| text.find("#[cfg(all(test, unix))]\nmod tests {"));
    let text = &text[..tests.unwrap_or(text.len())];
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The modules of the same crate that a module names; `Error` and `Result` are those of `error`.
fn imports<'a>(text: &str, modules: &'a BTreeMap<String, String>) -> Vec<&'a str> {
    let paths = text.split("crate::").skip(1);
    let named = paths.flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap().split(',').map(first_word).collect(),
        None => vec![first_word(rest)],
    });
    let names = named.map(|name| if name == "Error" || name == "Result" { "error" } else { name });
    names.filter_map(|name| Some(modules.get_key_value(name)?.0.as_str())).collect()
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

fn circles(source: &Path) -> Vec<Vec<String>> {
    let modules = modules(source);
    assert!(modules.len() > 2, "{}: {} modules", source.display(), modules.len());
    let mut graph = DiGraphMap::<&str, (), std::hash::RandomState>::new();
    for (name, text) in &modules {
        let others = imports(text, &modules).into_iter().filter(|other| other != name);
        others.for_each(|other| _ = graph.add_edge(name, other, ()));
    }
    let groups = tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1);
    groups.map(|group| group.into_iter().map(String::from).collect()).collect()
}

#[test]
fn modules_import_each_other_in_one_direction() {
    for package in PACKAGES {
        let found = circles(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src"));
        assert!(found.is_empty(), "modules of {package} that import each other in a circle: {found:?}");
    }
}

#[test]
fn a_circle_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    fs::create_dir(folder.path().join("text")).unwrap();
    write("text/mod.rs", "use crate::{Error,\n    sample::Sampler};");
    write(
        "sample.rs",
        "//! crate::train\nuse crate::error::Error;\n#[cfg(test)]\nmod tests {\n    use crate::train::X;\n}\n",
    );
    write("error.rs", "use crate::sample::SampleError;");
    write("train.rs", "fn f() -> crate::Result<()> { crate::text::g() }");
    write("tune.rs", "use crate::train::Trainer;");
    write("other.rs", "");
    let mut found = circles(folder.path());
    found.iter_mut().for_each(|circle| circle.sort());
    assert_eq!(found, [["error", "sample"]]);
}

/// The lines that a hunk of a patch expects, one after another.
fn expected(hunk: &str) -> String {
    let lines = hunk.lines().skip(1).filter(|line| !line.starts_with('+'));
    lines.flat_map(|line| [line.get(1..).unwrap_or(""), "\n"]).collect()
}

#[test]
fn defects_can_be_planted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let patches = files_with_end(&root.join("benches/planted"), "patch");
    assert!(patches.len() > 10, "{patches:?}");
    for patch in patches {
        let text = fs::read_to_string(&patch).unwrap();
        for part in text.split("\n--- a/").skip(1) {
            let (file, hunks) = part.split_once('\n').unwrap();
            let code = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            for hunk in hunks.split("\n@@ ").skip(1) {
                assert!(code.contains(&expected(hunk)), "{} does not fit {file}", patch.display());
            }
        }
    }
}

#[test]
fn files_that_the_docs_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "src", "ir", "passes", "codegen", "lm", "import", "cli", "examples", "benches", "tests", "docs",
        ".ci",
    ];
    let known: Vec<String> = folders
        .iter()
        .flat_map(|folder| {
            ["rs", "md", "sh", "py", "hpp", "cuh", "c"].map(|end| files_with_end(&root.join(folder), end))
        })
        .flatten()
        .map(|file| format!("/{}", file.strip_prefix(root).unwrap().display()))
        .collect();
    let mut pages = files_with_end(&root.join("docs"), "md");
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    let (mut named, mut missing) = (0, vec![]);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        // Every other piece between backticks is code.
        for code in text.split('`').skip(1).step_by(2) {
            let path = code.trim_end_matches('/');
            let is_path = folders.iter().any(|folder| path.starts_with(&format!("{folder}/")));
            if is_path && !path.contains([' ', '*', '{', '\n']) && !root.join(path).exists() {
                missing.push(format!("{}: {code}", page.display()));
            }
            if !code.ends_with(".rs") {
                continue;
            }
            named += 1;
            // Some pages say where the file is by the last parts of its path.
            if !code.contains(char::is_whitespace)
                && !known.iter().any(|file| file.ends_with(&format!("/{code}")))
            {
                missing.push(format!("{}: {code}", page.display()));
            }
        }
    }
    assert!(named > 100 && missing.is_empty(), "of {named}: {missing:#?}");
}

/// What a crate includes lies in its own folder: else its package lacks it.
#[test]
fn a_package_has_all_that_its_code_includes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in PACKAGES {
        let folder = root.join(name).canonicalize().unwrap();
        for file in files(&folder.join("src")) {
            let text = code(&fs::read_to_string(&file).unwrap());
            for included in text.split("include_str!(\"").chain(text.split("include_bytes!(\"")) {
                let path = included.split('"').next().unwrap();
                let Ok(path) = file.parent().unwrap().join(path).canonicalize() else { continue };
                assert!(path.starts_with(&folder), "{} includes {}", file.display(), path.display());
            }
        }
    }
}
