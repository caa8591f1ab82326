//! Tile primitives as the compiler of this crate made them.

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use kernfusion_runtime::isa::Isa;
use kernfusion_runtime::math::Tiles;
use std::collections::BTreeSet;

/// How many calls of functions of this program's own a function has: all instructions that may run are decoded, along every branch. Calls by way of a
/// table are those of panics, where arithmetic is checked: nothing comes back from them.
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

/// Functions of the standard library that take closures are compiled apart from what calls them, and called, unless a crate is one codegen unit. This
/// test's profile has several, as that of a program has that depends on this project; with such calls, a step of a Transformer took up
/// to a third longer.
#[test]
fn reductions_and_random_numbers_call_nothing() {
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
