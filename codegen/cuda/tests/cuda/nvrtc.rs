//! NVRTC accepts the functions of products and chains, where it is installed.

use crate::judge::Case;
use crate::{groups, products};
use kernfusion_cuda::nvrtc::{Form, compile, is_present};
use kernfusion_cuda::{Options, Renderer};

/// The architectures of A100, H100 and B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100a"];

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
    for (tf32, tile) in [false, true].into_iter().flat_map(|tf32| tiles.map(|tile| (tf32, tile))) {
        let mut renderer = Renderer::new(Options { tf32, tile, ..Options::default() });
        let mut cases: Vec<Case> = products::few();
        if tile.is_some() {
            cases.truncate(4);
        }
        cases.push(groups::updates(true));
        cases.iter().for_each(|case| {
            renderer.program(&case.plan).expect("renders");
        });
        for (number, function) in renderer.functions().iter().enumerate() {
            let turn = |at: usize| all || (number + at).is_multiple_of(ARCHITECTURES.len());
            for (_, architecture) in ARCHITECTURES.iter().enumerate().filter(|(at, _)| turn(*at)) {
                let binary =
                    compile(function, architecture, Form::Cubin).unwrap_or_else(|error| panic!("{error}"));
                let used = binary.resources();
                assert!(used.registers > 0, "{}", binary.log);
                assert_eq!(
                    used.spills, 0,
                    "{} for {architecture}: {}\n{}",
                    function.name, binary.log, function.text
                );
            }
        }
    }
}
