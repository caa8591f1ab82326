//! `bisect` on programs that are compiled rightly, and with a tolerance that no rounding meets.

use super::device::{simulated, succeed};
use super::workplace::{Workplace, end};
use std::path::Path;

/// A division by a constant becomes a multiplication, whose last bit may differ.
const THIRDS: &str = r#"graph "thirds" {
  %x = input {name = "x", dtype = f64, shape = [32]}
  %c = constant {value = 3.0, dtype = f64}
  %b = broadcast %c {shape = [32], axes = []}
  %y = div %x, %b
  %z = exp %y
  output "z" = %z
}
"#;

#[test]
fn a_program_that_is_compiled_rightly() {
    let work = Workplace::new();
    work.write("thirds.kir", THIRDS);
    let out = work.succeed("bisect thirds.kir --threads 1");
    for part in ["simplify", "fusion", "code", "nothing deviates"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let small = "bisect --config small.json --batch-size 2 --threads 1";
    let bytes = "--work decode --dtype int8";
    for flags in ["--work train", "--work train --dtype bf16 --dropout 0.1", "--work decode", bytes] {
        let out = work.succeed(&format!("{small} {flags}"));
        assert!(out.contains("nothing deviates"), "{flags}: {out}");
    }
}

#[test]
fn a_tolerance_of_nothing_finds_the_rule_that_rounds_elsewhere() {
    let work = Workplace::new();
    work.write("thirds.kir", THIRDS);
    let ended = work.run("bisect thirds.kir --tolerance 0");
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), ""), "{}", ended.out);
    assert!(ended.out.contains("found: rule div-number of the simplifier"), "{}", ended.out);
    assert!(
        ended.out.contains("the first wrong value: mul, which was div, of type f64[32]"),
        "{}",
        ended.out
    );
    assert!(!ended.out.contains("fusion "), "{}", ended.out);
    // The same numbers whenever they are asked for, and others of another seed.
    assert_eq!(work.run("bisect thirds.kir --tolerance 0").out.lines().last(), ended.out.lines().last());
}

#[test]
fn searches_that_cannot_begin() {
    let work = Workplace::new();
    work.write("thirds.kir", THIRDS);
    work.write("broken.kir", "graph");
    let cases = [
        ("bisect none.kir", "cannot read none.kir"),
        ("bisect broken.kir", "broken.kir: "),
        ("bisect thirds.kir --preset tiny", "cannot be used with"),
        ("bisect thirds.kir --tolerance=-1", "--tolerance must be a number, 0 or above"),
        (
            "bisect thirds.kir --check-finite",
            "--check-finite is for runs: bisect says by itself what is not finite",
        ),
        ("bisect thirds.kir --inputs none.safetensors", "none.safetensors"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}

#[test]
fn code_of_a_device_that_is_right() {
    let work = Workplace::new();
    work.write("thirds.kir", THIRDS);
    let small = "bisect --config small.json --batch-size 2";
    let flags = ["--work train", "--work train --dtype bf16 --dropout 0.1", "--work decode --weights int8"];
    let all = flags.map(|flags| format!("{small} {flags}"));
    for flags in [&["bisect thirds.kir".to_string()], &all[..]].concat() {
        let Some(out) = succeed(&work, &flags, &[]) else { return };
        assert!(out.contains("code ") && out.contains("nothing deviates"), "{flags}: {out}");
    }
}

/// Changes the first of these texts in the code that a device keeps of one kernel, which has all of them; the kernel's function.
fn change_one_kernel(cubins: &Path, texts: &[&str], changed: &str) -> String {
    for file in std::fs::read_dir(cubins).unwrap() {
        let path = file.unwrap().path();
        let code = std::fs::read_to_string(&path).unwrap();
        // The headers come before.
        let own = code.rfind("KERNEL __launch_bounds__").unwrap();
        if texts.iter().all(|text| code[own..].contains(text)) {
            assert_eq!(texts[0].len(), changed.len(), "code has its length in its head");
            std::fs::write(&path, code[..own].to_string() + &code[own..].replacen(texts[0], changed, 1))
                .unwrap();
            return code.lines().nth(2).unwrap().into();
        }
    }
    panic!("no kernel has {texts:?}");
}

#[test]
fn a_fault_in_one_kernel_of_a_device_is_found() {
    let work = Workplace::new();
    let flags = "bisect --config small.json --batch-size 2 --device cuda";
    let Some(mut command) = simulated(&work, flags) else { return };
    assert_eq!(end(command.spawn().unwrap()).code, Some(0));
    let function = change_one_kernel(&work.path("cache/cubin"), &["= 0.5f;", "erff("], "= 0.6f;");
    let ended = end(simulated(&work, flags).unwrap().spawn().unwrap());
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), ""), "{}", ended.out);
    let found =
        ended.out.split("found: the code of kernel ").nth(1).unwrap_or_else(|| panic!("{}", ended.out));
    let kernel = found.split(" writes ").next().unwrap();
    let words: Vec<_> =
        kernel.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    assert!(function.starts_with(&format!("kernel_{}", words.join("_"))), "{function}, but {kernel}");
    assert!(found.contains("erf") && found.contains("blocks.0.mlp"), "{found}");
}
