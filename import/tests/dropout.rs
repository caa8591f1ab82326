//! Models that were exported for training draw random numbers: of the program's seed and step, with the probabilities that the archive says.

use crate::fixture;
use kernfusion::prelude::*;

/// The results for ones, of a seed and a step.
fn run(seed: u32, step: u32) -> Vec<Vec<f64>> {
    let program = fixture::archive("dropout").program().unwrap();
    let mut compiled = program.compile(&Target::cpu().states(), &Target::cpu()).unwrap();
    let ones = HostTensor::new([60, 50], vec![1.0f32; 3000]);
    let [seed, step] = [seed, step].map(|number| HostTensor::new([], [number]));
    let outputs = compiled.run(&[("x", &ones), ("seed", &seed), ("step", &step)]).unwrap();
    (0..4).map(|at| outputs.get(&format!("output.{at}")).unwrap().to_f64()).collect()
}

#[test]
fn elements_are_dropped_with_their_probability_and_the_others_grow() {
    let results = run(1, 0);
    for (at, dropped) in [(0, 0.25), (1, 0.1), (3, 0.5)] {
        let zeros = results[at].iter().filter(|&&x| x == 0.0).count() as f64 / 3000.0;
        // Five times the deviation of a mean of 3000.
        let bound = 5.0 * (dropped * (1.0 - dropped) / 3000.0f64).sqrt();
        assert!((zeros - dropped).abs() < bound, "output {at}: {zeros} of {dropped} are 0");
        let grown = 1.0 / (1.0 - dropped);
        assert!(results[at].iter().all(|&x| x == 0.0 || (x - grown).abs() < 1e-5), "output {at}");
    }
    let is_left: Vec<f64> = results[1].iter().map(|&x| f64::from(x != 0.0)).collect();
    assert_eq!(results[2], is_left, "the mask beside it");
    assert_eq!(run(1, 0), results);
    for other in [run(2, 0), run(1, 1)] {
        assert!([0, 1, 3].iter().all(|&at| other[at] != results[at]));
    }
}
