//! Tile primitives as the compiler of this crate made them.

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::math::Tiles;
use std::collections::BTreeSet;

/// How many direct calls a function has. Every branch is decoded, up to indirect calls: those are panics of checked arithmetic here, which do not
/// return.
fn calls(function: *const u8) -> usize {
    let (mut open, mut seen, mut calls) = (vec![function as u64], BTreeSet::new(), 0);
    while let Some(mut address) = open.pop() {
        while seen.insert(address) {
            // SAFETY: code of this program, with more of it behind.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, 15) };
            let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
            match instruction.flow_control() {
                FlowControl::Next => {}
                FlowControl::Call => calls += 1,
                FlowControl::ConditionalBranch => open.push(instruction.near_branch_target()),
                FlowControl::UnconditionalBranch => {
                    open.push(instruction.near_branch_target());
                    break;
                }
                _ => break,
            }
            address = instruction.next_ip();
        }
    }
    assert!(seen.len() > 20, "a whole function, not {} instructions", seen.len());
    calls
}

/// In several codegen units, which this test's profile has as Cargo's default profile does, functions of the standard library that take closures
/// may remain calls. With them, a training step took up to a third longer.
#[test]
fn primitives_call_nothing() {
    for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Portable) {
        for name in [
            "sum_f32",
            "product_f32",
            "max_f32",
            "min_f32",
            "exp_f32",
            "log_f32",
            "tanh_f32",
            "erf_f32",
            "philox",
        ] {
            let address = Tiles::of(isa).get(name).expect("a primitive");
            assert_eq!(calls(address), 0, "{name} on {isa}");
        }
    }
}
