//! The states of parameters that `quantize_weights` keeps as `i8`: each row is a scale times whole numbers from −127 to 127.

use super::Parameter;
use crate::HostTensor;
use kernfusion_ir::DType;
use kernfusion_passes::scale_of;

/// The largest of the whole numbers.
const LARGEST: f32 = 127.0;

/// The nearest whole number, ties to even, of one between −127 and 127; 0 of NaN. Where `round_ties_even` is a call, this is two additions:
/// beside 1.5 · 2²³ a number has no digits behind the point.
fn nearest(x: f32) -> i8 {
    const WHOLE: f32 = 12_582_912.0;
    ((x + WHOLE) - WHOLE) as i8
}

impl Parameter {
    /// The states that these values of the parameter are kept in, by name: one of its dtype and, if that is `i8`, the scales
    /// of its rows, `name.scale`. Each scale is the row's largest magnitude over 127.
    ///
    /// # Panics
    /// If there are not as many values as the shape says.
    pub fn kept(&self, values: Vec<f32>) -> Vec<(String, HostTensor)> {
        if self.dtype != DType::I8 {
            let values = HostTensor::new(self.shape.clone(), values).to_dtype(self.dtype);
            return vec![(self.name.clone(), values)];
        }
        let (rows, width) = self.shape.split_at(self.shape.len() - 1);
        let (mut numbers, mut scales) = (Vec::with_capacity(values.len()), vec![]);
        for row in values.chunks_exact(width[0].max(1)) {
            // A NaN stays to the end: it makes the scale one, and so whatever the row is used for.
            let larger = |largest: f32, x: &f32| {
                if x.abs() <= largest || largest.is_nan() { largest } else { x.abs() }
            };
            let largest = row.iter().fold(0.0, larger);
            // A row of zeros has any scale.
            let scale = if largest == 0.0 { 1.0 } else { largest / LARGEST };
            numbers.extend(row.iter().map(|x| nearest(x / scale)));
            scales.push(scale);
        }
        let (numbers, scales) = (HostTensor::new(self.shape.clone(), numbers), HostTensor::new(rows, scales));
        vec![(self.name.clone(), numbers), (scale_of(&self.name), scales)]
    }

    /// The name of the state that the parameter is kept in besides its own.
    pub fn companion(&self) -> Option<String> {
        (self.dtype == DType::I8).then(|| scale_of(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Target, compile};
    use crate::init::Init;
    use crate::nn::{Linear, Lora};
    use crate::optim::{Optimizer, TrainStep};
    use crate::testing::evaluate;
    use crate::trace::Trace;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_are_rounded_to_the_nearest_with_ties_to_even() {
        let halves = (-254..=254).map(|twice| twice as f32 / 2.0);
        let beside = halves.clone().flat_map(|x| [x.next_up(), x.next_down()]);
        for x in halves.chain(beside).chain([0.0, -0.0, f32::NAN]) {
            assert_eq!(nearest(x), x.round_ties_even() as i8, "{x}");
        }
    }

    /// Adapters that are trained on frozen matrices of bytes.
    #[test]
    fn what_is_trained_stays_f32() {
        let trace = Trace::training();
        trace.store_matrices(DType::I8);
        trace.adapt(&Lora { rank: 2, alpha: 1.0, dropout: 0.0, targets: vec!["up".into()] });
        let x = trace.input("x", [4, 3], DType::F32);
        let loss = Linear::builder(3, 5).init(Init::Ones).build(&trace, "up").forward(&x).square().mean_all();
        let step = TrainStep::new(&loss, &Optimizer::sgd(0.1), None).unwrap();
        let kept = |parameter: &Parameter| (parameter.name.clone(), parameter.dtype, parameter.trained);
        let kept: Vec<_> = step.program.parameters.iter().map(kept).collect();
        let expected = [
            ("up.weight", DType::I8, false),
            ("up.lora_a", DType::F32, true),
            ("up.lora_b", DType::F32, true),
            ("up.bias", DType::F32, false),
        ];
        assert_eq!(kept, expected.map(|(name, dtype, trained)| (name.to_string(), dtype, trained)));
        let mut program =
            compile(&step.program.graph, &step.program.initial_states(1).unwrap(), &Target::cpu()).unwrap();
        let x = HostTensor::new([4, 3], (0..12).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>());
        let losses: Vec<_> = (0..20)
            .map(|at| {
                let scalars = step.scalars(at, 0.1, 0);
                let given = scalars.iter().map(|(name, x)| (*name, x)).chain([("x", &x)]);
                program.run(&given.collect::<Vec<_>>()).unwrap().scalar("loss").unwrap()
            })
            .collect();
        assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
    }

    #[test]
    fn rows_are_scales_times_bytes() {
        let trace = Trace::new();
        trace.store_matrices(DType::I8);
        let matrix = trace.parameter("m", [3, 4], Init::Zeros);
        let vector = trace.parameter("v", [4], Init::Ones);
        let program = trace.finish(&[("matrix", &matrix), ("vector", &vector)]).unwrap();
        let values = [0.0, 0.0, 0.0, 0.0, 1.0, -2.54, 0.02, 0.5, 1e-20, 3e-20, -1e-21, 2e-20];
        let kept: BTreeMap<_, _> =
            program.parameters[0].kept(values.map(|x| x as f32).to_vec()).into_iter().collect();
        assert_eq!(kept.keys().map(String::as_str).collect::<Vec<_>>(), ["m", "m.scale"]);
        assert_eq!(kept["m"].ty().to_string(), "i8[3,4]");
        assert_eq!(kept["m"].to_f64()[4..8], [50.0, -127.0, 1.0, 25.0]);
        let inputs: Vec<_> = kept.iter().map(|(name, tensor)| (name.as_str(), tensor.to_f64())).collect();
        let read = evaluate(&program, &inputs);
        for (row, (read, values)) in read["matrix"].chunks(4).zip(values.chunks(4)).enumerate() {
            let scale = kept["m.scale"].to_f64()[row];
            for (read, value) in read.iter().zip(values) {
                assert!((read - value).abs() <= 0.5001 * scale, "row {row}: {read} for {value}");
            }
        }
        // No byte is a NaN, and so the scale says it.
        let broken: BTreeMap<_, _> = program.parameters[0]
            .kept(vec![f32::NAN, 1.0, 2.0, 3.0, 1.0, f32::NAN, 2.0, 3.0, 1.0, 2.0, 3.0, f32::INFINITY])
            .into_iter()
            .collect();
        let scales = broken["m.scale"].to_f64();
        assert!(scales[0].is_nan() && scales[1].is_nan() && scales[2].is_infinite(), "{scales:?}");
        // Vectors are few, and stay as they are.
        assert_eq!(read["vector"], [1.0; 4]);
    }
}
