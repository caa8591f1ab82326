//! NVRTC accepts the functions of products, of chains and of sums over ranks, where it is installed.

use crate::judge::{Case, planned};
use crate::{collectives, gemv, groups, products, strips};
use kernfusion_cuda::nvrtc::{Binary, Form, compile, is_present};
use kernfusion_cuda::{Function, Options, Renderer};
use kernfusion_ir::samples::all;
use kernfusion_ir::{DType, Graph};
use kernfusion_passes::fuse::Fusion;
use std::collections::BTreeSet;

/// The architectures of A100, H100 and B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// Every function is compiled for one of the architectures in turn, or for each of them if `KERNFUSION_ARCHITECTURES` is `all`.
#[test]
fn products_and_chains_compile_without_spills() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let all = std::env::var_os("KERNFUSION_ARCHITECTURES").is_some_and(|value| value == "all");
    // The large tile is that of products with many tiles anyway.
    let tiles = [None, Some([128, 64]), Some([64, 128])];
    // Chains do not depend on the tile of products: each of their kernels is compiled once.
    let mut seen = BTreeSet::new();
    for (tf32, tile) in [false, true].into_iter().flat_map(|tf32| tiles.map(|tile| (tf32, tile))) {
        let mut renderer = Renderer::new(Options { tf32, tile, ..Options::default() });
        let mut cases: Vec<Case> = products::few();
        if tile.is_some() {
            cases.truncate(7);
        }
        cases.push(groups::updates(true));
        cases.extend(strips::every_width());
        cases.iter().for_each(|case| {
            renderer.program(&case.plan).expect("renders");
        });
        let different = renderer.functions().iter().filter(|function| seen.insert(function.text.clone()));
        for (number, function) in different.enumerate() {
            let turn = |at: usize| all || (number + at).is_multiple_of(ARCHITECTURES.len());
            for (_, architecture) in ARCHITECTURES.iter().enumerate().filter(|(at, _)| turn(*at)) {
                check(function, architecture);
            }
        }
    }
}

/// NVRTC refuses some code that the emulator's compiler accepts. One in eight of `selftest`'s samples, and truth values in twos; all samples if
/// `KERNFUSION_SAMPLES` is `all` (half a minute).
#[test]
fn samples_compile() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let every = std::env::var_os("KERNFUSION_SAMPLES").is_some_and(|value| value == "all");
    let mut renderer = Renderer::new(Options::default());
    for (number, sample) in all(1).iter().enumerate() {
        if every || number.is_multiple_of(8) || sample.name == "product.signs" {
            renderer.program(&planned(&sample.graph, Fusion::Full)).expect("renders");
        }
    }
    for (number, function) in renderer.functions().iter().enumerate() {
        let architecture = ARCHITECTURES[number % ARCHITECTURES.len()];
        compile(function, architecture, Form::Cubin).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn products_of_few_rows_compile_without_spills() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let mut renderer = Renderer::new(Options::default());
    let of_half_bytes = gemv::of_half_bytes().into_iter().map(|case| case.plan);
    for plan in gemv::every_type().into_iter().chain(of_half_bytes) {
        renderer.program(&plan).expect("renders");
    }
    for (number, function) in renderer.functions().iter().enumerate() {
        check(function, ARCHITECTURES[number % ARCHITECTURES.len()]);
    }
}

/// Products of warpgroups go on while others start: nothing that the compiler does between them makes each wait for the one before.
#[test]
fn products_of_warpgroups_compile_without_spills_and_go_on() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    for tile in [[128, 64], [64, 128], [128, 128], [128, 256]] {
        let mut renderer = Renderer::new(products::by_warpgroups(tile));
        for case in products::warpgroup_products() {
            renderer.program(&case.plan).expect("renders");
        }
        renderer.functions().iter().for_each(|function| drop(goes_on(function)));
    }
}

/// As above, of attention and its gradients.
#[test]
fn chains_of_warpgroups_compile_without_spills_and_go_on() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let mut renderer = Renderer::new(strips::by_warpgroups());
    for plan in strips::of_long_sequences() {
        renderer.program(&plan).expect("renders");
    }
    let binaries: Vec<_> = renderer.functions().iter().map(goes_on).collect();
    // 65,536 registers for three blocks of 128 threads.
    let lets_three_in = |binary: &&Binary| binary.resources().registers <= 168;
    let wanted = renderer.functions().iter().filter(|function| function.blocks == 3).count();
    assert!(wanted >= 4 && binaries.iter().filter(lets_three_in).count() >= wanted, "{wanted}");
}

/// A feed-forward network in one kernel, whose weights are converted while panels are filled: loads of all of a panel at once would not
/// fit into registers.
#[test]
fn chains_of_converted_weights_compile_without_spills() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let graph = Graph::parse(
        "graph \"network\" {
  %x = input {name = \"x\", dtype = bf16, shape = [768, 128]} : bf16[768,128]
  %up = input {name = \"up\", dtype = f32, shape = [512, 128]} : f32[512,128]
  %down = input {name = \"down\", dtype = f32, shape = [128, 512]} : f32[128,512]
  %a = cast %up {dtype = bf16} : bf16[512,128]
  %h = dot_general %x, %a {lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [1], dtype = f32} : f32[768,512]
  %e = erf %h : f32[768,512]
  %g = cast %e {dtype = bf16} : bf16[768,512]
  %b = cast %down {dtype = bf16} : bf16[128,512]
  %y = dot_general %g, %b {lhs_batch = [], rhs_batch = [], lhs_contract = [1], rhs_contract = [1], dtype = f32} : f32[768,128]
  output \"y\" = %y
}",
    )
    .expect("a graph");
    for (options, architecture) in [(Options::default(), "sm_80"), (strips::by_warpgroups(), "sm_90a")] {
        let mut renderer = Renderer::new(options);
        renderer.program(&planned(&graph, Fusion::Full)).expect("renders");
        let functions = renderer.functions();
        assert!(functions.len() == 1 && functions[0].text.contains("fill_deep"), "a chain");
        check(&functions[0], architecture);
    }
}

/// The maximum of a row and the differences from it are those of the same products, rounded once: −1e30 times 0.3 minus itself is nothing.
#[test]
fn products_are_rounded_before_differences_of_powers() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let graph = Graph::parse(
        "graph \"softmax\" {
  %x = input {name = \"x\", dtype = f32, shape = [64, 40000]} : f32[64,40000]
  %c = constant {dtype = f32, value = 0.3} : f32[]
  %b = broadcast %c {shape = [64, 40000], axes = []} : f32[64,40000]
  %s = mul %x, %b : f32[64,40000]
  %m = reduce %s {op = max, axes = [1]} : f32[64]
  %n = broadcast %m {shape = [64, 40000], axes = [0]} : f32[64,40000]
  %d = sub %s, %n : f32[64,40000]
  %e = exp %d : f32[64,40000]
  %a = reduce %e {op = sum, axes = [1]} : f32[64]
  %w = broadcast %a {shape = [64, 40000], axes = [0]} : f32[64,40000]
  %y = div %e, %w : f32[64,40000]
  output \"y\" = %y
}",
    )
    .expect("a graph");
    let mut renderer = Renderer::new(Options::default());
    renderer.program(&planned(&graph, Fusion::Full)).expect("renders");
    let [function] = renderer.functions() else { panic!("one kernel") };
    let ptx = kernfusion_cuda::ptx(function, "compute_80").expect("compiles");
    // 0.3 as bits.
    let with_factor: Vec<_> = ptx.lines().filter(|line| line.contains("0f3E99999A")).collect();
    let is_rounded = |line: &&str| line.contains("mul.");
    assert!(!with_factor.is_empty() && with_factor.iter().all(is_rounded), "{with_factor:?}");
    assert!(ptx.contains("sub.rn.f32"), "{ptx}");
}

/// The function, compiled without a spill or local memory, and without waits beside its own.
fn goes_on(function: &Function) -> Binary {
    let binary = check(function, "sm_90a");
    assert!(!binary.log.contains("serialized"), "{}", binary.log);
    binary
}

fn check(function: &Function, architecture: &str) -> Binary {
    let binary = compile(function, architecture, Form::Cubin).unwrap_or_else(|error| panic!("{error}"));
    let used = binary.resources();
    assert!(used.registers > 0, "{}", binary.log);
    let in_memory = (used.spills, used.local);
    assert_eq!(in_memory, (0, 0), "{} for {architecture}: {}\n{}", function.name, binary.log, function.text);
    binary
}

#[test]
fn sums_of_what_ranks_have_compile_without_spills() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    let mut renderer = Renderer::new(collectives::second_of_four());
    for dtype in [DType::F32, DType::BF16] {
        renderer.program(&collectives::sum(dtype)).expect("renders");
    }
    assert_eq!(renderer.functions().len(), 2);
    for function in renderer.functions() {
        for architecture in ARCHITECTURES {
            check(function, architecture);
        }
    }
}
