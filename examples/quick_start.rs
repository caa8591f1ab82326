//! A network of two layers from scratch learns the exclusive or: parameters, loss, gradients and updates are traced into
//! one graph, which compiles into a few kernels.

use kernfusion::prelude::*;

fn main() -> Result<(), Error> {
    let trace = Trace::training();
    let x = trace.input("x", [4, 2], DType::F32);
    let y = trace.input("y", [4, 1], DType::F32);

    let hidden = Linear::new(&trace, "hidden", 2, 8);
    let output = Linear::new(&trace, "output", 8, 1);
    let logits = output.forward(&hidden.forward(&x).tanh());
    let loss = bce_with_logits(&logits, &y);

    // Gradients by all parameters and the optimizer's update belong to the same graph as the loss.
    let step = TrainStep::new(&loss, &Optimizer::adam(0.05), None)?;
    let parameters = step.program.parameter_count();
    let mut session = step.session(&Target::cpu(), 1)?;
    let report = session.compiled().report();
    println!("{parameters} parameters, {} kernels, compiled in {:.0?}", report.kernels, report.total);

    let xs = HostTensor::new([4, 2], [0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
    let ys = HostTensor::new([4, 1], [0.0f32, 1.0, 1.0, 0.0]);
    let mut last = f32::INFINITY;
    for number in 1..=300 {
        last = session.step(&[("x", &xs), ("y", &ys)])?;
        if number % 100 == 0 {
            println!("step {number}: loss {last:.4}");
        }
    }
    assert!(last < 0.05, "the network has not learnt");
    Ok(())
}
