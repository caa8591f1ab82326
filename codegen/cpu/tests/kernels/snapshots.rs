//! How each family of kernels is lowered, as people read it: `snapshots/*.txt` have the kernels, the stages of their rows, and
//! Cranelift's IR; `snapshots/*.avx512` the loops of sixteen lanes, and some `*.avx2` those of eight. `KERNFUSION_BLESS=1` rewrites them, the loops
//! only where the processor has the instructions.

use kernfusion_codegen::States;
use kernfusion_cpu::isa::Isa;
use kernfusion_cpu::{Options, PlanExecutable};
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::{Plan, any_kernel};
use kernfusion_ir::samples::all;
use kernfusion_passes::fuse::{Fusion, fuse};
use kernfusion_passes::plan::plan;
use std::path::Path;

/// A file, and the sample of the table that it shows.
const SAMPLES: [(&str, &str); 7] = [
    ("map", "tanh.[7, 13].f32"),
    ("random", "random_bits"),
    ("softmax", "rows.softmax."),
    ("layer_norm", "rows.layer_norm"),
    ("bias_gradient", "rows.bias_gradient"),
    ("scatter_add", "scatter_add."),
    ("attention", "attention.causal"),
];

/// Those that are shown with eight lanes, too: an elementary function, loads under bounds, and a table.
const OF_EIGHT_LANES: [&str; 3] = ["map", "frame", "table"];

/// A product with an epilogue: tanh(x·w) + b.
const PRODUCT: &str = r#"
graph "product" {
  %x = input {name = "x", dtype = f32, shape = [8, 16]} : f32[8,16]
  %w = input {name = "w", dtype = f32, shape = [32, 16]} : f32[32,16]
  %b = input {name = "b", dtype = f32, shape = [32]} : f32[32]
  %y = dot_general %x, %w {lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [1], dtype = f32} : f32[8,32]
  %t = tanh %y : f32[8,32]
  %bias = broadcast %b {shape = [8, 32], axes = [1]} : f32[8,32]
  %z = add %t, %bias : f32[8,32]
  output "z" = %z
}
"#;

/// Planes of short rows, framed with zeros.
const FRAME: &str = r#"
graph "frame" {
  %x = input {name = "x", dtype = f32, shape = [4, 8, 5, 7]} : f32[4,8,5,7]
  %b = input {name = "b", dtype = f32, shape = [8]} : f32[8]
  %bias = broadcast %b {shape = [4, 8, 5, 7], axes = [1]} : f32[4,8,5,7]
  %y = add %x, %bias : f32[4,8,5,7]
  %z = pad %y {low = [0, 0, 1, 1], high = [0, 0, 1, 1], value = 0} : f32[4,8,7,9]
  output "z" = %z
}
"#;

/// Bytes that are looked up.
const TABLE: &str = r#"
graph "table" {
  %x = input {name = "x", dtype = i8, shape = [1000]} : i8[1000]
  %t = input {name = "t", dtype = i8, shape = [256]} : i8[256]
  %bits = cast %x {dtype = i32} : i32[1000]
  %255 = constant {value = 255, dtype = i32} : i32[]
  %mask = broadcast %255 {shape = [1000], axes = []} : i32[1000]
  %place = and %bits, %mask : i32[1000]
  %y = gather %t, %place {axis = 0} : i8[1000]
  output "y" = %y
}
"#;

/// What is shown of a kernel.
type Show = fn(&PlanExecutable, &str) -> Option<String>;

fn shown(plan: &Plan, isa: Isa, parts: &[(&str, Show)]) -> String {
    let options = Options { isa: Some(isa), keep_code: true, ..Options::default() };
    let executable = PlanExecutable::compile(plan.clone(), &States::new(), &options).expect("compiles");
    let mut text = String::new();
    for kernel in &plan.graph.kernels {
        text += &plan.graph.show(kernel).to_string();
        for (head, show) in parts {
            let part = show(&executable, &kernel.name).unwrap_or_else(|| "(none)\n".into());
            text += &format!("\n-- {head}\n{part}");
        }
        text += "\n";
    }
    text
}

#[test]
fn the_code_of_each_family_is_as_it_was() {
    let samples = all(1);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/snapshots");
    let mut different = vec![];
    let sample = |&(file, name): &(&'static str, &str)| {
        let sample = samples.iter().find(|sample| sample.name.starts_with(name));
        (file, sample.unwrap_or_else(|| panic!("no sample {name}")).graph.clone())
    };
    let written = [("product", PRODUCT), ("frame", FRAME), ("table", TABLE)]
        .map(|(file, text)| (file, Graph::parse(text).expect("it parses")));
    for (file, graph) in SAMPLES.iter().map(sample).chain(written) {
        let plan = plan(fuse(&graph, Fusion::Full, any_kernel).expect("fuses"));
        let portable: [(&str, Show); 2] =
            [("schedule", PlanExecutable::schedule), ("clif", PlanExecutable::clif)];
        let mut texts = vec![(format!("{file}.txt"), shown(&plan, Isa::Portable, &portable))];
        let wide: [(&str, Show); 2] =
            [("schedule", PlanExecutable::schedule), ("lanes", PlanExecutable::lanes)];
        let available = Isa::available();
        if let Some(&isa) = available.iter().find(|isa| matches!(isa, Isa::Avx512 { .. })) {
            texts.push((format!("{file}.avx512"), shown(&plan, isa, &wide)));
        }
        if available.contains(&Isa::Avx2) && OF_EIGHT_LANES.contains(&file) {
            texts.push((format!("{file}.avx2"), shown(&plan, Isa::Avx2, &wide)));
        }
        for (file, got) in texts {
            let path = folder.join(&file);
            if std::env::var_os("KERNFUSION_BLESS").is_some() {
                std::fs::create_dir_all(&folder).expect("a folder");
                std::fs::write(&path, got).expect("writable");
            } else if std::fs::read_to_string(&path).expect("a snapshot") != got {
                different.push(format!("{} differs; it is now\n{got}", path.display()));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
