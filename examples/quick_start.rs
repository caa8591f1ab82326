//! A network of two layers from scratch learns the exclusive or: parameters, loss, gradients and updates are traced into
//! one graph, which compiles into a few kernels.

use kernfusion::compile::Target;
use kernfusion::prelude::*;

fn main() -> Result<(), Error> {
    let trace = Trace::training();
    let x = trace.input("x", [4, 2], DType::F32);
    let y = trace.input("y", [4, 1], DType::F32);

    let hidden = Linear::new(&trace, "hidden", 2, 8, Init::Normal { std: 1.0 });
    let output = Linear::new(&trace, "output", 8, 1, Init::Normal { std: 1.0 });
    let logits = output.forward(&hidden.forward(&x).tanh());
    let loss = bce_with_logits(&logits, &y);

    // Gradients by all parameters and the optimizer's update belong to the same graph as the loss.
    let step = TrainStep::new(&loss, &Optimizer::adam(0.05), None)?;
    let states = step.program.initial_states(1)?;
    let mut program = step.program.compile(&states, &Target::cpu())?;
    println!(
        "{} parameters, {} kernels, compiled in {:.0?}",
        step.program.parameter_count(),
        program.report().kernels,
        program.report().total
    );

    let xs = HostTensor::new([4, 2], vec![0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]);
    let ys = HostTensor::new([4, 1], vec![0.0f32, 1.0, 1.0, 0.0]);
    let mut last = f32::INFINITY;
    for number in 1..=300 {
        let scalars = step.scalars(number, 0.05, 0);
        let mut inputs = vec![("x", &xs), ("y", &ys)];
        inputs.extend(scalars.iter().map(|(name, value)| (*name, value)));
        last = program.run(&inputs)?.scalar("loss").expect("the step has a loss");
        if number % 100 == 0 {
            println!("step {number}: loss {last:.4}");
        }
    }
    assert!(last < 0.05, "the network has not learnt");
    Ok(())
}
