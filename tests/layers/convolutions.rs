//! Convolutions and pooling.

use super::judge::{Named, check, compare, reference, run};
use kernfusion::compile::{Precision, Stages, Target};
use kernfusion::prelude::*;
use kernfusion_cpu::isa::{Bf16Unit, Isa};
use kernfusion_ir::Op;
use kernfusion_ir::random::element_bits;
use kernfusion_passes::MemoryStrategy;

#[test]
fn over_sequences() {
    check("conv1d", 2e-6, |trace, inputs| {
        let window = Window { stride: [2], padding: [2], dilation: [2], ..Window::new([3]) };
        Ok(Convolution::new(trace, "conv", [3, 4], window, Init::Zeros).forward(&inputs.get("x")))
    });
    check("conv_transposed1d", 2e-6, |trace, inputs| {
        let window = Window { stride: [2], padding: [1], ..Window::new([4]) };
        Ok(TransposedConvolution::new(trace, "conv", [3, 2], window, Init::Zeros).forward(&inputs.get("x")))
    });
    check("max_pool1d", 2e-6, |_, inputs| {
        Ok(inputs.get("x").max_pool(Window { stride: [2], padding: [1], ..Window::new([3]) }))
    });
}

#[test]
fn over_images() {
    check("conv2d", 2e-6, |trace, inputs| {
        let window = Window { stride: [2, 1], padding: [1, 0], dilation: [1, 2], ..Window::new([3, 2]) };
        Ok(Convolution::new(trace, "conv", [2, 3], window, Init::Zeros).forward(&inputs.get("x")))
    });
    check("conv_transposed2d", 2e-6, |trace, inputs| {
        let window = Window { stride: [1, 3], padding: [2, 0], dilation: [2, 1], ..Window::new([3, 2]) };
        Ok(TransposedConvolution::new(trace, "conv", [2, 3], window, Init::Zeros).forward(&inputs.get("x")))
    });
    check("max_pool2d", 2e-6, |_, inputs| {
        Ok(inputs.get("x").max_pool(Window { stride: [2, 2], dilation: [1, 2], ..Window::new([2, 3]) }))
    });
}

/// Large enough that fewer multiplications pay: the result, and the gradients by image and weights, of which each has its form of it. Rows that
/// do not come out even, against sums in `f64`, on every instruction set.
#[test]
fn large_ones_three_rows_high_multiply_less() {
    let trace = Trace::training();
    let x = trace.input("x", [3, 48, 17, 18], DType::F32);
    let window = Window { padding: [1, 1], ..Window::new([3, 3]) };
    let layer = Convolution::new(&trace, "conv", [48, 40], window, Init::Zeros);
    let y = layer.forward(&x);
    let loss = (&y * trace.input("t", y.shape(), DType::F32)).sum_all();
    let gradients = loss.grad(&[&x, &layer.weight]);
    let outputs = [("y", &y), ("dx", &gradients[0]), ("dw", &gradients[1])];
    let program = trace.finish(&outputs).expect("correct");

    let sixes = |target: Target| {
        let mut simplified = program.graph.clone();
        let stages = Stages::new(&target, MemoryStrategy::NONE);
        stages.simplify(&mut simplified, None, &mut |_, _| {}).expect("simplifies");
        let is_six = |id: &_| matches!(&simplified[*id].op, Op::Windows(windows) if windows.stride == [4, 1] && windows.places == [6, 1]);
        simplified.ids().filter(is_six).count()
    };
    assert_eq!(sixes(Target::cpu()), 2, "of the image, for two of the three, and of the gradient");
    for isa in Isa::available() {
        let is_quick = matches!(isa, Isa::Avx512 { bf16 } if bf16 != Bf16Unit::None);
        let expected = if is_quick { 0 } else { 2 };
        assert_eq!(sixes(Target::cpu().precision(Precision::Bf16).isa(isa)), expected, "{isa} in bf16");
    }

    let value = |name: &str, elements: usize| {
        let seed = name.bytes().map(u32::from).sum();
        let number = |at| f64::from(element_bits(7, seed, 0, at)) / f64::from(u32::MAX) - 0.5;
        (name.to_string(), (0..elements as u64).map(|at| f64::from(number(at) as f32)).collect())
    };
    let given: Named =
        program.graph.inputs().map(|(id, name, _)| value(name, program.graph[id].ty.elements())).collect();
    let expected = reference(&program, &given);
    for isa in Isa::available() {
        let target = Target::cpu().threads(2).isa(isa);
        compare("three rows high", &isa.to_string(), 5e-6, &expected, &run(&program, &given, &target));
        let target = target.precision(Precision::Bf16);
        compare("in bf16", &isa.to_string(), 2e-2, &expected, &run(&program, &given, &target));
    }
}

#[test]
fn windows_that_do_not_fit_are_refused_at_the_call() {
    let trace = Trace::new();
    let x = trace.input("x", [1, 2, 4], DType::F32);
    let conv = Convolution::new(&trace, "conv", [2, 3], Window::new([5]), Init::Zeros);
    let (line, _) = (line!(), conv.forward(&x));
    let error = trace.finish(&[]).expect_err("no place").to_string();
    assert!(error.starts_with("convolution(f32[1,2,4]): no place for Window { kernel: [5]"), "{error}");
    assert!(error.contains(&format!("{}:{line}:", file!())), "{error}");
}
