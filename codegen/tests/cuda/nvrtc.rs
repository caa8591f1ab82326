//! NVRTC accepts the functions of products and chains, where it is installed.

use crate::judge::Case;
use crate::{groups, products};
use kernfusion_codegen::cuda::nvrtc::{Form, compile, is_present};
use kernfusion_codegen::cuda::{Options, Renderer};

/// The architectures of A100, H100 and B200.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100a"];

#[test]
fn products_and_chains_compile_without_spills() {
    if !is_present() {
        println!("skipped: NVRTC is not installed");
        return;
    }
    for tf32 in [false, true] {
        let mut renderer = Renderer::new(Options { tf32, ..Options::default() });
        let mut cases: Vec<Case> = products::few();
        cases.push(groups::updates(true));
        cases.iter().for_each(|case| {
            renderer.program(&case.plan).expect("renders");
        });
        for function in renderer.functions() {
            for architecture in ARCHITECTURES {
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
