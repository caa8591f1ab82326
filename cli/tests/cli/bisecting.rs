//! `bisect` on programs that are compiled rightly, and with a tolerance that no rounding meets.

use super::workplace::Workplace;

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
    for flags in ["--work train", "--work train --dtype bf16 --dropout 0.1", "--work decode"] {
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
        ("bisect thirds.kir --inputs none.safetensors", "none.safetensors"),
    ];
    for (flags, expected) in cases {
        let message = work.fail(flags);
        assert!(message.contains(expected), "{flags}: {message}");
    }
}
