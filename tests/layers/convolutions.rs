//! Convolutions and pooling.

use super::judge::check;
use kernfusion::prelude::*;

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
