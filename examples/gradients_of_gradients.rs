//! Derivatives are graphs, so they have derivatives: y = Σ sin³x, its gradient, and the gradient's gradient, compiled
//! together and compared with the closed forms.

use kernfusion::prelude::*;

fn main() -> Result<(), Error> {
    let trace = Trace::new();
    let x = trace.input("x", [5], DType::F32);
    let y = (x.sin() * x.sin() * x.sin()).sum_all();
    let first = y.grad(&[&x]).remove(0);
    let second = first.sum_all().grad(&[&x]).remove(0);
    let program = trace.finish(&[("first", &first), ("second", &second)])?;

    let states = program.initial_states(0)?;
    let mut compiled = program.compile(&states, &Target::cpu())?;
    let points = [-2.0f32, -0.7, 0.1, 0.9, 2.3];
    let results = compiled.run(&[("x", &HostTensor::new([5], points.to_vec()))])?;
    let column = |name| results.get(name).expect("an output").as_f32().expect("of f32").to_vec();

    println!("    x     y′ = 3 sin²x cos x    y″ = 6 sin x cos²x − 3 sin³x");
    for ((x, first), second) in points.into_iter().zip(column("first")).zip(column("second")) {
        let (s, c) = x.sin_cos();
        println!("{x:5.1}     {first:17.6}    {second:27.6}");
        assert!((first - 3.0 * s * s * c).abs() < 1e-5);
        assert!((second - (6.0 * s * c * c - 3.0 * s * s * s)).abs() < 1e-5);
    }
    Ok(())
}
